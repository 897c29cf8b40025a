"""What `quarl train` and `quarl actorq` can both be told: the learner, what it learns in, and how often it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from tyro.conf import arg

from quarl.config.base import (
    METERED,
    Flag,
    MeteredConfig,
    Steps,
    at_least_one,
    check_device,
    hyperparameters,
    zero_is_off,
)
from quarl.config.environment import OPTIONS, EnvironmentConfig
from quarl.errors import QuarlError, UnsupportedError, did_you_mean
from quarl.quant.spec import QatSpec

SAVE_MINUTES = 5.0
"""What a crash may cost at most where nothing else is said."""


@dataclass(frozen=True, kw_only=True)
class LearnerOptions(EnvironmentConfig, MeteredConfig):
    """A verb that trains an agent."""

    learners: ClassVar[tuple[str, ...]]
    """Algorithms that the verb trains."""
    new: ClassVar[tuple[str, ...]] = ("resume", "json", *METERED)
    """Options that say which run it is and what to do with it."""
    free: ClassVar[tuple[str, ...]] = (
        *("n_timesteps", "params", "device", "track", "eval_freq", "save_freq", "save_minutes"),
        *OPTIONS,
    )
    """Options that a run which goes on may have anew; the run's where they are not given."""

    qat_options: ClassVar[tuple[str, ...]] = ("quant_delay",)
    """Options that go with `qat` only."""

    algo: Annotated[str, arg(metavar="NAME")]
    """Learner."""
    env: Annotated[str, arg(metavar="ID")] = "CartPole-v1"
    """Gymnasium id; dm_control/cheetah-run-v0 and dm_control,cheetah_run are the same task. my_module:MyEnv-v0 imports
    my_module first, which registers it."""
    n_timesteps: Steps = None
    """Environment steps, of all actors together; of a run that goes on, all from its beginning."""
    params: Annotated[tuple[str, ...], arg(aliases=["-params", "--hyperparams"], metavar="NAME:VALUE ...")] = ()
    """Hyper-parameters by the zoo's and Stable-Baselines3's names, over the tuned ones, as in learning_rate:lin_1e-3
    policy_kwargs:"dict(net_arch=[64], activation_fn=nn.ReLU)"."""
    qat: Annotated[str | None, arg(metavar="BITS", help_behavior_hint="(default: train in float32)")] = None
    """Precision to train for."""
    quant_delay: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: half of the run)")] = None
    """Environment steps before fake quantisation acts; until then only ranges are watched, and actors run plainly
    quantised weights."""
    learner_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast of the updates' matrix products; fp16 with loss scaling."""
    eval_freq: int = 25_000
    """Environment steps between evaluations, which stop the training clock; in quarl train they wait for a rollout's
    end; 0: only at the end."""
    eval_episodes: int = 20
    """Episodes of an evaluation; 0: nothing is evaluated."""
    save_freq: int = 50_000
    """Environment steps between checkpoints, replay included; 0: only those of --save-minutes."""
    save_minutes: float = SAVE_MINUTES
    """Minutes after a checkpoint within which there is another, however slow the environment; 0: steps alone count."""
    resume: Flag = False
    """Go on from the last checkpoint, with the run's options."""
    track: Literal["none", "tensorboard"] = "none"
    """Also write the learner's metrics as TensorBoard events."""
    device: Annotated[str, arg(metavar="NAME")] = "auto"
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
        return None if self.qat is None else QatSpec.parse(self.qat, **given)

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
    """What is said of a name that is none of the `known`."""
    return f"unknown algorithm {algo!r}{did_you_mean(algo.lower(), known)} (known: {', '.join(known)})"
