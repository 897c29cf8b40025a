"""Dense and convolution layers that compute with fake-quantised numbers, under the names and parameters they had."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from quarl.errors import QuarlError, UnsupportedError
from quarl.qat.plan import NetworkPlan
from quarl.qat.quantizer import LayerQuantizer
from quarl.qat.table import RangeTable
from quarl.quant.spec import QatSpec
from quarl.readers.actor import TRAINED_RANGES


class QatLinear(nn.Linear):
    """nn.Linear between its quantisers."""

    quant: LayerQuantizer

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():  # an extracted policy is the float one; its grids are taken from the tables
            return super().forward(x)
        return _computed(self, x, functional.linear)


class QatConv2d(nn.Conv2d):
    """nn.Conv2d between its quantisers."""

    quant: LayerQuantizer

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            return super().forward(x)
        return _computed(self, x, self._conv_forward)


def _computed(
    layer: QatLinear | QatConv2d, x: Tensor, sums: Callable[[Tensor, Tensor, Tensor | None], Tensor]
) -> Tensor:
    quant = layer.quant
    parameters = quant.parameters(layer)
    x = quant.before(x)
    if parameters.step is None:
        return quant.behind(sums(x, parameters.weight, parameters.bias))
    counted = sums(quant.counted(x), parameters.weight, parameters.bias)
    multiplier = parameters.multiplier
    return quant.behind(counted * parameters.step, None if multiplier is None else counted.detach() * multiplier)


def layers_of(network: nn.Module, plan: NetworkPlan, name: str = "") -> dict[str, nn.Linear | nn.Conv2d]:
    """The layers of a plan by their path; UnsupportedError naming one that cannot be quantised.

    name: of the network, for the error.
    """
    layers: dict[str, nn.Linear | nn.Conv2d] = {}
    for path in (layer.path for layer in plan.layers):
        whole = f"{name}.{path}" if name else path
        try:
            layer = network.get_submodule(path)
        except AttributeError:  # the graph counts on where a forward pass applies a layer again
            raise UnsupportedError(
                f"layer {whole!r} is no module of its own: is one layer applied twice? Leave it out with skip"
            ) from None
        if type(layer) is not nn.Linear and type(layer) is not nn.Conv2d:
            raise UnsupportedError(
                f"layer {whole!r} is a {type(layer).__name__}; quantisation-aware training knows Linear and Conv2d: "
                "leave it out with skip"
            )
        layers[path] = layer
    return layers


def install(network: nn.Module, plan: NetworkPlan, spec: QatSpec, *, target: bool) -> RangeTable:
    """Gives the layers of a network their quantisers, and the network the table of its ranges.

    Layers change their class in place: parameters stay the objects that an optimiser holds, and keep their names.
    """
    layers = layers_of(network, plan)
    if hasattr(network, TRAINED_RANGES):
        raise QuarlError(
            f"the {type(network).__name__} has an attribute {TRAINED_RANGES!r} already; is it prepared twice?"
        )
    table = RangeTable(plan, spec, layers)
    table.train(network.training)
    for parameter in table.parameters():
        parameter.requires_grad_(not target)
    network.add_module(TRAINED_RANGES, table)
    for place, layer in enumerate(layers.values()):
        layer.__class__ = QatLinear if isinstance(layer, nn.Linear) else QatConv2d
        object.__setattr__(layer, "quant", LayerQuantizer(table, place, target=target))
    return table
