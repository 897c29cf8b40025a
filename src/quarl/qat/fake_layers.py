"""Dense and convolution layers that compute with fake-quantized input, weight and output.

They keep the names and parameters of the layers they replace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from quarl.errors import QuarlError, UnsupportedError
from quarl.fake_quantization import common_part, in_steps, on_step, on_tensor_grid, on_weight_grids
from quarl.policy.graph import ActivationGrid
from quarl.policy.grids import least_scales
from quarl.policy.trained import TRAINED_RANGES, LayerPlan, NetworkPlan, Site
from quarl.qat.ranges import Parameters, RangeTable
from quarl.quant.spec import QatSpec

FLOAT_SUMS = 256
"""Largest number of products that a network of dense layers sums in real numbers, which is faster for small ones.

In longer sums, or in as many as for an image, one in ten inputs has a float32 sum whose rounding error leads to another
code than the integer's. Whole numbers have no such error up to 2^24.
"""


class QatLayer(nn.Module):
    """Mixin that quantizes the input, weight and output of a layer in quantization-aware training."""

    weight: Tensor
    bias: Any
    """A tensor or None."""
    plan: LayerPlan
    table: RangeTable
    place: int
    """Index of the layer in the table's plan."""
    is_target: bool
    """True in a target network."""

    def computed(self) -> Parameters:
        """Return weight and bias as the layer computes with them."""
        weight, bias, table = self.weight, self.bias, self.table
        if not table.active:
            return Parameters(weight, bias)
        if torch.is_grad_enabled() or (table.training and not self.is_target):
            return self.quantized()
        cached = table.cache.get(self.place)
        if cached is None or not self._is_of(cached[0]):
            mark = bias.detach().clone() if self.is_target and bias is not None else weight._version
            cached = table.cache[self.place] = mark, self.quantized()
        return cached[1]

    def _is_of(self, mark: int | Tensor) -> bool:
        """Return whether a weight that was rounded under this mark is still the layer's.

        Stable-Baselines3 writes target networks without a trace in `_version`, but it writes biases with their weights.
        """
        if isinstance(mark, Tensor) and self.bias is not None:
            return bool(torch.equal(mark, self.bias))
        return not self.is_target and bool(mark == self.weight._version)

    def quantized(self) -> Parameters:
        """Return the weight on its grids, and the bias on the grid of the layer's sums if these are integers.

        Long or many sums are of whole numbers, except under autocast, because float16 ends at 65,504. Scores are on no
        grid, so no rounding of their sums leads to another code.
        """
        weight, bias = self.weight, self.bias
        rounded, scale = self.rounded(weight)
        source = self._source()
        if self.plan.scores or source is None:
            return Parameters(rounded, bias)
        step = scale.flatten() * source.scale
        if bias is not None and self.plan.behind is not None:
            bias = on_step(bias, step)
        short = weight[0].numel() <= FLOAT_SUMS and not self.table.of_images
        if short or torch.is_autocast_enabled(weight.device.type):
            return Parameters(rounded, bias)
        # count everything in steps: sums of whole numbers are exact
        if bias is not None:
            bias = in_steps(bias, step) if self.plan.behind is not None else bias / step
        behind = None if self.plan.behind is None else self.table.grid_of(self.plan.behind)
        multiplier = None if behind is None else (scale.double().flatten() * source.scale / behind.scale).float()
        shape = -1, *(1,) * (weight.ndim - 2)
        return Parameters(
            in_steps(rounded, scale),
            bias,
            step.reshape(shape),
            None if multiplier is None else multiplier.reshape(shape),
            source.scale,
        )

    def rounded(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight on its grids, except the common part of scores, and their scale [out, 1, ...]."""
        mid_rise, source, least = self.table.spec.mid_rise(self.plan.bits), self._source(), None
        if source is not None and self.bias is not None and self.plan.behind is not None:
            least = least_scales(self.bias.detach().double(), source, self.plan.bits)
        common = common_part(weight) if self.plan.scores else None
        part = weight if common is None else weight - common
        on_grids, step = on_weight_grids(part, self.plan.bits, mid_rise=mid_rise, least=least)
        scale = step / 2 if mid_rise else step  # odd codes count half steps
        return on_grids if common is None else on_grids + common, scale

    def _source(self) -> ActivationGrid | None:
        """Return the grid of the layer's input; None if it has none."""
        return None if self.plan.source is None else self.table.grid_of(self.plan.source)

    def before(self, x: Tensor) -> Tensor:
        """Return the layer's input as its sums read it."""
        return x if self.plan.before is None else self._at(self.plan.before, x)

    def behind(self, y: Tensor, quotient: Tensor | None = None) -> Tensor:
        """Return the layer's output; quotient: y in steps of its grid, if it is known more exactly."""
        table = self.table
        if self.plan.behind is None:
            return y
        if self.plan.feeds and not table.active and table.training and torch.is_grad_enabled():
            table.observe_channels(self.place, self.plan.behind.row, y)
        return self._at(self.plan.behind, y, quotient)

    def _at(self, site: Site, x: Tensor, quotient: Tensor | None = None) -> Tensor:
        table = self.table
        grid = table.grid_of(site)
        if site.observes and table.training and torch.is_grad_enabled():  # no fixed grid does
            table.observe(site.row, x)
        return x if grid is None or not table.active else on_tensor_grid(x, grid, quotient)

    def _between(self, x: Tensor, sums: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> Tensor:
        """Return the layer's output between its quantizers; `sums` is a function of input, weight and bias."""
        parameters = self.computed()
        x = self.before(x)
        if parameters.step is None:
            return self.behind(sums(x, parameters.weight, parameters.bias))
        counted = sums(in_steps(x, parameters.unit), parameters.weight, parameters.bias)
        multiplier = parameters.multiplier
        return self.behind(counted * parameters.step, None if multiplier is None else counted.detach() * multiplier)


class QatLinear(QatLayer, nn.Linear):
    """nn.Linear between its quantizers."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():  # an extracted policy is the float one; its grids come from the tables
            return nn.Linear.forward(self, x)
        return self._between(x, functional.linear)


class QatConv2d(QatLayer, nn.Conv2d):
    """nn.Conv2d between its quantizers."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            return nn.Conv2d.forward(self, x)
        return self._between(x, self._conv_forward)


def layers_of(network: nn.Module, plan: NetworkPlan, name: str = "") -> dict[str, nn.Linear | nn.Conv2d]:
    """Return the layers of a plan by their paths.

    Args:
        network: Network with these layers.
        plan: Plan of the network.
        name: Name of the network, for messages.

    Returns:
        The layers by path.

    Raises:
        UnsupportedError: A layer cannot be quantized; the message names it.
    """
    layers: dict[str, nn.Linear | nn.Conv2d] = {}
    for path in (layer.path for layer in plan.layers):
        whole = f"{name}.{path}" if name else path
        try:
            layer = network.get_submodule(path)
        except AttributeError:  # a forward pass that applies a layer twice has numbered copies in the graph
            raise UnsupportedError(
                f"layer {whole!r} is not a separate module: is one layer applied twice? Exclude it with skip"
            ) from None
        if type(layer) is not nn.Linear and type(layer) is not nn.Conv2d:
            raise UnsupportedError(
                f"layer {whole!r} is a {type(layer).__name__}; quantization-aware training supports Linear and Conv2d: "
                "exclude it with skip"
            )
        layers[path] = layer
    return layers


def install(network: nn.Module, plan: NetworkPlan, spec: QatSpec, *, target: bool) -> RangeTable:
    """Add quantizers to the layers of a network, and to the network the table of its ranges.

    Layers change their class in place: parameters stay the objects that an optimizer holds, and keep their names.

    Args:
        network: Network to change.
        plan: Its plan.
        spec: Bits and options of the training.
        target: True for a target network.

    Returns:
        The table, which is a module of the network.

    Raises:
        QuarlError: The network is already prepared.
    """
    layers = layers_of(network, plan)
    if hasattr(network, TRAINED_RANGES):
        raise QuarlError(
            f"the {type(network).__name__} already has an attribute {TRAINED_RANGES!r}; is it prepared twice?"
        )
    table = RangeTable(plan, spec, layers)
    table.train(network.training)
    network.add_module(TRAINED_RANGES, table)
    for place, layer in enumerate(layers.values()):
        layer.__class__ = QatLinear if isinstance(layer, nn.Linear) else QatConv2d
        # plain attributes: the table is a module of the network, not of each of its layers
        vars(layer).update(plan=plan.layers[place], table=table, place=place, is_target=target)
    return table
