"""What the rows of `quarl ptq` show, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from quarl.quant.spec import FLOAT_BITS
from quarl.report.schema import Row
from quarl.stats import FEWEST_EPISODES, STABLE_STD_PCT


def assess(rows: Sequence[Row]) -> list[str]:
    """Sentences about one agent's rows, fp32 among them; what was not shown may be for want of episodes."""
    base = next(row for row in rows if row["precision"] == "fp32")
    if base["episodes"] < FEWEST_EPISODES:
        sentences = [f"No verdict: {base['episodes']} episodes are too few, take {FEWEST_EPISODES} or more."]
    else:
        sentences = [*_verdicts(rows, base), *_unstable(rows, base)]
    measured = {row["precision"] for row in rows if row["measured"]}
    names = (
        f"{row['precision']} with scheme {row['scheme']}" if row["precision"] in measured else row["precision"]
        for row in rows
        if not row["measured"]
    )
    if simulated := list(dict.fromkeys(names)):
        sentences.append(f"{listed(simulated)}: simulated in float, so returns hold, latency and file size do not.")
    return sentences


def _unstable(rows: Sequence[Row], base: Row) -> list[str]:
    """Where some row was not shown to be non-inferior, and returns vary so much that this may say nothing of it."""
    spread = 100 * base["std"] / abs(base["mean"]) if base["mean"] else float("inf")
    if spread <= STABLE_STD_PCT or all(row["noninferior"] for row in rows if row is not base):
        return []
    return [
        f"fp32's returns vary by {spread:.0f} % of their mean: {base['episodes']} episodes leave much open at a margin "
        f"of {base['margin_pct']:g} %."
    ]


def _verdicts(rows: Sequence[Row], base: Row) -> list[str]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row is not base:
            groups.setdefault("" if row["precision"] in FLOAT_BITS else row["scheme"], []).append(row)
    sentences = []
    for scheme, members in groups.items():
        good = [row["precision"] for row in members if row["noninferior"]]
        bad = [row["precision"] for row in members if not row["noninferior"]]
        name = f" with scheme {scheme}" if scheme else ""
        if good:
            verb = "is" if len(good) == 1 else "are"
            sentences.append(f"{listed(good)}{name} {verb} non-inferior to fp32 within {base['margin_pct']:g} %.")
        if bad:
            worst = max((row for row in members if not row["noninferior"]), key=lambda row: row["error_pct"] or 0.0)
            loss, who = worst["error_pct"] or 0.0, "it" if len(bad) == 1 else worst["precision"]
            detail = f"; {who} loses {loss:.0f} %" if loss >= 1 else ""
            sentences.append(f"{listed(bad)}{name}: not shown to be non-inferior{detail}.")
    return sentences


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
