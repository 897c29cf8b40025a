"""Dense and convolution layers that compute with fake-quantised numbers, under the names and parameters they had."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.actor import TRAINED_RANGES
from quarl.qat.plan import NetworkPlan
from quarl.qat.table import LayerQuantizer, RangeTable
from quarl.quant.training import QatSpec


class QatLinear(nn.Linear):
    """nn.Linear between its quantisers."""

    quant: LayerQuantizer

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():  # an extracted policy is the float one; its grids are taken from the tables
            return super().forward(x)
        quant = self.quant
        weight, bias = quant.parameters(self)
        return quant.behind(functional.linear(quant.before(x), weight, bias))


class QatConv2d(nn.Conv2d):
    """nn.Conv2d between its quantisers."""

    quant: LayerQuantizer

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            return super().forward(x)
        quant = self.quant
        weight, bias = quant.parameters(self)
        return quant.behind(self._conv_forward(quant.before(x), weight, bias))


def install(network: nn.Module, plan: NetworkPlan, spec: QatSpec, *, target: bool) -> RangeTable:
    """Gives the layers of a network their quantisers, and the network the table of its ranges.

    Layers change their class in place: parameters stay the objects that an optimiser holds, and keep their names.
    """
    layers: dict[str, nn.Linear | nn.Conv2d] = {}
    for path in (layer.path for layer in plan.layers):
        layer = network.get_submodule(path)
        if type(layer) is not nn.Linear and type(layer) is not nn.Conv2d:
            raise UnsupportedError(
                f"layer {path!r} is a {type(layer).__name__}; quantisation-aware training knows Linear and Conv2d"
            )
        layers[path] = layer
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
