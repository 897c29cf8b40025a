"""ActorQ in studies: runs that bound one another, choices, windows and speed-ups by hand, and short real runs."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

import contracts
from quarl.cli import main
from quarl.errors import QuarlError
from quarl.lab import actorq_reward_figures, file
from quarl.lab.cells import Job
from quarl.lab.methods import actorq, actorq_reward, actorq_speedup, actorq_throughput
from quarl.lab.methods.actorq import ADDED
from quarl.lab.methods.actorq_speedup import speedups
from quarl.lab.plan import plan
from quarl.lab.store import COLUMNS, Record
from quarl.lab.trainings import actorq_config
from quarl.report import schema

STUDIES = Path(__file__).resolve().parents[2] / "studies"
COMMON = {"actors": 1, "net_arch": "64,64", "batch_size": 100, "save_replay_buffer": False}
CAP = {"minutes": 1, "times": 4, "reference": "int8"}
UPDATES_PER_S = {"int8": 40.0, "fp32": 20.0, "torch-fp32": 5.0}


def study(folder, seeds=(0,), policy=(), **method):
    """Return the planned cells of a study of one task."""
    entry = {"name": "Cart Pole", "algo": "dqn", "env": "CartPole-v1", "source": "train", **dict(policy)}
    told = {"method": "actorq", "precision": ["int8", "fp32", "torch-fp32"], "samples_per_insert": 1, **COMMON}
    if method.get("method", "actorq") == "actorq":
        told |= {"target": 100, "cap": CAP}
    document = {"name": "s", "seeds": [*seeds], "episodes": 2, "policies": [entry], "methods": [told | method]}
    path = folder / "study.yml"
    path.write_text(json.dumps(document))
    return plan(file.read(str(path)))


def record(cell, result, error=None):
    about = {name: getattr(cell, name) for name in ("key", *COLUMNS)}
    return Record(**about, state="failed" if error else "done", error=error, result=result)


def trained(cells, needs, asked=None, machine="a processor"):
    """Return records of runs that need these seconds to their target by arm, samples per insert and environments.

    asked: receives arm, samples per insert, environments, seed and bound of each run.
    """
    done, records = {}, []
    for cell in cells:
        job = Job(cell=cell, study=Path(), path=None, before={key: done[key] for key in cell.after if key in done})
        try:
            chosen = actorq._chosen(job)
            config = actorq_config(chosen.cell.work, Path())
            if "derived" in cell.work:
                result = actorq._derived(job, config)
            else:
                result = run(chosen, config, needs, [] if asked is None else asked, machine)
        except QuarlError as error:
            records.append(record(cell, {}, str(error)))
            continue
        done[cell.key] = result
        records.append(record(cell, result))
    return records


def run(job, config, needs, asked, machine):
    cap_s = actorq._cap_s(job)
    arm = "torch-fp32" if config.engine == "torch" else config.actor_precision
    place = (arm, config.samples_per_insert, config.envs_per_actor)
    needed = needs.get(place, 1e9)
    asked.append((*place, config.seed, cap_s))
    entries = [
        {"clock_s": second, "timesteps": 9, "updates": updates, "return": 1.0, "return_quantised": 1.0}
        for second, updates in ((2.0, 0), (3.0, 8), (3.0 + 10, 8 + 10 * UPDATES_PER_S[arm]))
    ]
    reached = needed <= cap_s
    return {
        "returns": [1.0],
        "clock_s": min(needed, cap_s),
        "updates": 400,
        "reached_s": needed if reached else None,
        "ended": {"clock_s": min(needed, cap_s), "timesteps": 5000 if reached else 6000, "updates": 300},
        "evaluations": entries,
        "final_return": 110.0,
        "final_return_quantised": 109.0,
        "options": actorq._described(config, 1.0),
        "predicted_updates_per_s": 50.0 if "part" in job.cell.work else None,
        "target": 100.0,
        "part": job.cell.work.get("part", "fixed"),
        "choice": job.cell.work.get("choice"),
        "cpu": machine,
    }


@pytest.fixture(autouse=True)
def processor(monkeypatch):
    monkeypatch.setattr(actorq, "machine", lambda: {"cpu": "a processor"})


def rows_of(records):
    rows = [row for row, _ in actorq_reward.runs(records)]
    contracts.check(schema.document(actorq_reward.RewardRow, rows, seed=0))
    return rows


FIXED = {("int8", 1, 1): 6.0, ("fp32", 1, 1): 12.0, ("torch-fp32", 1, 1): 90.0}


def test_reference_bounds_the_other_arms(tmp_path):
    asked = []
    int8, fp32, torch = rows_of(trained(study(tmp_path), FIXED, asked))
    assert asked == [("int8", 1, 1, 0, 60.0), ("fp32", 1, 1, 0, 24.0), ("torch-fp32", 1, 1, 0, 24.0)]
    assert (int8.task, int8.seconds, int8.censored, int8.env_steps, int8.updates) == (
        "Cart Pole",
        6.0,
        False,
        5000,
        300,
    )
    assert (torch.engine, torch.seconds, torch.censored, torch.env_steps) == ("torch", 24.0, True, 6000)
    assert (fp32.final_return, fp32.final_return_quantised, fp32.target, fp32.part) == (110.0, 109.0, 100.0, "fixed")


@pytest.mark.parametrize(("minutes", "bounds"), [(0.05, [3.0, 3.0, 3.0]), (0.15, [9.0, 24.0, 24.0])])
def test_lower_bound_of_the_reference_is_the_others_only_if_it_fails(tmp_path, minutes, bounds):
    asked = []
    trained(study(tmp_path, cap=CAP | {"reference_minutes": minutes}), FIXED, asked)
    assert [cap_s for *_, cap_s in asked] == pytest.approx(bounds)


def test_failed_reference_bounds_nothing(tmp_path):
    asked = []
    trained([cell for cell in study(tmp_path) if cell.precision != "int8"], FIXED, asked)
    assert [cap_s for *_, cap_s in asked] == [60.0, 60.0]


def test_runs_of_two_processors_are_not_compared(tmp_path, monkeypatch):
    cells = study(tmp_path)
    elsewhere = trained(cells[:1], FIXED, machine="another")
    job = Job(cell=cells[1], study=Path(), path=None, before={cells[0].key: elsewhere[0].result})
    with pytest.raises(QuarlError, match="was measured on another, and this is a processor"):
        actorq._cap_s(job)
    rows = [reward_row("a", "int8", "litert", 0, 1.0), reward_row("a", "fp32", "litert", 0, 2.0, cpu="another")]
    assert speedups(rows) == []


def test_derived_seconds_are_updates_times_the_arm_s_pace(tmp_path, monkeypatch):
    monkeypatch.setattr(actorq, "watch", lambda config, **_: {"updates": 50, "clock_s": 5.0})
    derived = {"precision": "torch-fp32", "of": "fp32"}
    cells = study(tmp_path, seeds=(0, 1), precision=["int8", "fp32"], derived=derived)
    rows = [row for row in rows_of(trained(cells, FIXED)) if row.derived]
    assert [(row.engine, row.seed, row.seconds, row.censored) for row in rows] == [
        ("torch", 0, 30.0, False),
        ("torch", 1, 30.0, False),
    ]
    monkeypatch.setattr(actorq, "watch", lambda config, **_: {"updates": 0, "clock_s": 5.0})
    assert "raise the seconds of derived" in [each.error for each in trained(cells, FIXED)][2]


def test_arms_take_turns_and_the_reference_is_first(tmp_path):
    cells = study(tmp_path, seeds=(0, 1))
    assert [(cell.precision, cell.mode, cell.seed) for cell in cells] == [
        ("int8", "dynamic", 0),
        ("fp32", "dynamic", 0),
        ("fp32", "torch", 0),
        ("int8", "dynamic", 1),
        ("fp32", "torch", 1),
        ("fp32", "dynamic", 1),
    ]
    assert [cell.after for cell in cells[:3]] == [(), (cells[0].key,), (cells[0].key,)]


def test_other_ratios_are_bounded_by_the_arm_s_time_at_the_first(tmp_path):
    needs = {(arm, ratio, 1): seconds * ratio for (arm, *_), seconds in FIXED.items() for ratio in (0.5, 1, 2)}
    cells = study(tmp_path, seeds=(0, 1), samples_per_insert=[1, 0.5, 2], also_seeds=[0])
    assert sum(cell.seed == 1 for cell in cells) == 3
    rows = [row for row in rows_of(trained(cells, needs)) if row.seed == 0]
    assert [(row.samples_per_insert, row.precision, row.engine, row.seconds, row.censored) for row in rows[3:]] == [
        (0.5, "int8", "litert", 3.0, False),
        (0.5, "fp32", "litert", 6.0, False),
        (0.5, "fp32", "torch", 24.0, True),  # needs 45
        (2.0, "int8", "litert", 6.0, True),
        (2.0, "fp32", "litert", 12.0, True),
        (2.0, "fp32", "torch", 24.0, True),
    ]
    best = [one for one in speedups(list(map(asdict, rows))) if one.best_ratio]
    found = {(one.precision, one.engine, one.against): (one.speedup, one.at_least) for one in best}
    assert found["int8", "litert", "litert fp32"] == (pytest.approx(2.0), False)
    assert found["int8", "litert", "torch fp32"] == (pytest.approx(8.0), True)


# speed-ups


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
        "cpu": "a processor",
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


# choices


def free(folder, seeds=(0,), **method):
    return study(folder, seeds, **{"samples_per_insert": [1, 4, 16], "development_seed": 100} | method)


def places(rows, part):
    return [
        (row.engine, row.precision, row.samples_per_insert, row.envs_per_actor, row.seed, row.seconds, row.censored)
        for row in rows
        if row.part == part
    ]


def test_measured_seeds_run_at_the_fastest_development_run(tmp_path):
    asked = []
    needs = {("int8", 1, 1): 9.0, ("int8", 4, 1): 6.0, ("int8", 16, 1): 7.0}
    needs |= {("fp32", 4, 1): 20.0, ("torch-fp32", 1, 1): 30.0, ("torch-fp32", 16, 1): 12.0}
    cells = free(tmp_path, seeds=(0, 1))
    assert len(cells) == 9 + 2 * 2
    rows = rows_of(trained(cells, needs, asked))
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
    assert [line[:40] for line in actorq_reward.sentences(list(map(asdict, rows)))] == [
        "Cart Pole: of 3 runs on seed 100 int8 wa",
        "Cart Pole: of 6 runs on seed 100 fp32 wa",
    ]
    bounds = {call[:2]: call[-1] for call in asked if call[3] == 100}
    assert (bounds["int8", 1], bounds["fp32", 1], bounds["torch-fp32", 1]) == (60.0, 36.0, 36.0)  # four times int8's 9
    assert (bounds["int8", 4], bounds["fp32", 4], bounds["torch-fp32", 4]) == (9.0, 24.0, 30.0)  # an arm's best so far
    assert bounds["int8", 16] == 6.0
    assert {call[-1] for call in asked if call[3] in (0, 1)} == {60.0, 24.0}
    measured = next(row for row in rows if row.part == "measured")
    assert (measured.updates_per_s, measured.predicted_updates_per_s) == (40.0, 50.0)
    assert actorq_reward._predicted(50.0, 40.0) == "50 (+25 %)"
    (found,) = speedups(list(map(asdict, rows)))
    assert (found.precision, found.against, found.best_ratio, found.seeds) == ("int8", "best fp32", True, 2)
    assert found.speedup == pytest.approx(12 / 6)
    drawn = actorq_reward_figures.times(list(map(asdict, rows)), "").axes[0]
    assert [text.get_text() for text in drawn.get_xticklabels()] == ["Cart Pole"]


def test_first_of_equally_fast_choices_is_taken_and_environments_are_one(tmp_path):
    needs = {("int8", ratio, envs): 6.0 for ratio in (4, 16) for envs in (1, 16)} | {("int8", 1, 16): 8.0}
    needs |= {("fp32", 4, 16): 5.0}
    cells = free(tmp_path, envs_per_actor=[1, 16], precision=["int8", "fp32"])
    rows = rows_of(trained(cells, needs))
    assert [place[:4] for place in places(rows, "measured")] == [("litert", "int8", 4, 1), ("litert", "fp32", 4, 16)]


def test_precision_that_never_reaches_the_target_is_not_measured(tmp_path):
    records = trained(free(tmp_path), {("int8", 4, 1): 6.0})
    rows = rows_of(records)
    assert {row.precision for row in rows if row.part == "measured"} == {"int8"}
    assert [each.error for each in records if each.error] == [
        "fp32 reached the target in none of 6 development runs, and is not measured"
    ]
    last = "Cart Pole: fp32 reached the target in none of 6 development runs, and is not measured."
    assert list(actorq_reward.sentences(list(map(asdict, rows))))[-1] == last
    asked = []
    rows = rows_of(trained(free(tmp_path), {("fp32", 4, 1): 50.0}, asked))  # the reference bounds nothing
    assert places(rows, "measured") == [("litert", "fp32", 4, 1, 0, 50.0, False)]
    assert [call[-1] for call in asked if call[3] == 0] == [60.0]


def test_options_in_updates_follow_the_ratio(tmp_path):
    updates = {"eval_freq": 10, "target_update_interval": 40}
    cells = study(tmp_path, precision="int8", samples_per_insert=[1, 4], in_updates=updates)
    found = [cell.work["options"] for cell in cells]
    assert [(each["eval_freq"], each["params"]["target_update_interval"]) for each in found] == [
        (1000, 4000),
        (250, 1000),
    ]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"development_seed": 100}, "development_seed needs a cap, a target and an option with several values"),
        (
            {"development_seed": 7, "seeds": (0, 7), "samples_per_insert": [1, 4]},
            "development_seed 7 is one of the seeds",
        ),
        ({"envs_per_actor": "auto"}, "compared runs need actors and envs_per_actor as numbers"),
        ({"cap": CAP | {"reference": "int4"}}, "int4 is not one of the precisions: int8, fp32, torch-fp32"),
        ({"derived": {"precision": "int4", "of": "int2"}}, "int2 is not one of the precisions"),
        ({"cap": {"times": 3}}, "minutes must be a number above 0"),
        ({"cap": {"minutes": 1, "time": 3}}, "unknown key 'time' of cap; did you mean 'times'"),
        ({"samples_per_insert": []}, "samples_per_insert is an empty list"),
        ({"precision": ["gpu-int8"]}, "unknown engine in 'gpu-int8'"),
        ({"in_updates": {"eval_freq": 0}}, "eval_freq must be a number above 0"),
    ],
)
def test_mistakes_are_refused_before_any_run(tmp_path, changed, said):
    with pytest.raises(QuarlError, match=said):
        study(tmp_path, **changed)


def test_torch_arm_without_kernels_is_not_measured(tmp_path):
    (_, torch) = study(tmp_path, precision=["int8", "torch-int8"])
    assert "torch engine has no integer kernels" in torch.na


# windows


STEP_US = {"torch-fp32": 2000.0, "fp32": 400.0, "int8": 100.0}


def window(cell):
    """What a window sees if steps take STEP_US and updates 20 ms; 100 steps an update, and nothing else takes time."""
    config, seconds = actorq_config(cell.work, Path()), 10.0
    ratio, step_s = config.samples_per_insert, 1e-6 * STEP_US["torch-fp32" if cell.mode == "torch" else cell.precision]
    pace = min(50.0, 1 / (100 / ratio * step_s))
    updates, steps = round(pace * seconds), round(100 / ratio * pace * seconds)
    actors = dict.fromkeys(ADDED, 0.0) | {"steps": steps, "loop_s": seconds, "pulls": 10}
    actors |= {"inference_s": 0.8 * steps * step_s, "environment_s": 0.1 * steps * step_s}
    actors |= {"insert_s": 0.05 * steps * step_s, "wait_s": seconds - steps * step_s}
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
        "predicted_updates_per_s": pace,
        "batch_size": 100,
        "options": actorq._described(config, ratio),
        "cpu": "a processor",
    }


def tables(folder, seeds=(0,), **method):
    cells = study(folder, seeds, method="throughput", seconds=10, **method)
    throughput, breakdown = actorq_throughput.tables([record(cell, window(cell)) for cell in cells])
    contracts.check(schema.document(actorq_throughput.ThroughputRow, throughput, seed=0))
    contracts.check(schema.document(actorq_throughput.BreakdownRow, breakdown, seed=0))
    return throughput, breakdown


def test_speedups_are_ratios_of_updates_a_second(tmp_path):
    (int8, fp32, torch), _ = tables(tmp_path)
    assert [row.updates_per_s for row in (torch, fp32, int8)] == [5.0, 25.0, 50.0]
    assert (int8.speedup_vs_torch_fp32, int8.speedup_vs_litert_fp32) == pytest.approx((10.0, 2.0))
    assert (torch.speedup_vs_torch_fp32, int8.predicted_speedup) == (1.0, pytest.approx(10.0))
    assert int8.vs_torch_low <= int8.speedup_vs_torch_fp32 <= int8.vs_torch_high
    assert (int8.predicted_updates_per_s, int8.realised_samples_per_insert, int8.env_steps_per_s) == (50.0, 1.0, 5000.0)
    assert (torch.inference_us, torch.environment_us) == pytest.approx((1600.0, 200.0))
    assert torch.overhead_us == pytest.approx(200.0)  # a tenth of 2000: neither of the two nor a wait
    assert int8.actor_wait_share == pytest.approx(0.5)
    assert (int8.staleness_p50, int8.staleness_p99, int8.latency_ms_p50, int8.blocked_ms_p50) == (3, 3, 40, 2.5)
    assert (torch.updates_per_version, torch.versions_advance) == (5.0, True)
    assert (int8.updates_per_version, int8.versions_advance) == (50.0, False)


def test_few_updates_are_compared_by_environment_steps(tmp_path):
    rows, _ = tables(tmp_path, samples_per_insert=0.01, precision=["torch-fp32", "int8"])
    assert [row.updates for row in rows] == [0, 10]  # 0.5 rounds to nothing: no ratio of updates
    assert [row.env_steps_per_s for row in rows] == [500.0, 10_000.0]
    assert rows[1].speedup_vs_torch_fp32 == pytest.approx(20.0)


def test_windows_of_several_seeds_are_pooled(tmp_path):
    rows, _ = tables(tmp_path, seeds=(0, 1), precision=["int8"])
    assert [(row.seconds, row.speedup_vs_torch_fp32, row.predicted_speedup) for row in rows] == [(20.0, None, None)]


def test_breakdown_adds_up_to_the_loop(tmp_path):
    _, rows = tables(tmp_path, actor_update_interval=[30, 300])
    assert [(row.actor_update_interval, row.precision) for row in rows] == [
        (interval, precision) for interval in (30, 300) for precision in ("int8", "fp32", "fp32")
    ]
    names = ("inference", "environment", "insert", "pull", "deserialize", "load", "wait", "other")
    total = sum(getattr(rows[0], f"{name}_ms") for name in names)
    assert total == pytest.approx(1e6 * 10.0 / rows[0].env_steps)


# real runs


@pytest.mark.slow
def test_real_runs_are_bounded_and_watched(tmp_path):
    params = {"learning_starts": 200, "buffer_size": 5000}
    shared = {"actors": 1, "net_arch": "64,64", "batch_size": 32, "samples_per_insert": 2, "params": params}
    methods = [
        {"method": "throughput", "precision": "fp32", "seconds": 1, "warm_up": 0.2, **shared},
        {"method": "actorq", "precision": "int8", "cap": {"minutes": 0.01}, "target": 1e6, "eval_freq": 200}
        | {"eval_episodes": 2, "n_timesteps": 10**9, "save_replay_buffer": False, **shared},
    ]
    policy = {"algo": "dqn", "env": "CartPole-v1", "source": "train"}
    (tmp_path / "study.yml").write_text(json.dumps({"episodes": 2, "policies": [policy], "methods": methods}))
    out = tmp_path / "out"
    assert main(["study", "run", str(tmp_path / "study.yml"), "-o", str(out)]) == 0
    assert main(["study", "report", str(out)]) == 0
    (row,) = contracts.read(out / "throughput.json")["rows"]
    assert row["seconds"] >= 1.0
    assert row["realised_samples_per_insert"] * row["env_steps"] == pytest.approx(32 * row["updates"])
    assert 0 < row["realised_samples_per_insert"] < 4  # a busy machine makes few updates in a second
    assert row["predicted_updates_per_s"] > 0
    (row,) = contracts.read(out / "breakdown.json")["rows"]
    assert row["inference_ms"] > 0
    (row,) = contracts.read(out / "time-to-reward.json")["rows"]
    assert (row["censored"], row["precision"], row["part"]) == (True, "int8", "fixed")
    assert row["seconds"] >= 0.6
    assert {path.name for path in out.glob("*.png")} >= {"throughput.png", "breakdown.png", "times.png", "curves.png"}
    assert not any((out / "runs").iterdir())  # a bounded run leaves no files


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
