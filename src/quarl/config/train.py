"""What `quarl train` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from quarl.config.base import Flag, Normalize, at_least_one, check_folder
from quarl.config.groups import ADVANCED, ENVIRONMENT, OUTPUT, QUANTISATION, TRAINING, shown
from quarl.config.learner_options import LearnerOptions
from quarl.errors import QuarlError

LEARNERS = ("ppo", "a2c", "dqn", "ddpg", "td3", "sac", "d4pg")
QAT_OPTIONS = (
    "quant_delay",
    "qat_output_bits",
    "qat_observation_bits",
    "qat_mid_tread",
    "qat_critic",
    "qat_skip",
)
"""What goes with `qat` only."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(LearnerOptions):
    """Train an agent with Stable-Baselines3 and RL Zoo's tuned hyper-parameters, quantisation-aware if asked."""

    verb: ClassVar[str] = "train"
    examples = ("quarl train --algo ppo --env CartPole-v1 -n 50000 --qat w4a8", "quarl train --algo ppo --resume")
    learners: ClassVar[tuple[str, ...]] = LEARNERS
    new: ClassVar[tuple[str, ...]] = (*LearnerOptions.new, "algo", "env", "folder")
    free: ClassVar[tuple[str, ...]] = (*LearnerOptions.free, "vec_env", "threads")
    qat_options: ClassVar[tuple[str, ...]] = (*QAT_OPTIONS, "edge_bits")

    algo: Annotated[str, shown("NAME")] = "ppo"
    """Learner: ppo, a2c, dqn, ddpg, td3, sac or d4pg."""
    n_envs: Annotated[int | None, shown("N", default="RL Zoo's, or 1"), ENVIRONMENT] = None
    """Environments that are stepped side by side."""
    vec_env: Annotated[Literal["auto", "dummy", "native"], ENVIRONMENT] = "auto"
    """How they are stepped: one after the other (dummy), or Atari games in threads of their emulator (native). auto is
    native for two and more environments of a game that plays the same there."""
    qat: Annotated[str | None, shown("BITS", default="train in float32")] = None
    """Precision to train for: 8, or wNaM for N-bit weights with M-bit activations, 2..16, or wN with float ones; eK
    behind it names the bits of the first and last layers."""
    qat_output_bits: Annotated[int | None, shown("N", default="those of the first"), QUANTISATION] = None
    """Bits of the weights of the last layer alone."""
    qat_observation_bits: Annotated[int | None, shown("N", default="up to 16"), QUANTISATION] = None
    """Bits of the observation, where activations are quantised."""
    qat_critic: Annotated[Flag, QUANTISATION] = False
    """Quantise the critic or value network too, not the policy alone; off-policy, the convolutions in front of a critic
    stay in float32."""
    qat_skip: Annotated[tuple[str, ...], shown("LAYER ..."), QUANTISATION] = ()
    """Layers left in float32, by their names in the policy or by what these start with, as in q_net.q_net.0."""
    trained_agent: Annotated[Path | None, shown("MODEL", "-i"), TRAINING] = None
    """Fine-tune the agent in a Stable-Baselines3 zip, zoo run folder or hub:ORG/NAME. Architecture, weights,
    observation statistics beside it and, in a zoo folder, wrappers are the file's; target networks start as copies,
    DQN's exploration at its final epsilon, and until learning starts the agent acts, not chance. --n-timesteps
    counts none of its own."""
    normalize: Normalize = None
    """VecNormalize's saved statistics with which the trained agent observed, or none."""
    folder: Annotated[Path, shown("FOLDER", "-f", "--log-folder"), OUTPUT] = Path("logs")
    """Where runs go, in the zoo's layout: FOLDER/ALGO/ENV_1, then ENV_2."""
    eval_episodes: int = 20
    """Episodes of an evaluation; 0: nothing is evaluated, and there is no best agent."""
    resume: Flag = False
    """Go on from the last checkpoint of the latest run of ALGO on ENV, with that run's options."""
    threads: Annotated[int | None, shown("N", default="1, all cores for images"), ADVANCED] = None
    """Threads of the learner."""
    device: Annotated[str, shown("NAME")] = "auto"
    """The learner's device; auto is the processor, and a GPU where there are images and one of these."""

    def check(self) -> None:
        super().check()
        at_least_one(n_envs=self.n_envs, threads=self.threads)
        if self.n_timesteps is not None:
            self.delay(self.n_timesteps)
        if self.resume and self.trained_agent is not None:
            raise QuarlError("--resume goes on with a run, --trained-agent starts one from a file: keep one")
        if self.normalize is not None and self.trained_agent is None:
            raise QuarlError("--normalize says how a trained agent observed: add -i MODEL, or drop it")
        check_folder(self.folder)
