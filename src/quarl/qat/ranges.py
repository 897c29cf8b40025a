"""The ranges of one network's activations: watched from the start, in force from one rollout to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quarl.policy.graph import ActivationGrid
from quarl.policy.trained import NetworkPlan, Site, row_grids
from quarl.quant.spec import QatSpec

MOMENTUM = 0.01
"""Weight of the newest batch in the moving average of its extent."""
UNSEEN = (0.0, -1.0)
"""The range of a row that has seen nothing: no number lies in it."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a layer computes with: numbers on their grids, or these in steps, whose sums are then exact."""

    weight: Tensor
    bias: Tensor | None
    step: Tensor | None = None
    """Of the layer's sums, [out] as these broadcast, where weight and bias are counted."""
    multiplier: Tensor | None = None
    """From such sums to steps of the output's grid, float32 as integer kernels have it."""


class RangeTable(nn.Module):
    """Ranges of a network, saved with its parameters.

    Batches that are trained on move `seen_range`. `follow` puts it in force, between a rollout's end and the next one's
    beginning: the numbers that an on-policy algorithm collects and those it trains on lie on the same grids.
    Stable-Baselines3 copies buffers called `running_...` to target networks, as it does with those of batch norm.
    """

    running_range: Tensor
    seen_range: Tensor
    switched_at: Tensor

    def __init__(self, plan: NetworkPlan, spec: QatSpec, layers: Mapping[str, nn.Linear | nn.Conv2d]) -> None:
        super().__init__()
        self.plan, self.spec = plan, spec
        device = next(iter(layers.values())).weight.device
        self.register_buffer("running_range", torch.tensor([UNSEEN] * plan.rows, device=device).reshape(-1, 2))
        self.register_buffer("seen_range", self.running_range.clone())
        self.register_buffer("switched_at", torch.tensor(-1.0, dtype=torch.float64, device=device))
        for place, layer in enumerate(plan.layers):
            if layer.feeds:
                channels = len(layers[layer.path].weight)
                self.register_buffer(_extent(place), torch.zeros(channels, device=device))
        self.of_images = any(isinstance(layer, nn.Conv2d) for layer in layers.values())
        self.site_of_row = plan.site_of_row
        self.grids: dict[int, ActivationGrid] = {}
        """In force, by row; a row that has seen nothing has none."""
        self.ranges: list[list[float]] = []
        """What `grids` were made of."""
        self.seen: set[int] = set()
        self.active = False
        self.cache: dict[int, tuple[int | Tensor, Parameters]] = {}
        """Fake-quantized parameters by place, with a mark of what they were made of: rollouts need them many times."""

    def observe(self, row: int, x: Tensor) -> None:
        """Moves the range of a row toward the extent of x."""
        weight = MOMENTUM if row in self.seen else 1.0  # which makes it the extent, whatever was there
        low, high = x.detach().float().aminmax()  # under autocast they are of fewer bits than ranges
        ends = self.seen_range[row]
        if self.site_of_row[row].relu:  # what is below 0 does not count there
            high = high.clamp(min=0)
        else:
            ends[0].lerp_(low, weight)
        ends[1].lerp_(high, weight)
        self.seen.add(row)

    def observe_channels(self, place: int, row: int, y: Tensor) -> None:
        """Moves what the channels of a layer reach above 0 toward that of its outputs y [N, C, ...]."""
        extent = self.extent_of(place)
        weight = MOMENTUM if row in self.seen else 1.0
        extent.lerp_(y.detach().amax((0, *range(2, y.ndim))).float().clamp_(min=0), weight)

    def extent_of(self, place: int) -> Tensor:
        """[C]: what the channels of a layer that feeds others reach."""
        return self.get_buffer(_extent(place))

    def follow(self) -> None:
        """Put the ranges seen so far in force."""
        self.running_range.copy_(self.seen_range)
        self.refresh()

    def switch_on(self, step: int) -> None:
        """Let fake quantization act from now on; `step` counts environment steps."""
        self.switched_at.fill_(step)
        self.follow()

    def refresh(self) -> None:
        """Reads the state: which rows have been seen, the grids of the ranges in force, whether they act."""
        self.active = bool(self.switched_at >= 0)
        self.seen = {row for row, (low, high) in enumerate(self.seen_range.tolist()) if low <= high}
        ranges = self.running_range.tolist()
        if ranges != self.ranges:
            self.ranges = ranges
            self.grids = row_grids(self.site_of_row, ranges)
            self.cache.clear()  # sums are counted in steps of these grids

    def grid_of(self, site: Site) -> ActivationGrid | None:
        """The grid that a site quantizes to; None where nothing has been seen."""
        if site.row < 0:
            return site.fixed
        return self.grids.get(site.row)

    def train(self, mode: bool = True) -> RangeTable:
        """Training may change weights; fused optimizers do so without a trace in `_version`."""
        if mode:
            self.cache.clear()
        super().train(mode)
        return self

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        super()._load_from_state_dict(*arguments, **options)
        self.refresh()


def _extent(place: int) -> str:
    return f"extent_{place}"
