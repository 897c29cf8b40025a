"""Figures of a study: return against bits, a panel a policy, and error against the spread of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, Locator, LogLocator, MaxNLocator, NullLocator

from quarl.formats import signed
from quarl.quant.spec import QuantSpec
from quarl.report import precision_lines, style
from quarl.report.precision_lines import width
from quarl.report.schema import Fields
from quarl.rows import by

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


@style.look()
def bits_against_return(rows: Sequence[Fields], title: str) -> Figure:
    """Mean returns over seeds against precision, a line a method and scheme, a panel a policy, over fp32's interval.

    rows: one for every policy, method and precision, with its mean, the ends of its interval, and whether it was
    measured on kernels of the precision, which fills its marker.
    """
    played = [row for row in rows if row["method"] in ("ptq", "qat")]
    agents = by(played, lambda row: (row["algo"], row["env_id"], row["source"]))
    bases = by(
        (row for row in rows if row["method"] == "fp32"), lambda row: (row["algo"], row["env_id"], row["source"])
    )
    names = {"x": "precision of the weights, in bits", "y": "return"}
    drawn, panels = style.panels(len(agents), title, height=1.9, head=0.6, columns=COLUMNS, **names)
    colours: dict[str, str] = {}
    for axes, (agent, members) in zip(panels, agents.items(), strict=True):
        for base in bases.get(agent, ()):
            precision_lines.band(axes, base)
        others = [{**row, "precision": QuantSpec.parse(row["precision"]).precision} for row in members]  # w8a8 is int8
        order = sorted({row["precision"] for row in others}, key=width, reverse=True)
        precision_lines.draw(axes, others, order, _line, colours, size=POINT)
        axes.set_xticks(range(len(order)), [name.removeprefix("int") for name in order])
        several = sum(other[:2] == agent[:2] for other in agents) > 1
        style.panel_title(axes, " ".join(agent if several else agent[:2]), min(len(agents), COLUMNS))
        axes.tick_params(labelsize=6)
    if colours:
        lines = [panels[0].plot([], [], color=colour, label=label)[0] for label, colour in colours.items()]
        panels[0].legend(handles=lines, fontsize=6)
    return drawn


def _line(row: Fields) -> str:
    static = " static" if row["mode"] == "static" and row["method"] == "ptq" else ""
    return f"scheme: {row['scheme']}{static}" if row["method"] == "ptq" else "trained for it"


@style.look()
def spread_against_error(points: Sequence[Fields], correlations: Sequence[Fields], spread: str, title: str) -> Figure:
    """A point a policy: E against one measure of the spread of its weights, a panel a width, a colour a scheme."""
    widths = sorted({row["bits"] for row in points}, reverse=True)
    schemes = list(dict.fromkeys(row["scheme"] for row in points))
    largest = max([1.0, *(abs(row["error_pct"]) for row in points)])
    rho = {(row["bits"], row["scheme"]): row["correlation"] for row in correlations if row["spread"] == spread}
    count = max(len(widths), 1)
    drawn, panels = style.panels(count, title, height=2.9, columns=count, x=SPREADS[spread], shared="y")
    for axes, bits in zip(panels, widths, strict=False):
        for number, scheme in enumerate(schemes):
            members = [row for row in points if (row["bits"], row["scheme"]) == (bits, scheme)]
            correlation = rho.get((bits, scheme))
            label = scheme if correlation is None else f"{scheme}, ρ = {signed(correlation)}"
            x, y = [row[spread] for row in members], [row["error_pct"] for row in members]
            axes.plot(x, y, "o", color=style.SERIES[number], markersize=4, alpha=0.75, label=label)
        axes.axhline(0, color=style.MUTED, linewidth=0.8)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(_spread_ticks([row[spread] for row in points]))
        style.plain(axes.xaxis)
        axes.set_yscale("symlog", linthresh=LINEAR_PCT)
        axes.margins(y=0.1)  # the highest point is drawn whole
        axes.yaxis.set_major_locator(FixedLocator(TICKS_PCT))
        if largest <= LINEAR_PCT:
            axes.set_ylim(-1.1 * largest, 1.1 * largest)
            axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.yaxis.set_minor_locator(NullLocator())
        style.plain(axes.yaxis)
        axes.set_title(f"{bits} bits", fontsize=9)
        axes.legend(fontsize=7)
    panels[0].set_ylabel("E, %")
    return drawn


def _spread_ticks(spreads: Sequence[float]) -> Locator:
    """Of a logarithmic axis: few enough to read, and more than one, be it over less than a decade or over many."""
    low, high = min(spreads, default=1.0), max(spreads, default=1.0)
    if high < 3 * low:
        return MaxNLocator(6, steps=[1, 2, 5, 10])
    subs = (1, 1.5, 2, 3, 5, 7) if high <= 10 * low else (1, 2, 5) if high <= 300 * low else (1,)
    return LogLocator(subs=subs, numticks=4)
