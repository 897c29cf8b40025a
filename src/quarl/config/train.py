"""What `quarl train` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from tyro.conf import arg

from quarl.config.base import (
    SAVE_MINUTES,
    Flag,
    MeteredConfig,
    Normalize,
    Steps,
    at_least_one,
    check_device,
    check_folder,
    hyperparameters,
    zero_is_off,
)
from quarl.config.environment import EnvironmentConfig
from quarl.errors import QuarlError, UnsupportedError, did_you_mean
from quarl.quant.training import QatSpec, Ranges

LEARNERS = ("ppo", "a2c", "dqn", "ddpg", "td3", "sac", "d4pg")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(EnvironmentConfig, MeteredConfig):
    """Train an agent with Stable-Baselines3 and RL Zoo's tuned hyper-parameters, quantisation-aware if asked."""

    verb: ClassVar[str] = "train"

    algo: Annotated[str, arg(metavar="NAME")] = "ppo"
    """Learner: ppo, a2c, dqn, ddpg, td3, sac or d4pg."""
    env: Annotated[str, arg(metavar="ID")] = "CartPole-v1"
    """Gymnasium id; dm_control/cheetah-run-v0 and dm_control,cheetah_run are the same task. my_module:MyEnv-v0 imports
    my_module first, which registers it."""
    n_timesteps: Steps = None
    """Environment steps; with --trained-agent those on top."""
    n_envs: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: RL Zoo's, or 1)")] = None
    """Environments that are stepped side by side."""
    vec_env: Literal["auto", "dummy", "native"] = "auto"
    """How they are stepped: one after the other (dummy), or Atari games in threads of their emulator (native). auto is
    native for two and more environments of a game that plays the same there."""
    params: Annotated[tuple[str, ...], arg(aliases=["-params", "--hyperparams"], metavar="NAME:VALUE ...")] = ()
    """Hyper-parameters by the zoo's and Stable-Baselines3's names, over the tuned ones, as in learning_rate:lin_1e-3
    policy_kwargs:"dict(net_arch=[64], activation_fn=nn.ReLU)" normalize:True."""
    qat: Annotated[str | None, arg(metavar="BITS", help_behavior_hint="(default: train in float32)")] = None
    """Precision to train for: 8, or wNaM for N-bit weights with M-bit activations, 2..16, or wN with float ones."""
    quant_delay: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: half of the run)")] = None
    """Environment steps before fake quantisation acts; until then only ranges are watched."""
    qat_output_bits: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: those of --qat)")] = None
    """Bits of the weights of the last layer."""
    qat_observation_bits: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: up to 16)")] = None
    """Bits of the observation, where activations are quantised."""
    qat_ranges: Ranges = "minmax"
    """How ranges are found: by the extent of weights and a moving average of activations', or learned (LSQ)."""
    qat_affine: Flag = False
    """Give weights a zero point instead of grids that are symmetric about 0."""
    qat_per_tensor: Flag = False
    """One scale for each weight matrix instead of one for each output channel."""
    qat_critic: Flag = False
    """Quantise the critic or value network too, not the policy alone; off-policy, the convolutions in front of a critic
    stay in float32."""
    qat_skip: Annotated[tuple[str, ...], arg(metavar="LAYER ...")] = ()
    """Layers left in float32, by their names in the policy or by what these start with, as in q_net.q_net.0."""
    learner_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast of the updates' matrix products; fp16 with loss scaling."""
    trained_agent: Annotated[Path | None, arg(aliases=["-i"], metavar="MODEL", help_behavior_hint="")] = None
    """Fine-tune the agent in a Stable-Baselines3 zip, zoo run folder or hub:ORG/NAME. Architecture, weights,
    observation statistics beside it and, in a zoo folder, wrappers are the file's; target networks start as copies,
    DQN's exploration at its final epsilon, and until learning starts the agent acts, not chance."""
    normalize: Normalize = None
    """VecNormalize's saved statistics with which the trained agent observed, or none."""
    folder: Annotated[Path, arg(aliases=["-f", "--log-folder"], metavar="FOLDER")] = Path("logs")
    """Where runs go, in the zoo's layout: FOLDER/ALGO/ENV_1, then ENV_2."""
    eval_freq: int = 25_000
    """Environment steps between evaluations, which stop the training clock and come when a rollout ends; 0: only at
    the end."""
    eval_episodes: int = 20
    """Episodes of an evaluation; 0: nothing is evaluated, and there is no best agent."""
    save_freq: int = 50_000
    """Environment steps between checkpoints, replay included; 0: only those of --save-minutes."""
    save_minutes: float = SAVE_MINUTES
    """Minutes after a checkpoint within which there is another, however slow the environment; 0: steps alone count."""
    resume: Flag = False
    """Go on from the last checkpoint of the latest run of ALGO on ENV, with that run's options."""
    track: Literal["none", "tensorboard"] = "none"
    """Also write the learner's metrics as TensorBoard events."""
    threads: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 1, all cores for images)")] = None
    """Threads of the learner."""
    device: Annotated[str, arg(metavar="NAME")] = "auto"
    """The learner's device; auto is the processor, and a GPU where there are images and one of these."""
    seed: int = 0
    """Seed of learner, environments and evaluations."""

    def check(self) -> None:
        super().check()
        if self.algo not in LEARNERS:
            raise UnsupportedError(unknown_algorithm(self.algo))
        at_least_one(n_timesteps=self.n_timesteps, n_envs=self.n_envs, threads=self.threads)
        intervals = {name: getattr(self, name) for name in ("eval_freq", "save_freq", "save_minutes")}
        zero_is_off(eval_episodes=self.eval_episodes, **intervals)
        if self.quant_delay is not None and self.quant_delay < 0:
            raise QuarlError(f"--quant-delay must not be negative, got {self.quant_delay}")
        check_device(self.device)
        self.written()
        self.spec()
        if self.n_timesteps is not None:
            self.delay(self.n_timesteps)
        if self.resume and self.trained_agent is not None:
            raise QuarlError("--resume goes on with a run, --trained-agent starts one from a file: keep one")
        if self.normalize is not None and self.trained_agent is None:
            raise QuarlError("--normalize says how a trained agent observed: add -i MODEL, or drop it")
        check_folder(self.folder)

    def written(self) -> dict[str, Any]:
        """`params` by name, as a config.yml has them."""
        return hyperparameters(self.params)

    def spec(self) -> QatSpec | None:
        """What to train for; None: float32."""
        if self.qat is None:
            # of a run that is gone on with, its file says whether it has a precision
            if not self.resume:
                self.refuse(QAT_OPTIONS, "is about quantisation-aware training", "say which precision with --qat")
            return None
        return QatSpec.parse(
            self.qat,
            output_bits=self.qat_output_bits,
            observation_bits=self.qat_observation_bits,
            ranges=self.qat_ranges,
            affine=self.qat_affine,
            per_tensor=self.qat_per_tensor,
            critic=self.qat_critic,
            skip=self.qat_skip,
        )

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


QAT_OPTIONS = (
    "quant_delay",
    "qat_output_bits",
    "qat_observation_bits",
    "qat_ranges",
    "qat_affine",
    "qat_per_tensor",
    "qat_critic",
    "qat_skip",
)
"""What goes with `qat` only."""


def unknown_algorithm(algo: str) -> str:
    """What is said of a name that is none of LEARNERS."""
    return f"unknown algorithm {algo!r}{did_you_mean(algo.lower(), LEARNERS)} (known: {', '.join(LEARNERS)})"
