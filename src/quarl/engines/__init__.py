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
"""Engine of a file's format, by suffix."""


class Engine(Protocol):
    """A policy that is ready to run for one batch size."""

    name: str
    """Name of the engine, one of ENGINES."""
    measured: bool
    """True if the kernels really compute in the spec's precision; False if it is simulated in float."""
    batch: int
    file_bytes: int
    """Size in bytes of the file that a deployment of this engine loads; 0 if it has no file of its own."""

    def run(self, observations: Array) -> Array:
        """Return float32 outputs [batch, n] of observations [batch, *shape]; the caller owns the result."""
        ...


def load(policy: QuantizedPolicy, engine: str = "litert", *, batch: int = 1) -> Engine:
    """Return the policy ready to run on an engine, on one thread.

    Args:
        policy: The policy.
        engine: Name of the engine, one of ENGINES.
        batch: Rows of a call.

    Raises:
        UnsupportedError: The engine cannot run the policy's precision or operators.
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
    """Return the policy on `engine`, or on the simulating reference if the engine has no kernel for its integers.

    Args:
        policy: The policy.
        engine: Name of the preferred engine.
        batch: Rows of a call.
    """
    try:
        return load(policy, engine, batch=batch)
    except UnsupportedError:
        if engine == "reference" or policy.spec.float_type is not None:
            raise
        return load(policy, "reference", batch=batch)


def sound(policy: Policy, observations: Array, outputs: Array) -> Array:
    """Return the outputs; raise QuarlError if one is NaN or infinite, because such scores are not actions.

    Args:
        policy: The policy.
        observations: Observations of these outputs, for the error.
        outputs: Outputs of the network.
    """
    if not np.isfinite(outputs).all():
        check_values(policy, observations)
        raise QuarlError("the outputs hold NaN or infinity, unlike the float32 values; use engine reference")
    return outputs


def check_values(policy: Policy, observations: Array, values: Mapping[str, Array] | None = None) -> None:
    """Refuse a policy with values in float32 that are not finite; the error names the first layer.

    Args:
        policy: The policy.
        observations: Raw observations [N, *shape].
        values: All values of the policy on the observations; None computes them.
    """
    if values is None:
        from quarl.engines.numpy_operators import as_float  # here: it needs what engines are made of

        with np.errstate(all="ignore"):
            values = as_float(policy, observations)
    for name in (OBSERVATION, *(op.name for op in policy.ops)):
        if not np.isfinite(values[name]).all():
            what = "the environment" if name == OBSERVATION else f"layer {name[:80]!r}"
            raise QuarlError(f"{what} gives NaN or infinity; the policy cannot be evaluated")


def greedy(policy: QuantizedPolicy, observations: Array, engine: str = "litert") -> Array:
    """Return the policy's deterministic actions on observations [N, *shape], with the engine of `load_fitting`.

    Args:
        policy: The policy.
        observations: Raw observations [N, *shape].
        engine: Name of the preferred engine.
    """
    return policy.head(run_all(load_fitting(policy, engine, batch=64), observations))


def run_all(engine: Engine, observations: Array) -> Array:
    """Return outputs [n, out] of any number of observations [n, *shape].

    The last batch is padded with its first row.
    """
    pieces = []
    for start in range(0, len(observations), engine.batch):
        rows = observations[start : start + engine.batch]
        padding = np.repeat(rows[:1], engine.batch - len(rows), axis=0)
        pieces.append(engine.run(np.concatenate([rows, padding]) if len(padding) else rows)[: len(rows)])
    return np.concatenate(pieces)
