"""Mixed precision of a learner: matrix products in half floats, weights and optimisers in float32.

Stable-Baselines3's `train` calls `backward` and `step` itself, so float16's loss scaling (Micikevicius et al. 2018,
section 3.2) is put around torch's `backward` while an update runs: the loss is multiplied, its gradients are divided
before anyone clips or uses them, and an update whose gradients overflow is left out.
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
"""Updates without overflow, after which the scale doubles."""
LEAST, MOST = 1.0, 2.0**24
WIDE = 1024
"""Units of a layer from which on its matrix products in bfloat16 save more than the casts around them cost: an update
takes 0.31 of the time at 2,048 and 1.19 at 256."""
HEADS = ("action_net", "value_net")
"""Last layers of PPO and A2C: PPO compares log-probabilities that differ by less than bfloat16 tells apart, and with
rounded ones learns nothing (CartPole: return 9 instead of 500)."""


def _last(network: nn.Module) -> nn.Module:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)][-1]


@contextlib.contextmanager
def _in_float32(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, these layers compute in float32, whatever the autocast around them."""
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
    """What a learner's updates run in."""

    def __init__(
        self,
        dtype: Literal["fp32", "tf32", "bf16", "fp16"],
        parameters: Sequence[Tensor],
        heads: Sequence[nn.Module] = (),
        *,
        scale: float = 2.0**16,
    ) -> None:
        """parameters: what updates reach. heads: layers that stay in float32.

        scale: float16's first factor of the loss; it is halved where gradients overflow.
        """
        self._type = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype)
        self.dtype = dtype
        self._parameters, self._heads, self._device = parameters, heads, parameters[0].device.type
        self.scale = scale if dtype == "fp16" else 1.0
        self.num_skipped = 0
        """Updates left out because a gradient was not finite."""
        self._since = 0

    @classmethod
    def of(
        cls, model: BaseAlgorithm, dtype: Literal["auto", "fp32", "bf16", "fp16"], *, scale: float = 2.0**16
    ) -> Precision:
        """That of the policy and of SAC's entropy coefficient, which is no part of it; heads are the last layers of
        what is compared.

        Values of two actions differ by a hundredth of their size, and bfloat16 has 8 bits.
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
        """Around one call of a model's `train`."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(flushed())
            if self.dtype == "tf32":
                matmul = torch.backends.cuda.matmul
                stack.callback(setattr, matmul, "allow_tf32", matmul.allow_tf32)
                matmul.allow_tf32 = True
            if self._type is not None:
                # One call of `train` is many updates, of which each has to see the weights that the one before left.
                stack.enter_context(torch.autocast(self._device, self._type, cache_enabled=False))
                stack.enter_context(_in_float32(self._heads))
            if self._type is torch.float16:
                stack.callback(setattr, torch.autograd, "backward", torch.autograd.backward)
                torch.autograd.backward = self._scaled(torch.autograd.backward)  # `Tensor.backward` looks it up there
            yield

    def _scaled(self, plain: Callable[..., None]) -> Callable[..., None]:
        """`backward` of a loss times the scale, whose gradients are divided by it."""

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
            parameter.grad = None  # optimisers pass over these
        self.scale, self._since = max(self.scale / 2, LEAST), 0
        self.num_skipped += 1


def chosen(model: BaseAlgorithm) -> Literal["fp32", "tf32", "bf16"]:
    """What auto stands for here, said where it is not fp32: TF32 on a GPU, bf16 for wide layers on a CPU with it."""
    widest = max((parameter.shape[0] for parameter in model.policy.parameters() if parameter.ndim == 2), default=0)
    if model.device.type == "cuda":
        note("the learner multiplies in TF32, which --learner-dtype fp32 does not")
        return "tf32"
    if model.device.type == "cpu" and widest >= WIDE and multiplies("bf16"):
        note(f"the learner multiplies in bf16, as a layer has {widest:,} units; --learner-dtype fp32 does not")
        return "bf16"
    return "fp32"
