"""The plan: predictions from rates by hand, and rates that are timed on a real run's pieces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import contracts
from quarl.actorq import throughput_plan
from quarl.actorq.throughput_plan import Rates, Step, actors_for, predict, sentences
from quarl.config import ActorQConfig
from quarl.report import schema


def step(precision, engine, inference_us):
    return Step((precision, engine), 10e-6, 1e-6 * inference_us, 10e-6)


PLAIN = step("fp32", "stable-baselines3", 2980.0)
RATES = Rates(
    batch_size=100,
    samples_per_insert=1.0,
    learner_s=0.020,
    steps=(step("fp32", "torch", 1980.0), step("fp32", "litert", 380.0), step("int8", "litert", 80.0), PLAIN),
)
"""At one sample per insert, an update takes 100 steps of 2000, 400, 100 or 3000 us, and the learner 20 ms."""
CONFIG = ActorQConfig(actors=1)


def test_the_slower_side_sets_the_pace():
    torch_, fp32, int8, _ = predict(RATES, CONFIG, cores=2)
    assert (torch_.predicted_updates_per_s, torch_.bottleneck) == (5.0, "actors")
    assert (fp32.predicted_updates_per_s, fp32.bottleneck) == (25.0, "actors")
    assert (int8.predicted_updates_per_s, int8.bottleneck) == (50.0, "learner")
    assert (int8.predicted_speedup_vs_torch_fp32, int8.predicted_speedup_vs_litert_fp32) == (10.0, 2.0)
    assert (int8.steps_per_s, int8.learner_ms) == (10_000.0, 20.0)


def test_in_stable_baselines3_s_own_loop_all_take_turns():
    plain = predict(RATES, replace(CONFIG, actors=4), cores=8)[3]
    assert plain.predicted_updates_per_s == pytest.approx(1 / (0.300 + 0.020))
    assert (plain.bottleneck, plain.steps_per_s) == ("actors", round(1 / 3000e-6, 1))
    assert plain.predicted_speedup_vs_torch_fp32 == round(0.050 / 0.320, 3)  # of four actors


def test_fewer_samples_per_insert_let_the_actors_matter_more():
    rows = predict(RATES, replace(CONFIG, samples_per_insert=0.5), cores=2)
    assert [row.predicted_updates_per_s for row in rows[:3]] == [2.5, 12.5, 50.0]
    assert rows[2].bottleneck == "even"


def test_one_core_is_shared_by_all():
    int8 = predict(RATES, CONFIG, cores=1)[2]
    assert int8.predicted_updates_per_s == pytest.approx(1 / (0.020 + 0.010), abs=1e-3)


def test_actors_beyond_the_cores_share_them():
    fp32 = predict(RATES, replace(CONFIG, actors=4), cores=3)[1]
    assert fp32.predicted_updates_per_s == 50.0  # two cores make 50, and the learner just as many
    assert fp32.steps_per_s == 1250.0  # four actors on two cores


def test_actors_have_the_cores_that_the_learner_s_threads_leave():
    many = replace(CONFIG, actors=8)
    for threads, cores_of_actors in ((1, 3), (2, 2), (4, 1)):
        fp32 = predict(RATES, replace(many, learner_threads=threads), cores=4)[1]
        assert fp32.steps_per_s * 8 == pytest.approx(2500.0 * cores_of_actors, abs=1.0)


def test_weights_are_taken_in_as_often_as_they_are_published_or_looked_for():
    steps = tuple(step._replace(load_s=0.040) for step in RATES.steps[:3])
    published = replace(CONFIG, publish_interval=10, actor_update_interval=100)
    (_, _, int8) = predict(replace(RATES, steps=steps), published, cores=2)
    assert (int8.weights_us, int8.steps_per_s) == (40.0, round(100 / 0.014, 1))  # 4 ms of an update's 100 steps
    seldom = replace(published, actor_update_interval=2000)
    assert predict(replace(RATES, steps=steps), seldom, cores=2)[2].weights_us == 20.0
    many = predict(replace(RATES, steps=steps), replace(published, actors=5), cores=8)[2]
    assert many.weights_us == 200.0  # each of five takes in every version


def test_where_weights_take_much_of_the_actors_time_the_plan_says_so():
    assert "loading weights" not in said(CONFIG)
    loads = replace(RATES, steps=tuple(step._replace(load_s=1.0) for step in RATES.steps))
    assert "actors spend 50% of their time on loading weights: raise --publish-interval" in said(
        replace(CONFIG, publish_interval=100, actor_update_interval=100), loads
    )


def test_an_environment_that_waits_gets_more_actors_than_cores(monkeypatch):
    """Steps take 10 ms, of which the actor works 0.4 ms; an update takes 20 ms, and 100 steps at this ratio."""
    monkeypatch.setattr(throughput_plan, "usable_cores", lambda: 2)
    slow = [s._replace(environment_s=10e-3 - s.inference_s - s.overhead_s, work=0.04) for s in RATES.steps]
    rates = replace(RATES, steps=tuple(slow))
    crowd, most = (predict(rates, replace(CONFIG, actors=actors), cores=2)[2] for actors in (20, 50))
    assert (crowd.predicted_updates_per_s, most.predicted_updates_per_s) == (20.0, 25.0)  # 100 of 0.4 ms fill a core
    assert actors_for(rates, CONFIG, rates.steps[2]) == (
        25,
        "because the environment waits: a step takes a core for 4% of its time",
    )
    assert (
        actors_for(rates, replace(CONFIG, samples_per_insert=50.0), rates.steps[2])[0] == 2
    )  # a learner that needs no more
    assert actors_for(RATES, CONFIG, RATES.steps[2]) == (1, "of 2 cores with 1 for the learner")
    assert "more actors than cores are faster: use --actors 25, because the environment waits" in said(CONFIG, rates)
    assert "more actors than cores" not in said(CONFIG, replace(rates, learner_s=1.0))


def test_beside_other_processes_the_plan_gives_a_range(monkeypatch):
    monkeypatch.setattr(throughput_plan, "usable_cores", lambda: 2)
    assert "other processes" not in said(CONFIG, replace(RATES, queued=0.2, others=0.3))
    # a core of two is left: 20 ms of the learner and 10 of the actor take turns on it, which makes 33.3 updates/s
    told = said(CONFIG, replace(RATES, others=1.0))
    assert "other processes take 1.0 cores, and the learner queues for one 0% of its time" in told
    assert "expect 23.6 to 47.1 updates/s beside them" in told
    # each process has a tenth of a core, and the learner's 20 ms take 200
    assert "queues for one 90% of its time: expect 3.54 to 7.07 updates/s" in said(CONFIG, replace(RATES, queued=9.0))


def said(config, rates=RATES, cores=2):
    return " ".join(sentences(predict(rates, config, cores), rates, config))


def test_the_regime_follows_from_the_two_sides_and_says_what_to_change():
    # steps of fp32 actors take 40 ms an update at one sample per insert, of int8 ones 10; an update takes 20
    for ratio, regime, gain in ((0.25, "actor-bound", 4.0), (1.0, "between", 2.0), (8.0, "learner-bound", 1.0)):
        told = said(replace(CONFIG, samples_per_insert=ratio))
        assert told.startswith(
            f"{regime} at {ratio:g} samples per insert: int8 actors make {gain:.2f} times the updates"
        )
    assert "raise --actors, --envs-per-actor or --samples-per-insert" in said(replace(CONFIG, samples_per_insert=0.25))
    assert "10.00 times those of torch fp32" in said(CONFIG)


def test_on_one_core_float_actors_take_the_learner_s_time_where_they_are_not_waited_for():
    told = said(replace(CONFIG, samples_per_insert=4.0), cores=1)  # 20 + 10 ms an update, of int8 20 + 2.5
    assert told.startswith("between at 4 samples per insert: int8 actors make 1.33 times")


def test_float_actors_are_told_their_regime_too():
    told = said(replace(CONFIG, actor_precision="fp32"))
    assert told.startswith("actor-bound at 1 samples per insert: fp32 actors make 1.00 times")
    told = said(replace(CONFIG, actor_precision="fp32", engine="torch"))
    assert "fp32 actors make 0.20 times (a loss) the updates of fp32 ones, 1.00 times those of torch fp32" in told


def test_where_actorq_does_not_pay_the_plan_says_what_does():
    assert "quarl train" not in said(CONFIG)
    told = said(replace(CONFIG, samples_per_insert=400.0))
    assert "ActorQ does not pay off here, at 1.04 times plain Stable-Baselines3's updates: use `quarl train`" in told
    fast = replace(RATES, steps=(*RATES.steps[:3], PLAIN._replace(inference_s=0.0)))  # 20 + 20 ms, of actors 100
    assert "at 0.40 times (a loss) plain" in said(replace(CONFIG, samples_per_insert=0.1), fast)


@pytest.mark.slow
def test_rates_of_a_small_run_are_timed_and_predict_every_arm(tmp_path: Path):
    config = ActorQConfig(
        env="CartPole-v1",
        actors=1,
        net_arch="64,64",
        params=("buffer_size:1000",),
        preset="none",
        envs_per_actor=2,
        output=tmp_path,
    )
    threads, heard = torch.get_num_threads(), []
    rates = throughput_plan.measure(config, seconds=0.1, say=heard.append)
    assert heard == ["actor, torch", "actor, litert", "learner"]
    assert torch.get_num_threads() == threads
    assert (rates.batch_size, rates.samples_per_insert) == (32, 8.0)
    assert min(rates.learner_s, *(second for step in rates.steps for second in step[1:4])) > 0
    assert all(0.5 < step.work <= 1 for step in rates.steps)  # CartPole waits for nothing, even on a busy machine
    assert rates.queued >= 0
    assert [step.load_s > 0 for step in rates.steps] == [True] * len(throughput_plan.ARMS) + [False]
    rows = predict(rates, config)
    assert [(row.precision, row.engine) for row in rows] == [*throughput_plan.ARMS, throughput_plan.PLAIN]
    contracts.check(schema.document(throughput_plan.PlanRow, rows, seed=0))
    assert list(tmp_path.iterdir()) == []
