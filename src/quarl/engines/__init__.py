"""Engines run a QuantizedPolicy: raw observations in, float32 network outputs out."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError, extras
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.policy.operators import OBSERVATION

ENGINES = ("litert", "onnx", "torch", "reference")
FORMATS = {".tflite": "litert", ".onnx": "onnx"}
"""By suffix of a file, the engine whose format it is."""


class Engine(Protocol):
    """A policy that is ready to run for one batch size."""

    name: str
    """One of ENGINES."""
    measured: bool
    """True where the kernels really compute in the spec's precision; False where it is simulated in float."""
    batch: int
    file_bytes: int
    """Bytes of the file a deployment of this engine loads; 0 where it has none of its own."""

    def run(self, observations: Array) -> Array:
        """float32 outputs [batch, n] of observations [batch, *shape]; the caller owns the result."""
        ...


def load(policy: QuantizedPolicy, engine: str = "litert", *, batch: int = 1) -> Engine:
    """The policy made ready on `engine` for `batch` rows a call, on one thread.

    Raises UnsupportedError where the engine cannot run the policy's precision or operators.
    """
    if engine not in ENGINES:
        raise UnsupportedError(f"unknown engine {engine!r}; choose one of {', '.join(ENGINES)}")
    try:
        with extras(f"engine {engine}"):
            loaded: Engine = importlib.import_module(f"quarl.engines.{engine}").load(policy, batch)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}; use engine reference") from None
    return loaded


def load_fitting(policy: QuantizedPolicy, engine: str = "litert", *, batch: int = 1) -> Engine:
    """The policy on `engine`, or on the reference, which simulates, where that has no kernel for its integers."""
    try:
        return load(policy, engine, batch=batch)
    except UnsupportedError:
        if engine == "reference" or policy.spec.float_type is not None:
            raise
        return load(policy, "reference", batch=batch)


def sound(policy: Policy, observations: Array, outputs: Array) -> Array:
    """The outputs; QuarlError where one is NaN or infinite: such scores are no actions."""
    if not np.isfinite(outputs).all():
        check_values(policy, observations)
        raise QuarlError("the policy gives NaN or infinity where its float32 values are finite; use engine reference")
    return outputs


def check_values(policy: Policy, observations: Array, values: Mapping[str, Array] | None = None) -> None:
    """Refuses a policy whose `values` in float32 on the observations are not all finite, naming the first layer."""
    if values is None:
        from quarl.engines.numpy_operators import as_float  # here: it needs what engines are made of

        with np.errstate(all="ignore"):
            values = as_float(policy, observations)
    for name in (OBSERVATION, *(op.name for op in policy.ops)):
        if not np.isfinite(values[name]).all():
            what = "the environment" if name == OBSERVATION else f"layer {name[:80]!r}"
            raise QuarlError(f"{what} gives NaN or infinity; nothing can be played with such numbers")


def greedy(policy: QuantizedPolicy, observations: Array, engine: str = "litert") -> Array:
    """The policy's deterministic actions on observations [N, *shape]; of `load_fitting`."""
    return policy.head(run_all(load_fitting(policy, engine, batch=64), observations))


def run_all(engine: Engine, observations: Array) -> Array:
    """Outputs [n, out] of any number of observations [n, *shape], the last batch padded with its first row."""
    pieces = []
    for start in range(0, len(observations), engine.batch):
        rows = observations[start : start + engine.batch]
        padding = np.repeat(rows[:1], engine.batch - len(rows), axis=0)
        pieces.append(engine.run(np.concatenate([rows, padding]) if len(padding) else rows)[: len(rows)])
    return np.concatenate(pieces)
