"""The figure of `quarl sweep`: return against bits, for agents quantised after training and trained for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from quarl.report import style
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
            axes.axhspan(base["ci_low"], base["ci_high"], color=style.MUTED, alpha=0.25, linewidth=0)
            axes.axhline(base["mean"], color=style.MUTED, linewidth=1, label="fp32, 95 % interval shaded")
        for number, method in enumerate(methods):
            # side by side, so that intervals do not hide one another
            colour, shift = style.SERIES[number], 0.14 * (number - (len(methods) - 1) / 2)
            line = [row for name in order for row in summaries if (row["method"], row["precision"]) == (method, name)]
            x = np.array([order.index(row["precision"]) for row in line]) + shift
            mean = np.array([row["mean"] for row in line])
            spread = np.array([mean - [row["ci_low"] for row in line], [row["ci_high"] for row in line] - mean])
            label = LABELS[method]
            axes.errorbar(x, mean, yerr=np.maximum(spread, 0), color=colour, capsize=3, fmt="o", label=label)
            for bits in dict.fromkeys(row["bits_activations"] for row in line):
                some = [row["bits_activations"] == bits for row in line]  # joined where only the weights' bits differ
                axes.plot(x[some], mean[some], color=colour)
            seeds = [row for row in rows if row["method"] == method]
            at = [order.index(row["precision"]) + shift for row in seeds]
            axes.plot(at, [row["mean"] for row in seeds], "o", color=colour, markersize=3, alpha=0.5)
        axes.set_xticks(range(len(order)), order)
        axes.set_xlabel("precision")
        axes.set_ylabel("return (small dots: seeds)")
        axes.set_title(title)
        axes.legend(loc="best", fontsize=8)
    return drawn
