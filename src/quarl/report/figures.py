"""Figures of rows and layers: the sweet spot of a policy, what a precision buys, and where the weights lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter

from quarl.inspection import Layer
from quarl.quant.spec import FLOAT_BITS
from quarl.report import precision_lines, style
from quarl.report.schema import Fields

MAX_LAYERS = 8
"""Layers that a weight figure draws; the rest is in the rows."""


def sweet_spot(rows: Sequence[Fields], title: str) -> Figure:
    """Return against precision with 95 % intervals, one line a scheme, over the band of fp32 and its margin.

    Filled markers are measured on kernels of that precision, hollow ones simulated.
    """
    order = _order(rows)
    base = next(row for row in rows if row["precision"] == "fp32")
    floor = base["mean"] - base["margin_pct"] / 100 * abs(base["mean"])
    with style.look():
        drawn = style.figure(7.2, 3.8)
        axes = drawn.add_subplot()
        precision_lines.band(axes, base, "fp32, 95 % interval shaded")
        axes.axhline(
            floor, color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)), label=f"{base['margin_pct']:g} % below"
        )
        floats = [row for row in rows if row["precision"] in FLOAT_BITS]
        groups = _by_scheme(rows)
        for number, (scheme, members) in enumerate(groups.items()):
            shift, colour = precision_lines.shift(number, len(groups)), style.SERIES[number % len(style.SERIES)]
            precision_lines.line(axes, members, order, shift=shift, colour=colour, label=f"scheme: {scheme}")
        precision_lines.line(axes, floats, order, shift=0.0, colour=style.MUTED, label="float formats")
        axes.set_xticks(range(len(order)), order)
        axes.set_xlabel("precision of the weights")
        axes.set_ylabel(f"return ({base['episodes']} episodes)")
        axes.set_title(title)
        axes.legend(loc="best", fontsize=8)
    return drawn


def gains(rows: Sequence[Fields], title: str) -> Figure:
    """Batch-1 latency (median, with a whisker to the 99th percentile) and size, one bar a precision, one scheme."""
    first = next(iter(_by_scheme(rows)), "")
    rows = [row for row in rows if row["scheme"] == first or row["precision"] in FLOAT_BITS]
    names = [row["precision"] for row in rows]
    with style.look():
        drawn = style.figure(7.2, 2.6)
        left, right = drawn.subplots(1, 2)
        p50, p99 = (np.array([row[key] for row in rows], np.float64) for key in ("latency_us_p50", "latency_us_p99"))
        p50[[not row["measured"] for row in rows]] = np.nan  # what simulates a precision says nothing of its speed
        whiskers = [0 * p50, np.maximum(p99 - p50, 0)]
        left.bar(names, p50, color=style.BARS, yerr=whiskers, ecolor=style.MUTED, capsize=2)
        left.set_xticks(range(len(names)), names)
        left.set_xlim(-0.6, len(names) - 0.4)  # bars without a height extend no axis
        left.set_ylim(bottom=0, top=None if np.isfinite(p50).any() else 1)
        for at in np.flatnonzero(np.isnan(p50)):
            left.text(at, 0, " simulated", rotation=90, ha="center", va="bottom", fontsize=7, color=style.MUTED)
        left.set_title("latency, µs (median, whisker to p99)")
        packed = [row["bytes_packed"] / 1000 for row in rows]
        right.bar(names, [row["bytes"] / 1000 for row in rows], color=style.MUTED, alpha=0.5, label="file")
        right.bar(names, packed, width=0.45, color=style.BARS, label="packed")
        right.set_title("size, kB")
        right.legend(fontsize=8)
        for axes in (left, right):
            axes.grid(visible=False, axis="x")
            axes.tick_params(axis="x", labelsize=7)
        drawn.suptitle(title, x=0.01, ha="left", fontsize=10)
    return drawn


def weight_distribution(layers: Sequence[Layer], title: str) -> Figure:
    """One panel a layer: log histogram of the float weights over the levels that the quantiser offers them."""
    shown = layers[:MAX_LAYERS]
    columns = 1 if len(shown) == 1 else 2
    height = -(-len(shown) // columns)
    with style.look():
        drawn = style.figure(7.2, 0.5 + 2.1 * height)
        for number, layer in enumerate(shown):
            _weights(drawn.add_subplot(height, columns, number + 1), layer, columns)
        left_out = f" (first {len(shown)} of {len(layers)} layers)" if len(layers) > len(shown) else ""
        drawn.suptitle(f"{title}{left_out}", x=0.01, ha="left", fontsize=10)
        drawn.supxlabel("weight", fontsize=9)
        drawn.supylabel("number of weights", fontsize=9)
    return drawn


def _weights(axes: Axes, layer: Layer, columns: int) -> None:
    row, grid = layer.row, layer.grid
    counts, edges = row.histogram["counts"], row.histogram["edges"]
    axes.stairs(counts, edges, fill=True, color=style.BARS, alpha=0.85)
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))  # the default one is mathematics, which is off
    low, high = edges[0], edges[-1]
    inside = grid[(grid >= low) & (grid <= high)]
    if inside.size:
        # as many lines as the panel has pixels would be a block of colour
        width = float(np.clip(60 / inside.size, 0.25, 1.2))
        # one path with gaps, not a path a level: a tenth of the file
        x, y = np.repeat(inside, 3), np.tile([0.0, 1.0, np.nan], inside.size)
        axes.plot(x, y, transform=axes.get_xaxis_transform(), color=style.LEVELS, alpha=0.6, linewidth=width)
    noise = "exact" if row.sqnr_db is None else f"{row.sqnr_db:.1f} dB"
    named = f"{row.layer} {'×'.join(map(str, row.shape))}"
    style.panel_title(axes, f"{named}\n{row.levels} levels, {noise}", columns)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.grid(visible=False, axis="x")
    axes.tick_params(labelsize=7)


def _order(rows: Sequence[Fields]) -> list[str]:
    """Precisions from wide to narrow."""
    widths = {row["precision"]: (row["bits_weights"], row["precision"] in FLOAT_BITS) for row in rows}
    return sorted(widths, key=lambda name: widths[name], reverse=True)


def _by_scheme(rows: Sequence[Fields]) -> dict[str, list[Fields]]:
    """Rows of each scheme, without the float formats, which have none."""
    quantized = [row for row in rows if row["precision"] not in FLOAT_BITS]
    return {
        scheme: [row for row in quantized if row["scheme"] == scheme]
        for scheme in dict.fromkeys(row["scheme"] for row in quantized)
    }
