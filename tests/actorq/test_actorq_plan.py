"""The plan: predictions from parts by hand, and parts that are measured on a real run's pieces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import contracts
from quarl.actorq import parts, plan
from quarl.actorq.parts import Parts
from quarl.actorq.parts_actor import ArmParts
from quarl.actorq.plan import Setting, even_ratio, predict, sentences
from quarl.config import ActorQConfig
from quarl.errors import QuarlError
from quarl.report import schema


def arm(precision, engine, inference_us, pull_ms=0.0, pack_ms=0.0):
    return ArmParts(precision=precision, engine=engine, inference_us=inference_us, pull_ms=pull_ms, pack_ms=pack_ms)


PARTS = Parts(
    batch_size=100,
    samples_per_insert=1.0,
    env_us=10.0,
    overhead_us=10.0,
    train_ms=20.0,
    insert_us=0.0,
    push_ms=0.0,
    arms=(arm("fp32", "torch", 1980.0), arm("fp32", "litert", 380.0), arm("int8", "litert", 80.0)),
)
"""At one sample per insert, an update takes 100 steps of 2000, 400 or 100 us, and the learner 20 ms."""
SETTING = Setting(samples_per_insert=1.0, actors=1, actor_update_interval=100, publish_interval=10, cores=2)


def test_the_slower_side_sets_the_pace():
    torch_, fp32, int8 = predict(PARTS, SETTING)
    assert (torch_.predicted_updates_per_s, torch_.bottleneck) == (5.0, "actors")
    assert (fp32.predicted_updates_per_s, fp32.bottleneck) == (25.0, "actors")
    assert (int8.predicted_updates_per_s, int8.bottleneck) == (50.0, "learner")
    assert (int8.predicted_speedup_vs_torch_fp32, int8.predicted_speedup_vs_litert_fp32) == (10.0, 2.0)
    assert (int8.steps_per_s, int8.learner_ms) == (10_000.0, 20.0)


def test_fewer_samples_per_insert_let_the_actors_matter_more():
    rows = predict(PARTS, replace(SETTING, samples_per_insert=0.5))
    assert [row.predicted_updates_per_s for row in rows] == [2.5, 12.5, 50.0]
    assert rows[2].bottleneck == "even"


def test_one_core_is_shared_by_all():
    int8 = predict(PARTS, replace(SETTING, cores=1))[2]
    assert int8.predicted_updates_per_s == pytest.approx(1 / (0.020 + 0.010), abs=1e-3)


def test_actors_beyond_the_cores_share_them():
    fp32 = predict(PARTS, replace(SETTING, actors=4, cores=3))[1]
    assert fp32.predicted_updates_per_s == 50.0  # two cores make 50, and the learner just as many
    assert fp32.steps_per_s == 1250.0  # four actors on two cores


def test_actors_have_the_cores_that_the_learner_s_threads_leave():
    many = replace(SETTING, actors=8, cores=4)
    assert (many.actor_cores, replace(many, learner_threads=2).actor_cores) == (3, 2)
    assert replace(many, learner_threads=4).actor_cores == 1


def test_the_publisher_takes_its_share_where_no_core_is_idle():
    busy = replace(PARTS, arms=(arm("int8", "litert", 180.0, pack_ms=20.0),))
    every = replace(SETTING, publish_interval=1)
    # 20 ms of learner, actor and publisher each on two cores
    assert predict(busy, every)[0].predicted_updates_per_s == pytest.approx(2 / 0.060, abs=1e-3)
    assert predict(busy, replace(every, cores=3))[0].predicted_updates_per_s == 50.0
    # however slow, it is one process: the other core is left
    slow = replace(PARTS, arms=(arm("int8", "litert", 180.0, pack_ms=900.0),))
    assert predict(slow, every)[0].predicted_updates_per_s == pytest.approx(1 / 0.040, abs=1e-3)


def test_new_weights_cost_an_actor_time_once_a_version_or_once_an_interval():
    taking = replace(PARTS, arms=(arm("int8", "litert", 80.0, pull_ms=10.0),))
    often = predict(taking, replace(SETTING, publish_interval=1, actor_update_interval=10))[0]
    assert often.overhead_us == 10.0 + 10_000 / 100  # a version an update, that is in 100 steps
    seldom = predict(taking, replace(SETTING, publish_interval=1, actor_update_interval=1000))[0]
    assert seldom.overhead_us == 10.0 + 10_000 / 1000


def test_inserts_and_pushes_are_the_learners_time():
    learner = replace(PARTS, insert_us=100.0, push_ms=50.0)
    assert predict(learner, SETTING)[2].learner_ms == 20.0 + 10.0 + 5.0


@given(st.floats(0.1, 1000), st.floats(0.1, 500), st.integers(1, 8), st.integers(2, 16))
def test_at_the_even_ratio_neither_side_waits(inference_us, train_ms, actors, cores):
    made = replace(PARTS, train_ms=train_ms, arms=(arm("fp32", "litert", inference_us),))
    setting = replace(SETTING, actors=actors, cores=cores)
    ratio = even_ratio(made, made.arms[0], setting)
    row = predict(made, replace(setting, samples_per_insert=ratio))[0]
    assert row.bottleneck == "even"


def said(setting, precision="int8", made=PARTS):
    return " ".join(sentences(predict(made, setting), made, setting, precision))


def test_the_sentence_says_what_the_actors_are_worth():
    assert "int8 actors will make 2.00 times as many updates as fp32 ones and 10.00 times" in said(SETTING)
    idle = said(replace(SETTING, samples_per_insert=8.0))
    assert "int8 actors will not help here (1.00 times" in idle
    assert "the learner is the bottleneck" in idle
    assert "fewer than 2 samples per insert (now 8)" in idle
    small = replace(PARTS, arms=(arm("fp32", "litert", 2.0), arm("int8", "litert", 1.0)), env_us=1000.0)
    assert "inference is a small part" in said(SETTING, made=small)
    with pytest.raises(QuarlError, match="int3"):
        said(SETTING, "int3")


def test_parts_of_a_small_run_are_measured_and_predict_every_arm(tmp_path: Path):
    config = ActorQConfig(
        env="CartPole-v1", actors=1, net_arch="64,64", params=("buffer_size:1000",), envs_per_actor=2, output=tmp_path
    )
    threads, heard = torch.get_num_threads(), []
    measured = parts.measure(config, seconds=0.1, say=heard.append)
    assert heard == ["environment", "inference", "actor", "learner"]
    assert torch.get_num_threads() == threads
    assert (measured.batch_size, measured.samples_per_insert) == (32, 8.0)
    assert min(measured.env_us, measured.overhead_us, measured.train_ms, measured.insert_us, measured.push_ms) > 0
    assert Parts.from_json(measured.to_json()) == measured
    setting = Setting.of(config, measured)
    rows = plan.predict(measured, setting)
    assert [(row.precision, row.engine) for row in rows] == list(parts.ARMS)
    contracts.check(schema.document("actorq plan", rows, seed=0))
    assert list(tmp_path.iterdir()) == []
