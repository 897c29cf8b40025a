"""Mixed-precision updates: the same learning as in float32, and no step on gradients that overflowed."""

from __future__ import annotations

import pytest
import torch

from quarl.algorithms.precision import Precision


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def train(dtype, steps, poison=None, at_once=1):
    """The loss of a small regression, update by update; at_once: updates of one call of a model's `train`."""
    net, x = network(), torch.linspace(-1, 1, 64).reshape(16, 4)
    y = x.sum(dim=1, keepdim=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    precision, losses = Precision(dtype, list(net.parameters()), scale=256.0), []
    for begin in range(0, steps, at_once):
        with precision.update():
            for step in range(begin, begin + at_once):
                loss = torch.nn.functional.mse_loss(net(x).float(), y)
                if step == poison:
                    loss = loss * float("inf")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return net, precision, losses


@pytest.mark.parametrize("at_once", [1, 20])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_floats_learn_what_float32_learns(dtype, at_once):
    """Each update sees the weights that the one before it left, also within one call of a model's `train`."""
    exact, half = train("fp32", 60)[2], train(dtype, 60, at_once=at_once)[2]
    assert half == pytest.approx(exact, abs=0.02)
    assert half[-1] < 0.2 * half[0]


def test_gradients_are_what_they_would_be_without_a_scale():
    plain, scaled = train("bf16", 1)[0], train("fp16", 1)[0]
    exact = train("fp32", 1)[0]
    for a, b, c in zip(plain.parameters(), scaled.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(a, c, atol=5e-3, rtol=0)
        torch.testing.assert_close(b, c, atol=1e-3, rtol=0)


def test_an_update_that_overflows_is_left_out_and_halves_the_scale():
    before, precision, _ = train("fp16", 3)
    after, poisoned, _ = train("fp16", 4, poison=3)
    assert (precision.scale, precision.num_skipped) == (256.0, 0)
    assert (poisoned.scale, poisoned.num_skipped) == (128.0, 1)
    for a, b in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.equal(a, b)


def test_backward_is_itself_again_after_an_update():
    plain = torch.autograd.backward
    train("fp16", 1)
    assert torch.autograd.backward is plain


def test_gradients_given_to_backward_are_scaled_too():
    x = torch.ones(3, requires_grad=True)
    precision = Precision("fp16", [x], scale=8.0)
    with precision.update():
        torch.autograd.backward([x * 2.0], [torch.tensor([1.0, 2.0, 3.0])])
    assert x.grad.tolist() == [2.0, 4.0, 6.0]
