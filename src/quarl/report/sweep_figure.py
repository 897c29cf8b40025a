"""The figure of `quarl sweep`: return against bits, for agents quantised after training and trained for it."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from quarl.report import precision_lines, style
from quarl.report.schema import Row

LABELS = {"ptq": "quantised after training", "qat": "trained for it"}


def return_against_bits(summaries: Sequence[Row], rows: Sequence[Row], title: str) -> Figure:
    """Means over seeds with 95 % intervals by precision, one line a method, over the band of fp32; a dot each seed."""
    order = list(dict.fromkeys(row["precision"] for row in summaries if row["method"] != "fp32"))
    base = next((row for row in summaries if row["method"] == "fp32"), None)
    methods = [method for method in LABELS if any(row["method"] == method for row in summaries)]
    with style.look():
        drawn = style.figure(7.2, 3.8)
        axes = drawn.add_subplot()
        if base is not None:
            precision_lines.band(axes, base, "fp32, 95 % interval shaded")
        for number, method in enumerate(methods):
            shift, colour = precision_lines.shift(number, len(methods)), style.SERIES[number]
            seeds = [row for row in rows if row["method"] == method]
            simulated = {row["precision"] for row in seeds if not row["measured"]}
            line = [
                {**row, "measured": row["precision"] not in simulated} for row in summaries if row["method"] == method
            ]
            precision_lines.line(axes, line, order, shift=shift, colour=colour, label=LABELS[method])
            at = [order.index(row["precision"]) + shift for row in seeds]
            axes.plot(at, [row["mean"] for row in seeds], "o", color=colour, markersize=3, alpha=0.5)
        if not all(row["measured"] for row in rows):
            axes.plot([], [], "o", color=style.MUTED, markerfacecolor="white", label="hollow: simulated in float")
        axes.set_xticks(range(len(order)), order)
        axes.set_xlabel("precision")
        axes.set_ylabel("return (small dots: seeds)")
        axes.set_title(title)
        axes.legend(loc="best", fontsize=8)
    return drawn
