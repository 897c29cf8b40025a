"""Options of the command line: one dataclass for each verb, whose docstrings are the --help text.

Nothing here imports numpy, torch or an environment, so that `--help` answers at once.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional

from quarl.config.actorq import ActorQConfig
from quarl.config.base import Config, EnvId, Output, check_folder
from quarl.config.bench import LatencyConfig
from quarl.config.cluster import ClusterConfig, ClusterJoinConfig, ClusterStartConfig
from quarl.config.compare import CompareConfig
from quarl.config.deploy import BudgetConfig
from quarl.config.environment import OPTIONS, EnvironmentConfig
from quarl.config.export import ExportConfig, VerifyConfig
from quarl.config.precisions import DistillConfig, PtqConfig
from quarl.config.robustness import RobustConfig
from quarl.config.study import StudyConfig, StudyReportConfig, StudyRunConfig, StudyStatusConfig
from quarl.config.sweep import SweepConfig
from quarl.config.train import TrainConfig
from quarl.config.trained_policy import ModelConfig
from quarl.errors import QuarlError
from quarl.fields import ADVANCED, AT_LEAST_ONE, OUTPUT, QUANTISATION, shown
from quarl.quant.schemes import typed_by_user
from quarl.quant.spec import QuantSpec
from quarl.specs import SCHEME_HELP, SEED, EngineName, Flag


@dataclass(frozen=True, kw_only=True)
class EvalConfig(ModelConfig):
    """Play episodes with a policy as it is, float or quantized, and report its returns."""

    verb: ClassVar[str] = "eval"
    examples = ("quarl eval out/int8.safetensors --episodes 100", "quarl eval quarl-export/policy.tflite")

    engine: EngineName = "litert"
    """Inference engine that runs the policy."""
    episodes: Annotated[int, AT_LEAST_ONE] = 100
    """Number of episodes to play."""
    batch: Annotated[int, ADVANCED, AT_LEAST_ONE] = 16
    """Number of episodes played in parallel; returns do not depend on it."""
    workers: Annotated[int, ADVANCED, AT_LEAST_ONE] = 1
    """Number of processes that share the episodes; useful if environment steps are slow."""
    stochastic: Flag = False
    """Sample actions. Without --stochastic or --deterministic, the zoo's convention for this agent applies."""
    deterministic: Flag = False
    """Take the greedy or mean action."""

    def check(self) -> None:
        super().check()
        if self.stochastic and self.deterministic:
            raise QuarlError("--stochastic and --deterministic are mutually exclusive: keep one")


@dataclass(frozen=True, kw_only=True)
class PlayConfig(ModelConfig):
    """Show a quantized agent beside the float one, from the same start, in a window or a video."""

    verb: ClassVar[str] = "play"
    examples = ("quarl play logs/dqn/CartPole-v1_1 --bits 4 --record play.mp4",)

    bits: Annotated[str, shown("BITS"), QUANTISATION] = "8"
    """Precision: fp16, bf16, an integer 2..32, or wNaM."""
    scheme: Annotated[str, shown("NAME", meaning=SCHEME_HELP), QUANTISATION] = "default"
    episodes: Annotated[int, AT_LEAST_ONE] = 1
    """Number of episodes to show, in sequence: the first ones of `quarl eval` with the same seed."""
    record: Annotated[Path | None, shown("FILE", default="a window"), OUTPUT] = None
    """Write a video, .mp4 or .gif, which needs no display."""

    def check(self) -> None:
        super().check()
        QuantSpec.parse(self.bits, scheme=typed_by_user(self.scheme))
        if self.record is not None and self.record.suffix not in VIDEOS:
            raise QuarlError(f"--record {self.record} is not a video: use a file name with {' or '.join(VIDEOS)}")
        for package in ("matplotlib", *(("pygame",) if self.record is None else VIDEOS[self.record.suffix])):
            if importlib.util.find_spec(package) is None:
                raise QuarlError(f"quarl play needs an extra: pip install 'quarl[video]' ({package} is missing)")
        if self.record is not None:
            check_folder(self.record.parent)


VIDEOS = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("imageio",)}
"""Packages that write a video, by its file extension."""


@dataclass(frozen=True, kw_only=True)
class InspectConfig(ModelConfig):
    """Show the effect of a precision on weights: ranges, histogram, levels, noise, saturation; compare models."""

    verb: ClassVar[str] = "inspect"
    examples = ("quarl inspect model.zip --bits 8 -o weights", "quarl inspect model.zip out/int8.safetensors")

    model: Positional[Annotated[tuple[str, ...], shown("MODEL ...")]] = ()
    """Model as for other verbs, or a file of weights: .safetensors, .pt or .onnx. Several are compared; with -f FOLDER,
    give words ALGO/ENV.
    """
    bits: Annotated[str, shown("BITS"), QUANTISATION] = "8"
    """Precision: fp16, bf16, an integer 2..32, or wNaM. A policy that is already quantized keeps its own."""
    scheme: Annotated[str, shown("NAME", meaning=SCHEME_HELP), QUANTISATION] = "default"
    env: EnvId = None
    """Gymnasium id of the environment, for schemes that calibrate; or my_module:MyEnv-v0."""
    output: Output = Path("quarl-inspect")
    """Folder for the figure and output.txt."""

    def check(self) -> None:
        super().check()
        QuantSpec.parse(self.bits, scheme=typed_by_user(self.scheme))

    def check_model(self) -> None:
        for words in self.models() if self.folder is not None else ():
            if len(words) != 2 or not all(words):
                raise QuarlError(
                    f"-f FOLDER requires ALGO ENV, or words ALGO/ENV such as dqn/CartPole-v1, got {words[0]!r}"
                )

    def models(self) -> list[tuple[str, ...]]:
        """Return each model: a path, or the two words ALGO ENV."""
        if self.folder is None:
            return [(word,) for word in self.model]
        if len(self.model) == 2 and "/" not in self.model[0]:
            return [self.model]
        return [tuple(word.split("/", 1)) for word in self.model]  # an id may contain a slash as well: dqn/ALE/Pong-v5


@dataclass(frozen=True, kw_only=True)
class EnvsConfig(EnvironmentConfig):
    """List the suites of environments, or describe one environment and the algorithms that fit."""

    verb: ClassVar[str] = "envs"
    examples = ("quarl envs LunarLander-v3", "quarl envs --suite atari")
    positional: ClassVar[tuple[str, ...]] = ("env",)

    env: Positional[Annotated[tuple[str, ...], shown("[ID]")]] = ()
    """Gymnasium id of an environment; without it, all suites are listed."""
    suite: Annotated[str | None, shown("NAME", default="all")] = None
    """List the ids of this suite: classic, toy-text, box2d, mujoco, atari, pybullet, robotics, panda or dm-control."""

    def check(self) -> None:
        super().check()
        if len(self.env) > 1:
            raise QuarlError(f"ID is one environment, got {len(self.env)} words: {' '.join(self.env)}")
        if not self.env:
            self.refuse(OPTIONS, "requires an environment", "add its ID")
        if self.env and self.suite is not None:
            raise QuarlError(f"ID {self.env[0]} and --suite are mutually exclusive: drop --suite")


@dataclass(frozen=True, kw_only=True)
class DoctorConfig(Config):
    """Check this machine: instruction sets, versions, and each engine against the reference."""

    verb: ClassVar[str] = "doctor"
    examples = ("quarl doctor --json doctor.json",)


@dataclass(frozen=True, kw_only=True)
class DemoConfig(Config):
    """Quantize a trained agent that is included in QuaRL, and write table and report."""

    verb: ClassVar[str] = "demo"
    examples = ("quarl demo -o quarl-demo",)

    seed: Annotated[int, SEED] = 0
    """Seed of the episodes."""
    output: Output = Path("quarl-demo")
    """Folder for the agent and the results of `quarl ptq`."""


__all__ = [
    "VERBS",
    "ActorQConfig",
    "BudgetConfig",
    "ClusterConfig",
    "ClusterJoinConfig",
    "ClusterStartConfig",
    "CompareConfig",
    "Config",
    "DemoConfig",
    "DistillConfig",
    "DoctorConfig",
    "EnvsConfig",
    "EvalConfig",
    "ExportConfig",
    "InspectConfig",
    "LatencyConfig",
    "ModelConfig",
    "PlayConfig",
    "PtqConfig",
    "RobustConfig",
    "StudyConfig",
    "StudyReportConfig",
    "StudyRunConfig",
    "StudyStatusConfig",
    "SweepConfig",
    "TrainConfig",
    "VerifyConfig",
]
VERBS: tuple[type[Config | ClusterConfig | StudyConfig], ...] = (
    PtqConfig,
    DistillConfig,
    TrainConfig,
    SweepConfig,
    StudyConfig,
    ActorQConfig,
    ClusterConfig,
    EvalConfig,
    CompareConfig,
    RobustConfig,
    PlayConfig,
    InspectConfig,
    ExportConfig,
    VerifyConfig,
    LatencyConfig,
    BudgetConfig,
    EnvsConfig,
    DoctorConfig,
    DemoConfig,
)
"""All verbs, in the order of the help text."""
