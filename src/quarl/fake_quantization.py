"""Fake quantization in torch: real numbers moved to a grid, with gradients.

Forward it is `quant.affine.fake_quantize`; torch's fused kernels take several times as long as its few operators.
Backward it is a straight-through estimator that clips: a gradient passes where the number lies on the grid's range and
is zero beyond it (Jacob et al. 2018, section 3). A ReLU behind a layer looks at the rounded number: there a positive
one of less than half a step becomes 0, and has no gradient either.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from quarl.policy.graph import ActivationGrid
from quarl.quant.affine import MID_RISE, TINY, QParams, dequantize, quantize_rows
from quarl.quant.spec import integer_range


def _put_on_grid(x: Tensor, q: QParams, quotient: Tensor | None = None) -> Tensor:
    """x, overwritten with its quant.affine.fake_quantize, whatever autograd knows of it.

    A gradient is then that of how x came about: what computed it must not look at its result again. Functions of our
    own around operators as small as these would take longer than they do. quotient: x / q.scale, if it is known better;
    overwritten too.
    """
    numbers = x.detach()
    steps = numbers.div_(q.scale) if quotient is None else quotient
    if q.mid_rise:
        steps.add_(q.zero_point).round_().clamp_(q.qmin, q.qmax).sub_(q.zero_point)
    else:
        steps.round_().clamp_(q.qmin - q.zero_point, q.qmax - q.zero_point)
    torch.mul(steps, q.scale, out=numbers)
    return x


def on_tensor_grid(x: Tensor, grid: ActivationGrid, quotient: Tensor | None = None) -> Tensor:
    """x on the grid of one value; its gradient is 1 for what rounds to a code of the grid and 0 beyond.

    quotient: x / grid.scale as integer kernels have it, which is overwritten; x is then for the gradient alone.
    """
    q = QParams(grid.scale, grid.zero_point, *integer_range(grid.bits, symmetric=False))
    ends = (q.qmin - q.zero_point - 0.5) * q.scale, (q.qmax - q.zero_point + 0.5) * q.scale
    return _put_on_grid(functional.hardtanh(x, *ends), q, quotient)


def on_unit_grid(latent: Tensor, q: QParams) -> Tensor:
    """Weights that are counted in their own steps, moved to levels of `affine.unit_grid`; gradients pass as of
    `on_tensor_grid`."""
    return _put_on_grid(functional.hardtanh(latent, q.qmin - q.zero_point - 0.5, q.qmax - q.zero_point + 0.5), q)


def on_row_grids(x: Tensor, bits: int) -> Tensor:
    """x [B, ...], each row on the grid that integer kernels find for it at run time; gradients pass whole."""
    rows = dequantize(*quantize_rows(x.detach().flatten(1).numpy(), bits))
    return x + (torch.from_numpy(rows).reshape(x.shape) - x.detach())


def on_weight_grids(weight: Tensor, bits: int, *, mid_rise: bool = False) -> tuple[Tensor, Tensor]:
    """Return the weight on grids which cover it, so that gradients pass whole, and their scale [out, 1, ...]."""
    params = weight_qparams(weight, bits, mid_rise=mid_rise)
    return _put_on_grid(weight.clone(), params), params.scale


def weight_qparams(weight: Tensor, bits: int, *, mid_rise: bool = False) -> QParams:
    """Return the symmetric grids of a weight, with a scale [out, 1, ...] by the extent of each output channel."""
    weight = weight.detach()
    qmin, qmax = integer_range(bits, symmetric=not mid_rise)
    middle, least = (MID_RISE, 2 * TINY) if mid_rise else (0, TINY)
    extent = weight.abs().amax(tuple(range(1, weight.ndim)), keepdim=True)
    return QParams(extent.div_(qmax - middle).clamp_(min=least), middle, qmin, qmax)


def common_part(weight: Tensor) -> Tensor:
    """[1, in]: what a layer's outputs have in common, without a gradient; the numbers of policy.rewrite.centerd.

    Neither an argmax nor a softmax sees it, but in action values it is large, and the small differences that decide
    would be rounded on its grid. So it is kept in float32 in training, where targets are made of whole values, and left
    out of what is deployed.
    """
    return weight.detach().mean(0, keepdim=True, dtype=torch.float64).to(weight.dtype)


def rounded_part(weight: Tensor, *, scores: bool) -> Tensor:
    """What of a layer's weight goes to a grid; scores: the layer's outputs are scores of actions."""
    return weight - common_part(weight) if scores else weight


def on_step(bias: Tensor, step: Tensor) -> Tensor:
    """bias [out] as integers count it, in steps [out or 1] of the layer's sums; gradients pass whole."""
    return _put_on_grid(bias.clone(), QParams(step, 0, *integer_range(32)))


def in_steps(x: Tensor, step: Tensor | float) -> Tensor:
    """x, which lies on a grid of that step, as the whole numbers that count it; gradients pass as of a quotient."""
    counted = torch.div(x, step)
    counted.detach().round_()
    return counted
