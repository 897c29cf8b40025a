"""The ranges of one network's activations: watched from the start, put in force between rollouts."""

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
"""The range of a row without observations, which contains no number."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """A layer's parameters for computation.

    They are numbers on their grids, or multiples of these steps, whose sums are exact.
    """

    weight: Tensor
    bias: Tensor | None
    step: Tensor | None = None
    """Step of the layer's sums [out], shaped for broadcasting, if weight and bias are counted in steps."""
    multiplier: Tensor | None = None
    """Factor from such sums to steps of the output's grid, float32 as in integer kernels."""
    unit: float = 1.0
    """Step of the input in such sums."""


class RangeTable(nn.Module):
    """Ranges of a network, saved with its parameters.

    Batches of training update `seen_range`. Between the end of a rollout and the start of the next, `follow` puts it in
    force. An on-policy algorithm thus trains on the same grids with which it collected the rollout. Stable-Baselines3
    copies buffers named `running_...` to target networks, as it does for batch norm.
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
        """Grids in force by row; a row without observations has none."""
        self.ranges: list[list[float]] = []
        """Ranges from which `grids` were computed."""
        self.seen: set[int] = set()
        self.active = False
        self.cache: dict[int, tuple[int | Tensor, Parameters]] = {}
        """Fake-quantized parameters by place, with a mark of their source: rollouts need them many times."""

    def observe(self, row: int, x: Tensor) -> None:
        """Move the range of a row toward the extent of x."""
        weight = MOMENTUM if row in self.seen else 1.0  # weight 1 replaces the previous range
        low, high = x.detach().float().aminmax()  # under autocast they have fewer bits than ranges
        ends = self.seen_range[row]
        if self.site_of_row[row].relu:  # numbers below 0 do not count before a ReLU
            high = high.clamp(min=0)
        else:
            ends[0].lerp_(low, weight)
        ends[1].lerp_(high, weight)
        self.seen.add(row)

    def observe_channels(self, place: int, row: int, y: Tensor) -> None:
        """Move the extents of a layer's channels toward those of its outputs.

        Args:
            place: Index of the layer in the plan.
            row: Row of the layer's range.
            y: Outputs [N, C, ...].
        """
        extent = self.extent_of(place)
        weight = MOMENTUM if row in self.seen else 1.0
        extent.lerp_(y.detach().amax((0, *range(2, y.ndim))).float().clamp_(min=0), weight)

    def extent_of(self, place: int) -> Tensor:
        """Return the extents [C] above 0 of the channels of a layer that feeds others."""
        return self.get_buffer(_extent(place))

    def follow(self) -> None:
        """Put the ranges seen so far in force."""
        self.running_range.copy_(self.seen_range)
        self.refresh()

    def refresh(self) -> None:
        """Read the state: the rows with observations, the grids of the ranges in force, and the switch."""
        self.active = bool(self.switched_at >= 0)
        self.seen = {row for row, (low, high) in enumerate(self.seen_range.tolist()) if low <= high}
        ranges = self.running_range.tolist()
        if ranges != self.ranges:
            self.ranges = ranges
            self.grids = row_grids(self.site_of_row, ranges)
            self.cache.clear()  # sums are counted in steps of these grids

    def grid_of(self, site: Site) -> ActivationGrid | None:
        """Return the grid of a site; None if it has no observations."""
        if site.row < 0:
            return site.fixed
        return self.grids.get(site.row)

    def train(self, mode: bool = True) -> RangeTable:
        """Set training mode and clear the cache: fused optimizers change weights without a trace in `_version`."""
        if mode:
            self.cache.clear()
        super().train(mode)
        return self

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        super()._load_from_state_dict(*arguments, **options)
        self.refresh()


def _extent(place: int) -> str:
    return f"extent_{place}"
