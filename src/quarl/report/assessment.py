"""The results of `quarl ptq` in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from quarl.formats import counted, number
from quarl.quant.spec import FLOAT_BITS
from quarl.report.schema import Fields
from quarl.rows import by
from quarl.stats import FEWEST_EPISODES, INFERIOR, NONINFERIOR, STABLE_STD_PCT, UNDECIDED, fewest_successes, z_of


def assess(rows: Sequence[Fields]) -> list[str]:
    """Return sentences about one agent's rows, fp32 included.

    Too few episodes may be the reason for an undecided one.
    """
    base = next(row for row in rows if row["precision"] == "fp32")
    what = "returns" if base["episodes"] else "errors"
    if not base["episodes"]:
        sentences = [
            f"Fidelity, no return: actions are compared with those of fp32 on the last {base['observations']:,} "
            "recorded observations, and the others calibrate. Play the policy before you use it."
        ]
    elif base["episodes"] < FEWEST_EPISODES:
        few = f"{counted(base['episodes'], 'episode')} {'is' if base['episodes'] == 1 else 'are'}"
        sentences = [f"No verdict: {few} too few, take {FEWEST_EPISODES} or more."]
    else:
        sentences = [*_verdicts(rows, base), *_unpaired(rows, base), *undecided(rows, base), *_unstable(rows, base)]
    measured = {row["precision"] for row in rows if row["measured"]}
    names = (
        f"{row['precision']} with scheme {row['scheme']}" if row["precision"] in measured else row["precision"]
        for row in rows
        if not row["measured"]
    )
    if simulated := list(dict.fromkeys(names)):
        sentences.append(f"{listed(simulated)}: simulated in float, so {what} hold, latency and file size do not.")
    return sentences


def _unpaired(rows: Sequence[Fields], base: Fields) -> list[str]:
    """Return the means over common episodes if a row has fewer or more episodes than fp32."""
    pairs = [
        f"{row['precision']} {number(row['mean'])} and fp32 {number(row['mean'] - row['difference'])} "
        f"({row['episodes']:,})"
        for row in rows
        if row["episodes"] != base["episodes"]
    ]
    what = "Returns are means over different numbers of episodes; over those that both played,"
    return [f"{what} {listed(pairs)}."] if pairs else []


def _unstable(rows: Sequence[Fields], base: Fields) -> list[str]:
    """Return a sentence if fp32's mean is 0, or if returns vary so much that this may be why a row is undecided."""
    if not base["mean"]:
        return [f"fp32's mean return is 0, so a margin of {base['margin_pct']:g} % allows no loss."]
    spread = 100 * base["std"] / abs(base["mean"])
    if spread <= STABLE_STD_PCT or all(of_return(row) != UNDECIDED for row in rows if row is not base):
        return []
    return [
        f"fp32's returns vary by {spread:.0f} % of their mean: {base['episodes']} episodes leave much open at a margin "
        f"of {base['margin_pct']:g} %."
    ]


def undecided(rows: Sequence[Fields], base: Fields, arms: int = 1) -> list[str]:
    """Return how many episodes the verdict on return, or on success, of each undecided row takes.

    Args:
        rows: The rows.
        base: The row of fp32.
        arms: Number by which the level of the verdicts is divided.
    """
    open_ = [row for row in rows if row is not base and row["verdict"] == UNDECIDED]
    by_return = (row for row in open_ if of_return(row) == UNDECIDED)
    return [f"{takes_more(row, base['mean'])}." for row in by_return] + [
        said for row in open_ if (said := too_few(row, arms))
    ]


def of_return(row: Fields) -> str:
    """Return the verdict on return, which the row's own is unless the environment reports successes."""
    return str(row["verdict_return"] or row["verdict"])


def too_few(row: Fields, arms: int = 1) -> str:
    """Return a sentence if success is undecided after fewer episodes than equal ones would take; empty otherwise."""
    needed = fewest_successes(row["success_margin"], z_of(arms)) if row["verdict_success"] == UNDECIDED else 0
    if row["episodes"] >= needed:
        return ""
    return (
        f"{row['precision']}: {counted(row['episodes'], 'episode')} cannot show that it loses fewer than "
        f"{row['success_margin']:g} points of success; even without a difference it takes {needed}."
    )


def takes_more(row: Fields, exact: float) -> str:
    """Return how many episodes a verdict on the row takes if mean and spread stay the same; exact: mean of fp32."""
    distance = row["difference"] + row["margin_pct"] / 100 * abs(exact)
    end = row["difference_low" if distance > 0 else "difference_high"]  # the one beyond the margin
    needed = row["episodes"] * ((row["difference"] - end) / (distance or float("nan"))) ** 2
    some = f"some {max(float(f'{needed:.2g}'), row['episodes']):,.0f}" if needed < 1e6 else "over a million"
    some = some if row["episodes"] >= FEWEST_EPISODES else f"{FEWEST_EPISODES} or more"
    return f"{row['precision']} has no verdict after {row['episodes']:,} episodes; it takes {some}"


def limits(base: Fields, rows: Sequence[Fields]) -> tuple[str, str]:
    """Return the margins of rows in words, for those that are within and those that are beyond; base: row of fp32."""
    points = [f"{row['success_margin']:g} points of success" for row in rows if row["success_margin"]][:1]
    both = [f"{base['margin_pct']:g} %{' of return' * len(points)}" if base["mean"] else "0", *points]
    return f"within {listed(both)}", f"by more than {' or '.join(both)}"


def _verdicts(rows: Sequence[Fields], base: Fields) -> list[str]:
    others = (row for row in rows if row is not base)
    groups = by(others, lambda row: "" if row["precision"] in FLOAT_BITS else row["scheme"])
    sentences = []
    for scheme, members in groups.items():
        name = f" with scheme {scheme}" if scheme else ""
        within, beyond = limits(base, members)
        than = {NONINFERIOR: f" to fp32 {within}", UNDECIDED: "", INFERIOR: f" to fp32 {beyond}"}
        for word, about in than.items():
            alike = [row for row in members if row["verdict"] == word]
            worst = max(alike, key=lambda row: row["error_pct"] or 0.0, default=base)
            detail = "" if word == NONINFERIOR else _change(worst, alike, "loses", 1)
            sentences += _sentence(alike, name, "is", "are", f"{word}{about}{detail}")
        differing = [row for row in members if row["differs"]]
        best = min(differing, key=lambda row: row["error_pct"] or 0.0, default=base)
        detail = _change(best, differing, "gains", -1)
        if detail:  # a gain may be chance: the share of changed actions shows how different the agent is
            detail += f", and {100 * (1 - best['agreement']):.0f} % of its actions changed"
        sentences += _sentence(differing, name, "differs", "differ", f"from fp32 beyond noise{detail}")
    return sentences


def _sentence(rows: Sequence[Fields], name: str, singular: str, plural: str, what: str) -> list[str]:
    names = [row["precision"] for row in rows]
    return [f"{listed(names)}{name} {singular if len(names) == 1 else plural} {what}."] if names else []


def _change(row: Fields, rows: Sequence[Fields], verb: str, sign: int) -> str:
    """Return the loss or gain of the most extreme of the rows, if it is a number."""
    share = sign * (row["error_pct"] or 0.0)
    return f"; {'it' if len(rows) == 1 else row['precision']} {verb} {share:.0f} %" if share >= 1 else ""


def listed(words: Sequence[str]) -> str:
    """Return the words as a sentence lists them."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
