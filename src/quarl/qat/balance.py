"""Scaling of a network's channels to similar extents, right before fake quantization becomes active.

Post-training quantization does this to a copy (policy.rewrite.equalize), training to the weights it continues with.
Behind a ReLU, the factor of a channel moves from the rows of one layer into the columns of the next (Nagel et al. 2019,
section 4.1; Xiao et al. 2023, equation 4). Factors are powers of two, so that the network's float32 outputs stay the
same bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quarl.fake_quantization import rounded_part
from quarl.policy.rewrite import factors
from quarl.qat.ranges import RangeTable

ALPHA = 0.5
"""Share of the difficulty that moves to the weights, as in the default scheme; activations keep the other half."""
NEGLIGIBLE = 2.0**-16
"""Smallest extent of a channel that is scaled, relative to the largest channel's.

The average extent of a channel that is no longer active keeps falling, by a hundred orders of magnitude in a long
training. Squares of factors for it would not be finite. Channels that round to zero beside the others keep their
weights.
"""
MOMENTS = {"exp_avg": 1, "momentum_buffer": 1, "grad_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2, "square_avg": 2}
"""Gradient statistics of optimizers, with the power of the gradient that they average."""
Factors = Mapping[int, Tensor]
"""Factors [C] by the layer's place in the plan."""


def shared(policy: nn.Module) -> set[int]:
    """Return the identities of modules that a policy reaches by several names, as an extractor of actor and critic."""
    counted = Counter(id(module) for _, module in policy.named_modules(remove_duplicate=False))
    return {module for module, count in counted.items() if count > 1}


def factors_of(table: RangeTable, network: nn.Module, apart: set[int]) -> Factors:
    """Return the factors of the layers that feed others through a ReLU.

    Args:
        table: Ranges and plan of the network.
        network: The network.
        apart: Identities of modules to leave unscaled.

    Returns:
        Factors [C] by the layer's place in the plan.
    """
    scales = {}
    planned = {layer.path: layer for layer in table.plan.layers}
    for place, layer in enumerate(table.plan.layers):
        if not layer.feeds or id(network.get_submodule(layer.path)) in apart:
            continue
        extent = table.extent_of(place)
        readers = [(network.get_parameter(f"{path}.weight"), planned[path].scores) for path in layer.feeds]
        weights = [rounded_part(weight, scores=scores) for weight, scores in readers]
        # a flattened image has several columns for each channel
        reads = [weight.reshape(len(weight), len(extent), -1).abs().amax((0, 2)) for weight in weights]
        scale = factors(_noticeable(extent), _noticeable(torch.stack(reads).amax(0)), ALPHA)
        scales[place] = torch.as_tensor(np.exp2(np.round(np.log2(scale))), dtype=torch.float32, device=extent.device)
    return scales


def balance(table: RangeTable, network: nn.Module, scales: Factors, optimizer: Any = None) -> None:
    """Apply the factors to the network's weights and to the optimizer's gradient statistics.

    The ranges in the table become those of the scaled values.

    Args:
        table: Ranges and plan of the network.
        network: The network, changed in place.
        scales: Factors from `factors_of`.
        optimizer: Optimizer of the network; None for a target network.
    """
    for place, scale in scales.items():
        layer = table.plan.layers[place]
        rows: Any = network.get_submodule(layer.path)
        # rows of the layer and its bias, then columns of the layers that it feeds
        parameters = [(rows.weight, 1 / scale.reshape(-1, *(1,) * (rows.weight.ndim - 1)))]
        if rows.bias is not None:
            parameters.append((rows.bias, 1 / scale))
        for path in layer.feeds:
            weight: Any = network.get_submodule(path).weight
            parameters.append((weight, _like(weight, scale)))
        for parameter, factor in parameters:
            with torch.no_grad():
                parameter.mul_(factor)
            for name, power in MOMENTS.items():
                remembered = {} if optimizer is None else optimizer.state.get(parameter, {})
                if isinstance(remembered.get(name), Tensor):
                    remembered[name].div_(factor**power)
        if layer.behind is not None and layer.behind.row in table.seen:
            table.seen_range[layer.behind.row, 1] = (table.extent_of(place) / scale).max()


def _noticeable(extent: Tensor) -> NDArray[Any]:
    """Return extent [C] with 0 for channels that are nearly silent."""
    return np.asarray(torch.where(extent < NEGLIGIBLE * extent.max(), 0, extent).numpy(force=True))


def _like(weight: Tensor, scale: Tensor) -> Tensor:
    """Return the factor of each column of the weight, in the weight's shape."""
    of_columns = scale.repeat_interleave(weight.shape[1] // len(scale))
    return of_columns.reshape(1, -1, *(1,) * (weight.ndim - 2))
