"""A study's tables by hand: errors, sweet spots, training for a precision, time to reward, and the rank correlation."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection

import contracts
from quarl.cli import main
from quarl.lab import rows, summaries
from quarl.lab.cell_groups import grouped
from quarl.lab.commands import study_report
from quarl.lab.store import Record
from quarl.lab.summary_rows import ActorQRow, ErrorsRow, ExcludedRow, SweetSpotRow, TrainedRow
from quarl.report import schema, style, tables
from quarl.report.figures import bits_against_return

Write = Callable[..., Path]
WEIGHTS = {"weight_min": -1.0, "weight_max": 3.0, "weight_std": 0.5}


def done(precision: str, returns: list[float], *, method: str = "ptq", **changes: Any) -> Record:
    """A finished cell of ddpg on Hopper."""
    made: dict[str, Any] = {
        "key": "",
        "algo": "ddpg",
        "env_id": "Hopper",
        "source": "zoo:sb3",
        "method": "fp32" if precision == "fp32" and method == "ptq" else method,
        "precision": precision,
        "scheme": "default",
        "mode": "dynamic",
        "seed": 0,
        "episodes": len(returns),
        "state": "done",
        "error": None,
        "seconds": 1.0,
        "peak_mb": 1.0,
        "result": {"returns": returns, "measured": True, "file_bytes": 9, **WEIGHTS},
    }
    result = {**made["result"], **changes.pop("result", {})}
    assert not changes.keys() - made.keys()
    return Record(**{**made, "result": result, **changes})


def checked(kind: Any, found: Any) -> list[Any]:
    """The rows as plain values."""
    contracts.check(schema.document(kind, found))
    table = tables.cells(kind, schema.document(kind, found)["rows"])
    assert len(table.rows) == len(found)
    return [dataclasses.asdict(row) for row in found]


def test_rows_compare_each_cell_with_the_fp32_one_of_its_agent_and_seed():
    records = [
        done("fp32", [100.0] * 10),
        done("int8", [99.0] * 10),
        done("fp32", [200.0] * 10, seed=1),
        done("int8", [100.0] * 10, seed=1),
        done("int8", [50.0] * 10, source="zoo:sb2"),
        done("int4", [], state="failed", error="why", result={}),
        done("fp32", [1.0], method="train"),
    ]
    found = rows.rows(records, 5.0)
    checked(rows.CellRow, found)
    assert [row.error_pct for row in found] == [0.0, 1.0, 0.0, 50.0, None, None]
    assert [row.noninferior for row in found] == [True, True, True, False, None, None]
    words = ["non-inferior", "non-inferior", "non-inferior", "inferior", None, None]
    assert [row.verdict for row in found] == words
    assert [row.differs for row in found] == [False, True, False, True, None, None]
    shown = [" ".join(cells) for cells in tables.cells(rows.CellRow, list(map(dataclasses.asdict, found))).rows]
    assert "non-inferior, differs beyond noise" in shown[1]
    assert "inferior, differs beyond noise" in shown[3]
    assert [row.state for row in found] == ["done"] * 5 + ["failed"]
    assert [row.mean for row in found][-2:] == [50.0, None]
    assert (found[1].weight_min, found[1].weight_max, found[1].weight_std) == (-1.0, 3.0, 0.5)


def test_the_verdict_of_a_study_is_the_worse_of_return_and_success():
    lost = {"successes": [True] * 86 + [False] * 14}
    records = [done("fp32", [1.0] * 100, result={"successes": [True] * 100}), done("int8", [1.0] * 100, result=lost)]
    records += [done("int4", [1.0] * 100), done("w4a8", [1.0] * 100, method="qat", result=lost)]
    _, eight, four, trained = checked(rows.CellRow, rows.rows(records, 5.0))
    words = [eight[key] for key in ("verdict", "verdict_return", "verdict_success")]
    assert words == ["inferior", "non-inferior", "inferior"]
    assert (eight["success"], round(eight["drop"], 9)) == (0.86, 0.14)
    assert (four["verdict"], four["verdict_success"], four["success"]) == ("non-inferior", None, None)  # an older cell
    (row,) = checked(TrainedRow, summaries.trained(grouped(records), 5.0))
    assert row["verdict"] == row["verdict_success"] == trained["verdict"] == "inferior"
    (spots,) = summaries.sweet_spots(grouped(records), records, 5.0)
    assert spots.verdicts == ["inferior", "non-inferior"]


def test_errors_are_those_of_the_paper_s_tables_with_the_mean_below():
    # Breakout and BeamRider of the paper's DQN table: 63.55 and 22.05 %, fp16 -1.40 and 11.03
    breakout = [done("fp32", [214.0]), done("fp16", [217.0]), done("int8", [78.0])]
    beam = [done("fp32", [925.0]), done("fp16", [823.0]), done("int8", [721.0])]
    naive = [dataclasses.replace(breakout[2], scheme="naive")]
    beam = [dataclasses.replace(record, env_id="BeamRider") for record in beam]
    records = [*breakout, *naive, *beam]
    found = checked(ErrorsRow, summaries.errors(grouped(records), records))
    assert [(row["env_id"], row["precision"], row["scheme"], round(row["error_pct"], 2)) for row in found] == [
        ("Hopper", "fp16", "default", -1.40),
        ("Hopper", "int8", "default", 63.55),
        ("Hopper", "int8", "naive", 63.55),
        ("BeamRider", "fp16", "default", 11.03),
        ("BeamRider", "int8", "default", 22.05),
        ("mean", "fp16", "default", 4.81),
        ("mean", "int8", "default", 42.80),
        ("mean", "int8", "naive", 63.55),  # of the one policy that was asked for it
    ]
    assert [row["agents"] for row in found] == [1, 1, 1, 1, 1, 2, 2, 1]
    assert (found[1]["fp32"], found[1]["mean"], found[5]["fp32"]) == (214.0, 78.0, None)
    assert np.isnan(found[0]["error_low"])  # one episode has no interval


def test_each_requested_precision_has_a_row_with_the_seeds_that_were_run():
    records = [done(name, [100.0] * 5, seed=seed) for name in ("fp32", "int8") for seed in (0, 1, 2)]
    records += [done("int4", [90.0] * 5), *(done("int4", [], seed=seed, state="todo", result={}) for seed in (1, 2))]
    records += [done("int2", [], seed=seed, state="todo", result={}) for seed in (0, 1, 2)]
    found = checked(ErrorsRow, summaries.errors(grouped(records), records))
    assert [(row["precision"], row["seeds"], row["mean"]) for row in found] == [
        ("int8", 3, 100.0),
        ("int4", 1, 90.0),
        ("int2", 0, None),
    ]
    (spots,) = checked(SweetSpotRow, summaries.sweet_spots(grouped(records), records, 5.0))
    assert (spots["seeds"], spots["widths"]) == (3, [8, 4, 2])
    assert "8 4? 2?" in tables.cells(SweetSpotRow, [spots]).rows[0]
    assert rows.incomplete(records) == "7 of 12 cells are measured"
    assert rows.incomplete([*records[:6], done("int4", [], state="na", result={})]) == ""


def test_the_sweet_spot_is_the_narrowest_of_those_whose_wider_ones_all_hold():
    widths = {8: 100.0, 7: 99.0, 6: 90.0, 5: 100.0, 4: 10.0}
    records = [done("fp32", [100.0] * 10), *(done(f"int{bits}", [mean] * 10) for bits, mean in widths.items())]
    records.append(done("int8", [50.0] * 10, scheme="naive"))
    records.append(done("w8a2", [50.0] * 10))  # another question
    ours, naive = checked(SweetSpotRow, summaries.sweet_spots(grouped(records), records, 5.0))
    assert ours["widths"] == [8, 7, 6, 5, 4]
    assert ours["noninferior"] == [True, True, False, True, False]
    assert ours["verdicts"] == ["non-inferior", "non-inferior", "inferior", "non-inferior", "inferior"]
    (shown, _) = tables.cells(SweetSpotRow, [ours, naive]).rows
    assert "8 7 [6] 5 [4]" in shown
    assert (ours["sweet_spot"], naive["sweet_spot"]) == (7, None)


def test_a_width_that_is_not_measured_with_every_seed_ends_the_sweet_spot():
    records = [done(name, [100.0] * 10, seed=seed) for name in ("fp32", "int8", "int4") for seed in (0, 1, 2)]
    records += [done("int6", [100.0] * 10), done("int6", [], seed=1, state="failed"), done("int6", [], seed=2)]
    records[-1] = dataclasses.replace(records[-1], state="todo", result=None)
    (row,) = checked(SweetSpotRow, summaries.sweet_spots(grouped(records), records, 5.0))
    assert (row["widths"], row["noninferior"], row["sweet_spot"]) == ([8, 6, 4], [True, False, True], 8)
    assert row["verdicts"] == ["non-inferior", None, "non-inferior"]
    assert "8 6? 4" in tables.cells(SweetSpotRow, [row]).rows[0]


def test_seeds_are_pooled_and_judged_by_the_interval_over_them():
    records = [done("fp32", [100.0] * 5, seed=seed) for seed in range(3)]
    records += [done("int8", [mean] * 5, seed=seed) for seed, mean in enumerate((99.0, 98.0, 97.0))]
    records += [done("int4", [mean] * 5, seed=seed) for seed, mean in enumerate((100.0, 100.0, 90.0))]
    eight, four = (group for group in grouped(records) if group.method == "ptq")
    assert eight.mean().point == 98.0
    assert eight.error() is not None
    assert eight.error().point == pytest.approx(2.0)
    assert (eight.verdict(5.0).noninferior, four.verdict(5.0).noninferior) == (True, False)
    assert (eight.verdict(5.0).verdict, four.verdict(5.0).verdict) == ("non-inferior", "undecided")


def test_means_stand_side_by_side_of_the_same_seeds_only():
    records = [done("fp32", [level] * 5, seed=seed) for seed, level in enumerate((100.0, 100.0, 500.0))]
    records += [done(name, [100.0] * 5, seed=seed) for name in ("int8", "w8a8") for seed in (0, 1)]
    records = [dataclasses.replace(one, method="qat") if one.precision == "w8a8" else one for one in records]
    (error,) = checked(ErrorsRow, summaries.errors(grouped(records), records))
    assert (error["seeds"], error["fp32"], error["mean"], error["error_pct"]) == (2, 100.0, 100.0, 0.0)
    (row,) = checked(TrainedRow, summaries.trained(grouped(records), 5.0))
    assert (row["seeds"], row["fp32"], row["ptq"], row["trained"]) == (2, 100.0, 100.0, 100.0)


def test_a_mean_of_errors_is_of_the_policies_that_have_all_of_them():
    records = [done(name, [level] * 5) for name, level in (("fp32", 100.0), ("fp16", 90.0), ("int8", 80.0))]
    other = [dataclasses.replace(one, env_id="Walker") for one in records[:2]]
    zero = [done(name, [level] * 5) for name, level in (("fp32", 0.0), ("fp16", 1.0), ("int8", 1.0))]
    records += [*other, *(dataclasses.replace(one, env_id="Ant") for one in zero)]
    means = summaries.errors(grouped(records), records)[-2:]
    assert [(mean.agents, mean.precision, mean.error_pct) for mean in means] == [(1, "fp16", 10.0), (1, "int8", 20.0)]


def test_agents_trained_for_a_precision_stand_beside_what_quantisation_makes_of_the_float_one():
    records = [done("fp32", [100.0]), done("int4", [20.0], scheme="naive"), done("int4", [60.0])]
    records += [done("w4a8", [95.0], method="qat"), done("w4", [99.0], method="qat")]
    row, floating = checked(TrainedRow, summaries.trained(grouped(records), 5.0))
    assert (row["fp32"], row["ptq"], row["trained"]) == (100.0, 60.0, 95.0)  # of the default scheme
    assert (row["error_ptq_pct"], row["error_trained_pct"]) == (40.0, 5.0)
    assert (floating["ptq"], floating["trained"]) == (None, 99.0)  # int4 has 8-bit activations


def test_distilled_agents_stand_beside_what_they_began_as():
    records = [done("fp32", [100.0] * 10), done("int2e8", [70.0] * 10, scheme="mid-tread"), done("int2e8", [50.0] * 10)]
    records += [done(name, [98.0] * 10, method="distill") for name in ("int2e8", "int3e8")]
    records += [done("int3e8", [60.0] * 10, scheme="naive")]
    row, alone = checked(TrainedRow, summaries.trained(grouped(records), 5.0))
    assert (alone["ptq"], alone["trained"], alone["gain"]) == (None, 98.0, None)
    assert summaries.trained(grouped([*records[:2], records[3]]), 5.0)[0].ptq == 70.0
    assert (row["method"], row["ptq"], row["trained"]) == ("distill", 50.0, 98.0)
    assert (row["verdict"], row["gain"], row["gain_low"]) == ("non-inferior", 48.0, 48.0)


def run(precision: str, seed: int, clock_s: float, reached_s: float | None) -> Record:
    facts = {"clock_s": clock_s, "reached_s": reached_s, "target": 90.0}
    return done(precision, [95.0], method="actorq", seed=seed, result=facts)


def test_speed_up_is_the_geometric_mean_of_paired_times_to_the_target():
    records = [run("fp32", 0, 100.0, 80.0), run("fp32", 1, 90.0, 20.0), run("int8", 0, 50.0, 40.0)]
    records += [run("int8", 1, 50.0, 2.5)]
    exact, eight = checked(ActorQRow, summaries.actorq(records))
    assert (exact["seconds"], exact["speedup"], exact["reached"]) == (pytest.approx(40.0), None, 2)
    assert eight["speedup"] == pytest.approx(4.0)  # of 2 and 8
    assert eight["at_least"] is False


def test_trainings_of_two_policies_are_no_seeds_of_one():
    records = [run("fp32", seed, 100.0, 50.0) for seed in (0, 1)]
    records += [dataclasses.replace(record, source="train") for record in records]
    rows = checked(ActorQRow, summaries.actorq(records))
    assert [(row["source"], row["seeds"]) for row in rows] == [("zoo:sb3", 2), ("train", 2)]


def test_facts_of_trainings_are_means_over_the_seeds_that_have_them():
    records = [run("int8", seed, 100.0, None) for seed in range(3)]
    for record, age in zip(records, (4.0, 7.0), strict=False):
        record.result.update(staleness_p50=age, final_return_quantised=10 * age)
    (row,) = checked(ActorQRow, summaries.actorq(records))
    assert (row["staleness_p50"], row["final_return_quantised"]) == (5.5, 55.0)
    assert row["staleness_p99"] is row["final_return"] is None


def test_a_baseline_that_never_reached_the_target_bounds_the_speed_up():
    exact, eight = checked(ActorQRow, summaries.actorq([run("fp32", 0, 100.0, None), run("int8", 0, 60.0, 50.0)]))
    assert (eight["speedup"], eight["at_least"], exact["reached"]) == (2.0, True, 0)
    _, eight = checked(ActorQRow, summaries.actorq([run("fp32", 0, 100.0, 80.0), run("int8", 0, 60.0, None)]))
    assert (eight["speedup"], eight["at_least"]) == (None, None)  # nothing can be said


def test_what_was_not_measured_is_listed_with_its_reason():
    records = [
        done("fp32", [], state="na", error="budget", result={}),
        done("int8", [], state="na", error="budget", result={}),
        done("int4", [], state="na", error="budget", result={}),
        done("int4", [], state="failed", error="why", scheme="naive", result={}),
        done("int2", [1.0]),
    ]
    found = checked(ExcludedRow, summaries.excluded(records))
    assert [(row["method"], row["cells"], row["state"], row["reason"]) for row in found] == [
        ("fp32", 1, "na", "budget"),
        ("ptq", 2, "na", "budget"),
        ("ptq", 1, "failed", "why"),
    ]


def test_means_of_one_episode_are_drawn_without_an_interval():
    (axes,) = bits_against_return(
        summaries.means(grouped([done(name, [1.0]) for name in ("fp32", "int8")])), "title"
    ).axes
    assert [line.get_ydata()[0] for line in axes.lines if len(line.get_xdata())][:1] == [1.0]


def test_the_figure_s_intervals_are_those_over_seeds():
    records = [
        done(name, [mean - 1, mean + 1], seed=seed)
        for seed, mean in enumerate((100.0, 300.0, 500.0))
        for name in ("fp32", "int8")
    ]
    exact, eight = summaries.means(grouped(records))
    assert (exact["mean"], exact["ci_low"] < 110, exact["ci_high"] > 490) == (300.0, True, True)
    drawn = bits_against_return([exact, eight], "title")
    assert "fp32, 95 % interval shaded" in [text.get_text() for text in drawn.legends[0].get_texts()]
    (axes,) = drawn.axes
    (bars,) = (found for found in axes.collections if isinstance(found, LineCollection))
    (_, low), (_, high) = bars.get_segments()[0]
    assert (low, high) == pytest.approx((eight["ci_low"], eight["ci_high"]))


def test_points_of_one_panel_are_over_the_same_seeds():
    records = [done(name, [mean] * 2, seed=seed) for seed, mean in enumerate((1.0, 5.0)) for name in ("fp32", "int8")]
    records.append(done("int4", [3.0, 3.0], seed=0))
    assert [row["mean"] for row in summaries.means(grouped(records))] == [1.0, 1.0, 3.0]
    assert [row["mean"] for row in summaries.means(grouped(records[:-1]))] == [3.0, 3.0]


def test_intervals_stand_side_by_side_and_simulated_points_are_hollow():
    records = [done(name, [1.0, 2.0, 4.0]) for name in ("fp32", "fp16", "int8")]
    records.append(done("int8", [1.0, 2.0, 4.0], scheme="naive", result={"measured": False}))
    (axes,) = bits_against_return(summaries.means(grouped(records)), "title").axes
    eight, naive, sixteen = (bars[0].get_xdata()[0] for bars in axes.containers)
    assert (eight < 1 < naive, sixteen) == (True, 0)
    assert sum(isinstance(found, LineCollection) for found in axes.collections) == 3
    hollow = [line.get_xdata().tolist() for line in axes.lines if line.get_markerfacecolor() == style.PAPER]
    assert [x for x in hollow if x] == [[naive]]


def test_agents_of_one_pair_have_titles_with_their_source():
    records = [done(name, [1.0, 2.0], source=source) for source in ("zoo:sb2", "train") for name in ("fp32", "int8")]
    records += [done(name, [1.0, 2.0], algo="td3") for name in ("fp32", "int8")]
    drawn = bits_against_return(summaries.means(grouped(records)), "title")
    assert [axes.get_title(loc="left") for axes in drawn.axes] == [
        "ddpg Hopper zoo:sb2",
        "ddpg Hopper train",
        "td3 Hopper",
    ]


def test_what_was_trained_for_a_precision_stands_over_it():
    rows = summaries.means(grouped([done(name, [1.0, 2.0]) for name in ("fp32", "int8", "int4")]))
    trained = [
        {**row, "method": "qat", "precision": f"w{row['precision'][3:]}a8"} for row in rows if row["method"] != "fp32"
    ]
    (axes,) = bits_against_return([*rows, *trained], "title").axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "4"]


def test_precisions_are_in_order_and_joined_where_only_the_weights_differ():
    names = ("w4a4", "int4", "w8a4", "int8", "fp16", "fp32")
    drawn = bits_against_return(summaries.means(grouped([done(name, [1.0, 2.0]) for name in names])), "title")
    (axes,) = drawn.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["fp16", "8", "w8a4", "4", "w4a4"]
    assert [list(points[0].get_xdata()) for points in axes.containers] == [[1, 2, 3, 4], [0]]
    joined = [found for found in axes.lines if found.get_linestyle() == "-" and found.get_color() != style.MUTED]
    assert [found.get_xdata().tolist() for found in joined] == [[1, 3], [2, 4], []]  # the last one: the legend's


def test_the_report_s_sentences_count_every_cell_without_a_result():
    records = [done("fp32", [1.0]), done("int8", [], state="na", error="why", result={})]
    made = {kind: [] for kind in study_report.TITLES}
    made[ExcludedRow] = checked(ExcludedRow, summaries.excluded(records))
    assert study_report._sentences(made, records[:1]) == ["1 cells have no result; the last table says why."]
    waiting = [done("int4", [], state=state, result={}) for state in ("todo", "running")]
    assert study_report._sentences(made, [*records, *waiting]) == [
        "1 cells have no result; the last table says why.",
        "Incomplete: 1 of 3 cells are measured.",
    ]
    none = {**made, ExcludedRow: []}
    assert study_report._sentences(none, records[:1]) == ["Every cell was measured."]


@pytest.mark.slow
def test_the_report_of_a_run_is_a_page_tables_and_figures(study_file: Write, tmp_path: Path, capsys: Any):
    policies = "{algo: dqn, env: CartPole-v1, source: 'zoo:zoo'}\n{algo: ddpg, env: CartPole-v1, source: train}"
    methods = "{method: fp32}\n{method: ptq, precision: [fp16, 8, 4], scheme: [default, naive]}"
    path = study_file(policies, methods)
    out = tmp_path / "out"
    assert main(["study", "run", str(path), "-o", str(out), "--minutes", "0"]) == 0
    assert main(["study", "report", str(out)]) == 2
    assert "no cell of" in capsys.readouterr().err
    assert main(["study", "run", str(path), "-o", str(out)]) == 0
    assert main(["study", "report", str(out), "--json", str(tmp_path / "rows.json")]) == 0
    shown = capsys.readouterr().out
    for title in ("Return and error", "Sweet spots", "Not measured"):
        assert title in shown
    assert contracts.read(tmp_path / "rows.json") == json.loads((out / "rows.json").read_text())
    for name in ("errors", "sweet-spots", "excluded"):
        contracts.read(out / f"{name}.json")
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 1
    assert "ddpg needs a continuous action space" in page
    assert len(page) < 1_000_000
    assert "## Return and error" in (out / "tables.md").read_text()
    assert "the 95 % interval of the loss stays under 5 % of the return in fp32" in page
    assert "the 95 % interval of the loss stays under 5 % of the return in fp32" in (out / "tables.md").read_text()
    assert {path.name for path in out.glob("*.png")} == {"bits.png"}
    long, done = pd.read_csv(out / "returns.csv"), json.loads((out / "rows.json").read_text())["rows"]
    assert len(long) == sum(len(row["returns"] or ()) for row in done) > 0
    assert {"env_id", "method", "precision", "seed", "episode", "return"} <= {*long.columns}
    assert main(["study", "report", str(out), "--figure-format", "pdf", "svg"]) == 0
    assert {path.name for path in out.glob("bits.*")} == {"bits.pdf", "bits.svg"}
    assert (out / "tables.tex").read_text().count("\\toprule") == (out / "tables.md").read_text().count("\n## ")
    assert main(["study", "run", str(study_file(policies.splitlines()[0], "{method: fp32}")), "-o", str(out)]) == 0
    assert main(["study", "report", str(out)]) == 0
    assert not list(out.glob("*.png"))
    assert not (out / "sweet-spots.json").exists()


def test_columns_in_which_no_policy_has_a_number_are_left_out():
    records = [done(name, [1.0, 2.0]) for name in ("fp32", "int8")]
    (row,) = checked(ErrorsRow, summaries.errors(grouped(records), records))
    headings = [column.heading for column in tables.cells(ErrorsRow, [row]).columns]
    assert {"precision", "E %", "its interval", "interval of E"} <= set(headings)
    assert "agents" not in headings
