"""What each verb of the command line can be told: one dataclass a verb, whose docstrings are the --help text.

Nothing here imports numpy, torch or an environment, so that `--help` answers at once.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from tyro.conf import Positional

from quarl.config.actorq import ActorQConfig
from quarl.config.base import (
    SCHEME_HELP,
    Config,
    Edges,
    EngineName,
    EnvId,
    Flag,
    MeteredConfig,
    Normalize,
    NumEpisodes,
    Output,
    at_least_one,
    check_folder,
    check_margin,
)
from quarl.config.bench import BenchActorQConfig, BenchConfig, LatencyConfig
from quarl.config.environment import OPTIONS, EnvironmentConfig
from quarl.config.groups import ADVANCED, OUTPUT, QUANTISATION, TRAINING, shown
from quarl.config.mixed_precision import MixedPrecisionConfig
from quarl.config.study import StudyConfig, StudyReportConfig, StudyRunConfig, StudyStatusConfig
from quarl.config.sweep import SweepConfig
from quarl.config.train import TrainConfig
from quarl.errors import QuarlError
from quarl.quant.spec import Mode, QuantSpec

MOST_EPISODES = 400
"""Of --episodes auto, where --max-episodes does not say it."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig(EnvironmentConfig):
    """A verb about one trained policy."""

    model: Positional[Annotated[tuple[str, ...], shown("MODEL")]] = ()
    """A Stable-Baselines3 zip, zoo run folder, Stable-Baselines 2 file or saved policy; hub:ORG/NAME of the Hugging
    Face hub; or ALGO ENV with -f FOLDER."""
    folder: Annotated[Path | None, shown("FOLDER", "-f")] = None
    """Agents in the zoo's layout, FOLDER/ALGO/ENV_1/ENV.zip, for a MODEL in two words."""
    normalize: Normalize = None
    """VecNormalize's saved statistics with which the agent observed, or none."""
    env: EnvId = None
    """Gymnasium id of the environment; my_module:MyEnv-v0 imports my_module first, which registers it."""
    seed: int = 0
    """Seed of the episodes; episode k starts from the same state at every precision."""

    def check(self) -> None:
        super().check()
        if not self.model:
            raise QuarlError(f"MODEL is missing: it stands before the options, as in quarl {self.verb} MODEL --seed 0")
        self.check_model()

    def look(self) -> None:
        for path in self.model if self.folder is None else ():
            if not (path.startswith("hub:") or os.path.exists(path) or os.path.exists(f"{path}.zip")):
                raise QuarlError(f"no file {path}; check the path")

    def check_model(self) -> None:
        """Refuses words that name no model."""
        words = shlex.join(self.model)
        if len(self.model) > 2:
            raise QuarlError(f"MODEL is a path or two words ALGO ENV, got {len(self.model)} words: {words}")
        if len(self.model) == 2 and self.folder is None:
            raise QuarlError(f"MODEL {words} is two words ALGO ENV: say where the agents lie with -f FOLDER")
        if len(self.model) == 1 and self.folder is not None:
            raise QuarlError(
                f"-f FOLDER goes with two words ALGO ENV, got only {words}: add the environment or drop -f"
            )


@dataclass(frozen=True, kw_only=True)
class PtqConfig(ModelConfig, MeteredConfig):
    """Quantise a trained policy at several precisions and measure what each costs and gains."""

    verb: ClassVar[str] = "ptq"
    examples = (
        "quarl ptq logs/dqn/CartPole-v1_1 -o out",
        "quarl ptq ppo HalfCheetahBulletEnv-v0 -f rl-trained-agents --bits fp32 fp16 8 4 -o cheetah",
    )

    bits: Annotated[tuple[str, ...], shown("BITS ..."), QUANTISATION] = ("fp32", "fp16", *"8765432")
    """Precisions: fp32, fp16, bf16, an integer 2..32, wNaM for N-bit weights with M-bit activations, or intNeK for K
    bits in the first and last layers."""
    edge_bits: Edges = "8"
    """Bits of the first and last layers of precisions that ask for fewer, or one width in all layers, as naive and
    quarl-2020 have anyway."""
    scheme: Annotated[tuple[str, ...], shown("NAME ...", meaning=SCHEME_HELP), QUANTISATION] = ("default",)
    mode: Annotated[Mode, QUANTISATION] = "dynamic"
    """Activations: quantised per row at run time, or on grids calibrated beforehand."""
    engine: Annotated[EngineName, QUANTISATION] = "litert"
    """What runs the policy."""
    episodes: NumEpisodes = 100
    """Episodes at every precision, or auto: until there is a verdict."""
    max_episodes: Annotated[int | None, shown("N", default=f"{MOST_EPISODES}, of --auto 1000")] = None
    """Episodes at most that --episodes auto plays, or --auto to show a loss; more where they are cheap and scatter."""
    margin: Annotated[float, shown("PERCENT")] = 5.0
    """Loss of return, of fp32's, that is still acceptable: what the non-inferiority verdict is about."""
    workers: Annotated[int, ADVANCED] = 1
    """Processes that share the episodes; worth it where a step of the environment is slow."""
    auto: Annotated[Flag, QUANTISATION] = False
    """Choose the bits of each layer, 2 to 8, instead: the fewest that are shown to lose less than --max-loss."""
    max_loss: Annotated[str, shown("PERCENT"), QUANTISATION] = "2%"
    """Loss of return, of fp32's, that --auto allows."""
    minimize: Annotated[Literal["bytes", "latency"], QUANTISATION] = "bytes"
    """What --auto makes small; latency as it is measured here, with 8 and 4 bits, for which there are kernels."""
    output: Output = Path("quarl-ptq")
    """Folder for rows.json, rows.csv, the figures, report.html and the quantised policies."""

    def check(self) -> None:
        super().check()
        at_least_one(episodes=self.episodes, max_episodes=self.max_episodes, workers=self.workers)
        if not self.auto and self.episodes != "auto":
            self.refuse(("max_episodes",), "is the most of --episodes auto", "add that, or drop it")
        check_margin(self.margin)
        if not self.bits or not self.scheme:
            raise QuarlError("--bits and --scheme need at least one name each, as in --bits fp32 8 4 --scheme default")
        self.specs()
        if not self.auto:
            self.refuse(("max_loss", "minimize"), "is for --auto", "add that, or drop it")
            return
        self.refuse(("bits", "edge_bits", "margin"), "does not go with --auto, which chooses bits by --max-loss")
        if self.episodes == "auto":
            raise QuarlError("--episodes auto does not go with --auto, which plays as many as it takes: drop it")
        if len(self.scheme) > 1:
            raise QuarlError(f"--auto takes one --scheme, got {' '.join(self.scheme)}: keep one")
        check_margin(self.loss_pct, "--max-loss")

    @property
    def loss_pct(self) -> float:
        """What --max-loss says; NaN where that is no number."""
        word = self.max_loss.removesuffix("%")
        return float(word) if re.fullmatch(r"\d+(\.\d+)?", word) else math.nan

    def specs(self) -> list[QuantSpec]:
        """Every precision under every scheme once, in order; float precisions, which have none, under the first."""
        parsed = (self._spec(bits, name) for name in self.scheme for bits in (("8",) if self.auto else self.bits))
        specs = dict.fromkeys(spec for spec in parsed if spec.float_type is None or spec.scheme.name == self.scheme[0])
        return list(specs)

    def _spec(self, bits: str, scheme: str) -> QuantSpec:
        return QuantSpec.parse(bits, scheme=scheme, mode=self.mode, edges=self.edge_bits)

    @property
    def most_episodes(self) -> int:
        """At each precision."""
        most = self.max_episodes or (1_000 if self.auto else MOST_EPISODES)
        return most if self.auto or self.episodes == "auto" else self.episodes

    @property
    def num_episodes(self) -> int | None:
        """Of all precisions together, fp32 among them, at most; None where it shows only on the way."""
        count = 1 + sum(spec.float_type != "fp32" for spec in self.specs())
        return None if self.auto else self.most_episodes * count


@dataclass(frozen=True, kw_only=True)
class DistillConfig(ModelConfig, MeteredConfig):
    """Distil a trained policy into its own quantised self, on the states that it reaches and without reward."""

    verb: ClassVar[str] = "distill"
    examples = ("quarl distill logs/dqn/CartPole-v1_1 --bits 4 2 -o small",)

    bits: Annotated[tuple[str, ...], shown("BITS ..."), QUANTISATION] = ("4",)
    """Precisions with 2 to 8-bit weights: an integer, wNaM, or intNeK for K bits in the first and last layers."""
    edge_bits: Edges = "8"
    """Bits of the first and last layers of precisions that ask for fewer."""
    mode: Annotated[Mode, QUANTISATION] = "dynamic"
    """Activations: quantised per row at run time, or on grids calibrated beforehand."""
    rounds: Annotated[int, TRAINING] = 8
    """Rounds at most: updates, then a look at the return, then states that the quantised policy reaches."""
    updates: Annotated[int, TRAINING] = 1_000
    """Gradient steps of a round."""
    states: Annotated[int, TRAINING] = 1_900
    """New states after each round."""
    validation: Annotated[int, shown("EPISODES"), TRAINING] = 40
    """Episodes of a look at the return, which chooses the snapshot."""
    budget: Annotated[str | None, shown("N|MINUTESm", default="no bound"), TRAINING] = None
    """Of a precision: updates, as in 5000, or minutes, as in 10m; the last round is one that fits."""
    observations: Annotated[Path | None, shown("FILE"), TRAINING] = None
    """Recorded observations, .npy or .npz, in place of an environment: only these states are learned from, and no
    return is measured."""
    resume: Flag = False
    """Go on from the last finished round of the same command, which was ended."""
    episodes: NumEpisodes = 100
    """Fresh episodes at every precision, at the end, which the verdict is about; auto: until there is one."""
    max_episodes: Annotated[int | None, shown("N", default=f"{MOST_EPISODES}")] = None
    """Episodes at most that --episodes auto plays; more where they are cheap and scatter."""
    margin: Annotated[float, shown("PERCENT")] = 5.0
    """Loss of return, of fp32's, that is still acceptable; a snapshot that is shown to lose less ends the rounds."""
    output: Output = Path("quarl-distill")
    """Folder for rows.json, rows.csv, the curve, report.html and the quantised policies."""

    def check(self) -> None:
        super().check()
        names = ("episodes", "max_episodes", "rounds", "updates", "states", "validation")
        at_least_one(**{name: getattr(self, name) for name in names})
        if self.episodes != "auto":
            self.refuse(("max_episodes",), "is the most of --episodes auto", "add that, or drop it")
        check_margin(self.margin)
        if not self.bits:
            raise QuarlError("--bits needs at least one precision, as in --bits 4")
        if self.observations is not None:
            unplayed = ("env", "episodes", "validation", "states", *OPTIONS)
            self.refuse(unplayed, "is about an environment, and with --observations there is none")
        self.specs()
        self.bounds()

    def bounds(self) -> tuple[int, float]:
        """Rounds at most, and minutes."""
        if self.budget is None:
            return self.rounds, math.inf
        if match := re.fullmatch(r"(\d{1,9})(m?)", self.budget):
            rounds = self.rounds if match[2] else min(int(match[1]) // self.updates, self.rounds)
            if rounds and int(match[1]):
                return rounds, int(match[1]) if match[2] else math.inf
        raise QuarlError(
            f"--budget is {self.budget[:60]!r}; use a round of {self.updates:,} updates or more, or minutes, as in 10m"
        )

    def specs(self) -> list[QuantSpec]:
        """Every precision once, in order."""
        specs = [QuantSpec.parse(bits, mode=self.mode, edges=self.edge_bits) for bits in self.bits]
        for bits, spec in zip(self.bits, specs, strict=True):
            if spec.float_type is not None or spec.weight_bits > 8 or spec.activation_bits is None:
                raise QuarlError(f"--bits {bits}: distillation is for weights of 2 to 8 bits with integer activations")
        return list(dict.fromkeys(specs))


@dataclass(frozen=True, kw_only=True)
class EvalConfig(ModelConfig):
    """Play episodes with a policy as it is, float or quantised, and report its returns."""

    verb: ClassVar[str] = "eval"
    examples = ("quarl eval out/int8.safetensors --episodes 100",)

    engine: EngineName = "litert"
    """What runs the policy."""
    episodes: int = 100
    """Episodes to play."""
    batch: Annotated[int, ADVANCED] = 16
    """Episodes played side by side; returns do not depend on it."""
    workers: Annotated[int, ADVANCED] = 1
    """Processes that share the episodes; worth it where a step of the environment is slow."""
    stochastic: Flag = False
    """Sample actions; without either flag the zoo's convention for this agent holds."""
    deterministic: Flag = False
    """Take the greedy or mean action."""

    def check(self) -> None:
        super().check()
        at_least_one(episodes=self.episodes, batch=self.batch, workers=self.workers)
        if self.stochastic and self.deterministic:
            raise QuarlError("--stochastic and --deterministic exclude each other: keep one")


@dataclass(frozen=True, kw_only=True)
class PlayConfig(ModelConfig):
    """Show a quantised agent at work beside float: from the same start, side by side, on a window or in a video."""

    verb: ClassVar[str] = "play"
    examples = ("quarl play logs/dqn/CartPole-v1_1 --bits 4 --record play.mp4",)

    bits: Annotated[str, shown("BITS"), QUANTISATION] = "8"
    """fp16, bf16, an integer 2..32, or wNaM."""
    scheme: Annotated[str, shown("NAME", meaning=SCHEME_HELP), QUANTISATION] = "default"
    episodes: int = 1
    """Episodes to show, one after the other: the first ones of `quarl eval` with the same seed."""
    record: Annotated[Path | None, shown("FILE", default="a window"), OUTPUT] = None
    """Write a video, .mp4 or .gif, which needs no display."""

    def check(self) -> None:
        super().check()
        at_least_one(episodes=self.episodes)
        QuantSpec.parse(self.bits, scheme=self.scheme)
        if self.record is not None and self.record.suffix not in VIDEOS:
            raise QuarlError(f"--record {self.record} is no video: end its name in {' or '.join(VIDEOS)}")
        for package in ("pygame",) if self.record is None else VIDEOS[self.record.suffix]:
            if importlib.util.find_spec(package) is None:
                raise QuarlError(
                    f"quarl play needs an extra for that: pip install 'quarl[video]' ({package} is missing)"
                )
        if self.record is not None:
            check_folder(self.record.parent)


VIDEOS = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("imageio",)}
"""By the ending of a video's name, the packages that write it."""


@dataclass(frozen=True, kw_only=True)
class InspectConfig(ModelConfig):
    """Show what a precision does to weights: ranges, histogram, levels, noise, saturation; several models compared."""

    verb: ClassVar[str] = "inspect"
    examples = ("quarl inspect model.zip --bits 8 -o weights", "quarl inspect model.zip out/int8.safetensors")

    model: Positional[Annotated[tuple[str, ...], shown("MODEL ...")]] = ()
    """What other verbs take, or a file of weights: .safetensors, .pt, .onnx, .tflite or a frozen TensorFlow .pb.
    Several are compared; with -f FOLDER these are words ALGO/ENV."""
    bits: Annotated[str, shown("BITS"), QUANTISATION] = "8"
    """fp16, bf16, an integer 2..32, or wNaM; a policy that is already quantised is shown as it is."""
    scheme: Annotated[str, shown("NAME", meaning=SCHEME_HELP), QUANTISATION] = "default"
    env: EnvId = None
    """Gymnasium id of the environment, for schemes that calibrate; or my_module:MyEnv-v0."""
    output: Output = Path("quarl-inspect")
    """Folder for the figure and output.txt."""

    def check(self) -> None:
        super().check()
        QuantSpec.parse(self.bits, scheme=self.scheme)

    def check_model(self) -> None:
        for words in self.models() if self.folder is not None else ():
            if len(words) != 2 or not all(words):
                raise QuarlError(
                    f"-f FOLDER goes with ALGO ENV, or with words ALGO/ENV as in dqn/CartPole-v1, got {words[0]!r}"
                )

    def models(self) -> list[tuple[str, ...]]:
        """Each model: a path, or the two words ALGO ENV."""
        if self.folder is None:
            return [(word,) for word in self.model]
        if len(self.model) == 2 and "/" not in self.model[0]:
            return [self.model]
        return [tuple(word.split("/", 1)) for word in self.model]  # an id may have a slash as well: dqn/ALE/Pong-v5


@dataclass(frozen=True, kw_only=True)
class EnvsConfig(EnvironmentConfig):
    """List the suites of environments, or say of one environment what it is like and which algorithms fit."""

    verb: ClassVar[str] = "envs"
    examples = ("quarl envs LunarLander-v3", "quarl envs --suite atari")
    positional: ClassVar[tuple[str, ...]] = ("env",)

    env: Positional[Annotated[tuple[str, ...], shown("[ID]")]] = ()
    """Gymnasium id of an environment; without it all suites."""
    suite: Annotated[str | None, shown("NAME", default="all")] = None
    """List the ids of this suite: classic, toy-text, box2d, mujoco, atari, pybullet or dm-control."""

    def check(self) -> None:
        super().check()
        if len(self.env) > 1:
            raise QuarlError(f"ID is one environment, got {len(self.env)} words: {' '.join(self.env)}")
        if not self.env:
            self.refuse(OPTIONS, "is of one environment", "name its ID")
        if self.env and self.suite is not None:
            raise QuarlError(f"ID {self.env[0]} is of one suite already: drop --suite")


@dataclass(frozen=True, kw_only=True)
class DoctorConfig(Config):
    """Check this machine: instruction sets, versions, extras, pairs of versions known to be bad."""

    verb: ClassVar[str] = "doctor"
    examples = ("quarl doctor --json doctor.json",)


@dataclass(frozen=True, kw_only=True)
class DemoConfig(Config):
    """Train a DQN on CartPole in under a minute, quantise it, and write table and report."""

    verb: ClassVar[str] = "demo"
    examples = ("quarl demo -o quarl-demo",)

    seed: int = 0
    """Seed of training and of the episodes."""
    output: Output = Path("quarl-demo")
    """Folder for the trained agent and what `quarl ptq` makes of it."""


__all__ = [
    "VERBS",
    "ActorQConfig",
    "BenchActorQConfig",
    "BenchConfig",
    "Config",
    "DemoConfig",
    "DoctorConfig",
    "EnvsConfig",
    "EvalConfig",
    "InspectConfig",
    "LatencyConfig",
    "MixedPrecisionConfig",
    "ModelConfig",
    "PlayConfig",
    "PtqConfig",
    "StudyConfig",
    "StudyReportConfig",
    "StudyRunConfig",
    "StudyStatusConfig",
    "SweepConfig",
    "TrainConfig",
]
VERBS: tuple[type[Config] | type[BenchConfig] | type[StudyConfig], ...] = (
    PtqConfig,
    DistillConfig,
    TrainConfig,
    SweepConfig,
    StudyConfig,
    ActorQConfig,
    EvalConfig,
    PlayConfig,
    InspectConfig,
    BenchConfig,
    EnvsConfig,
    DoctorConfig,
    DemoConfig,
)
"""In the order of the help text."""
