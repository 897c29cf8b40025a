"""`quarl study report`: a study's rows as tables, figures and one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

from matplotlib.figure import Figure

from quarl.commands import terminal
from quarl.config import StudyReportConfig
from quarl.errors import QuarlError
from quarl.files import write_bytes
from quarl.lab import actorq_figures, actorq_reward_figures, rows, summaries
from quarl.lab.cell_groups import grouped
from quarl.lab.cells import DONE, TRAIN
from quarl.lab.file import MARGIN_PCT
from quarl.lab.methods import actorq_reward, actorq_speedup, actorq_throughput, updates_rows
from quarl.lab.store import Record, Store
from quarl.lab.summary_rows import ActorQRow, ErrorsRow, ExcludedRow, LearningRow, SweetSpotRow, TrainedRow
from quarl.report import page, schema, tables
from quarl.report.figures import COMPARED, bits_against_return
from quarl.report.schema import Fields
from quarl.rows import Row

Tables = Mapping[type[Row], Sequence[Fields]]
TITLES: Mapping[type[Row], str] = {
    ErrorsRow: "Return and error",
    SweetSpotRow: "Sweet spots",
    TrainedRow: "Trained or distilled for the precision",
    LearningRow: "Trained in float32",
    ActorQRow: "ActorQ",
    actorq_reward.RewardRow: "Time to reward",
    actorq_speedup.SpeedupRow: "Speed-up",
    actorq_throughput.ThroughputRow: "Throughput of training",
    actorq_throughput.BreakdownRow: "Milliseconds of 1,000 environment steps",
    updates_rows.UpdatesRow: "Updates",
    ExcludedRow: "Not measured",
}
"""Headings of the tables by their rows, in the page's order."""


WINDOWS: Mapping[type[Row], Callable[[Sequence[Fields], str], Figure]] = {
    actorq_throughput.ThroughputRow: actorq_figures.throughput,
    actorq_throughput.BreakdownRow: actorq_figures.breakdown,
}
"""Figures of rows that were measured in windows."""
FIGURES = ("bits", "throughput", "breakdown", "times", "curves", "curves-updates")
"""Names of all figures of a report."""


def run(config: StudyReportConfig) -> int:
    """Write and show the report of the study; return the exit code."""
    return terminal.finish(config, make(config.folder, config.command_line(), config.figure_format))


def make(folder: Path, command: str, formats: Sequence[str] = ("png",)) -> schema.Document:
    """Write report.html, tables.md, rows.json and one JSON file per table into the study's folder, and show the tables.

    Args:
        folder: The study's folder.
        command: The command that repeats the report.
        formats: Suffixes of the figures' files.

    Returns:
        The document of the study's cells.

    Raises:
        QuarlError: No cell of the study is done yet.
    """
    with Store(folder) as store:
        name, document = store.study()
        records = store.records()
    margin = float(document.get("margin", MARGIN_PCT))
    part = rows.incomplete(records)
    name += part and f" (incomplete: {part})"
    measured = schema.document(rows.CellRow, rows.rows(records, margin), incomplete=part or None)
    done = [row for row in measured["rows"] if row["state"] == DONE]
    if not done:
        raise QuarlError(f"no cell of {folder} is done yet; quarl study run measures them")
    groups = grouped(records)
    runs = actorq_reward.runs(records)
    throughput, breakdown = actorq_throughput.tables(records)
    tables_of: Mapping[type[Row], Sequence[Row]] = {
        ErrorsRow: summaries.errors(groups, records) if any(group.method == "ptq" for group in groups) else [],
        SweetSpotRow: summaries.sweet_spots(groups, records, margin),
        TrainedRow: summaries.trained(groups, margin),
        LearningRow: summaries.learning(groups, records),
        ActorQRow: summaries.actorq(records),
        actorq_reward.RewardRow: [row for row, _ in runs],
        actorq_speedup.SpeedupRow: actorq_speedup.speedups([asdict(row) for row, _ in runs]),
        actorq_throughput.ThroughputRow: throughput,
        actorq_throughput.BreakdownRow: breakdown,
        updates_rows.UpdatesRow: updates_rows.updates(records),
        ExcludedRow: summaries.excluded(records),
    }
    rows_by = {kind: schema.document(kind, table)["rows"] for kind, table in tables_of.items()}
    figures = _figures(name, rows_by, [curve for _, curve in runs])
    if any(row["method"] in COMPARED for row in done):
        curve = bits_against_return(summaries.means(groups), f"{name}: return at each precision")
        figures.insert(0, ("bits", CAPTION, curve))
    figures = [(file, f"{caption}{part and f' Incomplete: {part}.'}", drawn) for file, caption, drawn in figures]
    _write(folder, command, name, str(document.get("about", "")), margin, records, measured, rows_by, figures, formats)
    for kind, shown in rows_by.items():
        if shown:
            terminal.show(kind, shown, f"{TITLES[kind]}{part and f' (incomplete: {part})'}")
    terminal.say(f"report: {folder / 'report.html'}")
    return measured


def _figures(name: str, rows_by: Tables, curves: Sequence[actorq_reward.Curve]) -> list[tuple[str, str, Figure]]:
    """Return name, caption and figure of what the study measured of ActorQ."""
    drawn: list[tuple[str, str, Figure]] = []
    for kind, draw in WINDOWS.items():
        if rows := rows_by[kind]:
            drawn.append((kind.command.split()[-1], TITLES[kind], draw(rows, f"{name}: {TITLES[kind].lower()}")))
    rows, title = rows_by[actorq_reward.RewardRow], f"{name}: time to reward"
    if any(row["part"] in ("fixed", "measured") for row in rows):
        pairs = list(zip(rows, curves, strict=True))
        drawn.append(("times", "Seconds to the target.", actorq_reward_figures.times(rows, title)))
        for file, against in (("curves", "clock_s"), ("curves-updates", "updates")):
            drawn.append((file, "Learning curves.", actorq_reward_figures.curves(pairs, title, against)))
    return drawn


def _write(
    folder: Path,
    command: str,
    name: str,
    about: str,
    margin: float,
    records: Sequence[Record],
    measured: schema.Document,
    rows_by: Tables,
    figures: Sequence[tuple[str, str, Figure]],
    formats: Sequence[str],
) -> None:
    shown = {kind: rows for kind, rows in rows_by.items() if rows}
    schema.write(measured, folder / "rows.json")
    for kind, rows_of in rows_by.items():
        file = folder / f"{kind.command.partition(' ')[2].replace(' ', '-')}.json"
        if rows_of:
            schema.write(schema.document(kind, rows_of, incomplete=measured["incomplete"]), file)
        else:  # from an earlier report, of cells that the study no longer contains
            file.unlink(missing_ok=True)
    every = [(TITLES[kind], tables.cells(kind, rows_of)) for kind, rows_of in shown.items()]
    markdown = "\n".join(tables.to_markdown(table, heading) for heading, table in every)
    judged = "".join(f"{key}: {fact}\n\n" for key, fact in _protocol(records, margin).items())
    write_bytes(
        f"# {tables.escaped(name)}\n\n{tables.escaped(about)}\n\n{judged}{markdown}".encode(), folder / "tables.md"
    )
    for figure, suffix in product(FIGURES, ("png", "pdf", "svg")):  # those of an earlier report
        (folder / f"{figure}.{suffix}").unlink(missing_ok=True)
    tables.write_returns(measured, folder)
    page.write(
        folder,
        figures,
        formats,
        title=f"{name}: a study of quantization",
        facts=_facts(about, records, margin),
        sentences=_sentences(rows_by, records),
        tables=every,
        command=command,
    )


CAPTION = (
    "Mean return at each precision with 95 % intervals, over the seeds that all of a panel's points have; the band is "
    "that of fp32, grey points are float formats, hollow points simulated."
)


def _protocol(records: Sequence[Record], margin: float) -> dict[str, str]:
    """Return the protocol of measurement and verdicts."""
    counts = sorted({record.episodes for record in records if record.method != TRAIN and record.state == DONE})
    return {
        "episodes of a cell": " or ".join(f"{count:,}" for count in counts),
        "non-inferior": f"the 95 % interval of the loss stays under {margin:g} % of the return in fp32",
        "inferior": "it lies above that; undecided: neither; differs beyond noise: it does not contain 0",
    }


def _facts(about: str, records: Sequence[Record], margin: float) -> dict[str, str]:
    played = [record for record in records if record.method != TRAIN]
    agents = {(record.algo, record.env_id, record.source) for record in played}
    done = sum(record.state == DONE for record in played)
    minutes = sum(record.seconds or 0.0 for record in records) / 60
    facts = {"about": about} if about else {}
    return facts | {
        "policies": f"{len(agents)}, of {len({agent[:2] for agent in agents})} pairs of algorithm and environment",
        "cells": f"{done:,} of {len(played):,} measured",
        **_protocol(records, margin),
        "time": f"{minutes:,.1f} minutes of cells",
    }


def _sentences(rows_by: Tables, records: Sequence[Record]) -> list[str]:
    """Return the results of the tables in sentences."""
    sentences = []
    spots = rows_by[SweetSpotRow]
    for scheme, mode in dict.fromkeys((row["scheme"], row["mode"]) for row in spots):
        alike = [row for row in spots if (row["scheme"], row["mode"]) == (scheme, mode)]
        kept = []
        for bits in (8, 6, 4):
            spots_of = [row["sweet_spot"] for row in alike if bits in row["widths"] and None not in row["verdicts"]]
            if spots_of:
                kept.append(
                    f"{sum(spot is not None and spot <= bits for spot in spots_of)} of {len(spots_of)} to {bits} bits"
                )
        if kept:
            sentences.append(f"Scheme {scheme}, {mode}: return is kept by {', '.join(kept)}.")
    sentences += actorq_reward.sentences(rows_by[actorq_reward.RewardRow])
    sentences += updates_rows.sentences(rows_by[updates_rows.UpdatesRow])
    explained = sum(row["cells"] for row in rows_by[ExcludedRow])
    if explained:
        sentences.append(f"{explained:,} cells have no result; the last table says why.")
    if part := rows.incomplete(records):
        sentences.append(f"Incomplete: {part}.")
    return sentences or ["Every cell was measured."]
