"""Rounds on a real environment: calibration's snapshot comes first, and what is shown to be good enough ends them."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest
import torch

import networks
from quarl.calibration import Calibrated
from quarl.distillation import rounds
from quarl.distillation.validation import Validation
from quarl.errors import QuarlError, note_once
from quarl.evaluation import record
from quarl.policy import artifact
from quarl.policy.graph import Provenance
from quarl.quant.spec import QuantSpec
from quarl.specs import DistillSpec

SHORT = DistillSpec(rounds=2, updates=30, states=200, validation=12)


def distill(calibrated, spec, config=SHORT, **more):
    return rounds.distill(calibrated, spec, Validation(calibrated.policy, config), **more)


@pytest.fixture(scope="module")
def calibrated():
    """A teacher that balances by its two most telling inputs, alike on both sides: about 200 steps."""
    policy = networks.dense([4, 32, 2])
    provenance = Provenance(algo="dqn", env_id="CartPole-v1")
    first, activation, last = policy.ops
    weight = np.random.default_rng(0).normal(0, 0.02, (32, 4)).astype(np.float32)
    weight[:16] += np.float32([0.0, 0.05, 1.0, 0.4])
    weight[16:] -= np.float32([0.0, 0.05, 1.0, 0.4])
    scores = np.float32([[-1] * 16 + [1] * 16, [1] * 16 + [-1] * 16])
    ops = (
        dataclasses.replace(first, weight=weight, bias=np.zeros(32, np.float32)),
        activation,
        dataclasses.replace(last, weight=scores, bias=np.zeros(2, np.float32)),
    )
    policy = dataclasses.replace(policy, ops=ops, provenance=provenance)
    return Calibrated(policy, record(policy, num=300, min_episodes=2))


def test_a_precision_that_calibration_keeps_is_answered_without_training(calibrated):
    (only,) = distill(calibrated, QuantSpec.parse("int8"))
    assert (only.round, only.updates, only.states, only.noninferior) == (0, 0, 0, True)


@pytest.mark.slow
def test_rounds_go_on_where_nothing_is_shown_and_states_are_those_that_the_student_reaches(calibrated, monkeypatch):
    monkeypatch.setattr(rounds.stats, "FEWEST_EPISODES", 100)  # no verdict of twelve
    spec = QuantSpec.parse("int2")
    first, second, third = distill(calibrated, spec)
    assert [each.round for each in (first, second, third)] == [0, 1, 2]
    assert [each.updates for each in (first, second, third)] == [0, 30, 60]
    assert [each.states for each in (first, second, third)] == [0, 500, 700]
    again = list(distill(calibrated, spec))
    assert [each.returns.tolist() for each in again] == [each.returns.tolist() for each in (first, second, third)]
    assert all(
        np.array_equal(a.weight.codes, b.weight.codes)
        for a, b in zip(third.policy.linear, again[2].policy.linear, strict=True)
    )


@pytest.mark.parametrize(("precision", "rate"), [("int2", 0.005), ("int4", 0.02), ("int2e8", 0.15)])
def test_an_update_moves_the_same_share_of_a_grid_up_to_a_limit(calibrated, precision, rate):
    spec = QuantSpec.parse(precision)
    student = rounds.Student(calibrated.rewrite(spec)[0], calibrated.quantize(spec))
    rng, empty = np.random.default_rng(0), torch.zeros(0, 2)
    training = rounds.Training(student, SHORT, lambda y, t: (y - t).square().mean(), rng, np.zeros((0, 4)), empty)
    assert sorted(set(training.rates)) == sorted({rounds.STEP_RATE, rate})  # both layers are edges
    training.set_rates()
    assert training.optimizer.param_groups[0]["lr"] == pytest.approx(rate / rounds.WARM_UP)


@pytest.mark.slow
def test_a_budget_of_minutes_that_no_round_fits_is_said_and_one_of_a_round_ends_behind_it(calibrated, monkeypatch):
    monkeypatch.setattr(rounds.stats, "FEWEST_EPISODES", 100)
    spec = QuantSpec.parse("int2")
    clock = iter(range(10**6))
    monkeypatch.setattr(rounds.time, "monotonic", lambda: float(next(clock)))  # a second at every look at it
    whole = list(distill(calibrated, spec))
    assert len(whole) == 3
    taken = whole[1].seconds
    monkeypatch.setattr(DistillSpec, "bounds", lambda self: (2, taken / 60 + 0.1))
    kept = list(distill(calibrated, spec))
    assert [each.round for each in kept] == [0, 1]
    monkeypatch.setattr(DistillSpec, "bounds", lambda self: (2, taken / 120))
    with pytest.raises(QuarlError, match=r"minutes are too few for a round: raise budget or lower updates"):
        list(distill(calibrated, spec))


@pytest.mark.slow
def test_what_is_kept_goes_on_bit_for_bit_and_is_refused_where_a_bit_of_it_has_changed(
    calibrated, tmp_path, monkeypatch
):
    monkeypatch.setattr(rounds.stats, "FEWEST_EPISODES", 100)
    spec, file = QuantSpec.parse("int2"), tmp_path / "kept.safetensors"
    whole = list(distill(calibrated, spec))
    begun = distill(calibrated, spec, file=file)
    next(begun), next(begun)
    begun.close()  # as whoever is killed, after a round
    kept = file.read_bytes()
    gone_on = list(distill(calibrated, spec, file=file))
    assert [each.returns.tolist() for each in gone_on] == [each.returns.tolist() for each in whole]
    assert [artifact.to_bytes(each.policy) for each in gone_on] == [artifact.to_bytes(each.policy) for each in whole]
    for damaged in (kept[:-1], kept[:-1] + bytes([kept[-1] ^ 1]), b"\x80\x04K\x01."):
        file.write_bytes(damaged)
        with pytest.raises(QuarlError, match=r"kept.safetensors is damaged .*; start again without it"):
            next(distill(calibrated, spec, file=file))
    file.write_bytes(kept)
    for what, value in (("rounds", 3), ("seed", 1)):
        with pytest.raises(QuarlError, match=f"is from a run whose {what} is"):
            next(distill(calibrated, spec, dataclasses.replace(SHORT, **{what: value}), file=file))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("means", "rounds_made"), [([10, 9, 9, 9, 9], 2), ([10, 12, 11, 12, 13], 3), ([10, 11, 12, 13, 14], 4)]
)
def test_rounds_that_can_have_no_verdict_end_after_two_without_gain(
    calibrated, means, rounds_made, monkeypatch, capsys
):
    note_once.cache_clear()
    looks = iter(means)
    config = dataclasses.replace(SHORT, rounds=4, updates=1, states=10, validation=9)
    monkeypatch.setattr(
        Validation, "look", lambda *_: ({"returns": np.full(9, next(looks)), "noninferior": False, "error": None}, 0.0)
    )
    found = list(distill(calibrated, QuantSpec.parse("int2"), config))
    assert [each.round for each in found] == list(range(rounds_made + 1))
    said = (
        "no round can have a verdict (--validation 9 is below 10 episodes): training stops after 2 rounds without gain"
    )
    assert said in capsys.readouterr().err


def test_why_no_verdict_is_possible_is_said_and_nothing_where_one_is(calibrated, monkeypatch):
    assert Validation(calibrated.policy, SHORT).no_verdict == ""
    recorded = Validation(calibrated.policy, SHORT, np.zeros((20, 4), np.float32))
    assert recorded.no_verdict == "recorded observations have no return"
    nothing = Validation(calibrated.policy, SHORT)
    nothing.exact = dataclasses.replace(Validation(calibrated.policy, SHORT).exact, returns=np.zeros(12))
    assert nothing.no_verdict.startswith("fp32's mean return is 0")


def test_a_pipe_in_a_checkpoint_s_place_is_refused(calibrated, tmp_path):
    os.mkfifo(file := tmp_path / "kept.safetensors")
    with pytest.raises(QuarlError, match=r"kept.safetensors is damaged \(it is not a regular file\)"):
        next(distill(calibrated, QuantSpec.parse("int2"), file=file))
