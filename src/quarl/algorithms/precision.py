"""Mixed precision of a learner: matrix products in half floats, weights and optimisers in float32.

Stable-Baselines3's `train` calls `backward` and `step` itself, so float16's loss scaling (Micikevicius et al. 2018,
section 3.2) is put around torch's `backward` while an update runs: the loss is multiplied, its gradients are divided
before anyone clips or uses them, and an update whose gradients overflow is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from stable_baselines3.common.base_class import BaseAlgorithm

from quarl.algorithms.cpu import flushed

GROW_AFTER = 2000
"""Updates without overflow, after which the scale doubles."""
LEAST, MOST = 1.0, 2.0**24


def learned(model: BaseAlgorithm) -> list[torch.Tensor]:
    """What the losses of a model's `train` reach: its policy, and SAC's entropy coefficient, which is no part of it."""
    coefficient: torch.Tensor | None = getattr(model, "log_ent_coef", None)
    return [*model.policy.parameters(), *([] if coefficient is None else [coefficient])]


class Precision:
    """What a learner's updates run in."""

    def __init__(self, dtype: Literal["fp32", "bf16", "fp16"], device: torch.device, scale: float = 2.0**16) -> None:
        """scale: float16's first factor of the loss; it is halved where gradients overflow."""
        self._type = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
        self._device = device.type
        self.scale = scale if dtype == "fp16" else 1.0
        self.num_skipped = 0
        """Updates left out because a gradient was not finite."""
        self._since = 0

    @contextlib.contextmanager
    def update(self, parameters: Sequence[torch.Tensor]) -> Iterator[None]:
        """Around one call of a model's `train`; parameters: those of `learned`."""
        with flushed(), self._autocast():
            if self._type is not torch.float16:
                yield
                return
            plain = torch.autograd.backward

            def scaled(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
                several = [tensors] if isinstance(tensors, torch.Tensor) else tensors
                if grad_tensors is None:
                    plain([tensor * self.scale for tensor in several], None, *args, **kwargs)
                else:
                    gradients = [grad_tensors] if isinstance(grad_tensors, torch.Tensor) else grad_tensors
                    plain(several, [gradient * self.scale for gradient in gradients], *args, **kwargs)
                self._unscale(parameters)

            torch.autograd.backward = scaled  # `Tensor.backward` looks it up there too
            try:
                yield
            finally:
                torch.autograd.backward = plain

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._type is None:
            return contextlib.nullcontext()
        # One call of `train` is many updates, of which each has to see the weights that the one before left behind.
        return torch.autocast(self._device, self._type, cache_enabled=False)

    def _unscale(self, parameters: Sequence[torch.Tensor]) -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        torch._foreach_mul_(gradients, 1 / self.scale)
        finite = bool(torch.stack([g.isfinite().all() for g in gradients]).all())
        if finite:
            self._since += 1
            if self._since >= GROW_AFTER:
                self.scale, self._since = min(2 * self.scale, MOST), 0
            return
        for parameter in parameters:
            parameter.grad = None  # optimisers pass over these
        self.scale, self._since = max(self.scale / 2, LEAST), 0
        self.num_skipped += 1
