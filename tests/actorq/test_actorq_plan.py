"""The plan: predictions from rates by hand, and rates that are timed on a real run's pieces."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import contracts
from quarl.actorq import throughput_plan
from quarl.actorq.throughput_plan import Rates, Step, even_ratio, predict, sentences
from quarl.config import ActorQConfig
from quarl.report import schema


def step(precision, engine, inference_us):
    return Step(precision, engine, 10e-6, 1e-6 * inference_us, 10e-6)


PLAIN = step("fp32", "stable-baselines3", 2980.0)
RATES = Rates(
    batch_size=100,
    samples_per_insert=1.0,
    update_s=0.020,
    insert_s=0.0,
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


def test_inserts_are_the_learners_time():
    assert predict(replace(RATES, insert_s=100e-6), CONFIG, cores=2)[2].learner_ms == 20.0 + 10.0


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


@given(st.floats(0.1, 1000), st.floats(0.1, 500), st.integers(1, 8), st.integers(2, 16))
def test_at_the_even_ratio_neither_side_waits(inference_us, train_ms, actors, cores):
    rates = replace(RATES, update_s=1e-3 * train_ms, steps=(step("fp32", "litert", inference_us),))
    config = replace(CONFIG, actors=actors)
    ratio = even_ratio(rates, predict(rates, config, cores)[0], config)
    row = predict(rates, replace(config, samples_per_insert=ratio), cores)[0]
    assert row.bottleneck == "even"


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
    assert "begin to help below 2 samples per insert" in said(replace(CONFIG, samples_per_insert=8.0))
    crowded = said(replace(CONFIG, actors=64, samples_per_insert=8.0), replace(RATES, insert_s=1e-3), cores=64)
    assert "help at no ratio" in crowded  # 380 us of 63 cores are less than one of its 1,000
    slow_world = [s._replace(environment_s=1e-3) for s in (*RATES.steps[:2], step("int8", "litert", 300.0), PLAIN)]
    assert "inference is a small part" in said(CONFIG, replace(RATES, steps=tuple(slow_world)))
    assert said(CONFIG).endswith(
        "only rates are predicted, not time to reward: the number of updates to a target depends on the ratio too"
    )


def test_on_one_core_float_actors_take_the_learner_s_time_where_they_are_not_waited_for():
    told = said(replace(CONFIG, samples_per_insert=4.0), cores=1)  # 20 + 10 ms an update, of int8 20 + 2.5
    assert told.startswith("between at 4 samples per insert: int8 actors make 1.33 times")


def test_float_actors_are_told_their_regime_too():
    told = said(replace(CONFIG, actor_precision="fp32"))
    assert told.startswith("actor-bound at 1 samples per insert: fp32 actors make 1.00 times")
    assert "will not help" not in told


def test_where_actorq_does_not_pay_the_plan_says_what_does():
    assert "quarl train" not in said(CONFIG)
    told = said(replace(CONFIG, samples_per_insert=400.0))
    assert "ActorQ does not pay off here (1.04 times plain Stable-Baselines3): use `quarl train`" in told


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
    assert min(rates.update_s, rates.insert_s, *(second for step in rates.steps for second in step[2:5])) > 0
    assert [step.load_s > 0 for step in rates.steps] == [True] * len(throughput_plan.ARMS) + [False]
    assert Rates.from_json(asdict(rates)) == rates
    rows = predict(rates, config)
    assert [(row.precision, row.engine) for row in rows] == [*throughput_plan.ARMS, throughput_plan.PLAIN]
    contracts.check(schema.document(throughput_plan.PlanRow, rows, seed=0))
    assert list(tmp_path.iterdir()) == []
