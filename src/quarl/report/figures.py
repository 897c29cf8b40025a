"""Figures of one policy's rows: its sweet spot, and what a precision buys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from quarl.quant.spec import FLOAT_BITS
from quarl.report import precision_lines, style
from quarl.report.schema import Fields


@style.look()
def sweet_spot(rows: Sequence[Fields], title: str) -> Figure:
    """Return against precision with 95 % intervals, one line a scheme, over the band of fp32 and its margin.

    Filled markers are measured on kernels of that precision, hollow ones simulated.
    """
    order = _order(rows)
    base = next(row for row in rows if row["precision"] == "fp32")
    floor = base["mean"] - base["margin_pct"] / 100 * abs(base["mean"])
    drawn, (axes,) = style.panels(1, height=3.8)
    precision_lines.band(axes, base, "fp32, 95 % interval shaded")
    axes.axhline(floor, color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)), label=f"{base['margin_pct']:g} % below")
    precision_lines.draw(axes, rows, order, lambda row: f"scheme: {row['scheme']}", {})
    axes.set_xticks(range(len(order)), order)
    axes.set(xlabel="precision of the weights", ylabel=f"return ({base['episodes']} episodes)", title=title)
    axes.legend(loc="best", fontsize=8)
    return drawn


@style.look()
def gains(rows: Sequence[Fields], title: str) -> Figure:
    """Batch-1 latency (median, with a whisker to the 99th percentile) and size, one bar a precision, one scheme."""
    first = next((row["scheme"] for row in rows if row["precision"] not in FLOAT_BITS), "")
    rows = [row for row in rows if row["scheme"] == first or row["precision"] in FLOAT_BITS]
    names = [row["precision"] for row in rows]
    drawn, (left, right) = style.panels(2, title, height=2.6, columns=2)
    p50, whiskers = precision_lines.whiskers(rows, "latency_us_p50", "latency_us_p50", "latency_us_p99")
    p50[[not row["measured"] for row in rows]] = np.nan  # what simulates a precision says nothing of its speed
    left.bar(names, p50, color=style.BARS, yerr=whiskers, ecolor=style.MUTED, capsize=2)
    left.set_xticks(range(len(names)), names)
    left.set_xlim(-0.6, len(names) - 0.4)  # bars without a height extend no axis
    left.set_ylim(bottom=0, top=None if np.isfinite(p50).any() else 1)
    for at in np.flatnonzero(np.isnan(p50)).tolist():
        left.text(at, 0, " simulated", rotation=90, ha="center", va="bottom", fontsize=7, color=style.MUTED)
    left.set_title("latency, µs (median, whisker to p99)")
    right.bar(names, [row["bytes"] / 1000 for row in rows], color=style.MUTED, alpha=0.5, label="file")
    right.bar(names, [row["bytes_packed"] / 1000 for row in rows], width=0.45, color=style.BARS, label="packed")
    right.set_title("size, kB")
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.grid(visible=False, axis="x")
        axes.tick_params(axis="x", labelsize=7)
    return drawn


def _order(rows: Sequence[Fields]) -> list[str]:
    """Precisions from wide to narrow."""
    widths = {row["precision"]: (row["bits_weights"], row["precision"] in FLOAT_BITS) for row in rows}
    return sorted(widths, key=lambda name: widths[name], reverse=True)
