"""Bounds of the numbers in a policy.c: its calls in order, on intervals or on single observations.

Codes and real numbers are float64, which holds both exactly. The C kernels treat infinity as 2**128, and so does this
module. All rules have the arithmetic of kernels.c; a kernel without a rule proves nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from quarl.arrays import Array
from quarl.engines.numpy_operators import computed
from quarl.export.c.program import Call, Program, parameters, without_counts
from quarl.export.c.weight_words import KERNELS, by_fours
from quarl.policy.formulas import l2_norm, norm_of_codes

INT16, INT32 = (-(2**15), 2**15 - 1), (-(2**31), 2**31 - 1)
NORMAL = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
ROUNDING = 2.0**-21
"""Bound of the relative rounding error of a LayerNorm, per number in its row."""
IN_PLACE = ("scale", "sum", "clip", "quantize", "quantize_shift", "quantize_bytes", "dequantize", "look_up", "squash")
"""Kernels that read each number before they write one in its place, or before it."""
Claims = dict[str, tuple[float, float, float, float]]
"""By name of a number in a call: its smallest and largest value, and the limits within which the call is defined."""


class Grid(NamedTuple):
    """A call that clips codes to the ends of a grid."""

    call: int
    """Index of the call in the network."""
    layer: str
    """Name of the layer, or the kernel with the index of the call."""
    low: int
    high: int
    codes: Array
    """Codes before they are clipped, [ends, rows, n]."""

    @property
    def relu(self) -> bool:
        """Return whether it is a layer whose codes begin at 0: it ends in a ReLU, which loses nothing below 0."""
        return self.low == 0 and not self.layer.startswith("quantize")

    @property
    def beyond(self) -> Array:
        """Return the distances of codes beyond the high end and the low end, [rows, 2 n]; inside is negative."""
        below = np.full_like(self.codes[0], -np.inf) if self.relu else self.low - self.codes[0]
        return np.concatenate([self.codes[-1] - self.high, below], axis=1)


class Run:
    """All calls of a program on the ends of intervals [2, rows, n], or its network on observations [1, rows, n]."""

    def __init__(self, program: Program, x: Array) -> None:
        self.program, self.grids, self.claims = program, list[Grid](), list[Claims]()
        self.box: Array | None = None
        sizes = {"c": program.codes, "r": program.reals, "y": program.raw, "a": program.action}
        self.values = {name: np.full((*x.shape[:2], size), np.nan) for name, size in sizes.items()} | {"x": x}
        for self.call in program.calls if len(x) > 1 else without_counts(program.network):
            self.claims.append({})
            self.sizes, self.named = self.call.sizes, self.call.named
            self._forget_results()
            with np.errstate(over="ignore"):
                RULES.get(self.call.kernel, _unknown)(self)

    def claim(self, **numbers: tuple[Any, tuple[float, float]]) -> None:
        """Add claims about the current call: by name, all values of a number, and its limits."""
        self.claims[-1] |= {
            name.replace("_", " "): (float(np.min(values)), float(np.max(values)), *limits)
            for name, (values, limits) in numbers.items()
        }

    def real(self, name: str) -> float:
        """Return a real number among the arguments."""
        return float(np.uint32(int(self.named[name][:-1], 16)).view(np.float32))

    def read(self, name: str, size: int | None = None) -> Array:
        """Return the values, or constants, behind a pointer: `size` of them, or `n`."""
        array, start = self.call.place(name)
        part = np.s_[..., start : start + (size or self.sizes["n"])]
        if array in self.values:
            values = self.values[array][part]
            self.claim(**{f"unwritten numbers in {name}": (np.isnan(values).sum(), (0, 0))})
            return np.nan_to_num(values)
        table = self.program.tables[array][part]
        whole = table.dtype != np.uint32 or name in ("w", "m")  # words of weights and multipliers
        return table if whole else table.view(np.float32).astype(np.float64)

    def write(self, values: Array) -> None:
        """Keep the results [ends, rows, n] of the current call."""
        (extent,) = (p.extent for p in parameters(self.call.kernel) if p.extent and p.name == "y")
        array, start = self.call.place("y")
        self.values[array][..., start : start + extent(self.sizes) : self.sizes.get("step", 1)] = values

    def write_ends(self, low: float, high: float) -> None:
        """Keep the same ends for all results."""
        self.write(np.reshape([low, high], (2, 1, 1)))

    def write_codes(self, codes: Array) -> None:
        """Clip codes [ends, rows, n] to the call's grid, and keep both."""
        at, (low, high) = len(self.claims) - 1, (self.sizes["low"], self.sizes["high"])
        self.claim(code=([low, high], INT16))
        layer = self.program.layers.get(self.named.get("w", ""), f"{self.call.kernel} {at}")
        self.grids.append(Grid(at, layer, low, high, codes))
        self.write(codes.clip(low, high))

    def sums(self, x: Array) -> Array:
        """Return the sums of a layer [..., n] on its inputs [ends, ..., k], without biases."""
        rows, k = weights(self.program, self.call), x.shape[-1]
        used = rows[:, :k]
        sums: Array = x @ used.clip(0).T + x[::-1] @ used.clip(max=0).T
        self.claim(weight_behind_the_last=(np.append(rows[:, k:], 0), (0, 0)))
        if self.named["four"] == "four8":
            self.claim(second_sum_times_256=(np.append(256 * sums[..., 1::2], 0), INT32))
        return sums

    def requantized(self, sums: Array) -> Array:
        """Return the codes of sums [..., n] before they are clipped."""
        sums, shift, words = sums + self.read("b"), self.sizes["shift"], self.read("m")
        shifted = sums * 2.0**shift
        self.claim(sum=(sums, INT32), shift=(shift, (0, 31)), shifted_sum=(shifted, INT32), multiplier=(words, INT32))
        m = (words >> 7 & 0x7FFFFF | ((words & 127) + np.uint32(93 + shift)) << 23).view(np.float32)
        return _rounded(np.rint(sums.astype(np.float32) * m))

    def _forget_results(self) -> None:
        """Remove what the call overwrites, unless it reads each number before, so that reading it breaks a claim."""
        pointers = [(p, p.extent, *self.call.place(p.name)) for p in parameters(self.call.kernel) if p.extent]
        read = [(array, start) for p, _, array, start in pointers if p.const]
        for p, extent, array, start in pointers:
            late = any(name == array and begin < start for name, begin in read)
            if not p.const and (late or self.call.kernel not in IN_PLACE):
                self.values[array][..., start : start + extent(self.sizes)] = np.nan


@functools.lru_cache(64)
def weights(program: Program, call: Call) -> Array:
    """Return the weights of a layer as its kernel adds them, float64 [n, columns], of columns by fours."""
    kernel, sizes = call.named["four"], call.sizes
    k = sizes["k"] if "k" in sizes else sizes["c"] * sizes["kh"] * sizes["kw"]
    groups, columns = by_fours(sizes["n"]) // 4, by_fours(k)
    array, start = call.place("w")
    words = program.tables[array][start : start + groups * sizes["words"]].reshape(groups, -1)
    planes = [(words[:, : columns // 4], 2), (words[:, columns // 4 :], 1)]  # of 3 bits
    planes = planes if KERNELS[kernel] == 3 else [(words, KERNELS[kernel])]
    fields: Array = np.sum([4**place * _fields(*plane, columns) for place, plane in enumerate(planes)], axis=0)
    offset = np.full((len(fields), 1), sizes["offset"])
    if kernel == "four8":  # bytes of every second row have a sign
        fields[1::2] -= 256 * (fields[1::2] > 127)
        offset[1::2] = 0
    fields *= 1 + kernel.startswith("odd")
    fields[:, :k] -= offset
    return np.asarray(fields[: sizes["n"]], np.float64)


def _fields(words: Array, bits: int, columns: int) -> Array:
    """Return the fields of a plane of words, int64 [4 groups, columns]; weight_words.py packs them."""
    places: Array = bits * np.arange(16 // bits)[:, None] + np.arange(0, 32, 16)
    fields = (words.astype(np.int64)[:, :, None, None] >> places & (2**bits - 1)).reshape(len(words), -1)
    pairs = fields[:, : 4 * columns].reshape(len(words), columns // 2, 4, 2)
    return np.asarray(pairs.transpose(0, 2, 1, 3).reshape(-1, columns))


def _rounded(x: Array) -> Array:
    """Return real numbers rounded to float32; those beyond its range become infinite."""
    return np.asarray(x.astype(np.float32).astype(np.float64).clip(-(2.0**128), 2.0**128))


def _unknown(run: Run) -> None:
    run.claim(kernels_without_a_rule=(1, (0, 0)))


def _quantize(run: Run) -> None:
    by = "step" if run.call.kernel == "quantize" else "inverse"
    factor = run.real(by)
    run.claim(**{by: (factor, NORMAL)})
    x = run.read("x")
    run.write_codes(np.rint(_rounded(x / factor if by == "step" else x * factor)))


def _look_up(run: Run) -> None:
    """Look up codes; of an interval, the least and the largest entry within."""
    places, entries = run.read("x") - run.sizes.get("first", 0), run.read("code", 256) - np.float64(run.sizes["zero"])
    run.claim(index=(places, (0, 255)), code=(entries, INT16))
    first, last = places.clip(0, 255).astype(int)[[0, -1]]
    parts = np.stack([first, last + 1], axis=-1).reshape(-1)
    found = [f.reduceat(np.append(entries, 0), parts)[::2].reshape(first.shape) for f in (np.minimum, np.maximum)]
    run.write(np.stack(found)[: len(places)])


def _product(a: Array, b: Any) -> Array:
    """Return the products of numbers, or of all pairs of the ends of their intervals, in order."""
    b = np.reshape(b, b.shape if np.ndim(b) == 3 else (1, 1, -1))
    both = np.stack([a * b, a * b[::-1]])
    return np.stack([both.min(axis=(0, 1)), both.max(axis=(0, 1))])[: len(a)]


def _steps(run: Run, values: Array) -> None:
    """Keep whole numbers of steps, which are int32."""
    run.claim(steps=(values, INT32))
    run.write(values)


def _narrow(run: Run) -> None:
    values = run.read("x") * run.sizes["factor"]
    run.claim(sum=([values.min() - 1, values.max() + 2.0 ** run.sizes["shift"]], INT32))
    run.write_codes(np.rint(np.sort(values, axis=0) / 2.0 ** run.sizes["shift"]))


def _threshold(run: Run) -> None:
    limits, low = run.read("limit", 255), run.sizes["low"]
    run.claim(limits_that_fall=(np.count_nonzero(np.diff(limits) < 0), (0, 0)), code=([low, low + 255], INT16))
    run.write(np.searchsorted(limits, run.read("x")) + np.float64(low))


def _dense(run: Run) -> None:
    run.write_codes(run.requantized(run.sums(run.read("x", run.sizes["k"]))))


def _convolve(run: Run) -> None:
    s = run.sizes
    image = run.read("x", s["c"] * s["h"] * s["wide"])
    # Places of each window, [oh, kh] and [ow, kw], and which of them are outside, where the kernel has zeros.
    down = np.arange(s["oh"])[:, None] * s["sh"] - s["ph"] + np.arange(s["kh"])
    right = np.arange(s["ow"])[:, None] * s["sw"] - s["pw"] + np.arange(s["kw"])
    (u, height), (v, width) = ((down[:, None, :, None], s["h"]), (right[None, :, None, :], s["wide"]))
    inside = (u >= 0) & (u < height) & (v >= 0) & (v < width)
    windows = image.reshape(*image.shape[:2], -1, height, width)[..., u.clip(0, height - 1), v.clip(0, width - 1)]
    rows = np.moveaxis(np.where(inside, windows, 0), 2, 4).reshape(*image.shape[:2], s["oh"] * s["ow"], -1)
    run.write_codes(run.requantized(run.sums(rows)).swapaxes(2, 3).reshape(*image.shape[:2], -1))


def _last(run: Run) -> None:
    sums = run.sums(run.read("x", run.sizes["k"]))
    run.claim(sum=(sums, INT32))
    run.write(_rounded(np.sort(_rounded(_rounded(sums) * run.read("unit")), axis=0) + run.read("b")))


def _layer_norm(run: Run) -> None:
    """Bound each distance from the mean by sqrt(n - 1) standard deviations.

    The computed variance is positive: it is exactly 0, plus epsilon, if all numbers are equal. Otherwise it is at least
    (n - 1) / n**2, with an error of at most n times `ROUNDING` times as much.
    """
    n, x, share, epsilon = run.sizes["n"], run.read("x"), run.real("share"), run.real("epsilon")
    gain, offset, exact = run.read("gain"), run.read("offset"), float(np.float32(1 / n))
    sums = n * np.stack([x[0].min(axis=-1), x[-1].max(axis=-1)])
    centers = np.rint(_rounded(_rounded(sums) * share)).clip(*INT16)
    distance = max(x.max() - centers.min(), centers.max() - x.min())
    run.claim(numbers=(n, (1, 2**16)), share=(share, (exact, exact)), epsilon=(epsilon, NORMAL))
    run.claim(sum=(np.append(sums, 0), INT32), sum_of_squares=([0, n * distance**2], INT32))
    reach = math.sqrt(n - 1) * (1 + (n + 16) * ROUNDING) * gain
    ends = np.sort(np.stack([-reach, reach]), axis=0)[:, None]
    settings = [np.float32(each) for each in (share, epsilon, gain, offset)]
    run.write(_rounded(ends + offset) if len(x) > 1 else norm_of_codes(computed, x.astype(np.float32), *settings))


def _l2_norm(run: Run) -> None:
    x, least = run.read("x"), run.real("least")
    run.claim(sum_of_squares=([0, x.shape[-1] * np.square(x).max()], INT32), least=(least, NORMAL))
    ends = np.reshape([-1 - ROUNDING, 1 + ROUNDING], (2, 1, 1))
    run.write(ends if len(x) > 1 else l2_norm(computed, x.astype(np.float32), np.float32(least)))


def _argmax(run: Run) -> None:
    ends = run.sizes["start"], run.sizes["start"] + len(run.read("x")[0, 0]) - 1
    run.claim(number=(ends, INT32))
    run.write_ends(*ends)


def _outside(run: Run) -> None:
    """Keep the box with which the call compares the observation."""
    x, size = run.read("x"), (run.sizes["n"] - 1) * run.sizes["step"] + 1
    run.box = np.stack([np.broadcast_to(run.read(name, size), x.shape[2:]) for name in ("low", "high")])


RULES: Mapping[str, Callable[[Run], None]] = {
    "scale": lambda run: run.write(_rounded(_product(run.read("x"), run.read("factor")))),
    "products": lambda run: _steps(run, _product(run.read("a"), run.read("b"))),
    "widen": lambda run: _steps(run, run.read("x")),
    "accumulate": lambda run: _steps(
        run, _product(run.read("a"), run.sizes["first"]) + _product(run.read("b"), run.sizes["second"])
    ),
    "narrow": _narrow,
    "to_real": lambda run: run.write(_product(run.read("x"), run.sizes["sign"] * 2.0 ** run.sizes["exponent"])),
    "quantize_power": lambda run: run.write_codes(np.rint(run.read("x") / 2.0 ** run.sizes["exponent"])),
    "threshold": _threshold,
    "sum": lambda run: run.write(_rounded(run.read("a") + run.read("b"))),
    "clip": lambda run: run.write(run.read("x").clip(run.real("low"), run.real("high"))),
    "dequantize": lambda run: run.write(np.sort(_rounded(run.read("x") * run.real("step")), axis=0)),
    "quantize": _quantize,
    "quantize_shift": _quantize,
    "quantize_bytes": _look_up,
    "look_up": _look_up,
    "dense": _dense,
    "convolve": _convolve,
    "last": _last,
    "layer_norm": _layer_norm,
    "l2_norm": _l2_norm,
    "argmax": _argmax,
    "positive": lambda run: run.write_ends(0, len(run.read("x")) - 1),
    "outside": _outside,
    "squash": lambda run: run.write_ends(
        run.real("low"), run.real("high")
    ),  # every number on its way fits, whatever x is
}
"""Rule of each kernel that a program calls."""
