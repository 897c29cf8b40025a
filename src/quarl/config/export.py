"""Options of export and verify: a policy as a file for other runtimes, and a check of its actions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from tyro.conf import Positional

from quarl.config.base import Config, EnvId, Observations, Output
from quarl.config.trained_policy import CalibratedConfig, check_paths
from quarl.errors import QuarlError
from quarl.fields import AT_LEAST_ONE, NOT_NEGATIVE, PERCENTAGE, QUANTISATION, Bound, shown
from quarl.quant.spec import Mode, QuantSpec
from quarl.specs import SEED, Flag

Runtimes = Literal["litert", "ort", "openvino", "tract", "tflm", "c", "c-aarch64", "c-m4", "c-m0"]


@dataclass(frozen=True, kw_only=True)
class ExportConfig(CalibratedConfig):
    """Write a policy as a file for another runtime or a small board, with its contract and the data to verify it."""

    verb: ClassVar[str] = "export"
    examples = (
        "quarl export logs/dqn/CartPole-v1_1 --to tflite -o cartpole",
        "quarl export out/int4.safetensors --to c -o firmware",
    )

    to: Literal["tflite", "tflite-int16x8", "onnx", "onnx-qdq", "c"] = "tflite"
    """Format: tflite for LiteRT, OpenVINO and TFLite Micro, or for int16 hardware (tflite-int16x8); ONNX with integer
    operators (onnx) or QDQ (onnx-qdq); integer-only C99 (c).
    """
    precision: Annotated[str | None, shown("BITS", default="int8, or the policy's own"), QUANTISATION] = None
    """Precision: fp32, fp16, an integer 2..32, wNaM, or intNeK for K bits in the first and last layers."""
    mode: Annotated[
        Mode | None, shown(default="static, or the policy's own if the target supports it"), QUANTISATION
    ] = None
    """Activations: quantized per row at run time, or on grids calibrated beforehand, which boards need."""
    symmetric_activations: Annotated[Flag, QUANTISATION] = False
    """Give the grids of static mode zero point 0, as TensorRT requires; a policy that has other grids is refused."""
    io: Literal["float", "int8"] = "float"
    """Types of the file's inputs and outputs; int8 is refused, with the reason."""
    name: str = "policy"
    """Prefix of the symbols, macros and files of C, so that policies can share a firmware."""
    package: Literal["cmake", "platformio", "esp-idf"] | None = None
    """Project around C: a control loop with limits, timeouts, a self-test and a watchdog."""
    names: Annotated[Path | None, shown("FILE")] = None
    """YAML or JSON with names and units of numbers for the contract: observation and action, each a list of
    {name, unit}, and control_hz, the actions per second.
    """
    observations: Observations = None
    """Recorded observations, .npy, .npz or .csv with a row per step, instead of an environment, for calibration and
    golden vectors. The last tenth is held out from calibration.
    """
    episodes: Annotated[int, AT_LEAST_ONE] = 100
    """Episodes of the verdict on a dynamic policy that becomes static, or on grids of recorded observations."""
    output: Output = Path("quarl-export")
    """Folder for the file, contract.json, golden.npz, README.md, SHA256SUMS and the policy itself."""

    def check(self) -> None:
        super().check()
        if self.precision is not None:
            QuantSpec.parse(self.precision)
        if self.mode == "dynamic":
            self.refuse(("symmetric_activations",), "requires --mode static", "add that, or drop it")
        if self.io == "int8":
            raise QuarlError(
                "--io int8 would change the measured policy: observations keep up to 16 bits, "
                "since 8 leave dead zones around rest; use float32, or an image's bytes"
            )


@dataclass(frozen=True, kw_only=True)
class VerifyConfig(Config):
    """Check that exported files are unchanged, and that they act like the policy in every available runtime."""

    verb: ClassVar[str] = "verify"
    examples = ("quarl verify quarl-export --runtime litert tflm",)

    model: Positional[Annotated[str, shown("PATH")]] = ""
    """Folder that quarl export wrote, or its file alone, for which fewer checks are possible."""
    runtime: Annotated[tuple[Runtimes, ...], shown("NAME ...", default="all installed")] = ()
    """Runtimes to run the file in: litert, ort, openvino, tract, tflm, c, c-aarch64, c-m4 or c-m0."""
    agent: Annotated[str | None, shown("PATH", default="same name, in the folder or beside it")] = None
    """Exported agent, as a file or the folder of its run."""
    observations: Observations = None
    """Recorded observations, .npy, .npz or .csv, on which the file is compared instead of those of fresh episodes."""
    episodes: Annotated[int, NOT_NEGATIVE] = 20
    """Episodes of the return in each runtime, compared with fp32; 0 plays none."""
    margin: Annotated[float, shown("PERCENT"), PERCENTAGE] = 5.0
    """Acceptable loss of return, in percent of fp32's."""
    env: EnvId = None
    """Gymnasium id of the environment; my_module:MyEnv-v0 first imports my_module, which registers it."""
    seed: Annotated[int, SEED] = 0
    """Seed of the episodes."""
    envelope: Flag = False
    """Report the errors of a static policy against fp32, and those of dynamic mode, also on states off its path."""
    edited: Flag = False
    """Compile and run the file even if it was edited or written elsewhere: use it only for code that you trust."""
    prove: Flag = False
    """Prove from C alone that no sum, shift or index leaves its range, and where grids saturate; writes proof.json."""
    calls: Annotated[int, Bound("must be 1 to 4,294,967,296", lambda number: 1 <= number <= 2**32)] = 2**20
    """Largest number of points of the first grid inside the calibrated box that --prove runs, all of them."""

    def check(self) -> None:
        super().check()
        if not self.model:
            raise QuarlError("PATH is missing: add it before the options, as in quarl verify quarl-export")
        if not self.prove:
            self.refuse(("calls",), "requires --prove", "add that, or drop it")

    def look(self) -> None:
        check_paths((self.model,))
