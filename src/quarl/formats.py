"""Text of single values in tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from quarl.quant.spec import FLOAT_BITS

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_BINS = 20


def number(value: float | None) -> str:
    """Return a return as text, with decimals that suit its size; an en dash for None."""
    if value is None:
        return "–"
    decimals = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    return f"{value:z.{decimals}f}".replace("-", "−")


def spread(mean: float | None, std: float | None) -> str:
    """Return a mean return and the standard deviation around it as text; an en dash for None."""
    return "–" if mean is None else f"{number(mean)} ± {number(std)}"


def mean_bits(mean: float, bits: int) -> str:
    """Return the mean bits of weights of several widths, and the smallest single width that needs no fewer bytes."""
    return "" if mean == bits else f"{mean:.2f} (≤ {math.ceil(mean)})"


def size(count: int | None) -> str:
    """Return bytes in decimal units; an en dash for None."""
    if not count:
        return "–"
    for unit, factor in (("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{three_digits(count / factor)} {unit}"
    return f"{count} B"


def three_digits(value: float | None) -> str:
    """Return three digits, never in powers of ten, which `.3g` uses from 999.5 on; an en dash for None."""
    return "–" if value is None else f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def if_measured(form: Callable[[Any], str]) -> Callable[[Any, bool], str]:
    """Return a format of (value, measured) that leaves the value out, as if it were None, unless it is measured."""
    return lambda value, measured: form(value if measured else None)


def percent(share: float | None) -> str:
    """Return a share 0..1 in percent, never rounded up to 100; an en dash for None."""
    if share is None:
        return "–"
    text = f"{100 * share:.1f}"
    return "100" if share == 1 else "99.9" if text == "100.0" else text


def share_of_range(share: float | None) -> str:
    """Return a share with three digits in percent, because errors are small; an en dash for None."""
    return three_digits(None if share is None else 100 * share)


def shares(value: float | None, low: float | None, high: float | None) -> str:
    """Return a share with its interval, in percent; an en dash for None.

    Args:
        value: The share, 0..1, or None.
        low: Lower end, 0..1; None means 0.
        high: Upper end, 0..1; None means 0.
    """
    return "–" if value is None else estimate(*(100 * share for share in (value, low or 0.0, high or 0.0)))


def count(value: int | None) -> str:
    """Return a count with thousands separators; blank if there is nothing to count.

    A mean over agents, for example, has no number of seeds.
    """
    return f"{value:,}" if value else ""


def counted(number: int, noun: str) -> str:
    """Return "1 episode" or "2 episodes"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def interval(low: float | None, high: float | None) -> str:
    """Return an interval by its ends; an en dash for None."""
    return "–" if low is None else f"[{number(low)}, {number(high)}]"


def estimate(value: float | None, low: float | None, high: float | None) -> str:
    """Return a return with its interval; an en dash for None.

    Args:
        value: The return or None.
        low: Lower end; None if there is no interval.
        high: Upper end; None if there is no interval.
    """
    return "–" if value is None else f"{number(value)} {interval(low, high)}"


def times(
    factor: float | None, low: float | None = None, high: float | None = None, at_least: bool | None = False
) -> str:
    """Return a factor with the ends of its interval; the baseline has none, and the upper end may be unknown.

    Args:
        factor: The factor or None.
        low: Lower end.
        high: Upper end; None if it is unknown.
        at_least: The factor is a lower bound.
    """
    if factor is None:
        return "–"
    text = f"{'≥ ' if at_least else ''}{factor:.2f}"
    if low is None or low == high:
        return text
    end = "–" if high is None else f"{high:.2f}"
    return f"{text} [{low:.2f}, {end}]"


def verdict(
    word: str | None,
    differs: bool | None,
    precision: str = "",
    by_return: str | None = None,
    success: str | None = None,
) -> str:
    """Return a verdict in words; blank if there is none, and "baseline" for fp32.

    Args:
        word: The verdict.
        differs: The difference is beyond noise.
        precision: Precision of the row.
        by_return: Verdict on return, of which `word` is the worse; None without one on success.
        success: Verdict on success.
    """
    both = " (return and success)" if by_return == success else f" (return {by_return}, success {success})"
    return (
        "baseline"
        if precision == "fp32"
        else f"{word or ''}{both if success else ''}{', differs beyond noise' if differs else ''}"
    )


def verdict_if_played(
    word: str | None, differs: bool | None, precision: str, by_return: str | None = None, success: str | None = None
) -> str:
    """Return `verdict` with the same arguments; blank, for fp32 too, if no episodes were played."""
    return verdict(word, differs, precision, by_return, success) if word else ""


def kernels(measured: bool | None) -> str:
    """Return "measured" if kernels of the precision ran, "simulated" if not; blank if nothing ran."""
    return {True: "measured", False: "simulated", None: ""}[measured]


def unless_float(value: str, precision: str) -> str:
    """Return the value; blank for float formats, which have no scheme."""
    return "" if precision in FLOAT_BITS else value


def actor(precision: str, engine: str) -> str:
    """Return the precision of ActorQ's actors, and their engine if it is not the usual one."""
    return precision if engine == "litert" else f"{engine} {precision}"


def activations(mode: str, bits: int) -> str:
    """Return the mode of quantized activations; blank for float ones."""
    return "" if bits == FLOAT_BITS["fp32"] else mode


def spark(counts: Sequence[int]) -> str:
    """Return a histogram in SPARK_BINS characters, with bars of logarithmic length; blank for no counts."""
    width = max(1, len(counts) // SPARK_BINS)
    bars = [sum(counts[start : start + width]) for start in range(0, len(counts), width)]
    top = max(bars).bit_length()
    return "".join(SPARKS[(bar.bit_length() * (len(SPARKS) - 1)) // top] if bar else " " for bar in bars)
