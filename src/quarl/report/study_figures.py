"""Figures of a study: return against bits, a panel a policy, and error against the spread of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    Locator,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
    StrMethodFormatter,
)

from quarl.formats import signed
from quarl.quant.spec import FLOAT_BITS, QuantSpec
from quarl.report import precision_lines, style
from quarl.report.precision_lines import width
from quarl.report.schema import Fields

COLUMNS = 3
"""Panels side by side."""
LINEAR_PCT = 10.0
"""Errors up to this size are drawn to scale, larger ones by their logarithm: some policies lose a thousand percent."""
POINT = 3.0
"""Size of a point, as small as the panels."""
TICKS_PCT = (0, *(sign * 10.0**power for power in range(1, 7) for sign in (-1, 1)))
SPREADS: Mapping[str, str] = {
    "range": "largest minus smallest weight",
    "peak": "largest weight over their standard deviation",
}


def bits_against_return(rows: Sequence[Fields], title: str) -> Figure:
    """Mean returns over seeds against precision, a line a method and scheme, a panel a policy, over fp32's interval.

    rows: one for every policy, method and precision, with its mean, the ends of its interval, and whether it was
    measured on kernels of the precision, which fills its marker.
    """
    agents = list(dict.fromkeys(_agent(row) for row in rows if row["method"] in ("ptq", "qat")))
    columns = min(len(agents), COLUMNS) or 1
    height = -(-len(agents) // columns) or 1
    with style.look():
        drawn = style.figure(7.2, 0.6 + 1.9 * height)
        lines: dict[str, str] = {}
        for number, agent in enumerate(agents):
            axes = drawn.add_subplot(height, columns, number + 1)
            _panel(axes, [row for row in rows if _agent(row) == agent], lines)
            several = sum(other[:2] == agent[:2] for other in agents) > 1
            style.panel_title(axes, " ".join(agent if several else agent[:2]), columns)
            axes.tick_params(labelsize=6)
        for label, colour in lines.items():
            drawn.axes[0].plot([], [], color=colour, label=label)
        if lines:
            drawn.axes[0].legend(fontsize=6)
        drawn.suptitle(title, x=0.01, ha="left", fontsize=10)
        drawn.supylabel("return", fontsize=9)
        drawn.supxlabel("precision of the weights, in bits", fontsize=9)
    return drawn


def _agent(row: Fields) -> tuple[str, str, str]:
    return row["algo"], row["env_id"], row["source"]


def _panel(axes: Axes, rows: Sequence[Fields], lines: dict[str, str]) -> None:
    """lines: colours by label, shared by all panels; labels that are new here are added."""
    for base in (row for row in rows if row["method"] == "fp32"):
        precision_lines.band(axes, base)
    others = [
        {**row, "precision": QuantSpec.parse(row["precision"]).precision}  # w8a8 is int8
        for row in rows
        if row["method"] in ("ptq", "qat")
    ]
    order = sorted({row["precision"] for row in others}, key=width, reverse=True)
    integers = [row for row in others if row["precision"] not in FLOAT_BITS]
    labels = list(dict.fromkeys(_line(row) for row in integers))
    for number, label in enumerate(labels):
        colour = lines.setdefault(label, style.SERIES[len(lines) % len(style.SERIES)])
        members = [row for row in integers if _line(row) == label]
        shift = precision_lines.shift(number, len(labels))
        precision_lines.line(axes, members, order, shift=shift, colour=colour, size=POINT)
    if floats := [row for row in others if row["precision"] in FLOAT_BITS]:
        precision_lines.line(axes, floats, order, shift=0.0, colour=style.MUTED, size=POINT)
    axes.set_xticks(range(len(order)), [name.removeprefix("int") for name in order])


def _line(row: Fields) -> str:
    static = " static" if row["mode"] == "static" and row["method"] == "ptq" else ""
    return f"scheme: {row['scheme']}{static}" if row["method"] == "ptq" else "trained for it"


def spread_against_error(points: Sequence[Fields], correlations: Sequence[Fields], spread: str, title: str) -> Figure:
    """A point a policy: E against one measure of the spread of its weights, a panel a width, a colour a scheme."""
    widths = sorted({row["bits"] for row in points}, reverse=True)
    schemes = list(dict.fromkeys(row["scheme"] for row in points))
    largest = max([1.0, *(abs(row["error_pct"]) for row in points)])
    rho = {(row["bits"], row["scheme"]): row["correlation"] for row in correlations if row["spread"] == spread}
    with style.look():
        drawn = style.figure(7.2, 2.9)
        panels = drawn.subplots(1, max(len(widths), 1), sharey=True, squeeze=False)[0]
        for axes, bits in zip(panels, widths, strict=False):
            for number, scheme in enumerate(schemes):
                some = [row for row in points if (row["bits"], row["scheme"]) == (bits, scheme)]
                found = rho.get((bits, scheme))
                label = scheme if found is None else f"{scheme}, ρ = {signed(found)}"
                x, y = [row[spread] for row in some], [row["error_pct"] for row in some]
                axes.plot(x, y, "o", color=style.SERIES[number], markersize=4, alpha=0.75, label=label)
            axes.axhline(0, color=style.MUTED, linewidth=0.8)
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(_spread_ticks([row[spread] for row in points]))
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_yscale("symlog", linthresh=LINEAR_PCT)
            axes.margins(y=0.1)  # the highest point is drawn whole
            axes.yaxis.set_major_locator(FixedLocator(TICKS_PCT))
            if largest <= LINEAR_PCT:
                axes.set_ylim(-1.1 * largest, 1.1 * largest)
                axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.set_title(f"{bits} bits", fontsize=9)
            axes.legend(fontsize=7)
        panels[0].set_ylabel("E, %")
        drawn.supxlabel(SPREADS[spread], fontsize=9)
        drawn.suptitle(title, x=0.01, ha="left", fontsize=10)
    return drawn


def _spread_ticks(spreads: Sequence[float]) -> Locator:
    """Of a logarithmic axis: few enough to read, and more than one, be it over less than a decade or over many."""
    low, high = min(spreads, default=1.0), max(spreads, default=1.0)
    if high < 3 * low:
        return MaxNLocator(6, steps=[1, 2, 5, 10])
    subs = (1, 1.5, 2, 3, 5, 7) if high <= 10 * low else (1, 2, 5) if high <= 300 * low else (1,)
    return LogLocator(subs=subs, numticks=4)
