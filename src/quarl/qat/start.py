"""The start of training for integers, at the rounding that changes each layer's outputs least.

Fake quantization rounds every weight to nearest, and a trained network often loses its skill when that becomes active.
At the switch the weights themselves therefore move, as far as needed for rounding to nearest to give them the codes
that post-training quantization would choose (Frantar et al. 2023, algorithm 1). Training continues from there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from torch import Tensor, nn
from torch.nn import functional

from quarl.arrays import Array
from quarl.fake_quantization import rounded_part
from quarl.policy.fit import MAX_INPUTS, MAX_ROWS, SHRINKS
from quarl.qat.fake_layers import QatLayer
from quarl.qat.ranges import RangeTable
from quarl.quant.affine import dequantize
from quarl.quant.rounding import output_aware_qparams, second_moment, to_the_ends
from quarl.readers.aten import evaluating

NUM_OBSERVATIONS, NUM_IMAGES = 2_048, 256
ROOM = 0.4
"""Largest distance of a moved weight from its level, in steps; weights within it do not move.

Small learning rates would need too long to move numbers out of the middle of a step.
"""
Moved = dict[str, Tensor]
"""Change of each parameter, by its name."""


def remembered(model: BaseAlgorithm) -> Tensor | None:
    """Return observations from an off-policy algorithm's replay, as networks see them; None if there are none.

    On-policy algorithms have dropped theirs by the start of the rollout at which quantization becomes active.
    """
    replay = getattr(model, "replay_buffer", None)
    if not isinstance(replay, ReplayBuffer) or replay.size() == 0:
        return None
    number = NUM_IMAGES if len(replay.obs_shape) == 3 else NUM_OBSERVATIONS
    return replay.sample(number, env=model.get_vec_normalize_env()).observations


def start(policy: Any, network: nn.Module, table: RangeTable, observations: Tensor) -> Moved:
    """Move the weights of an acting network to better codes, layer by layer, each fitted to rounded inputs.

    Biases compensate the mean change of the layer's outputs (Nagel et al. 2019, section 4.2). Layers with more than
    MAX_INPUTS inputs do not change.

    Args:
        policy: Policy of the network.
        network: Network that acts.
        table: Its ranges and plan.
        observations: Observations [N, ...] from the replay.

    Returns:
        The change of each parameter, by its name.
    """
    moved: Moved = {}
    with evaluating(policy), torch.no_grad():
        for layer in table.plan.layers:
            module: Any = network.get_submodule(layer.path)
            if module.weight[0].numel() > MAX_INPUTS:
                continue
            columns = _columns(module, module.before(_input(policy, module, observations)))
            weight = _fitted(module, columns)
            if module.bias is not None:
                added = _added(module, weight).flatten(1) @ columns.mean(0)
                moved[f"{layer.path}.bias"] = -added
                module.bias.sub_(added)
            moved[f"{layer.path}.weight"] = weight - module.weight
            module.weight.copy_(weight)
        table.cache.clear()
    return moved


def _input(policy: Any, module: nn.Module, observations: Tensor) -> Tensor:
    """Return the input of one layer while the policy acts on the observations."""
    read: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0]))
    try:
        policy._predict(observations, deterministic=True)
    finally:
        hook.remove()
    return read[0]


def _fitted(module: QatLayer, columns: Tensor) -> Tensor:
    """Return the weight whose rounding changes the layer's outputs least.

    Weights of scores do not all stay at their present values, because their common part is subtracted once more. For
    them several ranges are tried, and the unchanged weight.
    """
    layer = module.plan
    mid_rise = module.table.spec.mid_rise(layer.bits)
    h = second_moment(columns.cpu().numpy())
    part = rounded_part(module.weight, scores=layer.scores)
    numbers: Array = part.double().cpu().numpy().reshape(len(part), -1)

    def fitted(shrinks: Array) -> Tensor:
        codes, q = to_the_ends(numbers, h, output_aware_qparams(numbers, h, layer.bits, shrinks, mid_rise=mid_rise))
        grid = dequantize(codes, q)
        near = numbers.clip(grid - ROOM * q.scale, grid + ROOM * q.scale)
        # the largest codes determine the scale
        inside = np.abs(codes - q.zero_point) < q.qmax - q.zero_point
        new = torch.as_tensor(np.where(inside, near, grid)).reshape(part.shape).to(part)
        return new + (module.weight - part)

    def lost(candidate: Tensor) -> float:
        error: Array = _added(module, candidate).double().cpu().numpy()
        return float(np.einsum("ok,ok->", error @ h, error))

    if not layer.scores:
        return fitted(SHRINKS)
    return min((module.weight, *(fitted(SHRINKS[i : i + 1]) for i in range(len(SHRINKS)))), key=lost)


def _added(module: QatLayer, weight: Tensor) -> Tensor:
    """Return the difference between `weight` rounded and the layer's weight."""
    return module.rounded(weight)[0] - module.weight


def _columns(module: Any, x: Tensor) -> Tensor:
    """Return the inputs [N, K] of the layer's sums, a sample if there are many."""
    if isinstance(module, nn.Linear):
        columns = x.reshape(-1, x.shape[-1])
    else:
        spread = functional.unfold(x, module.kernel_size, module.dilation, module.padding, module.stride)
        columns = spread.transpose(1, 2).reshape(-1, spread.shape[1])
    return columns[:: max(1, len(columns) // MAX_ROWS)]
