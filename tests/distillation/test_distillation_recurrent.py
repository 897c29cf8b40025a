"""Distillation of policies with a memory: sequences along which the student carries its own state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import networks
import quarl
from quarl import engines
from quarl.arguments import recorded_rows
from quarl.calibration import Calibrated, quantize
from quarl.distillation import rounds
from quarl.distillation.student import Student
from quarl.evaluation import carry
from quarl.policy.graph import is_quantized
from quarl.quant.spec import EXACT, QuantSpec


def carried(policy, rows):
    """Actions of a policy that carries its own state along the rows."""
    policy = policy if is_quantized(policy) else quantize(policy, EXACT)
    return engines.greedy(policy, carry(policy, rows))


def recorded(policy, steps):
    """Rows of a policy in episodes of 80 steps, whose observations vary slowly."""
    x = np.sin(np.cumsum(np.random.default_rng(3).normal(size=(steps, 5)) / 4, axis=0))
    return recorded_rows(policy, {"x": x, "episode_start": np.arange(steps) % 80 == 0})


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_a_student_carries_its_state_along_as_engines_do(mode):
    policy = networks.recurrent("lstm")
    rows, spec = recorded(policy, 320), QuantSpec.parse(4, mode=mode)
    calibrated = Calibrated(policy, rows)
    student = Student(calibrated.rewrite(spec)[0], start := calibrated.quantize(spec))
    theirs = carried(start, rows[:160])
    with torch.no_grad():
        ours = student.along(torch.from_numpy(rows[None, :160])).numpy()[:, :3]
    # a sum that float32 rounds otherwise lies on the next code now and then, and is carried for some steps
    assert np.quantile(np.abs(ours - theirs), 0.9) <= 0.02 * np.ptp(theirs)
    labels = rounds.outputs(policy, rows[:160]).numpy()[:, :3]
    np.testing.assert_allclose(labels, carried(policy, rows[:160]), atol=2.0**-18)
    with pytest.raises(quarl.QuarlError, match="sequences of 32 observations"):
        quarl.Agent(policy).distill(4, observations=rows[:30], rounds=1, updates=1)


@pytest.mark.slow
def test_distillation_lowers_the_error_along_new_sequences():
    policy = networks.recurrent("lstm", size=40)
    seen, held_out = np.split(recorded(policy, 4_800), [4_480])
    snapshots = quarl.Agent(policy).distill(2, observations=seen, rounds=2, updates=100).snapshots
    exact, before, after = (carried(each, held_out) for each in (policy, snapshots[0].policy, snapshots[-1].policy))
    assert np.square(after - exact).mean() <= 0.75 * np.square(before - exact).mean()
    # snapshots are chosen by this error: of states that they carry themselves, not the float policy's
    assert snapshots[-1].error < snapshots[0].error
