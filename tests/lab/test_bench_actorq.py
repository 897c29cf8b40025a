"""Cells that resume, rates and speed-ups by hand, and one real run behind each way of watching."""

from __future__ import annotations

import json
import math
import sqlite3
from dataclasses import asdict
from pathlib import Path

import pytest

import contracts
from quarl.actorq.throughput_plan import Rates, Step
from quarl.cli import main
from quarl.config import ActorQConfig, BenchActorQConfig
from quarl.errors import QuarlError
from quarl.lab import actorq_reward_figures
from quarl.lab.methods import actorq_reward, actorq_speedup, actorq_throughput
from quarl.lab.methods.actorq import ADDED, settings_of, train, watch
from quarl.lab.methods.actorq_protocol import Choice, read
from quarl.lab.methods.actorq_reward import time_to_reward
from quarl.lab.methods.actorq_speedup import speedups
from quarl.lab.methods.actorq_throughput import breakdown, throughput
from quarl.lab.methods.cells import Cells
from quarl.report import schema
from refusals import refused

PROTOCOL = Path(__file__).resolve().parents[2] / "benchmarks" / "actorq_protocol.json"
STEP_US = {"torch": 2000.0, "fp32": 400.0, "int8": 100.0}


def cells(folder, minutes=10.0):
    return Cells(folder, minutes, lambda line: None)


def checked(command, rows):
    contracts.check(schema.document(contracts.kinds()[command], rows, seed=0))
    return rows


# cells


def test_a_finished_cell_is_not_measured_again_unless_its_settings_are_others(tmp_path):
    first = cells(tmp_path).get("a", {"seconds": 1, "arms": ("x",)}, lambda: {"found": 1})
    again = cells(tmp_path).get("a", {"seconds": 1, "arms": ("x",)}, lambda: pytest.fail("measured twice"))
    assert first["found"] == again["found"] == 1
    assert set(again) == {"settings", "machine", "found"}
    assert cells(tmp_path).get("a", {"seconds": 2}, lambda: {"found": 2})["found"] == 2


def test_a_cell_that_is_of_no_use_is_measured_again(tmp_path):
    asked = {"usable": lambda cell: cell["found"] > 1}
    assert cells(tmp_path).get("a", {}, lambda: {"found": 1}, **asked)["found"] == 1
    assert cells(tmp_path).get("a", {}, lambda: {"found": 2}, **asked)["found"] == 2
    assert cells(tmp_path).get("a", {}, lambda: pytest.fail("thrice"), **asked)["found"] == 2


def test_a_damaged_cell_is_one_line(tmp_path):
    cells(tmp_path).get("a", {}, lambda: {"found": 1})
    with sqlite3.connect(tmp_path / "study.sqlite") as database:
        database.execute("UPDATE cells SET row = '{'")
    with pytest.raises(QuarlError, match=r"study\.sqlite is damaged: a row is not JSON"):
        cells(tmp_path).get("a", {}, lambda: {})


def test_no_cell_is_begun_after_the_time_is_over(tmp_path):
    cells(tmp_path).get("a", {}, lambda: {"found": 1})
    late = cells(tmp_path, minutes=-1.0)
    assert late.get("a", {}, lambda: {})["found"] == 1
    assert late.get("b", {}, lambda: pytest.fail("begun")) is None
    assert late.missing == 1


def test_settings_leave_out_where_files_go():
    config = ActorQConfig(output=Path("a"))
    assert settings_of(config, seconds=3) == settings_of(ActorQConfig(output=Path("b")), seconds=3)
    assert settings_of(config) != settings_of(ActorQConfig(actors=3))


# throughput and breakdown


def window(config, *, warm_up, seconds, say, meter=None):
    """What `watch` would see if steps took STEP_US, updates 20 ms, and nothing else anything; 100 steps an update."""
    name = "torch" if config.engine == "torch" else config.actor_precision
    step_s = 1e-6 * STEP_US[name]
    pace = min(50.0, 1 / (100 / config.samples_per_insert * step_s))
    updates, steps = round(pace * seconds), round(100 / config.samples_per_insert * pace * seconds)
    actors = dict.fromkeys(ADDED, 0.0) | {
        "steps": steps,
        "loop_s": seconds,
        "inference_s": 0.8 * steps * step_s,
        "environment_s": 0.1 * steps * step_s,
        "insert_s": 0.05 * steps * step_s,
        "wait_s": seconds - steps * step_s,
        "pulls": 10,
    }
    return {
        "clock_s": seconds,
        "env_steps": steps,
        "updates": updates,
        "slices": [[k * seconds / 20, k * steps / 20, k * updates / 20] for k in range(21)],
        "actors": actors,
        "updates_per_version": updates / 10,
        "learner": {"wait_s": 0.0},
        "publisher": {"cpu_share": 0.1, "share_of_fp32": 0.25},
        "staleness": {"3": 99, "8": 1},
        "latency_ms": {"40": 10},
        "blocked_ms": {"25": 10},
    }


def measured(config, arms):
    steps = tuple(Step(*arm, 10e-6, 80e-6, 10e-6) for arm in arms)
    return Rates(batch_size=100, samples_per_insert=1.0, update_s=0.020, insert_s=0.0, steps=steps)


@pytest.fixture
def made_up(monkeypatch):
    asked = []

    def record(config, **options):
        asked.append((config.engine, config.actor_precision, config.samples_per_insert, config.seed))
        return window(config, **options)

    monkeypatch.setattr(actorq_throughput, "watch", record)
    monkeypatch.setattr(actorq_throughput.throughput_plan, "measure", measured)
    return asked


def bench(folder, **changed):
    chosen = {"arms": ("torch-fp32", "fp32", "int8"), "batch_size": 100, "seconds": 10.0, "output": folder}
    config = BenchActorQConfig(**chosen | {"samples_per_insert": (1.0,)} | changed)
    config.check()
    return config


def test_speedups_are_ratios_of_updates_a_second(tmp_path, made_up):
    torch, fp32, int8 = checked("bench actorq throughput", throughput(bench(tmp_path), cells(tmp_path)))
    assert [row.updates_per_s for row in (torch, fp32, int8)] == [5.0, 25.0, 50.0]
    assert (int8.speedup_vs_torch_fp32, int8.speedup_vs_litert_fp32) == pytest.approx((10.0, 2.0))
    assert torch.speedup_vs_torch_fp32 == 1.0
    assert int8.vs_torch_low <= int8.speedup_vs_torch_fp32 <= int8.vs_torch_high
    assert int8.predicted_updates_per_s == 50.0
    assert (int8.realised_samples_per_insert, int8.env_steps_per_s) == (1.0, 5000.0)
    assert (torch.inference_us, torch.environment_us) == pytest.approx((1600.0, 200.0))
    assert torch.overhead_us == pytest.approx(200.0)  # a tenth of 2000: what is neither of the two nor a wait
    assert int8.actor_wait_share == pytest.approx(0.5)
    assert (int8.staleness_p50, int8.staleness_p99, int8.latency_ms_p50, int8.blocked_ms_p50) == (3, 3, 40, 2.5)
    assert (torch.updates_per_version, torch.versions_advance) == (5.0, True)
    assert (int8.updates_per_version, int8.versions_advance) == (50.0, False)


def test_where_updates_are_few_environment_steps_are_compared(tmp_path, made_up):
    rows = throughput(bench(tmp_path, samples_per_insert=(0.01,), arms=("torch-fp32", "int8")), cells(tmp_path))
    assert [row.updates for row in rows] == [0, 10]  # 0.5 rounds to nothing: no ratio of updates
    assert [row.env_steps_per_s for row in rows] == [500.0, 10_000.0]
    assert rows[1].speedup_vs_torch_fp32 == pytest.approx(20.0)


def test_rounds_are_pooled_and_the_arms_take_turns(tmp_path, made_up):
    rows = throughput(bench(tmp_path, rounds=2), cells(tmp_path))
    assert [name for _, name, _, _ in made_up] == ["fp32", "fp32", "int8", "fp32", "int8", "fp32"]
    assert [seed for *_, seed in made_up] == [0, 0, 0, 1, 1, 1]
    assert [row.seconds for row in rows] == [20.0] * 3
    made_up.clear()
    assert throughput(bench(tmp_path, rounds=2), cells(tmp_path)) == rows
    assert made_up == []


def test_without_a_baseline_there_is_no_speedup(tmp_path, made_up):
    (row,) = checked("bench actorq throughput", throughput(bench(tmp_path, arms=("int8",)), cells(tmp_path)))
    assert row.speedup_vs_torch_fp32 is row.speedup_vs_litert_fp32 is None
    assert row.predicted_speedup == 1.0  # the plan always has both baselines


def test_a_breakdown_adds_up_to_the_loop(tmp_path, made_up):
    config = bench(tmp_path, what="breakdown", actor_update_interval=(30, 300))
    rows = checked("bench actorq breakdown", breakdown(config, cells(tmp_path)))
    assert [(row.actor_update_interval, row.precision) for row in rows] == [
        (interval, precision) for interval in (30, 300) for precision in ("fp32", "fp32", "int8")
    ]
    names = ("inference", "environment", "insert", "pull", "deserialize", "load", "wait", "other")
    total = sum(getattr(rows[2], f"{name}_ms") for name in names)
    assert total == pytest.approx(1e6 * 10.0 / rows[2].env_steps)


# time to reward


def protocol(folder, **task):
    entry = {"target": 100, "samples_per_insert": 1, "options": {"env": "CartPole-v1"}} | task
    path = folder / "protocol.json"
    found = {
        "reference": "int8",
        "derived_from": "fp32",
        "cap_times": 4,
        "cap_minutes": 1,
        "window_s": 5,
        "arms": ["int8", "fp32", "torch-fp32"],
        "seeds": [0],
        "development_seed": 100,
        "common": {"actors": 1, "net_arch": "64,64"},
        "tasks": {"Cart Pole": entry},
    }
    path.write_text(json.dumps(found))
    return path


SECONDS = {("litert", "int8"): 6.0, ("litert", "fp32"): 12.0, ("torch", "fp32"): 90.0}


@pytest.fixture
def trainings(monkeypatch):
    asked = []

    def record(config, *, cap_s, say, meter):
        asked.append((config.engine, config.actor_precision, config.samples_per_insert, config.seed, cap_s))
        needed = SECONDS[config.engine, config.actor_precision] * config.samples_per_insert
        entry = {"clock_s": needed, "timesteps": 5000, "updates": 300, "return": 110.0, "return_quantised": 109.0}
        reached = entry if needed <= cap_s else None
        return {
            "clock_s": min(needed, cap_s),
            "timesteps": 6000,
            "updates": 400,
            "reached_s": needed if reached else None,
            "reached": reached,
            "evaluations": [entry],
        }

    monkeypatch.setattr(actorq_reward, "train", record)
    monkeypatch.setattr(actorq_reward, "watch", lambda config, **_: {"updates": 50, "clock_s": 5.0})
    return asked


def rows_of(path, folder, minutes=10.0):
    found = read(path)
    return checked(
        "bench actorq time-to-reward", [row for row, _ in time_to_reward(found, found.tasks, cells(folder, minutes))]
    )


def test_the_reference_bounds_the_other_arms(tmp_path, trainings):
    int8, fp32, torch = rows_of(protocol(tmp_path), tmp_path)
    assert trainings == [
        ("litert", "int8", 1.0, 0, 60.0),
        ("litert", "fp32", 1.0, 0, 24.0),
        ("torch", "fp32", 1.0, 0, 24.0),
    ]
    assert (int8.seconds, int8.censored, int8.env_steps, int8.updates) == (6.0, False, 5000, 300)
    assert (torch.seconds, torch.censored, torch.env_steps, torch.updates) == (24.0, True, 6000, 400)
    assert (fp32.final_return, fp32.final_return_quantised, fp32.target) == (110.0, 109.0, 100.0)


@pytest.mark.parametrize(("minutes", "bounds"), [(0.05, [3.0, 3.0, 3.0]), (0.15, [9.0, 24.0, 24.0])])
def test_a_task_may_bound_its_reference_lower_and_the_others_only_where_that_fails(
    tmp_path, trainings, minutes, bounds
):
    rows_of(protocol(tmp_path, cap_minutes=minutes), tmp_path)
    assert [cap_s for *_, cap_s in trainings] == pytest.approx(bounds)


def test_derived_seconds_are_updates_times_the_arm_s_pace(tmp_path, trainings):
    path = protocol(tmp_path, arms=["int8", "fp32"], derived=["torch-fp32"], seeds=[0, 1])
    rows = rows_of(path, tmp_path)
    derived = [row for row in rows if row.derived]
    assert [(row.engine, row.seed, row.seconds, row.censored) for row in derived] == [
        ("torch", 0, 30.0, False),
        ("torch", 1, 30.0, False),
    ]


def test_a_reference_of_another_processor_is_not_missing_for_want_of_time(tmp_path, monkeypatch):
    def elsewhere(task, arm, ratio, seed, cap_s, cells):
        cells.elsewhere.append(arm)

    monkeypatch.setattr(actorq_reward, "_trained", elsewhere)
    again = cells(tmp_path)
    found = read(protocol(tmp_path, seeds=[0]))
    assert time_to_reward(found, found.tasks, again) == []
    assert (again.elsewhere, again.missing) == ([found.reference], 0)


def test_no_arm_is_compared_with_one_of_another_processor(tmp_path, trainings):
    path = protocol(tmp_path, seeds=[0, 1])
    rows_of(path, tmp_path)
    found = read(path)
    for name in ("int8", "fp32"):
        to_another_processor(tmp_path, f"Cart-Pole-{name}-spi1-seed0")
    with sqlite3.connect(tmp_path / "study.sqlite") as database:
        database.execute("DELETE FROM cells WHERE source = 'Cart-Pole-torch-fp32-spi1-seed0'")
    trainings.clear()
    again = cells(tmp_path)
    runs = time_to_reward(found, found.tasks, again)
    assert trainings == []
    assert [(row.seed, row.cpu == "another") for row, _ in runs] == [(0, True)] * 2 + [(1, False)] * 3
    assert (again.elsewhere, again.missing) == (["Cart-Pole-torch-fp32-spi1-seed0"], 0)

    to_another_processor(tmp_path, "Cart-Pole-fp32-spi1-seed1")
    with pytest.raises(QuarlError, match=r"fp32-spi1-seed1 was measured on another, Cart-Pole-int8-spi1-seed1"):
        time_to_reward(found, found.tasks, cells(tmp_path))


def to_another_processor(folder, name):
    with sqlite3.connect(folder / "study.sqlite") as database:
        ((row,),) = database.execute("SELECT row FROM cells WHERE source = ?", (name,)).fetchall()
        changed = json.dumps(json.loads(row) | {"machine": {"cpu": "another"}})
        database.execute("UPDATE cells SET row = ? WHERE source = ?", (changed, name))


def test_seeds_of_the_others_take_turns_and_cells_resume(tmp_path, trainings):
    path = protocol(tmp_path, seeds=[0, 1])
    rows = rows_of(path, tmp_path)
    assert [name for name, *_ in trainings] == ["litert", "litert", "torch", "litert", "torch", "litert"]
    trainings.clear()
    assert rows_of(path, tmp_path, minutes=-1.0) == rows
    assert trainings == []
    late = cells(tmp_path / "new", -1.0)
    found = read(path)
    assert time_to_reward(found, found.tasks, late) == []
    assert late.missing == 6


def test_a_run_that_was_stopped_sooner_than_it_would_be_now_is_no_censored_run(tmp_path, trainings):
    path = protocol(tmp_path, options={"env": "CartPole-v1", "n_timesteps": 7000})
    assert [row.censored for row in rows_of(path, tmp_path)] == [False, False, True]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cap_times": 8}))
    trainings.clear()
    *_, torch = rows_of(path, tmp_path)
    assert (torch.seconds, torch.censored) == (48.0, True)
    assert trainings == [("torch", "fp32", 1.0, 0, 48.0)]


def test_other_ratios_are_bounded_by_the_arm_s_time_at_the_task_s_own(tmp_path, trainings):
    path = protocol(tmp_path, also_samples_per_insert=[0.5, 1, 2], also_seeds=[0])
    rows = rows_of(path, tmp_path)
    assert [(row.samples_per_insert, row.precision, row.engine, row.seconds, row.censored) for row in rows[3:]] == [
        (0.5, "int8", "litert", 3.0, False),
        (0.5, "fp32", "torch", 24.0, True),  # needs 45
        (0.5, "fp32", "litert", 6.0, False),
        (2.0, "int8", "litert", 6.0, True),
        (2.0, "fp32", "litert", 12.0, True),
        (2.0, "fp32", "torch", 24.0, True),
    ]
    best = [one for one in speedups(list(map(asdict, rows))) if one.best_ratio]
    found = {(one.precision, one.engine, one.against): (one.speedup, one.at_least) for one in best}
    assert found["int8", "litert", "litert fp32"] == (pytest.approx(2.0), False)
    assert found["int8", "litert", "torch fp32"] == (pytest.approx(8.0), True)


def reward_row(task, precision, engine, seed, seconds, **changed):
    return {
        "task": task,
        "precision": precision,
        "engine": engine,
        "seed": seed,
        "seconds": seconds,
        "derived": False,
        "censored": False,
        "final_return": 100.0,
        "final_return_quantised": 100.0,
        "samples_per_insert": 1.0,
        "part": "fixed",
    } | changed


def test_speedups_are_geometric_means_over_seeds_then_tasks():
    rows = [
        reward_row("a", "int8", "litert", 0, 10.0),
        reward_row("a", "int8", "litert", 1, 10.0, final_return_quantised=94.0),
        reward_row("a", "fp32", "litert", 0, 20.0),
        reward_row("a", "fp32", "litert", 1, 80.0),
        reward_row("b", "int8", "litert", 0, 10.0),
        reward_row("b", "fp32", "litert", 0, 10.0, censored=True),
    ]
    a, b, both = speedups(rows)
    assert (a.task, a.speedup, a.seconds_against, a.at_least) == ("a", pytest.approx(4.0), pytest.approx(40.0), False)
    t, spread = 12.706, math.log(8 / 2) / 2  # Student's with one degree of freedom; standard error of two numbers
    assert (a.low, a.high) == (
        pytest.approx(4 / math.exp(t * spread), rel=1e-3),
        pytest.approx(4 * math.exp(t * spread), rel=1e-3),
    )
    assert (a.final_return_pct, a.noninferior) == (pytest.approx(3.0), None)
    assert (a.final_return_low, a.final_return_high) == (
        pytest.approx(3 - t * 3, rel=1e-3),
        pytest.approx(3 + t * 3, rel=1e-3),
    )
    assert (b.low, b.high) == (None, None)
    assert (b.final_return_pct, b.final_return_low, b.final_return_high) == (None, None, None)
    assert (b.speedup, b.at_least, b.noninferior) == (pytest.approx(1.0), True, None)
    assert both.low == pytest.approx(2 / math.exp(t * math.log(2)), rel=1e-3)  # tasks of 4 and 1
    assert both.high is None  # a run that was stopped bounds nothing from above
    assert (both.task, both.speedup, both.at_least, both.seeds) == ("all", pytest.approx(2.0), True, 3)
    contracts.check(schema.document(actorq_speedup.SpeedupRow, (a, b, both)))


def test_seconds_of_the_bound_have_no_interval():
    rows = [reward_row("a", "int8", "litert", seed, 10.0 + seed) for seed in range(3)]
    rows += [reward_row("a", "fp32", "torch", seed, 40.0 + 4 * seed, censored=True) for seed in range(3)]
    (found,) = speedups(rows)
    assert (found.speedup, found.at_least, found.low, found.high) == (pytest.approx(4.0), True, None, None)


def test_three_seeds_are_judged_by_the_interval_of_their_loss():
    def verdict(*returns):
        rows = [reward_row("a", "fp32", "litert", seed, 20.0) for seed in range(len(returns))]
        rows += [
            reward_row("a", "int8", "litert", seed, 10.0, final_return_quantised=found)
            for seed, found in enumerate(returns)
        ]
        (found,) = speedups(rows)
        assert found.noninferior == (None if found.verdict is None else found.verdict == "non-inferior")
        return found.noninferior, found.verdict, found.differs

    assert verdict(99.0, 98.0, 98.0) == (True, "non-inferior", True)  # 1.7 % [0.2, 3.1]
    assert verdict(98.0, 97.0, 96.0) == (False, "undecided", True)  # 3 % in the mean, but perhaps 5.5 with other seeds
    assert verdict(80.0, 81.0, 82.0) == (False, "inferior", True)
    assert verdict(101.0, 99.0, 100.0) == (True, "non-inferior", False)
    assert verdict(98.0, 97.0) == (None, None, None)


def test_runs_that_missed_the_target_are_counted_and_left_out():
    rows = [
        reward_row("a", "int8", "litert", 0, 10.0),
        reward_row("a", "int8", "litert", 1, 99.0, censored=True),
        reward_row("a", "fp32", "torch", 0, 30.0),
        reward_row("a", "fp32", "torch", 1, 30.0),
    ]
    (found,) = speedups(rows)
    assert (found.against, found.speedup, found.seeds, found.lost) == ("torch fp32", pytest.approx(3.0), 1, 1)


# free ratios


UPDATES_PER_S = {("litert", "int8"): 40.0, ("litert", "fp32"): 20.0, ("torch", "fp32"): 5.0}


@pytest.fixture
def free(monkeypatch):
    """Seconds that runs need, by engine, precision, ratio and environments; those that are not there never arrive."""
    asked, needs = [], {}

    def record(config, *, cap_s, say, meter):
        arm = config.engine, config.actor_precision
        needed = needs.get((*arm, config.samples_per_insert, config.envs_per_actor), 1e9)
        asked.append((*arm, config.samples_per_insert, config.envs_per_actor, config.seed, cap_s))
        pace, clock_s = UPDATES_PER_S[arm], min(needed, cap_s)
        entries = [
            {"clock_s": second, "timesteps": 9, "updates": updates, "return": 1.0, "return_quantised": 1.0}
            for second, updates in ((2.0, 0), (3.0, 8), (3.0 + 10, 8 + 10 * pace))
        ]
        cell = {"clock_s": clock_s, "timesteps": 9, "updates": 8, "evaluations": entries, "reached": None}
        return cell | ({"reached": entries[-1] | {"clock_s": needed}} if needed <= cap_s else {})

    def rates(config, arms):
        """Of a learner that makes 50 updates a second, and actors that are never waited for."""
        steps = tuple(Step(*arm, 1e-9, 1e-9, 1e-9) for arm in arms)
        return Rates(batch_size=256, samples_per_insert=1.0, update_s=0.020, insert_s=0.0, steps=steps)

    monkeypatch.setattr(actorq_reward, "train", record)
    monkeypatch.setattr(actorq_reward.throughput_plan, "measure", rates)
    return asked, needs


INT8, FP32, FP32_TORCH = ("litert", "int8"), ("litert", "fp32"), ("torch", "fp32")


def free_rows(folder, minutes=10.0, **task):
    found, here = read(protocol(folder, **{"ratios": [1, 4, 16]} | task)), cells(folder, minutes)
    rows = [row for row, _ in time_to_reward(found, found.chosen((), free=True), here, free=True)]
    return checked("bench actorq time-to-reward", rows), here


def places(rows, part):
    return [
        (row.engine, row.precision, row.samples_per_insert, row.envs_per_actor, row.seed, row.seconds, row.censored)
        for row in rows
        if row.part == part
    ]


def test_each_precision_runs_the_measured_seeds_at_the_fastest_of_its_development_runs(tmp_path, free):
    asked, needs = free
    needs |= {(*INT8, 1, 1): 9.0, (*INT8, 4, 1): 6.0, (*INT8, 16, 1): 7.0}
    needs |= {(*FP32, 4, 1): 20.0, (*FP32_TORCH, 1, 1): 30.0, (*FP32_TORCH, 16, 1): 12.0}
    rows, _ = free_rows(tmp_path, seeds=[0, 1])
    assert places(rows, "choice") == [
        ("litert", "int8", 4, 1, 100, 6.0, False),
        ("torch", "fp32", 16, 1, 100, 12.0, False),
    ]
    assert places(rows, "measured") == [
        (engine, precision, ratio, 1, seed, seconds, False)
        for seed in (0, 1)
        for engine, precision, ratio, seconds in (("litert", "int8", 4, 6.0), ("torch", "fp32", 16, 12.0))
    ]
    assert len(places(rows, "development")) == 9 - 2
    assert [line[:40] for line in actorq_reward.choices_in_words(rows)] == [
        "Cart Pole: of 3 runs on seed 100 int8 wa",
        "Cart Pole: of 6 runs on seed 100 fp32 wa",
    ]
    bounds = {tuple(call[:3]): call[-1] for call in asked if call[4] == 100}
    assert (bounds[*INT8, 1], bounds[*FP32, 1], bounds[*FP32_TORCH, 1]) == (60.0, 36.0, 36.0)  # four times int8's 9
    assert (bounds[*INT8, 4], bounds[*FP32, 4], bounds[*FP32_TORCH, 4]) == (9.0, 24.0, 30.0)  # an arm's best so far
    assert bounds[*INT8, 16] == 6.0
    assert {call[-1] for call in asked if call[4] in (0, 1)} == {60.0, 24.0}


def test_free_runs_are_compared_at_their_choices_with_the_chosen_float_engine(tmp_path, free):
    _, needs = free
    needs |= {(*INT8, 4, 1): 6.0, (*FP32, 1, 1): 20.0, (*FP32_TORCH, 16, 1): 15.0}
    rows, _ = free_rows(tmp_path, seeds=[0, 1])
    (found,) = speedups(list(map(asdict, rows)))
    assert (found.precision, found.against, found.best_ratio, found.seeds) == ("int8", "best fp32", True, 2)
    assert found.speedup == pytest.approx(15 / 6)
    drawn = actorq_reward_figures.times(list(map(asdict, rows)), "").axes[0]
    assert [text.get_text() for text in drawn.get_xticklabels()] == ["Cart Pole"]
    contracts.check(schema.document(actorq_speedup.SpeedupRow, (found,)))


def test_of_equally_fast_choices_the_first_is_taken_and_environments_are_one_of_them(tmp_path, free):
    _, needs = free
    needs |= {(*INT8, ratio, envs): 6.0 for ratio in (4, 16) for envs in (1, 16)} | {(*INT8, 1, 16): 8.0}
    needs |= {(*FP32, 4, 16): 5.0}
    rows, _ = free_rows(tmp_path, envs_per_actor=[1, 16], arms=["int8", "fp32"])
    assert [place[:4] for place in places(rows, "choice")] == [("litert", "int8", 4, 1), ("litert", "fp32", 4, 16)]
    assert [place[:4] for place in places(rows, "measured")] == [("litert", "int8", 4, 1), ("litert", "fp32", 4, 16)]


def test_a_precision_that_nowhere_arrives_is_not_measured_and_that_is_said(tmp_path, free):
    _, needs = free
    needs |= {(*INT8, 4, 1): 6.0}
    rows, _ = free_rows(tmp_path)
    assert {row.precision for row in rows if row.part == "measured"} == {"int8"}
    assert all(row.censored for row in rows if row.precision == "fp32")
    last = "Cart Pole: fp32 reached the target in none of 6 development runs, and is not measured"
    assert list(actorq_reward.choices_in_words(rows))[-1] == last
    needs.clear()
    (tmp_path / "none").mkdir()
    rows, here = free_rows(tmp_path / "none")
    assert {row.part for row in rows} == {"development"}
    assert (here.missing, speedups(list(map(asdict, rows)))) == (0, [])


def test_a_reference_that_nowhere_arrives_bounds_nothing(tmp_path, free):
    asked, needs = free
    needs |= {(*FP32, 4, 1): 50.0}
    rows, _ = free_rows(tmp_path)
    assert places(rows, "measured") == [("litert", "fp32", 4, 1, 0, 50.0, False)]
    assert [call[-1] for call in asked if call[4] == 0] == [60.0]


def test_derived_arms_choose_among_updates_at_their_own_pace(tmp_path, free, monkeypatch):
    monkeypatch.setattr(actorq_reward, "watch", lambda config, **_: {"updates": 50, "clock_s": 5.0})
    _, needs = free
    needs |= {(*INT8, 4, 1): 8.0, (*FP32, 1, 1): 30.0, (*FP32, 4, 1): 25.0}
    rows, _ = free_rows(tmp_path, arms=["int8", "fp32"], derived=["torch-fp32"])
    updates = 8 + 10 * 20
    assert places(rows, "choice")[0] == ("torch", "fp32", 1, 1, 100, updates / 10, False)
    (measured,) = (row for row in rows if row.part == "measured" and row.derived)
    assert measured.seconds == updates / 10


def test_updates_a_second_leave_out_what_comes_before_the_first_and_stand_beside_the_prediction(tmp_path, free):
    _, needs = free
    needs |= {(*INT8, 4, 1): 6.0}
    rows, _ = free_rows(tmp_path)
    row = next(row for row in rows if row.part == "measured")
    assert (row.updates_per_s, row.predicted_updates_per_s) == (40.0, 50.0)
    assert actorq_reward._predicted(50.0, 40.0) == "50 (+25 %)"
    assert actorq_reward._predicted(50.0, None) == "50"


def test_without_updates_between_evaluations_there_is_no_rate(tmp_path, monkeypatch):
    entry = {"clock_s": 3.0, "timesteps": 9, "updates": 8, "return": 200.0, "return_quantised": 200.0}
    closing = entry | {"clock_s": 3.1}
    cell = {"clock_s": 3.1, "timesteps": 9, "updates": 8, "reached": entry, "evaluations": [entry, closing]}
    monkeypatch.setattr(actorq_reward, "train", lambda *_, **__: cell)
    assert {row.updates_per_s for row in rows_of(protocol(tmp_path), tmp_path)} == {None}


def test_nothing_is_measured_before_all_have_chosen_and_cells_resume(tmp_path, free):
    asked, needs = free
    needs |= {(*INT8, 4, 1): 6.0, (*FP32, 4, 1): 20.0}
    rows, here = free_rows(tmp_path)
    asked.clear()
    assert free_rows(tmp_path, minutes=-1.0)[0] == rows
    assert asked == []
    with sqlite3.connect(tmp_path / "study.sqlite") as database:
        database.execute("DELETE FROM cells WHERE source = 'Cart-Pole-torch-fp32-spi16-seed100'")
    rows, here = free_rows(tmp_path, minutes=-1.0)
    assert {row.part for row in rows} == {"development"}
    assert here.missing == 1 + 2  # and a measured seed of two precisions


def test_free_ratios_need_a_grid_and_a_seed_to_choose_on(tmp_path):
    with pytest.raises(QuarlError, match="--ratios free wants a development_seed"):
        read(protocol(tmp_path)).chosen((), free=True)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"options": {"frob": 1}}, "'frob' is not an option"),
        ({"options": {"env": "CartPole-v1", "envs_per_actor": "auto"}}, "need actors and envs_per_actor as numbers"),
        ({"arms": ["fp32"]}, "lacks the reference arm int8"),
        ({"arms": ["int8"], "derived": ["torch-fp32"]}, "derives from fp32, which is none of its arms"),
        ({"samples_per_insert": 0}, "samples_per_insert must be a number above 0"),
        ({"target": "high"}, "target must be a number, got .high."),
        ({"target": None}, "line 1: target must be a number, got .None."),
        ({"ratios": []}, "ratios is missing: a list of at least one"),
        ({"ratios": [1], "envs_per_actor": []}, "envs_per_actor is missing"),
        ({"ratios": [1, 0]}, "ratios must be a number above 0"),
        ({"ratios": [1], "envs_per_actor": [0]}, "envs_per_actor must be a number above 0"),
        ({"seeds": [0, 100]}, "measures development_seed 100: take another"),
    ],
)
def test_a_wrong_protocol_is_refused_before_any_run(tmp_path, task, said):
    with pytest.raises(QuarlError, match=said):
        read(protocol(tmp_path, **task))


@pytest.mark.parametrize(("text", "said"), [("{", "is not YAML"), (" " * 2**21, "bytes, more than the 65,536")])
def test_a_file_that_is_no_protocol_is_refused(tmp_path, text, said):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(QuarlError, match=said):
        read(tmp_path / "p.json")


def test_the_committed_protocol_is_sound():
    found = read(PROTOCOL)
    assert {task.name for task in found.tasks} >= {"Acrobot-v1", "CartPole-v1", "cartpole-balance"}
    for name, seeds in (("Acrobot-v1", 5), ("CartPole-v1", 5), ("cartpole-balance", 3)):
        (task,) = found.chosen((name,))
        assert set(task.arms) == {"int8", "int4", "fp32", "torch-fp32"}
        assert len(task.seeds) == seeds
        assert set(task.also_seeds) <= set(task.seeds)
        assert task.training("int8", Choice(1.0), 0).net_arch == "2048,2048,2048"
    free = read(PROTOCOL.with_name("actorq_free.json"))
    for task in free.chosen((), free=True):
        own = {name: task.options[name] for name in ("net_arch", "learner_dtype")}
        assert task.options == found.chosen((task.name,))[0].options | own
        assert (len(task.choices()), free.development_seed, task.seeds) == (3, 100, (0, 1, 2))
    with pytest.raises(QuarlError, match="no task 'Pong'"):
        found.chosen(("Pong",))


# the command line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--what time-to-reward", "wants --protocol FILE"),
        ("--ratios free", "--protocol, --only and --ratios require --what time-to-reward"),
        ("--what time-to-reward --protocol x.json --env Nope-v9", "--env is said by the protocol of time-to-reward"),
        ("--what throughput --seeds 3", "has no option --seeds"),
        ("--what staleness --warm-up 3", "; use quarl study run studies/actorq-staleness.yml"),
        ("--publish-interval 0", "--publish-interval must be at least 1"),
        ("--what time-to-reward --protocol missing.json", "no file missing.json"),
        ("--params batch_size:64", "--params batch_size duplicates --batch-size: drop one"),
        ("--arms int9", "int9"),
        ("--arms torch-int8", "torch engine has no integer kernels"),
        ("--arms gpu-int8", "unknown engine"),
        ("--seconds 0", "--seconds"),
        ("--actor-update-interval 0", "--actor-update-interval must be at least 1"),
        ("--net-arch 64,x", "--net-arch"),
        ("--algo ppo", "on-policy"),
    ],
)
def test_mistakes_are_one_line(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, "bench", "actorq", *words.split())
    assert list(tmp_path.iterdir()) == []


# real runs


def small(**changed):
    params = ("learning_starts:200", "buffer_size:5000")
    chosen = {"env": "CartPole-v1", "actors": 1, "net_arch": "64,64", "batch_size": 32, "params": params}
    return ActorQConfig(**chosen | {"samples_per_insert": 2.0, "eval_freq": 0, "n_timesteps": 10**9} | changed)


@pytest.mark.slow
def test_a_window_of_a_real_run_holds_what_happened_in_it():
    found = watch(small(), warm_up=0.2, seconds=1.0, say=lambda line: None)
    assert found["clock_s"] >= 1.0
    assert found["updates"] * 32 / found["env_steps"] == pytest.approx(2.0, rel=0.1)
    actors = found["actors"]
    assert actors["steps"] == pytest.approx(found["env_steps"], rel=0.2)
    booked = sum(actors[name] for name in ADDED if name.endswith("_s") and name != "loop_s")
    assert booked <= actors["loop_s"] * 1.001
    assert len(found["slices"]) >= 2
    assert found["slices"][-1][0] - found["slices"][0][0] == pytest.approx(found["clock_s"])
    json.dumps(found)


@pytest.mark.slow
def test_a_real_run_is_stopped_and_censored_at_its_bound():
    found = train(small(eval_freq=200, eval_episodes=2, target=1e6), cap_s=0.5, say=lambda line: None)
    assert found["reached"] is None
    assert found["clock_s"] >= 0.5
    assert {"clock_s", "return", "return_quantised", "updates"} <= found["evaluations"][0].keys()


@pytest.mark.slow
def test_a_study_measures_the_age_of_weights(tmp_path):
    shared = {"algo": "dqn", "env": "CartPole-v1", "source": "train", "n_timesteps": 1200}
    intervals = {"every 10": {"actor_update_interval": 10}, "every 500": {"actor_update_interval": 500}}
    policies = [{**shared, "name": name, "actorq": options} for name, options in intervals.items()]
    options = {"actors": 1, "net_arch": "64,64", "samples_per_insert": 16.0, "eval_freq": 0, "publish_interval": 1}
    method = {"method": "actorq", "precision": "int8", **options, "params": {"learning_starts": 200}}
    study = {"episodes": 2, "policies": policies, "methods": [method]}
    (tmp_path / "study.yml").write_text(json.dumps(study))
    assert main(["study", "run", str(tmp_path / "study.yml"), "-o", str(tmp_path / "out")]) == 0
    assert main(["study", "report", str(tmp_path / "out")]) == 0
    often, seldom = json.loads((tmp_path / "out" / "actorq.json").read_text())["rows"]
    assert (often["source"], seldom["source"]) == ("every 10", "every 500")
    assert often["staleness_p50"] < seldom["staleness_p50"] <= seldom["staleness_p99"]
    assert all(row["final_return"] > 0 and row["final_return_quantised"] > 0 for row in (often, seldom))
