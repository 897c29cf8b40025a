"""The figure of `quarl inspect` for several models: where the weights of each lie, on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from quarl.formats import number
from quarl.inspection import ModelRow
from quarl.report import style

MAX_MODELS = 12
"""Models that are drawn; the rest is in the rows."""


def weights_of_models(models: Sequence[ModelRow], title: str) -> Figure:
    """One panel a model: log histogram of all its weights over a bar from the least to the greatest."""
    shown = models[:MAX_MODELS]
    left_out = f" (first {len(shown)} of {len(models)})" if len(models) > len(shown) else ""
    low, high = min(one.min for one in shown), max(one.max for one in shown)
    margin = 0.03 * (high - low) or 1.0
    with style.look():
        drawn = style.figure(7.2, 0.7 + 1.45 * len(shown))
        axes = drawn.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        for at, one, colour in zip(axes, shown, cycle(style.SERIES), strict=False):
            at.stairs(one.histogram["counts"], one.histogram["edges"], fill=True, color=colour, alpha=0.85)
            at.axvspan(one.min, one.max, color=colour, alpha=0.12, linewidth=0)
            at.set_yscale("log")
            at.yaxis.set_minor_formatter(NullFormatter())
            at.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))  # the default writes powers as mathematics
            at.set_xlim(low - margin, high + margin)
            style.panel_title(at, _caption(one), 1)
            at.grid(visible=False, axis="x")
            at.tick_params(labelsize=7)
        drawn.suptitle(f"{title}{left_out}", x=0.01, ha="left", fontsize=10)
        drawn.supxlabel("weight", fontsize=9)
        drawn.supylabel("number of weights", fontsize=9)
    return drawn


def _caption(one: ModelRow) -> str:
    spread = f", largest {one.spread:.1f} standard deviations" if one.spread is not None else ""
    noise = "exact" if one.sqnr_db is None else f"{one.sqnr_db:.1f} dB"
    return f"{one.model}: {number(one.min)} to {number(one.max)}{spread}, {noise}"
