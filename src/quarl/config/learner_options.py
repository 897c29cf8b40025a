"""What `quarl train` and `quarl actorq` can both be told: the learner, what it learns in, and how often it is kept.

The options lie in a file beside the run. One that goes on has its own, but for what may change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from quarl.config.base import (
    ASIDE,
    LOUDNESS,
    Config,
    Edges,
    Flag,
    MeteredConfig,
    Steps,
    at_least_one,
    check_device,
    check_types,
    hyperparameters,
    zero_is_off,
)
from quarl.config.environment import OPTIONS, EnvironmentConfig
from quarl.config.groups import ADVANCED, ENVIRONMENT, OUTPUT, QUANTISATION, TRAINING, shown
from quarl.errors import QuarlError, UnsupportedError, did_you_mean
from quarl.quant.spec import EDGES, QatSpec
from quarl.removed import without_removed

L = TypeVar("L", bound="LearnerOptions")
CONTRIB = ("trpo", "maskableppo", "tqc", "crossq", "qrdqn", "ars")
"""Algorithms of sb3-contrib, whose agents are read and not trained here."""
SAVE_MINUTES = 5.0
"""What a crash may cost at most where nothing else is said."""


@dataclass(frozen=True, kw_only=True)
class LearnerOptions(EnvironmentConfig, MeteredConfig):
    """A verb that trains an agent."""

    learners: ClassVar[tuple[str, ...]]
    """Algorithms that the verb trains."""
    new: ClassVar[tuple[str, ...]] = ("resume", *ASIDE)
    """Options that say which run it is and what to do with it."""
    free: ClassVar[tuple[str, ...]] = (
        *("n_timesteps", "params", "device", "track", "eval_freq", "save_freq", "save_minutes"),
        *OPTIONS,
    )
    """Options that a run which goes on may have anew; the run's where they are not given."""

    qat_options: ClassVar[tuple[str, ...]] = ("quant_delay", "qat_mid_tread")
    """Options that go with `qat` only."""

    algo: Annotated[str, shown("NAME")]
    """Learner."""
    env: Annotated[str, shown("ID"), ENVIRONMENT] = "CartPole-v1"
    """Gymnasium id; dm_control/cheetah-run-v0 and dm_control,cheetah_run are the same task. my_module:MyEnv-v0 imports
    my_module first, which registers it."""
    n_timesteps: Steps = None
    """Environment steps, of all actors together; of a run that goes on, all from its beginning."""
    params: Annotated[tuple[str, ...], shown("NAME:VALUE ...", "-params", "--hyperparams"), TRAINING] = ()
    """Hyper-parameters by the zoo's and Stable-Baselines3's names, over the tuned ones, as in learning_rate:lin_1e-3
    policy_kwargs:"dict(net_arch=[64], activation_fn=nn.ReLU)"."""
    qat: Annotated[str | None, shown("BITS", default="train in float32"), QUANTISATION] = None
    """Precision to train for."""
    edge_bits: Edges = EDGES
    """Bits of the first and last layers of a precision that asks for fewer, or one width in all layers."""
    qat_mid_tread: Annotated[Flag, QUANTISATION] = False
    """Give weights of 2 and 3 bits a level at 0 in training; else levels lie on both sides of it."""
    quant_delay: Annotated[int | None, shown("N", default="half of the run"), QUANTISATION] = None
    """Environment steps before fake quantisation acts; until then only ranges are watched, and actors run plainly
    quantised weights."""
    learner_dtype: Annotated[Literal["fp32", "bf16", "fp16"], ADVANCED] = "fp32"
    """Autocast of the updates' matrix products; fp16 with loss scaling."""
    eval_freq: Annotated[int, TRAINING] = 25_000
    """Environment steps between evaluations, which stop the training clock; in quarl train they wait for a rollout's
    end; 0: only at the end."""
    eval_episodes: Annotated[int, TRAINING] = 20
    """Episodes of an evaluation; 0: nothing is evaluated."""
    save_freq: Annotated[int, TRAINING] = 50_000
    """Environment steps between checkpoints, replay included; 0: only those of --save-minutes."""
    save_minutes: Annotated[float, TRAINING] = SAVE_MINUTES
    """Minutes after a checkpoint within which there is another, however slow the environment; 0: steps alone count."""
    resume: Flag = False
    """Go on from the last checkpoint, with the run's options."""
    track: Annotated[Literal["none", "tensorboard", "wandb", "trackio"], OUTPUT] = "none"
    """Also write the learner's metrics as TensorBoard events, or in the project quarl of Weights & Biases or Trackio,
    whose own variables say where that is (WANDB_MODE, TRACKIO_DIR)."""
    device: Annotated[str, shown("NAME"), ADVANCED] = "auto"
    """The learner's device."""
    seed: int = 0
    """Seed of learner, environments, exploration and evaluations."""

    def check(self) -> None:
        super().check()
        if self.algo not in self.learners:
            raise UnsupportedError(unknown_algorithm(self.algo, self.learners))
        at_least_one(n_timesteps=self.n_timesteps)
        intervals = {name: getattr(self, name) for name in ("eval_freq", "save_freq", "save_minutes")}
        zero_is_off(eval_episodes=self.eval_episodes, **intervals)
        if self.quant_delay is not None and self.quant_delay < 0:
            raise QuarlError(f"--quant-delay must not be negative, got {self.quant_delay}")
        check_device(self.device)
        self.hyperparameters()
        # of a run that is gone on with, its file says whether it has a precision
        if self.qat is None and not self.resume:
            self.refuse(self.qat_options, "is about quantisation-aware training", "say which precision with --qat")
        self.spec()

    def hyperparameters(self) -> dict[str, Any]:
        """`params` by name, as a config.yml has them."""
        return hyperparameters(self.params)

    def spec(self) -> QatSpec | None:
        """What to train for; None: float32."""
        options = [name for name in self.qat_options if name.startswith("qat_")]
        given = {name.removeprefix("qat_"): getattr(self, name) for name in options}
        return None if self.qat is None else QatSpec.parse(self.qat, edges=self.edge_bits, **given)

    def delay(self, n_timesteps: int) -> int | None:
        """Steps of a run of `n_timesteps` before fake quantisation acts; refuses a delay that the run never reaches."""
        if self.qat is None:
            return None
        delay = n_timesteps // 2 if self.quant_delay is None else self.quant_delay
        if delay >= n_timesteps:
            raise QuarlError(
                f"--quant-delay {delay:,} is not within the run of {n_timesteps:,} steps: quantisation would never act"
            )
        return delay


def unknown_algorithm(algo: str, known: tuple[str, ...]) -> str:
    """What is said of a name that is none of the `known`; of sb3-contrib's, that its agents are read all the same."""
    if algo.lower() in CONTRIB and algo not in known:
        trained = "train it with sb3-contrib, whose agents quarl ptq, eval and distill take"
        return f"{algo} is not trained here (what is: {', '.join(known)}): {trained}"
    return f"unknown algorithm {algo!r}{did_you_mean(algo.lower(), known)} (known: {', '.join(known)})"


def plain(value: Any) -> Any:
    """The value in YAML's own types."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def options_of(config: Config) -> dict[str, Any]:
    """The options by their names, in YAML's own types."""
    names = [field.name for field in dataclasses.fields(config) if field.name not in LOUDNESS]
    return {name: plain(getattr(config, name)) for name in names}


def completed(config: L, saved: Mapping[str, Any], where: Path) -> L:
    """`config` completed by the run's options `saved`; QuarlError where they contradict each other.

    where: the file of these. An option counts as given where it was typed, or is not the default.
    """
    values: dict[str, Any] = {}
    saved = without_removed(saved, where)
    for field in dataclasses.fields(config):
        name, here = field.name, getattr(config, field.name)
        given = name in config.typed or here != field.default
        if name == "params":
            # one by one: those of the run that are not given anew hold on
            before = saved.get(name, [])
            if not isinstance(before, list) or not all(isinstance(word, str) for word in before):
                raise QuarlError(f"{where} is malformed: params are no list of NAME:VALUE")
            words = {word.partition(":")[0]: word for word in (*before, *here)}
            values[name] = tuple(words.values())
            continue
        if name in config.new or (name in config.free and given):
            values[name] = here
            continue
        if name not in saved and name not in config.free:
            raise QuarlError(f"{where} does not say {name}; it is no run of quarl {config.verb}")
        value = saved.get(name, field.default)
        values[name] = tuple(value) if isinstance(field.default, tuple) and isinstance(value, list) else value
        there = values[name]
        if name == "qat" and given:  # 8 and w8a8 are the same
            here, there = (
                QatSpec.parse(str(words), edges="same").precision if words else "fp32" for words in (here, there)
            )
        if given and here != there:
            raise QuarlError(f"--{name.replace('_', '-')} is {here} here and {there} in {where}; resume without it")
        if name == "env" and here != there and ":" in str(there):  # a module's: to make it is to import it
            raise QuarlError(f"{where} names a module to import, which only you may do: add --env {there}")
    options = type(config)(**values)
    try:
        check_types(options)
        # it was not resumed when it began, perhaps from a file
        type(config)(**values | {"resume": False}).check()
    except (TypeError, AttributeError, ValueError) as error:
        raise QuarlError(f"{where} is malformed: {str(error)[:100]}") from None
    return options
