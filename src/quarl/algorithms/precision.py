"""Mixed precision of a learner: matrix products in half floats, weights and optimizers in float32.

Stable-Baselines3's `train` calls `backward` and `step` itself. Float16's loss scaling (Micikevicius et al. 2018,
section 3.2) therefore wraps torch's `backward` during an update. The loss is multiplied, its gradients are divided
before they are clipped or used, and an update whose gradients overflow is skipped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.dqn.policies import QNetwork
from torch import Tensor, nn

from quarl.algorithms.cpu import flushed
from quarl.errors import note
from quarl.machine import multiplies

GROW_AFTER = 2000
"""Updates without overflow after which the scale doubles."""
LEAST, MOST = 1.0, 2.0**24
WIDE = 1024
"""Minimum width for bfloat16: from there on its matrix products save more time than the casts cost.

An update takes 0.31 of the time at 2,048 units and 1.19 at 256.
"""
HEADS = ("action_net", "value_net")
"""Last layers of PPO and A2C, which stay in float32.

PPO compares log-probabilities whose differences bfloat16 cannot represent; with rounded ones it learns nothing
(CartPole: return 9 instead of 500).
"""


def _last(network: nn.Module) -> nn.Module:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)][-1]


@contextlib.contextmanager
def _in_float32(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Compute these layers in float32 inside the block, despite the autocast around them."""
    for layer in layers:
        vars(layer)["forward"] = _exactly(layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["forward"]


def _exactly(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def exact(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return forward(x.float())

    return exact


class Precision:
    """The precision of a learner's updates."""

    def __init__(
        self,
        dtype: Literal["fp32", "tf32", "bf16", "fp16"],
        parameters: Sequence[Tensor],
        heads: Sequence[nn.Module] = (),
        *,
        scale: float = 2.0**16,
    ) -> None:
        """Set the precision.

        Args:
            dtype: Type of the matrix products.
            parameters: Tensors that updates change.
            heads: Layers that stay in float32.
            scale: Initial factor of float16's loss; it is halved when gradients overflow.
        """
        self._type = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype)
        self.dtype = dtype
        self._parameters, self._heads, self._device = parameters, heads, parameters[0].device.type
        self.scale = scale if dtype == "fp16" else 1.0
        self.num_skipped = 0
        """Updates skipped because a gradient was not finite."""
        self._since = 0

    @classmethod
    def of(
        cls, model: BaseAlgorithm, dtype: Literal["auto", "fp32", "bf16", "fp16"], *, scale: float = 2.0**16
    ) -> Precision:
        """Return the precision of a model's policy, and of SAC's entropy coefficient, which is not part of the policy.

        Heads are the last layers of networks whose outputs are compared. Values of two actions differ by a hundredth of
        their size, and bfloat16 has 8 bits.

        Args:
            model: Model to train.
            dtype: Type of the matrix products; auto chooses by the hardware.
            scale: As in the constructor.
        """
        coefficient: Tensor | None = getattr(model, "log_ent_coef", None)
        heads = [head for name in HEADS if isinstance(head := getattr(model.policy, name, None), nn.Module)]
        for module in model.policy.modules():
            if isinstance(module, QNetwork):
                heads.append(_last(module.q_net))
            elif isinstance(module, ContinuousCritic):
                heads += [_last(network) for network in module.q_networks]
        others = [] if coefficient is None else [coefficient]
        return cls(
            chosen(model) if dtype == "auto" else dtype, [*model.policy.parameters(), *others], heads, scale=scale
        )

    @contextlib.contextmanager
    def update(self) -> Iterator[None]:
        """Run one call of a model's `train` in this precision."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(flushed())
            if self.dtype == "tf32":
                matmul = torch.backends.cuda.matmul
                stack.callback(setattr, matmul, "allow_tf32", matmul.allow_tf32)
                matmul.allow_tf32 = True
            if self._type is not None:
                # One call of `train` makes many updates, and each must see the weights that the one before left.
                stack.enter_context(torch.autocast(self._device, self._type, cache_enabled=False))
                stack.enter_context(_in_float32(self._heads))
            if self._type is torch.float16:
                stack.callback(setattr, torch.autograd, "backward", torch.autograd.backward)
                torch.autograd.backward = self._scaled(torch.autograd.backward)  # `Tensor.backward` looks it up there
            yield

    def _scaled(self, plain: Callable[..., None]) -> Callable[..., None]:
        """Return a `backward` that multiplies the loss by the scale and divides its gradients by it."""

        def scaled(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            several = [tensors] if isinstance(tensors, Tensor) else tensors
            if grad_tensors is None:
                plain([tensor * self.scale for tensor in several], None, *args, **kwargs)
            else:
                gradients = [grad_tensors] if isinstance(grad_tensors, Tensor) else grad_tensors
                plain(several, [gradient * self.scale for gradient in gradients], *args, **kwargs)
            self._unscale()

        return scaled

    def _unscale(self) -> None:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        torch._foreach_mul_(gradients, 1 / self.scale)
        finite = bool(torch.stack([g.isfinite().all() for g in gradients]).all())
        if finite:
            self._since += 1
            if self._since >= GROW_AFTER:
                self.scale, self._since = min(2 * self.scale, MOST), 0
            return
        for parameter in self._parameters:
            parameter.grad = None  # optimizers skip these
        self.scale, self._since = max(self.scale / 2, LEAST), 0
        self.num_skipped += 1


def chosen(model: BaseAlgorithm) -> Literal["fp32", "tf32", "bf16"]:
    """Resolve auto, and report any choice but fp32: TF32 on a GPU, bf16 for wide layers on a CPU that supports it."""
    widest = max((parameter.shape[0] for parameter in model.policy.parameters() if parameter.ndim == 2), default=0)
    if model.device.type == "cuda":
        note("the learner multiplies in TF32; --learner-dtype fp32 turns this off")
        return "tf32"
    if model.device.type == "cpu" and widest >= WIDE and multiplies("bf16"):
        note(f"the learner multiplies in bf16, as a layer has {widest:,} units; --learner-dtype fp32 turns this off")
        return "bf16"
    return "fp32"
