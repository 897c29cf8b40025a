"""Options of `quarl bench latency` and `quarl bench actorq`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Positional, subcommand

from quarl.config.actorq import ActorQConfig
from quarl.config.base import ASIDE, MeteredConfig, Output, at_least_one, layer_widths
from quarl.config.environment import EnvironmentConfig
from quarl.config.groups import ADVANCED, ENVIRONMENT, QUANTISATION, TRAINING, shown
from quarl.config.mixed_precision import MixedPrecisionConfig
from quarl.config.trained_policy import check_paths
from quarl.errors import QuarlError, UnsupportedError
from quarl.quant.spec import Mode, QuantSpec

What = Literal["throughput", "time-to-reward", "breakdown"]
BESIDE_PROTOCOLS = ("what", "protocol", "only", "ratios", "minutes", "output", *ASIDE)
"""Options of `quarl bench actorq` that apply to time-to-reward; its protocol sets all others."""
OF_RUNS = (
    *("algo", "env", "actors", "envs_per_actor", "batch_size", "params", "learner_dtype", "learner_threads", "device"),
    "output",
)
"""Options that its runs have under the same names."""
RATIOS = {"throughput": (0.01, 0.5, 1.0, 4.0), "breakdown": (4.0,)}
INTERVALS = {"throughput": (30,), "breakdown": (30, 300)}
PUBLISH_INTERVAL = {"throughput": 10, "breakdown": 1}
ENDLESS = 10**9
"""Number of steps of a run that is watched for a window, and between checkpoints that are not needed."""


def split_arm(arm: str) -> tuple[str, str]:
    """Return (precision, engine) of "int8" (on LiteRT) or "torch-fp32"."""
    engine, dash, precision = arm.rpartition("-")
    if not dash:
        engine = "litert"
    if engine not in ("litert", "torch"):
        raise UnsupportedError(f"unknown engine in {arm!r}; arms are torch-fp32, fp32, fp16, int8 ... int2")
    return precision, engine


@dataclass(frozen=True, kw_only=True)
class LatencyConfig(MeteredConfig):
    """Measure single-thread latency: a policy in several precisions, exported files, or policies of given sizes."""

    verb: ClassVar[str] = "bench latency"
    examples = (
        "quarl bench latency logs/dqn/CartPole-v1_1 --bits fp32 int8 int4e8",
        "quarl bench latency --widths 64,64 2048,2048,2048",
    )

    model: Positional[Annotated[tuple[str, ...], shown("[MODEL|FILE ...]")]] = ()
    """Policies as for other verbs, and .tflite and .onnx files of quarl export; omit them to use --widths."""
    bits: Annotated[tuple[str, ...], shown("BITS ..."), QUANTISATION] = ("fp32", "int8", "int4e8")
    """Precisions of a MODEL that is not quantized: fp32, fp16, intN, or intNeK for K bits in first and last layers."""
    mode: Annotated[Mode, QUANTISATION] = "dynamic"
    """Activations: quantized per row at run time, or on grids calibrated beforehand."""
    runtime: Annotated[tuple[Literal["litert", "ort", "openvino", "tract", "tflm"], ...], shown("NAME ...")] = (
        "litert",
        "ort",
    )
    """Runtimes for each MODEL, and for each FILE that they can read."""
    widths: Annotated[tuple[str, ...], shown("W,W,... ...")] = ()
    """Hidden layers of the networks, as in 64,64 256,256; without them, the standard sizes and the Nature CNN."""
    seed: int = 0
    """Seed of the weights and observations."""

    def check(self) -> None:
        super().check()
        self.hidden()
        self.specs()
        if not self.model:
            self.refuse(("bits", "mode", "runtime"), "requires a MODEL", "add one, or drop it")
        elif self.widths:
            raise QuarlError("--widths and MODEL are mutually exclusive: keep one")
        if not self.bits or not self.runtime:
            raise QuarlError("--bits and --runtime require at least one value each")

    def look(self) -> None:
        check_paths(self.model)

    def specs(self) -> list[QuantSpec]:
        """Return every precision once, in order."""
        return list(dict.fromkeys(QuantSpec.parse(bits, mode=self.mode) for bits in self.bits))

    def hidden(self) -> list[tuple[int, ...]]:
        """Return `widths` as numbers."""
        return [tuple(layer_widths(text, "--widths")) for text in self.widths]


@dataclass(frozen=True, kw_only=True)
class BenchActorQConfig(EnvironmentConfig, MeteredConfig):
    """Measure training with actors of several precisions: throughput, time to reward, and the time of each part.

    The output folder keeps finished cells: repeat the command to resume.
    """

    verb: ClassVar[str] = "bench actorq"
    examples = ("quarl bench actorq --arms torch-fp32 int8 --samples-per-insert 1 -o throughput",)

    what: What = "throughput"
    """Quantity to measure."""
    protocol: Annotated[Path | None, shown("FILE")] = None
    """YAML or JSON file with tasks, targets, hyper-parameters and seeds of time-to-reward."""
    only: Annotated[tuple[str, ...], shown("TASK ...", default="all")] = ()
    """Tasks of the protocol to measure."""
    ratios: Literal["fixed", "free"] = "fixed"
    """Samples per insert of time-to-reward: the protocol's, or free, which runs each precision at the best of its
    grids.
    """
    minutes: float = 90.0
    """Minutes after which no new cell starts; repeat the command to continue."""
    arms: Annotated[tuple[str, ...], shown("ARM ..."), QUANTISATION] = ("torch-fp32", "fp32", "int8", "int4")
    """Actors to compare: fp32, fp16, int8 ... int2 on LiteRT, or torch-fp32."""
    algo: Annotated[str, shown("NAME"), TRAINING] = "d4pg"
    """Off-policy learner."""
    env: Annotated[str, shown("ID"), ENVIRONMENT] = "dm_control/cheetah-run-v0"
    """Gymnasium id of the environment."""
    samples_per_insert: Annotated[
        tuple[float, ...], shown("X ...", default="0.01 0.5 1 4; breakdown: 4"), TRAINING
    ] = ()
    """Number of replay samples per environment step; 0.01 measures the actors alone, as the learner only receives."""
    net_arch: Annotated[tuple[str, ...], shown("W,W,... ..."), TRAINING] = ("2048,2048,2048",)
    """Hidden layers of the policy."""
    actor_update_interval: Annotated[tuple[int, ...], shown("N ...", default="30; breakdown: 30 300"), ADVANCED] = ()
    """Environment steps of an actor between two checks for newer weights; throughput uses the first."""
    publish_interval: Annotated[int | None, shown("N", default="10; breakdown: 1"), ADVANCED] = None
    """Learner updates between two pushes of weights."""
    actors: int = 1
    """Number of actor processes."""
    envs_per_actor: Annotated[int, ENVIRONMENT] = 1
    """Number of environments that an actor steps in parallel."""
    batch_size: Annotated[int, TRAINING] = 256
    """Replay samples of one update."""
    learner_dtype: Annotated[Literal["fp32", "bf16", "fp16"], ADVANCED] = "fp32"
    """Autocast of the learner's matrix products."""
    learner_threads: Annotated[int, ADVANCED] = 1
    """Number of the learner's threads."""
    device: Annotated[str, shown("NAME"), ADVANCED] = "auto"
    """Device of the learner; auto is the GPU if there is one."""
    params: Annotated[tuple[str, ...], shown("NAME:VALUE ..."), TRAINING] = ()
    """Hyper-parameters by Stable-Baselines3's names, as in learning_starts:1000."""
    seconds: Annotated[float, ADVANCED] = 120.0
    """Length of a cell's measured window in seconds."""
    warm_up: Annotated[float, ADVANCED] = 10.0
    """Seconds of training with policy actions before the window."""
    rounds: Annotated[int, ADVANCED] = 1
    """Number of windows for each cell; the arms take turns."""
    seed: int = 0
    """Seed of the first run."""
    output: Output = Path("quarl-bench-actorq")
    """Folder of the cells, tables and figures."""

    def check(self) -> None:
        super().check()
        counts = ("actors", "rounds", "publish_interval")
        at_least_one(**{name: getattr(self, name) for name in counts})
        if not self.seconds > 0 or not self.warm_up >= 0 or not self.minutes > 0:
            raise QuarlError("--seconds and --minutes must be above 0, --warm-up must not be negative")
        if self.what == "time-to-reward":
            if self.protocol is None:
                raise QuarlError(
                    "--what time-to-reward requires --protocol FILE, such as benchmarks/actorq_protocol.json"
                )
            names = [field.name for field in fields(self) if field.name not in BESIDE_PROTOCOLS]
            self.refuse(names, "is set by the protocol of time-to-reward")
            return
        if self.protocol is not None or self.only or self.ratios != "fixed":
            raise QuarlError("--protocol, --only and --ratios require --what time-to-reward")
        if not self.arms:
            raise QuarlError("--arms requires at least one value, as in --arms torch-fp32 int8")
        for run in self.runs():
            run.check()

    def runs(self, arms: Sequence[str] | None = None, seed: int | None = None) -> Iterator[ActorQConfig]:
        """Yield the training run of each cell of one round, without end and evaluations.

        Args:
            arms: Arms to run, in this order; None means all.
            seed: Seed of the runs; None means the first.
        """
        shared: dict[str, Any] = {
            "n_timesteps": ENDLESS,
            "publish_interval": self.publish_interval or PUBLISH_INTERVAL[self.what],
            "eval_freq": 0,
            "save_freq": ENDLESS,
            "save_replay_buffer": False,
            "preset": "none",
            "save_minutes": 0.0,
            "seed": self.seed if seed is None else seed,
            **{name: getattr(self, name) for name in OF_RUNS},
            **self.environment_options(),
        }
        ratios = self.samples_per_insert or RATIOS[self.what]
        intervals = self.actor_update_interval or INTERVALS[self.what]
        intervals = intervals[:1] if self.what == "throughput" else intervals
        names = ("net_arch", "samples_per_insert", "actor_precision", "engine", "actor_update_interval")
        for network, ratio, arm, interval in product(
            self.net_arch, ratios, self.arms if arms is None else arms, intervals
        ):
            told: dict[str, Any] = dict(zip(names, (network, ratio, *split_arm(arm), interval), strict=True))
            yield ActorQConfig(**told, **shared)


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Measure latency and throughput: inference engines, and training with actors or learners in several precisions."""

    verb: ClassVar[str] = "bench"

    chosen: OmitArgPrefixes[
        OmitSubcommandPrefixes[
            Annotated[LatencyConfig, subcommand("latency")]
            | Annotated[BenchActorQConfig, subcommand("actorq")]
            | Annotated[MixedPrecisionConfig, subcommand("mixed-precision")]
        ]
    ]
    """Benchmark to run."""
