"""Options of the verbs that reduce a policy's bits and judge the loss of return: ptq and distill."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from quarl.config.base import DrawnConfig, MeteredConfig, Observations, Output
from quarl.config.environment import OPTIONS
from quarl.config.trained_policy import CalibratedConfig
from quarl.fields import TRAINING
from quarl.specs import DistillSpec, Flag, PtqSpec

UNPLAYED = ("env", "episodes", "max_episodes", "margin", "success_margin", "workers", *OPTIONS)
"""Options without a purpose if recorded observations replace the environment."""


@dataclass(frozen=True, kw_only=True)
class PtqConfig(PtqSpec, CalibratedConfig, MeteredConfig, DrawnConfig):
    """Quantize a trained policy at several precisions, and measure the costs and gains of each."""

    verb: ClassVar[str] = "ptq"
    examples = (
        "quarl ptq logs/dqn/CartPole-v1_1 -o out",
        "quarl ptq ppo HalfCheetahBulletEnv-v0 -f rl-trained-agents --bits fp32 fp16 8 4 -o cheetah",
    )

    observations: Observations = None
    """Recorded observations, .npy, .npz or .csv with a row per step, instead of an environment: errors of actions are
    measured on the last tenth, and no return.
    """
    output: Output = Path("quarl-ptq")
    """Folder for rows.json, rows.csv, the figures, report.html and the quantized policies."""

    def check(self) -> None:
        super().check()
        if self.observations is not None:
            self.refuse(("auto",), "conflicts with --observations, because it chooses bits by return")
            self.refuse(UNPLAYED, "requires an environment, and --observations replaces it")


@dataclass(frozen=True, kw_only=True)
class DistillConfig(DistillSpec, CalibratedConfig, MeteredConfig, DrawnConfig):
    """Distill a trained policy into its own quantized version, on the states that it reaches and without reward."""

    verb: ClassVar[str] = "distill"
    examples = (
        "quarl distill logs/dqn/CartPole-v1_1 --bits 4 2 -o small",
        "quarl distill logs/dqn/CartPole-v1_1 --auto --max-loss 2% -o mixed",
    )

    observations: Annotated[Observations, TRAINING] = None
    """Recorded observations, .npy, .npz or .csv with a row per step, instead of an environment: training uses only
    these states, and no return is measured.
    """
    resume: Flag = False
    """Resume from the last finished round of the same command."""
    output: Output = Path("quarl-distill")
    """Folder for rows.json, rows.csv, the curve, report.html and the quantized policies."""

    def check(self) -> None:
        super().check()
        if self.auto:
            self.refuse(("observations",), "conflicts with --auto, which chooses by return")
        if self.observations is not None:
            self.refuse((*UNPLAYED, "validation", "states"), "requires an environment, and --observations replaces it")
