"""The student computes what integer kernels do and begins at the calibrated codes; its loss has the head's gradient."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import networks
from quarl import engines
from quarl.calibration import Calibrated
from quarl.distillation.loss import loss_of
from quarl.distillation.student import Layer, Student
from quarl.engines.numpy_operators import as_float
from quarl.policy.graph import Provenance
from quarl.quant.spec import QuantSpec


def student_of(policy, precision, mode="dynamic"):
    observations = networks.observations(policy, 256)
    spec = QuantSpec.parse(precision, mode=mode)
    calibrated = Calibrated(policy, observations)
    exact = calibrated.rewrite(spec)[0]
    start = calibrated.quantize(spec)
    return Student(exact, start), exact, start, observations


@pytest.mark.parametrize(("precision", "mode"), [("int4e8", "dynamic"), ("int2", "dynamic"), ("int4", "static")])
@pytest.mark.parametrize("name", networks.EVERY)
def test_a_student_begins_as_the_calibrated_policy_and_computes_what_its_kernels_do(name, precision, mode):
    student, _, start, observations = student_of(networks.EVERY[name](), precision, mode)
    back = student.policy()
    for before, after in zip(start.linear, back.linear, strict=True):
        assert np.array_equal(before.weight.codes, after.weight.codes)
        np.testing.assert_allclose(after.weight.scale, before.weight.scale, rtol=1e-6)
        np.testing.assert_allclose(after.bias, before.bias, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        ours = student(torch.from_numpy(observations)).numpy()
    theirs = engines.run_all(engines.load(start, "reference", batch=64), observations)
    # a sum that float32 rounds otherwise lies on the next code now and then
    assert np.quantile(np.abs(ours - theirs), 0.9) <= 0.02 * np.ptp(theirs)


def test_what_updates_change_is_what_kernels_then_run():
    student, exact, start, observations = student_of(networks.dense([6, 32, 32, 3], "tanh", head="clip"), "int2e8")
    optimizer = torch.optim.Adam(student.parameters(), lr=0.02)
    x, labels = torch.from_numpy(observations), torch.from_numpy(as_float(exact, observations)[exact.output])
    loss = loss_of(exact, labels)
    before = float(loss(student(x), labels).detach())
    for _ in range(150):
        optimizer.zero_grad()
        loss(student(x), labels).backward()
        optimizer.step()
    learned = student.policy()
    assert any(
        not np.array_equal(a.weight.codes, b.weight.codes) for a, b in zip(learned.linear, start.linear, strict=True)
    )
    for op in learned.linear:
        assert np.abs(op.weight.codes).max() <= {8: 127, 2: 3}[op.weight.bits]
    y = torch.from_numpy(engines.run_all(engines.load(learned, "litert", batch=64), observations))
    assert float(loss(y, labels)) < 0.7 * before


def test_weights_of_grids_without_a_level_at_0_stay_odd():
    student, _, _, observations = student_of(networks.dense([6, 32, 4]), "int2")
    layers = student.learning.values()
    assert all(isinstance(layer, Layer) and layer.weight.mid_rise for layer in layers)
    with torch.no_grad():
        for layer in layers:
            layer.latent.add_(torch.randn_like(layer.latent))
    assert all(set(np.unique(op.weight.codes)) <= {-3, -1, 1, 3} for op in student.policy().linear)
    assert np.isfinite(observations).all()


@pytest.mark.parametrize("kind", ["clip", "tanh", "gaussian"])
def test_the_gradient_of_a_continuous_head_s_loss_is_the_difference_of_actions(kind):
    policy = networks.dense([4, 8, 6], head="clip" if kind == "gaussian" else kind)
    if kind == "gaussian":
        low = policy.head.low[:3]
        policy = dataclasses.replace(policy, head=networks.ActionHead(kind, low, -low))
    rng = np.random.default_rng(0)
    t = torch.from_numpy(rng.normal(0, 2, (16, 6)).astype(np.float32))
    y = torch.from_numpy(rng.normal(0, 2, (16, 6)).astype(np.float32)).requires_grad_()
    loss_of(policy, t)(y, t).backward()
    if kind == "clip":
        low, high = torch.tensor(policy.head.low), torch.tensor(policy.head.high)
        expected = (torch.clamp(y, low, high) - torch.clamp(t, low, high)) / ((high - low) / 2) ** 2
        np.testing.assert_allclose(y.grad.numpy() * 16, expected.detach().numpy(), atol=1e-5)
    else:
        count = 3 if kind == "gaussian" else 6
        expected = (torch.tanh(y) - torch.tanh(t))[:, :count]
        np.testing.assert_allclose(y.grad.numpy()[:, :count] * 16, expected.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_discrete_losses_are_least_where_the_student_says_what_the_teacher_says(algo):
    policy = dataclasses.replace(networks.dense([4, 8, 3], head="argmax"), provenance=Provenance(algo=algo))
    t = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    loss = loss_of(policy, t)
    same, other = float(loss(t, t)), float(loss(t.flip(1), t))
    assert same < other
    if algo == "ppo":
        assert same == pytest.approx(0, abs=1e-6)
        return
    undecided = t.clone()
    undecided[:, 1] = undecided[:, 0] = 5.0  # no lead: whatever is chosen there costs nothing
    assert float(loss(t, undecided)) == pytest.approx(0, abs=1e-6)
