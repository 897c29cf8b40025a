"""Formats: how one value of a row is written in a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from quarl.quant.spec import FLOAT_BITS

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_BINS = 20


def number(value: float | None) -> str:
    """A return, with as many decimals as its size deserves; an en dash where there is none."""
    if value is None:
        return "–"
    decimals = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    return f"{value:z.{decimals}f}".replace("-", "−")


def spread(mean: float | None, std: float | None) -> str:
    """A mean return and the standard deviation around it; an en dash where there is none."""
    return "–" if mean is None else f"{number(mean)} ± {number(std)}"


def mean_bits(mean: float, bits: int) -> str:
    """Bits of a weight over layers of several widths, and the single width that takes as many bytes at least."""
    return "" if mean == bits else f"{mean:.2f} (≤ {math.ceil(mean)})"


def size(count: int | None) -> str:
    """Bytes in decimal units; an en dash for none."""
    if not count:
        return "–"
    for unit, factor in (("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{three_digits(count / factor)} {unit}"
    return f"{count} B"


def three_digits(value: float | None) -> str:
    """Never in powers of ten, to which `.3g` turns from 999.5 on; an en dash where there is none."""
    return "–" if value is None else f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def percent(share: float | None) -> str:
    """A share 0..1 in percent, never rounded up to 100; an en dash where there is none."""
    if share is None:
        return "–"
    text = f"{100 * share:.1f}"
    return "100" if share == 1 else "99.9" if text == "100.0" else text


def shares(value: float | None, low: float | None, high: float | None) -> str:
    """A share with its interval, in percent; an en dash where there is none."""
    return "–" if value is None else estimate(*(100 * share for share in (value, low or 0.0, high or 0.0)))


def count(value: int | None) -> str:
    """A count with its thousands; blank where there is nothing to count, as seeds of a mean over agents."""
    return f"{value:,}" if value else ""


def counted(number: int, noun: str) -> str:
    """1 episode, 2 episodes."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def interval(low: float | None, high: float | None) -> str:
    """An interval by its ends; an en dash where it has none."""
    return "–" if low is None else f"[{number(low)}, {number(high)}]"


def estimate(value: float | None, low: float | None, high: float | None) -> str:
    """A return with its interval; an en dash where there is none."""
    return "–" if value is None else f"{number(value)} {interval(low, high)}"


def times(
    factor: float | None, low: float | None = None, high: float | None = None, at_least: bool | None = False
) -> str:
    """A factor with the ends of its interval, which a baseline against itself has not; the upper one may be unknown.

    at_least: whether the factor is a lower bound.
    """
    if factor is None:
        return "–"
    text = f"{'≥ ' if at_least else ''}{factor:.2f}"
    if low is None or low == high:
        return text
    end = "–" if high is None else f"{high:.2f}"
    return f"{text} [{low:.2f}, {end}]"


def verdict(word: str | None, differs: bool | None, precision: str = "") -> str:
    """A verdict in words, blank where there is none; what others are compared with has none."""
    return "baseline" if precision == "fp32" else f"{word or ''}{', differs beyond noise' if differs else ''}"


def kernels(measured: bool | None) -> str:
    """Whether kernels of the precision ran; blank where nothing did."""
    return {True: "measured", False: "simulated", None: ""}[measured]


def unless_float(value: str, precision: str) -> str:
    """Blank for float formats, which have no scheme."""
    return "" if precision in FLOAT_BITS else value


def actor(precision: str, engine: str) -> str:
    """What ActorQ's actors run: the precision, and the engine where it is not the usual one."""
    return precision if engine == "litert" else f"{engine} {precision}"


def activations(mode: str, bits: int) -> str:
    """How activations are quantized, blank where they are not."""
    return "" if bits == FLOAT_BITS["fp32"] else mode


def spark(counts: Sequence[int]) -> str:
    """A histogram in SPARK_BINS characters, its bars as long as the logarithm of their counts; blank for nothing."""
    width = max(1, len(counts) // SPARK_BINS)
    bars = [sum(counts[start : start + width]) for start in range(0, len(counts), width)]
    top = max(bars).bit_length()
    return "".join(SPARKS[(bar.bit_length() * (len(SPARKS) - 1)) // top] if bar else " " for bar in bars)
