"""What the rows of `quarl ptq` show, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from quarl.quant.spec import FLOAT_BITS
from quarl.report.schema import Row
from quarl.stats import STABLE_STD_PCT


def assess(rows: Sequence[Row]) -> list[str]:
    """Sentences about one agent's rows, fp32 among them; no verdict where returns vary too much for one."""
    base = next(row for row in rows if row["precision"] == "fp32")
    spread = 100 * base["std"] / abs(base["mean"]) if base["mean"] else float("inf")
    sentences = _verdicts(rows, base) if spread <= STABLE_STD_PCT else [_unstable(base, spread)]
    simulated = list(dict.fromkeys(row["precision"] for row in rows if not row["measured"]))
    if simulated:
        sentences.append(f"{listed(simulated)}: simulated in float, so returns hold, latency and file size do not.")
    return sentences


def _unstable(base: Row, spread: float) -> str:
    return (
        f"No verdict: fp32's returns vary by {spread:.0f} % of their mean (the limit is {STABLE_STD_PCT:g} %), "
        f"so {base['episodes']} episodes cannot settle a margin of {base['margin_pct']:g} %."
    )


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
