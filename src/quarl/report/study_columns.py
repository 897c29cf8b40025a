"""Columns of a study's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quarl.quant.spec import FLOAT_BITS, SCHEMES
from quarl.report.columns import (
    Column,
    digits_of,
    field_of,
    interval,
    judged,
    number,
    number_of,
    signed,
    times_of,
    verdict,
)
from quarl.report.schema import Row
from quarl.stats import INFERIOR, NONINFERIOR

_AGENT = (
    Column("algorithm", field_of("algo"), left=True),
    Column("environment", field_of("env_id"), left=True),
    Column("agent", field_of("source"), "agents from {}", left=True),
)
SCHEME = Column(
    "scheme",
    lambda row: row["scheme"] if row["method"] == "ptq" and row["precision"] not in FLOAT_BITS else "",
    "scheme {}",
    left=True,
)
MODE = Column(
    "mode",
    lambda row: "" if row["scheme"] in SCHEMES and SCHEMES[row["scheme"]].original else row["mode"],
    "{} activations",
    left=True,
)
"""Of widths from 2 to 8; the original's scheme leaves activations in float32."""


def _verdict(row: Row) -> str:
    if row["state"] != "done":
        return "n/a" if row["state"] == "na" else str(row["state"])
    return "" if row["verdict"] is None else verdict(row)


def _error(name: str) -> tuple[Column, ...]:
    """A relative error with its interval."""

    def ends(row: Row) -> str:
        return interval(row, f"error_{name}_low", f"error_{name}_high")

    return Column(f"E_{name} %", number_of(f"error_{name}_pct")), Column("its interval", ends)


def _widths(row: Row) -> str:
    """Widths from wide to narrow, in brackets where they are not non-inferior."""
    marks = {NONINFERIOR: "{}", INFERIOR: "[{}]"}
    return " ".join(
        marks.get(word, "({})").format(width) for width, word in zip(row["widths"], row["verdicts"], strict=True)
    )


def _correlated(row: Row) -> str:
    return "–" if row["low"] is None else f"[{signed(row['low'])}, {signed(row['high'])}]"


def _share(key: str) -> Callable[[Row], str]:
    """A count; nothing where there is nothing to count, as seeds of a mean over agents."""
    return lambda row: f"{row[key]:,}" if row[key] else ""


SEEDS = Column("seeds", _share("seeds"), "seeds: {}")
STUDY: Mapping[str, tuple[Column, ...]] = {
    "study": (
        *_AGENT,
        Column("method", field_of("method"), left=True),
        Column("precision", field_of("precision"), left=True),
        SCHEME,
        Column("mode", lambda row: row["mode"] if row["method"] == "ptq" else "", "{} activations", left=True),
        Column("seed", field_of("seed"), "seed {}"),
        Column("episodes", field_of("episodes"), "{} episodes each"),
        Column("return", number_of("mean")),
        Column("95 % interval", interval),
        Column("E %", number_of("error_pct")),
        Column("verdict", _verdict, left=True),
        Column("margin", lambda row: f"{row['margin_pct']:g} %", "margin {}"),
        Column("kernels", lambda row: {True: "measured", False: "simulated", None: ""}[row["measured"]], left=True),
        Column("seconds", lambda row: "–" if row["seconds"] is None else f"{row['seconds']:.2f}"),
    ),
    "study status": (
        *_AGENT,
        Column("method", field_of("method"), left=True),
        Column("cells", field_of("cells")),
        Column("done", _share("done")),
        Column("failed", _share("failed")),
        Column("n/a", _share("na")),
        Column("running", _share("running")),
        Column("to do", _share("todo")),
        Column("minutes", lambda row: f"{row['minutes']:.1f}"),
    ),
    "study errors": (
        *_AGENT,
        Column("scheme", field_of("scheme"), "scheme {}", left=True),
        MODE,
        Column("agents", lambda row: str(row["agents"]) if row["agents"] > 1 else ""),
        SEEDS,
        Column("fp32", number_of("fp32")),
        Column("its interval", lambda row: interval(row, "fp32_low", "fp32_high")),
        Column("fp16", number_of("fp16")),
        *_error("fp16"),
        Column("int8", number_of("int8")),
        *_error("int8"),
    ),
    "study sweet spots": (
        *_AGENT,
        Column("scheme", field_of("scheme"), "scheme {}", left=True),
        MODE,
        SEEDS,
        Column("bits non-inferior, (undecided), [inferior]", _widths, left=True),
        Column("sweet spot", lambda row: "none" if row["sweet_spot"] is None else f"{row['sweet_spot']} bits"),
    ),
    "study spread": (
        Column("spread of weights", field_of("spread"), left=True),
        Column("bits", field_of("bits")),
        Column("scheme", field_of("scheme"), left=True),
        Column("agents", field_of("agents")),
        Column("pairs", field_of("pairs"), "{} pairs of algorithm and environment"),
        Column("Spearman's ρ", lambda row: signed(row["correlation"])),
        Column("95 % interval", _correlated),
    ),
    "study qat": (
        *_AGENT,
        Column("trained for", field_of("precision"), left=True),
        SEEDS,
        Column("fp32", number_of("fp32")),
        Column("ptq", number_of("ptq")),
        Column("E_ptq %", number_of("error_ptq_pct")),
        Column("qat", number_of("qat")),
        *_error("qat"),
        Column("verdict", judged, left=True),
    ),
    "sweep summary": (
        Column("precision", field_of("precision"), left=True),
        Column("method", field_of("method"), left=True),
        SEEDS,
        Column("return", number_of("mean")),
        Column("95 % interval", interval),
        Column("E %", number_of("error_pct")),
        Column("its interval", lambda row: interval(row, "error_low", "error_high")),
        Column("verdict", verdict, left=True),
        Column("qat over ptq", lambda row: number(row["gain"])),
        Column("interval", lambda row: interval(row, "gain_low", "gain_high")),
    ),
    "study actorq": (
        *_AGENT,
        Column("actors", field_of("precision"), left=True),
        SEEDS,
        Column("return", number_of("mean")),
        Column("95 % interval", interval),
        Column("target", number_of("target")),
        Column("reached", lambda row: "–" if row["target"] is None else f"{row['reached']} of {row['seeds']}"),
        Column("seconds", digits_of("seconds")),
        Column("× fp32", lambda row: f"{'≥ ' if row['at_least'] else ''}{times_of('speedup')(row)}"),
    ),
    "study excluded": (
        *_AGENT,
        Column("method", field_of("method"), left=True),
        Column("cells", field_of("cells")),
        Column("", lambda row: "n/a" if row["state"] == "na" else str(row["state"]), left=True),
        Column("reason", field_of("reason"), left=True),
    ),
}
"""By the `command` of the document."""
