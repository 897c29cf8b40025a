"""Fake quantisation: the project's rounding forward, clipped straight-through gradients backward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from quarl.fake_quantization import (
    in_steps,
    on_step,
    on_tensor_grid,
    on_weight_grids,
    rounded_part,
    weight_qparams,
)
from quarl.policy.graph import ActivationGrid
from quarl.policy.operators import Dense
from quarl.policy.rewrite import centered
from quarl.quant.affine import QParams, choose_qparams, fake_quantize

GRID = ActivationGrid(scale=0.5, zero_point=-3, bits=4)  # codes -8..7: -2.5..5
SOME = arrays.arrays(np.float32, (3, 7), elements=st.floats(-8, 8, width=32))


def test_numbers_go_to_the_nearest_point_of_the_grid_and_gradients_pass_on_its_range_only():
    x = torch.tensor([-9.0, -2.5, -0.3, 0.2, 0.3, 5.0, 5.3, 99.0], requires_grad=True)
    y = on_tensor_grid(x, GRID)
    assert y.tolist() == [-2.5, -2.5, -0.5, 0.0, 0.5, 5.0, 5.0, 5.0]
    y.sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 1, 1, 1, 0, 0]


def test_what_rounds_to_zero_in_front_of_a_relu_has_no_gradient():
    """Unlike in a straight-through estimator: the ReLU looks at the rounded output of the layer."""
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(layer.weight)
    x = torch.tensor([[-0.4], [0.1], [0.2], [0.3], [1.0], [5.3]], requires_grad=True)
    on_tensor_grid(layer(x), GRID).relu().sum().backward()
    assert x.grad.flatten().tolist() == [0, 0, 0, 1, 1, 0]


@given(SOME)
def test_forward_is_the_projects_rounding(x: np.ndarray):
    ours = fake_quantize(x, QParams(np.float32(0.5), np.float32(-3), -8, 7))
    assert np.array_equal(on_tensor_grid(torch.from_numpy(x), GRID).numpy(), ours)


@pytest.mark.parametrize("mid_rise", [False, True])
@given(weight=SOME, bits=st.integers(2, 16))
def test_weights_lie_on_the_grids_that_calibration_chooses(weight: np.ndarray, bits: int, mid_rise: bool):
    q = choose_qparams(
        weight.min(axis=1)[:, None], weight.max(axis=1)[:, None], bits, symmetric=True, mid_rise=mid_rise
    )
    ours = weight_qparams(torch.from_numpy(weight), bits, mid_rise=mid_rise)
    wide = np.abs(weight).max(axis=1) > 1e-30  # a row of zeros has any scale
    np.testing.assert_allclose(ours.scale.numpy()[wide], q.scale[wide], rtol=3e-7)
    quantized = on_weight_grids(torch.from_numpy(weight), bits, mid_rise=mid_rise)[0].numpy()
    expected = fake_quantize(weight, QParams(ours.scale.numpy(), q.zero_point, ours.qmin, ours.qmax))
    assert np.array_equal(quantized, expected)


def test_a_weights_gradient_passes_whole_as_its_grid_covers_it():
    weight = torch.randn(4, 8, requires_grad=True)
    on_weight_grids(weight, 3)[0].sum().backward()
    assert torch.equal(weight.grad, torch.ones(4, 8))


def test_what_scores_have_in_common_is_that_of_the_deployed_policys_rewrite():
    weight = torch.randn(5, 300) + 50
    layer = Dense("scores", ("observation",), weight.numpy(), np.zeros(5, np.float32))
    part = rounded_part(weight, scores=True)
    assert np.array_equal(part.numpy(), centered(layer).weight)
    assert rounded_part(weight, scores=False) is weight


def test_a_bias_has_whole_steps_of_its_channel_s_sums_and_its_gradient_passes():
    bias = torch.tensor([0.26, -0.24, 10.0], requires_grad=True)
    rounded = on_step(bias, torch.tensor([0.5, 0.5, 0.3]))
    assert rounded.tolist() == pytest.approx([0.5, 0.0, 9.9])
    rounded.sum().backward()
    assert bias.grad.tolist() == [1, 1, 1]


def test_numbers_on_a_grid_are_counted_and_their_gradient_is_that_of_a_quotient():
    steps = torch.tensor([[0.1], [0.3]])
    x = (torch.arange(-127, 128) * steps).requires_grad_()
    counted = in_steps(x, steps)
    assert torch.equal(counted, torch.arange(-127.0, 128).expand(2, -1))
    (counted * steps).sum().backward()
    torch.testing.assert_close(x.grad, torch.ones_like(x))
