"""The matching loss of each action head, which compares a student's outputs with its teacher's.

Its gradient is action(y) - action(t) for any head. So outputs that lead to the same action cost nothing, and gradients
of saturated ones do not vanish. See Auer, Herbster and Warmuth 1996,
"Exponentially many local minima for single neurons", section 2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from quarl.policy.graph import ActionHead, Policy
from quarl.readers.sb3_network import SCORING

Loss = Callable[[Tensor, Tensor], Tensor]
"""Function of outputs [B, n] and the teacher's that returns their mean cost."""
MOST = 2.0
"""Largest weight of a state whose best action leads by far, relative to a state with the median lead."""
MEMORY = 0.1
"""Weight of the next state beside the outputs that the head reads; 1 learns actions less well."""


def loss_of(policy: Policy, teacher: Tensor) -> Loss:
    """Return the loss for a policy's head.

    The teacher's outputs [N, n] on its own states set the scale of differences. With a memory, the next state is a part
    of the output, so that a student remembers what the teacher does.
    """
    if width := policy.head.width:
        seen, states = teacher[:, :width], teacher[:, width:]
        loss, spread = _of_head(policy, seen), states.std(0).clamp(min=1e-3)
        # both parts count by their share of the cost of constant outputs
        weight = MEMORY * loss(seen.mean(0).expand_as(seen), seen)
        return lambda y, t: loss(y[:, :width], t[:, :width]) + weight * ((y - t)[:, width:] / spread).square().mean()
    return _of_head(policy, teacher)


def _of_head(policy: Policy, teacher: Tensor) -> Loss:
    head = policy.head
    if head.segments:
        return _segmented(list(head.segments))
    if head.kind == "argmax":
        return _greedy(_lead(teacher).median().clamp(min=1e-6)) if policy.provenance.algo in SCORING else _kl
    if head.kind == "binary":
        return _bits
    if head.kind == "clip":
        return _clipped(head)
    return _squashed if head.kind == "tanh" else _gaussian


def _lead(scores: Tensor) -> Tensor:
    """Return [B]: the lead of the best score over the next."""
    first, second = scores.topk(2, dim=1).values.unbind(1)
    return first - second


def _greedy(median: Tensor) -> Loss:
    """Return the cross-entropy to the teacher's action, at the temperature of its median lead.

    Decisive states weigh more.
    """

    def loss(y: Tensor, t: Tensor) -> Tensor:
        weight = (_lead(t) / median).clamp(max=MOST)
        return (weight * functional.cross_entropy(y / median, t.argmax(1), reduction="none")).mean()

    return loss


def _kl(y: Tensor, t: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of the distributions over actions."""
    return functional.kl_div(y.log_softmax(1), t.log_softmax(1), reduction="batchmean", log_target=True)


def _segmented(widths: list[int]) -> Loss:
    """Return the sum of the divergences of all numbers, because those of a MultiDiscrete action are independent."""

    def loss(y: Tensor, t: Tensor) -> Tensor:
        parts = zip(torch.split(y, widths, dim=1), torch.split(t, widths, dim=1), strict=True)
        return torch.stack([_kl(*part) for part in parts]).sum()

    return loss


def _bits(y: Tensor, t: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of the distributions over bits, summed."""
    return (functional.softplus(y) - functional.softplus(t) - torch.sigmoid(t) * (y - t)).sum(1).mean()


def _clipped(head: ActionHead) -> Loss:
    low, high = torch.tensor(head.low).flatten(), torch.tensor(head.high).flatten()
    half = torch.where(torch.isfinite(high - low), (high - low) / 2, torch.ones_like(low))

    def loss(y: Tensor, t: Tensor) -> Tensor:
        y_action, t_action = torch.clamp(y, low, high), torch.clamp(t, low, high)
        difference = y_action - t_action
        return ((0.5 * difference.square() + (y - y_action) * difference) / half.square()).sum(1).mean()

    return loss


def _squashed(y: Tensor, t: Tensor) -> Tensor:
    return (_log_cosh(y) - _log_cosh(t) - torch.tanh(t) * (y - t)).sum(1).mean()


def _log_cosh(x: Tensor) -> Tensor:
    return x.abs() + functional.softplus(-2 * x.abs())


def _gaussian(y: Tensor, t: Tensor) -> Tensor:
    """Return tanh's loss of the means plus that of the spread, which affects only sampled actions, by its logarithm."""
    (mean, log_std), (t_mean, t_log_std) = y.chunk(2, 1), t.chunk(2, 1)
    return _squashed(mean, t_mean) + 0.5 * (log_std - t_log_std).square().sum(1).mean()
