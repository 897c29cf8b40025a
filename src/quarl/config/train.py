"""Options of `quarl train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from quarl.config.base import Normalize, check_folder
from quarl.config.learner_options import LearnerOptions
from quarl.errors import QuarlError
from quarl.fields import ADVANCED, AT_LEAST_ONE, ENVIRONMENT, OUTPUT, QUANTISATION, TRAINING, shown
from quarl.specs import LEARNERS, Flag

QAT_OPTIONS = (
    "quant_delay",
    "qat_output_bits",
    "qat_observation_bits",
    "qat_mid_tread",
    "qat_critic",
    "qat_skip",
)
"""Options that require `qat`."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(LearnerOptions):
    """Train an agent with Stable-Baselines3 and RL Zoo's tuned hyper-parameters, optionally quantization-aware."""

    verb: ClassVar[str] = "train"
    examples = ("quarl train --algo ppo --env CartPole-v1 -n 50000 --qat w4a8", "quarl train --algo ppo --resume")
    learners: ClassVar[tuple[str, ...]] = LEARNERS
    new: ClassVar[tuple[str, ...]] = (*LearnerOptions.new, "algo", "env", "folder")
    free: ClassVar[tuple[str, ...]] = (*LearnerOptions.free, "threads")
    qat_options: ClassVar[tuple[str, ...]] = (*QAT_OPTIONS, "edge_bits")

    algo: Annotated[str, shown("NAME")] = "ppo"
    """Learner: ppo, a2c, dqn, ddpg, td3, sac or d4pg."""
    n_envs: Annotated[int | None, shown("N", default="RL Zoo's, or 1"), ENVIRONMENT, AT_LEAST_ONE] = None
    """Number of environments side by side."""
    qat: Annotated[str | None, shown("BITS", default="train in float32")] = None
    """Precision to train for: 8, or wNaM for N-bit weights with M-bit activations, 2..16, or wN with float activations.
    A suffix eK sets the bits of the first and last layers.
    """
    qat_output_bits: Annotated[int | None, shown("N", default="as the first"), QUANTISATION] = None
    """Bits of the last layer's weights."""
    qat_observation_bits: Annotated[int | None, shown("N", default="up to 16"), QUANTISATION] = None
    """Bits of the observation, if activations are quantized."""
    qat_critic: Annotated[Flag, QUANTISATION] = False
    """Quantize the critic or value network, too; off-policy, the convolutions in front of a critic stay in float32."""
    qat_skip: Annotated[tuple[str, ...], shown("LAYER ..."), QUANTISATION] = ()
    """Layers left in float32, by their names in the policy or prefixes of these, as in q_net.q_net.0."""
    trained_agent: Annotated[Path | None, shown("MODEL", "-i"), TRAINING] = None
    """Fine-tune the agent in a Stable-Baselines3 zip, zoo run folder or hub:ORG/NAME. Architecture, weights,
    observation statistics beside it and, in a zoo folder, wrappers are the file's. Target networks start as copies,
    DQN's exploration at its final epsilon; until learning starts, the agent chooses the actions, which are not random.
    --n-timesteps excludes its earlier steps.
    """
    normalize: Normalize = None
    """VecNormalize statistics that the trained agent observed with, or none."""
    folder: Annotated[Path, shown("FOLDER", "-f", "--log-folder"), OUTPUT] = Path("logs")
    """Folder of runs, in the zoo's layout: FOLDER/ALGO/ENV_1, then ENV_2."""
    eval_episodes: int = 20
    """Episodes of an evaluation; 0 turns evaluations off, and no best agent is saved."""
    resume: Flag = False
    """Resume from the last checkpoint of the latest run of ALGO on ENV, with that run's options."""
    threads: Annotated[int | None, shown("N", default="1, all cores for images"), ADVANCED, AT_LEAST_ONE] = None
    """Number of the learner's threads."""
    device: Annotated[str, shown("NAME")] = "auto"
    """Device of the learner; auto is the CPU, or the GPU for images if there is one."""

    def check(self) -> None:
        super().check()
        if self.n_timesteps is not None:
            self.delay(self.n_timesteps)
        if self.resume and self.trained_agent is not None:
            raise QuarlError("--resume and --trained-agent are mutually exclusive: keep one")
        if self.normalize is not None and self.trained_agent is None:
            raise QuarlError("--normalize requires -i MODEL")
        check_folder(self.folder)
