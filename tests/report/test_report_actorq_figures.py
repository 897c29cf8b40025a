"""Figures and tables of ActorQ draw what the rows say."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from rich.console import Console

import contracts
from quarl.lab import actorq_figures, actorq_reward_figures
from quarl.report import process_figures, schema, tables
from quarl.report.figures import learning


def reward(task, precision, engine, seed, seconds, **changed):
    return {
        "task": task,
        "algo": "dqn",
        "precision": precision,
        "engine": engine,
        "seed": seed,
        "target": 100.0,
        "seconds": seconds,
        "derived": False,
        "censored": False,
        "env_steps": 10,
        "updates": 1,
        "final_return": 100.0,
        "final_return_quantised": None,
        "samples_per_insert": 1.0,
        "envs_per_actor": 1,
        "part": "fixed",
        "updates_per_s": None,
        "predicted_updates_per_s": None,
        "cpu": "a processor",
    } | changed


REWARDS = [
    reward("a", "int8", "litert", 0, 10.0),
    reward("a", "int8", "litert", 1, 40.0),
    reward("a", "fp32", "torch", 0, 160.0, censored=True),
    reward("b", "int8", "litert", 0, 5.0),
    reward("b", "fp32", "torch", 0, 50.0, derived=True),
    reward("a", "int8", "litert", 0, 1.0, samples_per_insert=0.5),  # another ratio than the task's own
]


AGENT = {"algo": "dqn", "env_id": "CartPole-v1", "source": "actorq"}


def throughput(precision, engine, ratio, rate, predicted):
    row = dict.fromkeys(contracts.rows()["study throughput"]["properties"], 1.0)
    return row | {
        **AGENT,
        "precision": precision,
        "engine": engine,
        "samples_per_insert": ratio,
        "net_arch": "64,64",
        "actors": 1,
        "updates_per_s": rate,
        "predicted_updates_per_s": predicted,
        "updates": 1,
        "env_steps": 1,
        "versions_advance": True,
    }


RATES = [
    throughput("fp32", "torch", 4.0, 8.0, 9.0),
    throughput("int8", "litert", 4.0, 14.0, 13.0),
    throughput("fp32", "torch", 0.5, 1.2, 1.3),
    throughput("int8", "litert", 0.5, 14.0, 14.0),
]
BREAKDOWN = [
    {
        **AGENT,
        "precision": precision,
        "engine": engine,
        "actor_update_interval": interval,
        "publish_interval": 1,
        "samples_per_insert": 4.0,
        "net_arch": "64,64",
        "actors": 1,
        "env_steps": 1000,
        "inference_ms": inference,
        "environment_ms": 20.0,
        "insert_ms": 5.0,
        "pull_ms": 3.0,
        "deserialize_ms": 2.0,
        "load_ms": 1.0,
        "wait_ms": 700.0,
        "other_ms": 9.0,
    }
    for interval in (30, 300)
    for precision, engine, inference in (("fp32", "torch", 1300.0), ("int8", "litert", 90.0))
]


def bars(axes):
    """(x, height) by label of every set of bars."""
    return {
        container.get_label(): [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in container]
        for container in axes.containers
    }


def test_bars_of_processes_are_stacked_in_the_order_of_their_parts():
    spent = {"learner": {"updates": 7.0, "waiting": 2.0}, "publisher": {"quantizing": 1.0, "waiting": 8.0}}
    (axes,) = process_figures.processes(spent, "").axes
    found = {each.get_label(): [(bar.get_y(), bar.get_height()) for bar in each] for each in axes.containers}
    assert (found["updates"], found["quantizing"]) == ([(0.0, 7.0), (0.0, 0.0)], [(7.0, 0.0), (0.0, 1.0)])
    assert found["waiting"] == [(7.0, 2.0), (1.0, 8.0)]
    assert [*found] == [*process_figures.SPENT]


def test_evaluations_are_joined_and_what_is_alone_is_a_hollow_mark_of_their_colour():
    def point(label, steps, mean):
        return {"label": label, "timesteps": steps, "mean": mean, "ci_low": mean, "ci_high": None}

    points = [point("fp32", 10, 1.0), point("fp32", 20, 3.0), point("fp32, last", 20, 2.0), point("began", 15, None)]
    episodes = [{"timesteps": step, "return_mean": None if step < 10 else float(step)} for step in range(2000)]
    (axes,) = learning(points, episodes, {"timesteps": "steps"}, "").axes
    lines = {line.get_label(): line for line in axes.lines}
    training = lines["training, with exploration"].get_xydata()
    assert len(training) <= 500
    assert training[-1].tolist() == [1999.0, 1999.0]
    joined, alone = (
        next(each for each in axes.containers if each.get_label() == name)[0] for name in ("fp32", "fp32, last")
    )
    assert joined.get_xydata().tolist() == [[10.0, 1.0], [20.0, 3.0]]
    assert alone.get_color() == joined.get_color()
    assert (joined.get_linestyle(), alone.get_markerfacecolor()) == ("-", "none")
    assert [*lines["began"].get_xdata()] == [15, 15]
    timed = [each | {"clock_s": each["timesteps"] / 2} for each in points]
    twice = learning(timed, [], {"timesteps": "steps", "clock_s": "seconds"}, "").axes
    assert [panel.get_xlabel() for panel in twice] == ["steps", "seconds"]
    (axes,) = learning([point("int3", 0, 1.0)], [], {"timesteps": "updates"}, "").axes
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [0.0]


def test_seconds_are_geometric_means_at_the_task_s_own_ratio():
    (axes,) = actorq_reward_figures.times(REWARDS, "title").axes
    found = bars(axes)
    assert [height for _, height in found["int8"]] == pytest.approx([20.0, 5.0])
    assert [height for _, height in found["torch fp32"]] == pytest.approx([160.0, 50.0])
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["a", "b"]
    assert axes.get_yscale() == "log"


def test_censored_bars_have_an_arrow_and_derived_ones_are_hatched():
    (axes,) = actorq_reward_figures.times(REWARDS, "").axes
    (arrow,) = axes.texts
    width = axes.patches[0].get_width()
    beside = bars(axes)["torch fp32"][0][0] + width / 4  # where points do not hide it
    assert arrow.xy == pytest.approx((beside, 240.0))
    assert arrow.xy[1] < axes.get_ylim()[1]  # else it is not drawn
    assert sum(bar.get_hatch() is not None for bar in axes.patches) == 2  # one bar, and one in the legend
    plain = actorq_reward_figures.times([row for row in REWARDS if not row["derived"]], "")
    assert "derived" not in [text.get_text() for text in plain.legends[0].get_texts()]


@pytest.mark.parametrize("number", [4, 9])
def test_names_of_many_tasks_do_not_lie_over_each_other(number):
    names = [f"a task of {k}" for k in range(number)]
    drawn = actorq_reward_figures.times(
        [reward(name, "int8", "litert", 0, 10.0 + len(name) + int(name[-1])) for name in names], ""
    )
    FigureCanvasAgg(drawn).draw()
    labels = drawn.axes[0].get_xticklabels()
    assert {label.get_rotation() for label in labels} == {20.0 if number > 4 else 0.0}
    if number > 4:  # each begins where the one before, of this height, has gone down from its end
        ends = [label.get_window_extent().x1 for label in labels]
        height = labels[0].get_fontsize() * drawn.dpi / 72
        assert all(right - left > height / np.sin(np.radians(20)) for left, right in itertools.pairwise(ends))
    else:
        ends = [(box.x0, box.x1) for box in (label.get_window_extent() for label in labels)]
        assert all(left[1] < right[0] for left, right in itertools.pairwise(ends))


@pytest.mark.parametrize(("against", "name"), [("clock_s", "training seconds"), ("updates", "updates")])
def test_a_panel_a_task_has_a_line_a_run_at_its_own_ratio_and_the_target(against, name):
    curve = [{"clock_s": 1.0, "updates": 10.0, "return": 5.0}, {"clock_s": 2.0, "updates": 30.0, "return": 7.0}]
    found = [(row, curve if not row["derived"] else []) for row in REWARDS]
    drawn = actorq_reward_figures.curves(found, "", against)
    a, b = drawn.axes
    assert [len(panel.lines) for panel in (a, b)] == [4, 2]
    assert list(b.lines[0].get_xdata()) == [point[against] for point in curve]
    assert list(b.lines[0].get_ydata()) == [5.0, 7.0]
    assert list(b.lines[1].get_ydata()) == [100.0, 100.0]
    assert [text.get_text() for text in a.figure.legends[0].get_texts()] == ["torch fp32", "int8"]
    assert drawn.get_supxlabel() == name


def test_throughput_has_a_bar_an_arm_and_a_tick_where_it_was_predicted():
    (axes,) = actorq_figures.throughput(RATES, "").axes
    found = bars(axes)
    assert [height for _, height in found["torch fp32"]] == [1.2, 8.0]  # ratios ascend
    assert [height for _, height in found["int8"]] == [14.0, 14.0]
    ticks = sorted(line.get_ydata()[0] for line in axes.lines if len(line.get_ydata()))
    assert ticks == [1.3, 9.0, 13.0, 14.0]
    assert axes.get_ylim()[0] == pytest.approx(0.1)


def test_the_breakdown_stacks_all_parts_but_the_waits():
    panels = actorq_figures.breakdown(BREAKDOWN, "").axes
    assert [panel.get_title(loc="left") for panel in panels] == ["every 30 steps", "every 300 steps"]
    tops = [bar.get_y() + bar.get_height() for bar in panels[0].containers[-1]]
    assert tops == [1300.0 + 40.0, 90.0 + 40.0]
    assert [text.get_text() for text in panels[0].texts] == ["+ 700\nwaits"] * 2
    assert [tick.get_text() for tick in panels[0].get_xticklabels()] == ["torch fp32", "int8"]
    wide = [row | {"net_arch": "2048,2048", "samples_per_insert": 0.5} for row in BREAKDOWN]
    panels = actorq_figures.breakdown([*BREAKDOWN, *wide], "").axes
    labels = [tick.get_text() for tick in panels[0].get_xticklabels()]
    assert labels[1::2] == ["int8\npolicy 64,64\n4 per insert", "int8\npolicy 2048,2048\n0.5 per insert"]


@pytest.mark.parametrize(
    ("command", "rows", "shown"),
    [
        ("study throughput", RATES, ["torch fp32", "policy 64,64", "actors: 1"]),
        ("study time-to-reward", REWARDS, ["> 160", "derived", "–"]),
        ("study breakdown", BREAKDOWN, ["30 steps", "300 steps", "1300"]),
    ],
)
def test_every_row_can_be_printed(command, rows, shown):
    kind = contracts.kinds()[command]
    contracts.check(schema.document(kind, rows))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(tables.terminal(tables.cells(kind, rows), "title"))
    text = console.export_text()
    for words in shown:
        assert words in text
