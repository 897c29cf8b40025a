"""Activations of int8 codes: the 256-entry table that defines one, and float arithmetic that reproduces it exactly."""

from __future__ import annotations

import numpy as np

from quarl.arrays import Array
from quarl.engines.numpy_operators import apply
from quarl.policy.formulas import EXACT
from quarl.policy.graph import ActivationGrid
from quarl.policy.operators import Activation
from quarl.quant.affine import QParams, dequantize, quantize

TOLERANCE = np.float32(2.0**-20)
"""Tolerated error of a runtime's tanh, sigmoid or exp, relative to max(1, |y|): ten units in float32's last place."""
NUDGES = (0.0, *(sign * 2.0**-power for power in range(20, 11, -1) for sign in (1, -1)))


def table(op: Activation, source: ActivationGrid, target: ActivationGrid) -> Array:
    """Return the code of `target` for each code of `source`, int8 [256], lowest code first.

    Args:
        op: The activation.
        source: Grid of its input.
        target: Grid of its value.
    """
    x = dequantize(_every_code(source.qparams), source.qparams).astype(np.float32)
    return np.asarray(quantize(_function(op, x), target.qparams)).astype(np.int8)


def steady_scale(op: Activation, source: ActivationGrid, target: ActivationGrid) -> np.float32 | None:
    """Return an input scale with which any runtime's float kernels reproduce the table.

    They compute quantize(f((code - zero_point) * scale)). A runtime's tanh errs by a few units in the last place, so an
    entry on a rounding boundary could fall to either side. The grid's own scale is changed slightly (by less than 0.03
    %) until no entry does.

    Args:
        op: The activation.
        source: Grid of its input.
        target: Grid of its value.

    Returns:
        The scale; None if no change helps.
    """
    wanted = table(op, source, target)
    q = target.qparams
    centered = (_every_code(source.qparams) - np.float32(source.zero_point)).astype(np.float32)
    for nudge in NUDGES:
        scale = np.float32(np.float32(source.scale) * (1.0 + nudge))
        x = centered * scale
        y = _function(op, x)
        error = np.where(_is_exact(op.kind, x), np.float32(0), np.maximum(np.abs(y), np.float32(1)) * TOLERANCE)
        if all(np.array_equal(quantize(bound, q), wanted) for bound in (y - error, y + error)):
            return scale
    return None


def _function(op: Activation, x: Array) -> Array:
    with np.errstate(over="ignore"):  # the ends of a wide grid: 1 / (1 + exp(89)) is 0
        return apply(op, [x])


def _every_code(q: QParams) -> Array:
    return np.arange(q.qmin, q.qmax + 1).astype(np.float32)


def _is_exact(kind: str, x: Array) -> Array:
    """Return a mask of inputs at which the activation uses only sums and products.

    Every runtime rounds those alike.
    """
    if kind in ("relu", "leaky_relu", *EXACT):
        return np.ones(x.shape, bool)
    return x >= 0 if kind == "elu" else np.zeros(x.shape, bool)
