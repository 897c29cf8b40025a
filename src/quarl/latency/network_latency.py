"""Latency of standard networks on every engine, one call on one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

from quarl import engines, formats
from quarl.arrays import Array
from quarl.calibration import quantize
from quarl.engines import Engine
from quarl.files import temporary_folder
from quarl.latency.networks import STANDARD, Network, build, observations
from quarl.latency.timing import time_engines
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.quant.spec import QuantSpec
from quarl.rows import Column, EngineName, Precision, Row

PER_TENSOR = "int8-per-tensor"
"""ONNX Runtime's own dynamic quantization, per tensor. The engines' int8 quantizes each row, at some cost."""
EDGED = ("int4e8", "int3e8", "int2e8")
"""Few bits between a first and a last layer of 8."""
COLUMNS = (
    ("torch", "fp32"),
    ("onnx", "fp32"),
    ("onnx", "int8"),
    ("onnx", PER_TENSOR),
    ("litert", "fp32"),
    ("litert", "int8"),
    ("litert", "int4"),
    *(("litert", precision) for precision in EDGED),
)
"""(engine, precision) of a comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRow(Row):
    """One engine in one precision."""

    command = "bench latency"
    network: Annotated[str, Column("network")]
    batch: Annotated[int, Column("batch", caption="batch {}")]
    engine: EngineName
    precision: Precision
    us_p50: Annotated[float, Column("µs p50", formats.three_digits)]
    us_p99: Annotated[float, Column("µs p99", formats.three_digits)]
    us_jitter: Annotated[float, Column("jitter", formats.three_digits)]
    """Mean absolute difference of consecutive calls in microseconds."""
    bytes: Annotated[int, Column("file", formats.size)]
    """Size of the file that the engine loads."""
    bytes_added: Annotated[int | None, Column("memory", formats.size, optional=True)] = None
    """Peak memory of a process that loading the file and its first call add; null if it was not measured."""


def measure(
    networks: Sequence[Network] = STANDARD,
    *,
    batches: Sequence[int] = (1, 16),
    columns: Sequence[tuple[str, str]] = COLUMNS,
    seed: int = 0,
    seconds: float = 0.4,
    progress: Callable[[str], None] = lambda label: None,
) -> list[LatencyRow]:
    """Measure each network at each batch size with each engine and precision.

    Args:
        networks: the networks, with random weights.
        batches: rows of a call.
        columns: pairs of engine and precision.
        seed: seed of weights and observations.
        seconds: time for each row of the result.
        progress: called with the name of each network before it is measured.

    Returns:
        Rows ordered by network, batch and column.
    """
    rows = []
    for network in networks:
        progress(network.name)
        policy = build(network, seed)
        seen = observations(policy, seed=seed)
        for batch in batches:
            loaded = [(network.name, column[1], _load(policy, seen, column, batch)) for column in columns]
            rows += timed_rows(loaded, seen, seconds)
    return rows


def timed_rows(loaded: Sequence[tuple[str, str, Engine]], observations: Array, seconds: float) -> list[LatencyRow]:
    """Time engines that take turns.

    Args:
        loaded: network, precision and engine of each row.
        observations: observations [N, *shape] that all engines read.
        seconds: time for each engine.
    """
    timings = time_engines([engine for _, _, engine in loaded], observations, seconds=seconds)
    return [
        LatencyRow(
            network=network,
            batch=engine.batch,
            engine=engine.name,
            precision=precision,
            **asdict(timing),
            bytes=engine.file_bytes,
        )
        for (network, precision, engine), timing in zip(loaded, timings, strict=True)
    ]


def _load(policy: Policy, observations: Array, column: tuple[str, str], batch: int) -> Engine:
    """Load the engine of a column.

    Weights are rounded to nearest, which takes less time and gives the same operators.
    """
    name, precision = column
    by_tool = column == ("onnx", PER_TENSOR)
    quantized = quantize(policy, QuantSpec.parse("fp32" if by_tool else precision).nearest, observations)
    return by_onnxruntime(quantized, batch) if by_tool else engines.load(quantized, name, batch=batch)


def by_onnxruntime(policy: QuantizedPolicy, batch: int) -> Engine:
    """Return a float32 policy quantized by `onnxruntime.quantization.quantize_dynamic` with its defaults.

    This is the int8 that users of ONNX Runtime have today, for comparisons only. Weights and activations are quantized
    per tensor, with fewer and fused operators. A row's result then depends on the other rows of its batch, and sums may
    saturate on processors with AVX2 but without VNNI.
    """
    import onnx  # imported here, because it belongs to an extra that other latencies do not need
    from onnxruntime.quantization import quantize_dynamic

    from quarl.engines.onnx import Onnx, write

    model = onnx.load_from_string(write(policy, batch))
    # All shapes are known and constants are folded, so that the tool need not ask for its preparation step.
    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    with temporary_folder() as folder:
        path = folder / "policy.onnx"
        quantize_dynamic(model, path)
        return Onnx(policy, path.read_bytes(), batch, measured=True)
