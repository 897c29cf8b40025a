"""Latency of one call, numpy in to numpy out, on one thread of one process.

Engines take turns in short blocks whose order changes from round to round, so that a slow moment of the machine meets
all of them. Each block starts with calls that are not counted: an actor's process runs one policy, whose weights
stay in the cache.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import numpy as np

from quarl import engines, formats
from quarl.arrays import Array
from quarl.calibration import quantize
from quarl.engines import Engine
from quarl.errors import QuarlError
from quarl.experiments.methods.networks import STANDARD, Network, build, record
from quarl.files import temporary_folder
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.quant.spec import QuantSpec
from quarl.rows import Column, EngineName, Precision, Row

PER_TENSOR = "int8-per-tensor"
"""ONNX Runtime's own dynamic quantisation; its "int8" is quantised per row, as in every engine, at some cost."""
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
ROUNDS = 20
WARM_UP = 3
MIN_CALLS, MAX_CALLS = 5, 400
"""Counted calls of one block."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of a call."""

    us_p50: float
    us_p99: float
    us_jitter: float = 0.0


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
    """Microseconds by which one call and the next differ, in the mean."""
    bytes: Annotated[int, Column("file", formats.size)]
    """Of the file that the engine loads."""
    bytes_added: Annotated[int | None, Column("memory", formats.size, optional=True)] = None
    """What loading the file and its first call add to the peak memory of a process; null where it was not measured."""


def measure(
    networks: Sequence[Network] = STANDARD,
    *,
    batches: Sequence[int] = (1, 16),
    columns: Sequence[tuple[str, str]] = COLUMNS,
    seed: int = 0,
    seconds: float = 0.4,
    progress: Callable[[str], None] = lambda label: None,
) -> list[LatencyRow]:
    """Rows of every network, batch and (engine, precision), in that order.

    seconds: what each row is given.
    progress: called with the name of each network before it is measured.
    """
    rows = []
    for network in networks:
        progress(network.name)
        policy = build(network, seed)
        observations, _ = record(network, seed=seed)
        for batch in batches:
            loaded = _load(policy, observations, columns, batch)
            timings = time_engines(loaded, observations, seconds=seconds)
            rows += [
                LatencyRow(
                    network=network.name,
                    batch=batch,
                    engine=name,
                    precision=precision,
                    **asdict(timing),
                    bytes=engine.file_bytes,
                )
                for (name, precision), engine, timing in zip(columns, loaded, timings, strict=True)
            ]
    return rows


def time_engines(loaded: Sequence[Engine], observations: Array, *, seconds: float = 0.4) -> list[Timing]:
    """Timings of engines side by side, on observations [N, *shape] that pass by in turn, `engine.batch` rows a call.

    seconds: time given to each engine, blocks and rounds together (slow ones take longer: 100 calls at least).
    """
    if len(observations) == 0:
        raise QuarlError("latency is measured on recorded observations, and there are none")
    calls = [_Calls(engine, observations) for engine in loaded]
    for call in calls:
        call.prepare(seconds / ROUNDS)
    rng = np.random.default_rng(0)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            for index in rng.permutation(len(calls)).tolist():
                calls[index].block()
    finally:
        if collecting:
            gc.enable()
    return [call.timing() for call in calls]


class _Calls:
    """One engine's calls, and what they took."""

    def __init__(self, engine: Engine, observations: Array) -> None:
        self.run = engine.run
        size = max(len(observations) // engine.batch, 1) * engine.batch
        rows = np.resize(observations, (size, *observations.shape[1:]))
        self.inputs = [rows[start : start + engine.batch] for start in range(0, size, engine.batch)]
        self.position = 0
        self.calls = MIN_CALLS
        self.nanoseconds: list[int] = []

    def prepare(self, seconds: float) -> None:
        """Warms up, and fits the block's length to the time it is given."""
        self.block()
        typical = float(np.median(self.nanoseconds))
        self.calls = int(np.clip(1e9 * seconds / typical, MIN_CALLS, MAX_CALLS))
        self.nanoseconds.clear()

    def block(self) -> None:
        run, now, inputs, record = self.run, time.perf_counter_ns, self.inputs, self.nanoseconds.append
        for index in range(self.position, self.position + WARM_UP):
            run(inputs[index % len(inputs)])
        for index in range(self.position, self.position + self.calls):
            rows = inputs[index % len(inputs)]
            start = now()
            run(rows)
            record(now() - start)
        self.position += self.calls

    def timing(self) -> Timing:
        p50, p99 = np.percentile(self.nanoseconds, [50, 99])
        return Timing(*(round(float(each) / 1e3, 2) for each in (p50, p99, np.abs(np.diff(self.nanoseconds)).mean())))


def _load(policy: Policy, observations: Array, columns: Sequence[tuple[str, str]], batch: int) -> list[Engine]:
    """Weights are rounded to nearest, which gives the same operators in less time."""
    loaded: list[Engine] = []
    for name, precision in columns:
        by_tool = (name, precision) == ("onnx", PER_TENSOR)
        spec = QuantSpec.parse("fp32" if by_tool else precision)
        plain = replace(spec, scheme=replace(spec.scheme, rounding="nearest"))
        quantized = quantize(policy, plain, observations)
        loaded.append(by_onnxruntime(quantized, batch) if by_tool else engines.load(quantized, name, batch=batch))
    return loaded


def by_onnxruntime(policy: QuantizedPolicy, batch: int) -> Engine:
    """A float32 policy after `onnxruntime.quantization.quantize_dynamic`, with its defaults.

    It is the int8 that users of ONNX Runtime have today. Weights and activations are quantised per tensor: fewer and
    fused operators, but a row's result depends on the rows beside it, and on processors with AVX2 but without VNNI its
    sums may saturate. For comparisons only.
    """
    import onnx  # here, and what follows: of an extra, and other latencies do without
    from onnxruntime.quantization import quantize_dynamic

    from quarl.engines.onnx import Onnx, write

    model = onnx.load_from_string(write(policy, batch))
    # Shapes are known and nothing is left to fold: the tool need not ask for its preparation step.
    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    with temporary_folder() as folder:
        path = folder / "policy.onnx"
        quantize_dynamic(model, path)
        return Onnx(policy, path.read_bytes(), batch, measured=True)
