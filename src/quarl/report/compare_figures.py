"""Figure of a comparison: the difference of each agent to the baseline, with the interval of its verdict."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from quarl.report import style
from quarl.report.assessment import of_return
from quarl.report.figures import whiskers
from quarl.report.schema import Fields
from quarl.rows import by
from quarl.stats import INFERIOR, NONINFERIOR, UNDECIDED

COLORS = {NONINFERIOR: style.SERIES[2], UNDECIDED: style.SERIES[4], INFERIOR: style.SERIES[5]}
"""Color of each verdict."""


@style.look()
def differences(rows: Sequence[Fields], title: str) -> Figure:
    """Draw the data of the verdicts: mean return less that of the baseline from the same starts, with its interval.

    An interval to the right of the dashed line means non-inferior, one to its left inferior.
    """
    base, *others = rows
    about = f"return less that of {base['arm']}, with the verdict's interval"
    drawn, (axes,) = style.panels(1, title, height=1.4 + 0.3 * len(others))
    margin = -base["margin_pct"] / 100 * abs(base["mean"])
    axes.axvline(0, color=style.MUTED, linewidth=1)
    axes.axvline(margin, color=style.MUTED, linewidth=1, linestyle="--", label=f"margin, {base['margin_pct']:g} %")
    for word, members in by(others, lambda row: str(row["verdict"])).items():
        middle, ends = whiskers(members, "difference", "difference_low", "difference_high")
        axes.errorbar(
            middle,
            [others.index(row) for row in members],
            xerr=ends,
            fmt="o",
            capsize=3,
            color=COLORS[word],
            label=word,
        )
    axes.set_yticks(range(len(others)), [style.lines(f"{row['arm']}{_notes(row)}", 2) for row in others])
    axes.set(ylim=(len(others) - 0.5, -0.5), xlabel=style.lines(about, 2))
    style.legend(drawn, *axes.get_legend_handles_labels())
    return drawn


def _notes(row: Fields) -> str:
    """Return what the interval of the return does not show."""
    simulated = "" if row["measured"] else " (simulated)"
    return simulated if of_return(row) == row["verdict"] else f"{simulated} (success {row['verdict_success']})"
