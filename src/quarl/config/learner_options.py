"""Options that `quarl train` and `quarl actorq` share: the learner, its environment, and the checkpoints.

The options are saved in a file beside the run. A resumed run uses its saved ones, except those that may change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from quarl.config.base import ASIDE, LOUDNESS, Config, MeteredConfig, Steps, check_device, hyperparameters
from quarl.config.environment import OPTIONS, EnvironmentConfig
from quarl.errors import QuarlError, UnsupportedError, did_you_mean
from quarl.fields import ADVANCED, ENVIRONMENT, NOT_NEGATIVE, OUTPUT, QUANTISATION, TRAINING, ZERO_IS_OFF, shown
from quarl.quant.spec import EDGES, QatSpec
from quarl.removed import without_removed
from quarl.specs import SEED, Edges, Flag, check_types

L = TypeVar("L", bound="LearnerOptions")
CONTRIB = ("trpo", "maskableppo", "ppo_lstm", "tqc", "crossq", "qrdqn", "ars")
"""Algorithms of sb3-contrib, whose agents are read but not trained here."""
SAVE_MINUTES = 5.0
"""Default maximum loss of training time in a crash, in minutes."""


@dataclass(frozen=True, kw_only=True)
class LearnerOptions(EnvironmentConfig, MeteredConfig):
    """A verb that trains an agent."""

    learners: ClassVar[tuple[str, ...]]
    """Algorithms that the verb trains."""
    new: ClassVar[tuple[str, ...]] = ("resume", *ASIDE)
    """Options that identify the run, or apply to this command alone."""
    free: ClassVar[tuple[str, ...]] = (
        *("n_timesteps", "params", "device", "track", "eval_freq", "save_freq", "save_minutes"),
        *OPTIONS,
    )
    """Options that may change in a resumed run; the run's values apply if they are not given."""

    qat_options: ClassVar[tuple[str, ...]] = ("quant_delay", "qat_mid_tread")
    """Options that require `qat`."""

    algo: Annotated[str, shown("NAME")]
    """Learner."""
    env: Annotated[str, shown("ID"), ENVIRONMENT] = "CartPole-v1"
    """Gymnasium id; dm_control/cheetah-run-v0 and dm_control,cheetah_run are the same task. my_module:MyEnv-v0 first
    imports my_module, which registers it.
    """
    n_timesteps: Steps = None
    """Total environment steps of all actors; for a resumed run, counted from its beginning."""
    params: Annotated[tuple[str, ...], shown("NAME:VALUE ...", "-params", "--hyperparams"), TRAINING] = ()
    """Hyper-parameters by the zoo's and Stable-Baselines3's names, which override the tuned ones, as in
    learning_rate:lin_1e-3 policy_kwargs:"dict(net_arch=[64], activation_fn=nn.ReLU)".
    """
    qat: Annotated[str | None, shown("BITS", default="train in float32"), QUANTISATION] = None
    """Precision to train for."""
    edge_bits: Edges = EDGES
    """Minimum bits of the first and last layers; same gives all layers one width."""
    qat_mid_tread: Annotated[Flag, QUANTISATION] = False
    """Give weights of 2 and 3 bits a level at 0 in training; otherwise the levels are on both sides of 0."""
    quant_delay: Annotated[int | None, shown("N", default="half of the run"), QUANTISATION, NOT_NEGATIVE] = None
    """Environment steps before fake quantization begins. Until then only ranges are observed, and quarl actorq's actors
    run plainly quantized weights.
    """
    learner_dtype: Annotated[Literal["fp32", "bf16", "fp16"], ADVANCED] = "fp32"
    """Autocast of the updates' matrix products; fp16 uses loss scaling."""
    eval_freq: Annotated[int, TRAINING, ZERO_IS_OFF] = 25_000
    """Environment steps between evaluations, which stop the training clock; quarl train plays them after a rollout. 0
    evaluates only at the end.
    """
    eval_episodes: Annotated[int, TRAINING, ZERO_IS_OFF] = 20
    """Episodes of an evaluation; 0 turns evaluations off."""
    save_freq: Annotated[int, TRAINING, ZERO_IS_OFF] = 50_000
    """Environment steps between checkpoints, replay included; 0 leaves only those of --save-minutes."""
    save_minutes: Annotated[float, TRAINING, ZERO_IS_OFF] = SAVE_MINUTES
    """Maximum minutes between checkpoints, even in a slow environment; 0 counts only steps."""
    resume: Flag = False
    """Resume from the last checkpoint, with the run's options."""
    track: Annotated[Literal["none", "tensorboard", "wandb"], OUTPUT] = "none"
    """Also log the learner's metrics as TensorBoard events, or to the project quarl of Weights & Biases, which has its
    own variables (WANDB_MODE).
    """
    device: Annotated[str, shown("NAME"), ADVANCED] = "auto"
    """Device of the learner."""
    seed: Annotated[int, SEED] = 0
    """Seed of learner, environments, exploration and evaluations."""

    def check(self) -> None:
        super().check()
        if self.algo not in self.learners:
            raise UnsupportedError(unknown_algorithm(self.algo, self.learners))
        check_device(self.device)
        self.hyperparameters()
        # The file of a resumed run defines its precision.
        if self.qat is None and not self.resume:
            self.refuse(self.qat_options, "requires quantization-aware training", "add a precision with --qat")
        self.spec()

    def hyperparameters(self) -> dict[str, Any]:
        """Return `params` by name, as in a config.yml."""
        return hyperparameters(self.params)

    def spec(self) -> QatSpec | None:
        """Return the precision to train for; None means float32."""
        options = [name for name in self.qat_options if name.startswith("qat_")]
        given = {name.removeprefix("qat_"): getattr(self, name) for name in options}
        return None if self.qat is None else QatSpec.parse(self.qat, edges=self.edge_bits, **given)

    def delay(self, n_timesteps: int) -> int | None:
        """Return the steps of a run of `n_timesteps` before fake quantization begins; refuse a delay beyond its end."""
        if self.qat is None:
            return None
        delay = n_timesteps // 2 if self.quant_delay is None else self.quant_delay
        if delay >= n_timesteps:
            raise QuarlError(
                f"--quant-delay {delay:,} is beyond the run's {n_timesteps:,} steps: quantization would never begin"
            )
        return delay


def unknown_algorithm(algo: str, known: tuple[str, ...]) -> str:
    """Return the error message for an unknown algorithm; for sb3-contrib's, mention the verbs that read agents."""
    if algo.lower() in CONTRIB and algo not in known:
        trained = "train it with sb3-contrib; quarl ptq, eval and distill read its agents"
        return f"{algo} cannot be trained here (available: {', '.join(known)}): {trained}"
    return f"unknown algorithm {algo!r}{did_you_mean(algo.lower(), known)} (known: {', '.join(known)})"


def yaml_values(value: Any) -> Any:
    """Return the value in YAML's own types."""
    if isinstance(value, Mapping):
        return {key: yaml_values(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [yaml_values(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def options_of(config: Config) -> dict[str, Any]:
    """Return the options by name, in YAML's own types."""
    names = [field.name for field in dataclasses.fields(config) if field.name not in LOUDNESS]
    return {name: yaml_values(getattr(config, name)) for name in names}


def completed(config: L, saved: Mapping[str, Any], source: Path) -> L:
    """Return `config` completed by the run's saved options.

    An option counts as explicit if it was typed or differs from the default.

    Args:
        config: Options of the command.
        saved: Options of the run.
        source: File of the saved options.

    Raises:
        QuarlError: If they contradict each other, or the file is malformed.
    """
    values: dict[str, Any] = {}
    saved = without_removed(saved, source)
    for field in dataclasses.fields(config):
        name, here = field.name, getattr(config, field.name)
        given = name in config.typed or here != field.default
        if name == "params":
            # Merge parameters one by one: the run's values hold unless they are given again.
            before = saved.get(name, [])
            if not isinstance(before, list) or not all(isinstance(word, str) for word in before):
                raise QuarlError(f"{source} is malformed: params is not a list of NAME:VALUE")
            words = {word.partition(":")[0]: word for word in (*before, *here)}
            values[name] = tuple(words.values())
            continue
        if name in config.new or (name in config.free and given):
            values[name] = here
            continue
        if name not in saved and name not in config.free:
            raise QuarlError(f"{source} lacks {name}; it is not from a run of quarl {config.verb}")
        value = saved.get(name, field.default)
        values[name] = tuple(value) if isinstance(field.default, tuple) and isinstance(value, list) else value
        there = values[name]
        if name == "qat" and given:  # 8 and w8a8 are the same
            here, there = (
                QatSpec.parse(str(words), edges="same").precision if words else "fp32" for words in (here, there)
            )
        if given and here != there:
            raise QuarlError(f"--{name.replace('_', '-')} is {here} here and {there} in {source}; resume without it")
        if name == "env" and here != there and ":" in str(there):  # creating such an environment imports its module
            raise QuarlError(f"{source} names a module to import, which needs your consent: add --env {there}")
    options = type(config)(**values)
    try:
        check_types(options)
        # the original command was not a resumed one, perhaps from a file
        type(config)(**values | {"resume": False}).check()
    except (TypeError, AttributeError, ValueError) as error:
        raise QuarlError(f"{source} is malformed: {str(error)[:100]}") from None
    return options
