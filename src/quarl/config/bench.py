"""Options of `quarl bench latency`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from tyro.conf import Positional

from quarl.config.base import MeteredConfig, Observations, layer_widths
from quarl.config.trained_policy import StatedConfig, check_paths
from quarl.errors import QuarlError
from quarl.fields import QUANTISATION, SOME, shown
from quarl.quant.spec import Mode, QuantSpec
from quarl.specs import SEED


@dataclass(frozen=True, kw_only=True)
class LatencyConfig(StatedConfig, MeteredConfig):
    """Measure single-thread latency: a policy in several precisions, exported files, or policies of given sizes."""

    verb: ClassVar[str] = "bench"
    positional: ClassVar[tuple[str, ...]] = ("what", "model")
    examples = (
        "quarl bench latency logs/dqn/CartPole-v1_1 --bits fp32 int8 int4e8",
        "quarl bench latency --widths 64,64 2048,2048,2048",
    )

    what: Positional[Annotated[Literal["latency"], shown("latency")]] = "latency"
    """Benchmark to run; ActorQ and mixed precision are measured by `quarl study run`."""
    model: Positional[Annotated[tuple[str, ...], shown("[MODEL|FILE ...]")]] = ()
    """Policies as for other verbs, and .tflite and .onnx files of quarl export; omit them to use --widths."""
    bits: Annotated[tuple[str, ...], shown("BITS ..."), QUANTISATION, SOME] = ("fp32", "int8", "int4e8")
    """Precisions of a MODEL that is not quantized: fp32, fp16, intN, or intNeK for K bits in first and last layers."""
    mode: Annotated[Mode, QUANTISATION] = "dynamic"
    """Activations: quantized per row at run time, or on grids calibrated beforehand."""
    observations: Observations = None
    """Recorded observations, .npy, .npz or .csv with a row per step, for calibration and for the calls."""
    runtime: Annotated[tuple[Literal["litert", "ort", "openvino", "tract", "tflm"], ...], shown("NAME ..."), SOME] = (
        "litert",
        "ort",
    )
    """Runtimes for each MODEL, and for each FILE that they can read."""
    widths: Annotated[tuple[str, ...], shown("W,W,... ...")] = ()
    """Hidden layers of the networks, as in 64,64 256,256; without them, the standard sizes and the Nature CNN."""
    seed: Annotated[int, SEED] = 0
    """Seed of the weights and observations."""

    def check(self) -> None:
        super().check()
        self.hidden()
        self.specs()
        if not self.model:
            self.refuse(("bits", "mode", "observations", "runtime"), "requires a MODEL", "add one, or drop it")
        elif self.widths:
            raise QuarlError("--widths and MODEL are mutually exclusive: keep one")

    def look(self) -> None:
        check_paths(self.model)

    def specs(self) -> list[QuantSpec]:
        """Return every precision once, in order."""
        return list(dict.fromkeys(QuantSpec.parse(bits, mode=self.mode) for bits in self.bits))

    def hidden(self) -> list[tuple[int, ...]]:
        """Return `widths` as numbers."""
        return [tuple(layer_widths(text, "--widths")) for text in self.widths]
