"""Fake quantization in torch: rounding of real numbers to a grid, with gradients.

The forward pass is `quant.affine.fake_quantize` in a few operators; torch's fused kernels take several times as long.
The backward pass is a straight-through estimator with clipping: the gradient passes within the grid's range and is zero
beyond it (Jacob et al. 2018, section 3). A ReLU behind a layer reads the rounded number: a positive number of less than
half a step becomes 0 and has no gradient either.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from quarl.policy.graph import ActivationGrid
from quarl.quant.affine import MID_RISE, TINY, QParams, dequantize, quantize_rows
from quarl.quant.spec import integer_range


def _put_on_grid(x: Tensor, q: QParams, quotient: Tensor | None = None) -> Tensor:
    """Overwrite x with its quant.affine.fake_quantize, invisible to autograd, and return it.

    The gradient stays that of the operation that computed x, which must not read its result again. Custom autograd
    functions around operators as small as these would take longer than the operators. `quotient` is x / q.scale if it
    is known more exactly; it is overwritten too.
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
    """Return x on the grid of one value; the gradient is 1 for numbers that round to a code of the grid, otherwise 0.

    Args:
        x: Real numbers of any shape.
        grid: Scale, zero point and bits.
        quotient: x / grid.scale as integer kernels compute it, overwritten; x then only carries the gradient.

    Returns:
        The rounded numbers, in x's shape.
    """
    q = QParams(grid.scale, grid.zero_point, *integer_range(grid.bits, symmetric=False))
    ends = (q.qmin - q.zero_point - 0.5) * q.scale, (q.qmax - q.zero_point + 0.5) * q.scale
    return _put_on_grid(functional.hardtanh(x, *ends), q, quotient)


def on_unit_grid(latent: Tensor, q: QParams) -> Tensor:
    """Round weights in units of their own steps to levels of `affine.unit_grid`.

    Gradients pass as in `on_tensor_grid`.
    """
    return _put_on_grid(functional.hardtanh(latent, q.qmin - q.zero_point - 0.5, q.qmax - q.zero_point + 0.5), q)


def on_row_grids(x: Tensor, bits: int) -> Tensor:
    """Return x [B, ...], each row on the grid that integer kernels choose at run time; all gradients pass."""
    rows = dequantize(*quantize_rows(x.detach().flatten(1).numpy(), bits))
    return x + (torch.from_numpy(rows).reshape(x.shape) - x.detach())


def on_weight_grids(
    weight: Tensor, bits: int, *, mid_rise: bool = False, least: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the weight on grids that cover it, and their scale; all gradients pass.

    Args:
        weight: Weight [out, in, ...].
        bits: Width of the codes.
        mid_rise: Use grids without a level at 0.
        least: Lower bounds of the scales, [out].

    Returns:
        The rounded weight and the scale [out, 1, ...].
    """
    params = weight_qparams(weight, bits, mid_rise=mid_rise, least=least)
    return _put_on_grid(weight.clone(), params), params.scale


def weight_qparams(weight: Tensor, bits: int, *, mid_rise: bool = False, least: Tensor | None = None) -> QParams:
    """Return symmetric grids of a weight, scaled by the extent of each output channel.

    Args:
        weight: Weight [out, in, ...].
        bits: Width of the codes.
        mid_rise: Use grids without a level at 0.
        least: Lower bounds of the scales, [out].

    Returns:
        Grids with a scale [out, 1, ...].
    """
    weight = weight.detach()
    qmin, qmax = integer_range(bits, symmetric=not mid_rise)
    middle, tiny = (MID_RISE, 2 * TINY) if mid_rise else (0, TINY)
    scale = weight.abs().amax(tuple(range(1, weight.ndim)), keepdim=True).div_(qmax - middle)
    if least is not None:
        least = least.to(weight).reshape(scale.shape)
        # as policy.fit does: nothing else determines the scale of a row of zeros
        scale = scale.where(scale > 0, least.max()).maximum(least)
    return QParams(scale.clamp_(min=tiny), middle, qmin, qmax)


def common_part(weight: Tensor) -> Tensor:
    """Return the part [1, in] that the weights of all outputs have in common, without a gradient.

    It equals the part that policy.rewrite subtracts. Neither an argmax nor a softmax depends on it, but in action
    values it is large, and its grid would round away the small differences that decide. So training keeps it in
    float32, because targets need complete values, and the deployed policy leaves it out.
    """
    return weight.detach().mean(0, keepdim=True, dtype=torch.float64).to(weight.dtype)


def rounded_part(weight: Tensor, *, scores: bool) -> Tensor:
    """Return the part of a layer's weight that is rounded; scores: the layer's outputs are scores of actions."""
    return weight - common_part(weight) if scores else weight


def on_step(bias: Tensor, step: Tensor) -> Tensor:
    """Return bias [out] rounded to steps [out or 1] of the layer's sums, as integers count it; all gradients pass."""
    return _put_on_grid(bias.clone(), QParams(step, 0, *integer_range(32)))


def in_steps(x: Tensor, step: Tensor | float) -> Tensor:
    """Return x as whole numbers of steps; x must be on a grid of that step. Gradients pass as through a quotient."""
    counted = torch.div(x, step)
    counted.detach().round_()
    return counted
