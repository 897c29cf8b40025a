"""Fake quantisation in torch: real numbers moved to a grid, with gradients.

Forward it is `quant.affine.fake_quantize`; torch's fused kernels take several times as long as its few operators.
Backward it is a straight-through estimator that clips: a gradient passes where the number lies on the grid's range and
is zero beyond it (Jacob et al. 2018, section 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quarl.policy.graph import ActivationGrid
from quarl.quant.affine import TINY, QParams
from quarl.quant.spec import integer_range


def _moved(x: Tensor, q: QParams, quotient: Tensor | None = None) -> Tensor:
    """quant.affine.fake_quantize in one piece of memory, which counts where every layer is rounded at every step."""
    low, high = q.qmin - q.zero_point, q.qmax - q.zero_point
    steps = torch.div(x, q.scale) if quotient is None else quotient
    return steps.round_().clamp_(low, high).mul_(q.scale)


def on_tensor_grid(x: Tensor, grid: ActivationGrid, quotient: Tensor | None = None) -> Tensor:
    """x on the grid of one value.

    quotient: x / grid.scale as integer kernels have it, which is overwritten; x is then for the gradient alone.
    """
    q = QParams(grid.scale, grid.zero_point, *integer_range(grid.bits, symmetric=False))
    if not torch.is_grad_enabled():
        return _moved(x, q, quotient)
    moved: Tensor = _Clipped.apply(x, q, quotient)  # type: ignore[no-untyped-call]
    return moved


class _Clipped(torch.autograd.Function):
    """fake_quantize, whose gradient is 1 for what rounds to a code of the grid and 0 beyond."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, q: QParams, quotient: Tensor | None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.ends = (q.qmin - q.zero_point - 0.5) * q.scale, (q.qmax - q.zero_point + 0.5) * q.scale
        return _moved(x, q, quotient)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return torch.ops.aten.hardtanh_backward(gradient, x, *ctx.ends), None, None


@dataclass(frozen=True, slots=True)
class WeightGrids:
    """How a weight is quantised by its own extent: symmetric or affine, for each output channel or as a whole."""

    bits: int
    symmetric: bool = True
    per_channel: bool = True

    def __call__(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The weight on its grids, which cover it, so that gradients pass whole; their scale [out or 1, 1, ...]."""
        params = self.params(weight)
        quantized: Tensor = _Rounded.apply(weight, params)  # type: ignore[no-untyped-call]
        return quantized, params.scale

    def params(self, weight: Tensor) -> QParams:
        """Scale, and zero point where it is not 0, [out or 1, 1, ...]."""
        weight = weight.detach()
        kept = tuple(range(int(self.per_channel), weight.ndim))
        qmin, qmax = integer_range(self.bits, symmetric=self.symmetric)
        if self.symmetric:
            return QParams(weight.abs().amax(kept, keepdim=True).div_(qmax).clamp_(min=TINY), 0, qmin, qmax)
        low, high = weight.amin(kept, keepdim=True).clamp_(max=0), weight.amax(kept, keepdim=True).clamp_(min=0)
        scale = ((high - low) / (qmax - qmin)).clamp_(min=TINY)
        return QParams(scale, (qmin - low / scale).round().clamp_(qmin, qmax), qmin, qmax)


class _Rounded(torch.autograd.Function):
    """fake_quantize with a gradient of 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, q: QParams) -> Tensor:
        return _moved(x, q)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def on_step(bias: Tensor, step: Tensor) -> Tensor:
    """bias [out] as integers count it, in steps [out or 1] of the layer's sums; gradients pass whole."""
    rounded: Tensor = _Rounded.apply(bias, QParams(step, 0, *integer_range(32)))  # type: ignore[no-untyped-call]
    return rounded


def in_steps(x: Tensor, step: Tensor | float) -> Tensor:
    """x, which lies on a grid of that step, as the whole numbers that count it; gradients pass as of a quotient."""
    counted: Tensor = _Counted.apply(x, step)  # type: ignore[no-untyped-call]
    return counted


class _Counted(torch.autograd.Function):
    """x / step to the nearest whole number, with the gradient of x / step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor | float) -> Tensor:
        ctx.step = step
        return torch.div(x, step).round_()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient / ctx.step, None


class _LearnedStep(torch.autograd.Function):
    """x on a grid whose step is learned (Esser et al. 2020, equations 1 to 3)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, step: Tensor, zero_point: int, qmin: int, qmax: int, quotient: Tensor | None
    ) -> Tensor:
        steps = x / step if quotient is None else quotient
        codes = (steps.round() + zero_point).clamp(qmin, qmax)
        ctx.save_for_backward(steps, codes)
        ctx.bounds = zero_point, qmin, qmax
        # Equation 3's gradient scale; the numbers of one step are those that share it.
        ctx.share = 1 / math.sqrt(x.numel() / step.numel() * qmax)
        ctx.step_shape = step.shape
        return (codes - zero_point) * step

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        steps, codes = ctx.saved_tensors
        zero_point, qmin, qmax = ctx.bounds
        unclipped = steps.round() + zero_point
        inside = (unclipped >= qmin) & (unclipped <= qmax)
        centred = codes - zero_point
        of_step = gradient * torch.where(inside, centred - steps, centred) * ctx.share
        return gradient * inside, of_step.sum_to_size(ctx.step_shape), None, None, None, None


def on_learned_grid(
    x: Tensor, log_step: Tensor, zero_point: int, bits: int, *, symmetric: bool, quotient: Tensor | None = None
) -> Tensor:
    """x on the grid of step exp(log_step), which broadcasts against x; quotient: as for `on_tensor_grid`.

    The logarithm is what is learned: Adam's steps have the learning rate's size, whatever the parameter's (Jain et al.
    2020, section 4).
    """
    qmin, qmax = integer_range(bits, symmetric=symmetric)
    learned: Tensor = _LearnedStep.apply(  # type: ignore[no-untyped-call]
        x, log_step.exp(), zero_point, qmin, qmax, quotient
    )
    return learned


def first_log_step(weight: Tensor, bits: int) -> Tensor:
    """Where learning of a symmetric weight's steps starts: log of 2 mean|w| / sqrt(qmax), [out, 1, ...].

    Esser et al. 2020, section 2.1.
    """
    qmax = integer_range(bits)[1]
    mean = weight.detach().abs().flatten(1).mean(dim=1).clamp(min=TINY)
    return (2 * mean / math.sqrt(qmax)).log().reshape(-1, *(1,) * (weight.ndim - 1))
