"""Functions defined as formulas: every engine computes the same float32 operations in this order.

A formula takes `f`, an engine's arithmetic: f("mul", x, y) is the value of one operation, in which y may be a number.
It also takes x, and the settings of the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arithmetic = Callable[..., Any]
GELU = (1.59577049, 0.072664274, -6.34383438e-05, -1.11275803e-04, 8.04383585e-06, -2.73330278e-07, 3.75484086e-09)
"""2 artanh(erf(x / sqrt(2))) as an odd polynomial: a least-squares fit up to GELU_REACH; beyond it x alone decides.

In float32, x sigmoid(polynomial) is then within 6.1e-7 of x times the integral of the normal distribution.
"""
GELU_REACH = 5.5
GELU_TANH = (1.59576912, 0.07135481627)
"""2 sqrt(2 / pi) (1, 0.044715): the approximation of Hendrycks and Gimpel 2016, whose tanh(x) is 2 sigmoid(2 x) - 1."""
SETTINGS = {"clip": ("low", "high"), "prelu": ("slope",), "selu": ("alpha", "scale")}
"""Names of the numbers that a function takes."""


def _clip(f: Arithmetic, x: Any, low: float, high: float) -> Any:
    x = x if low == -float("inf") else f("max", x, low)
    return x if high == float("inf") else f("min", x, high)


def _gated(f: Arithmetic, x: Any, within: Any, coefficients: tuple[float, ...]) -> Any:
    """Return x sigmoid(p(within)) for an odd polynomial p."""
    square = f("mul", within, within)
    polynomial = f("add", f("mul", square, coefficients[-1]), coefficients[-2])
    for coefficient in reversed(coefficients[:-2]):
        polynomial = f("add", f("mul", square, polynomial), coefficient)
    return f("mul", x, f("sigmoid", f("mul", within, polynomial)))


def _mish(f: Arithmetic, x: Any) -> Any:
    """Return x tanh(log(1 + exp(x))).

    With s = sigmoid(x) and c = sigmoid(-x) = 1 - s, the tanh is s (1 + c) / (1 + c c).
    """
    s, c = f("sigmoid", x), f("sigmoid", f("mul", x, -1.0))
    above, below = f("mul", s, f("add", c, 1.0)), f("add", f("mul", c, c), 1.0)
    return f("mul", x, f("div", above, below))


def _softplus(f: Arithmetic, x: Any) -> Any:
    """Return log(1 + exp(x)), computed as max(x, 0) - log(sigmoid(|x|))."""
    return f("sub", f("relu", x), f("log", f("sigmoid", f("max", x, f("mul", x, -1.0)))))


def _selu(f: Arithmetic, x: Any, alpha: float, scale: float) -> Any:
    below = f("mul", f("elu", f("min", x, 0.0)), alpha)
    return f("mul", f("add", f("relu", x), below), scale)


def _tanh_ratio(f: Arithmetic, x: Any) -> Any:
    """Return the continued fraction of tanh to x^5, within 0.0014 of it, clipped to -1 and 1.

    It consists of sums, products and a quotient, so codes of more than 8 bits, for which no table is stored, give the
    same bits in every engine.
    """
    square = f("mul", x, x)
    above = f("mul", x, f("add", f("mul", square, f("add", square, 105.0)), 945.0))
    below = f("add", f("mul", square, f("add", f("mul", square, 15.0), 420.0)), 945.0)
    return _clip(f, f("div", above, below), -1.0, 1.0)


def norm_of_codes(f: Arithmetic, integers: Any, share: Any, epsilon: Any, gain: Any, offset: Any) -> Any:
    """Return the LayerNorm of codes minus their zero point, as float32 integers; their scale does not matter.

    All sums are exact sums of integers, so every engine gets the same bits whatever its order of addition. The squares
    are of distances from an integer next to the mean. Distances from 0 would leave the variance of a row of large,
    nearly equal numbers to the rounding of a difference, which can fall below 0.

    Args:
        f: Arithmetic of the engine; besides that of activations it has sum of a row, round and sqrt.
        integers: Codes minus their zero point.
        share: 1 / n.
        epsilon: Epsilon in squared steps.
        gain: Factor of each number.
        offset: Offset of each number.
    """
    near = f("sub", integers, f("round", f("mul", f("sum", integers), share)))
    mean = f("mul", f("sum", near), share)
    second = f("mul", f("sum", f("mul", near, near)), share)
    variance = f("add", f("sub", second, f("mul", mean, mean)), epsilon)
    return f("add", f("mul", f("div", f("sub", near, mean), _root(f, variance)), gain), offset)


def l2_norm(f: Arithmetic, x: Any, least: Any) -> Any:
    """Return x divided by the root of the sum of its squares; integers give the same bits in every engine.

    Args:
        f: Arithmetic of the engine; besides that of activations it has sum of a row and sqrt.
        x: Codes minus their zero point, as float32 integers, or real numbers.
        least: Smallest sum of squares.
    """
    total = f("max", f("sum", f("mul", x, x)), least)
    return f("div", x, _root(f, total))


def _root(f: Arithmetic, x: Any) -> Any:
    """Return the square root: square roots of runtimes differ, one step of Newton's method makes them equal."""
    root = f("sqrt", x)
    return f("mul", f("add", root, f("div", x, root)), 0.5)


def action(f: Arithmetic, x: Any, low: Any, high: Any, *, squashed: bool) -> Any:
    """Return the action within its bounds for a network's output.

    Args:
        f: Arithmetic of the engine.
        x: Output of the network.
        low: Lower bounds.
        high: Upper bounds.
        squashed: Map tanh of the output to the bounds, instead of clipping the output.
    """
    low, high = low.reshape(-1), high.reshape(-1)
    if squashed:
        half = np.float32(0.5) * (high - low)
        x = f("add", f("mul", f("add", f("tanh", x), 1.0), half), low)
    return f("max", f("min", x, high), low)


FORMULAS: Mapping[str, Callable[..., Any]] = {
    "clip": _clip,
    "prelu": lambda f, x, slope: f("add", f("relu", x), f("mul", f("min", x, 0.0), slope)),
    "selu": _selu,
    "silu": lambda f, x: f("mul", x, f("sigmoid", x)),
    "gelu": lambda f, x: _gated(f, x, _clip(f, x, -GELU_REACH, GELU_REACH), GELU),
    "gelu_tanh": lambda f, x: _gated(f, x, x, GELU_TANH),
    "mish": _mish,
    "softplus": _softplus,
    "hardsigmoid": lambda f, x: f("div", _clip(f, f("add", x, 3.0), 0.0, 6.0), 6.0),
    "tanh_ratio": _tanh_ratio,
    "hardswish": lambda f, x: f("div", f("mul", x, _clip(f, f("add", x, 3.0), 0.0, 6.0)), 6.0),
}
EXACT = ("clip", "prelu", "hardsigmoid", "hardswish", "tanh_ratio")
"""Functions of sums, products and comparisons only, which every runtime rounds alike."""
