"""Where training for integers begins: at the rounding that changes least of what each layer computes.

Fake quantization rounds every weight to nearest, and what a trained network becomes when that begins to act is often no
agent at all. So at the switch the weights themselves move, as far as it takes for rounding to nearest to give them the
codes that post-training quantization would choose (Frantar et al. 2023, algorithm 1); training goes on from there.
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
from quarl.policy.trained import LayerPlan
from quarl.qat.ranges import RangeTable
from quarl.quant.affine import dequantize
from quarl.quant.rounding import output_aware_qparams, second_moment, to_the_ends
from quarl.readers.aten import evaluating

NUM_OBSERVATIONS, NUM_IMAGES = 2_048, 256
ROOM = 0.4
"""Of a step, to either side of its number on the grid: a weight that lies there stays, the others move no further.
Numbers in the middle of a step would take small learning rates too long to leave."""
Moved = dict[str, Tensor]
"""What was added to a parameter, by its name."""


def remembered(model: BaseAlgorithm) -> Tensor | None:
    """Observations of an off-policy algorithm's replay, as networks see them; None where there are none.

    On-policy algorithms have forgotten theirs when the rollout begins at which quantization begins to act.
    """
    replay = getattr(model, "replay_buffer", None)
    if not isinstance(replay, ReplayBuffer) or replay.size() == 0:
        return None
    number = NUM_IMAGES if len(replay.obs_shape) == 3 else NUM_OBSERVATIONS
    sample: Any = replay.sample(number, env=model.get_vec_normalize_env())
    observations: Tensor = sample.observations
    return observations


def start(policy: Any, network: nn.Module, table: RangeTable, observations: Tensor) -> Moved:
    """Moves the weights of the network that acts to better codes, layer by layer, each fitted to rounded inputs.

    Biases make up for what that adds to the layer's outputs on average (Nagel et al. 2019, section 4.2). Layers with
    more than MAX_INPUTS inputs stay.
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
    """What one layer of the policy reads where it acts on the observations."""
    read: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0]))
    try:
        policy._predict(observations, deterministic=True)
    finally:
        hook.remove()
    return read[0]


def _fitted(module: Any, columns: Tensor) -> Tensor:
    """Return the weight whose rounding changes the layer's outputs least.

    The weights of scores are not all where they are left alone: what they have in common is taken out of them once
    more. So several ranges are tried there, and the weight as it is.
    """
    layer: LayerPlan = module.plan
    mid_rise = module.table.spec.mid_rise(layer.bits)
    h = second_moment(columns.cpu().numpy())
    part = rounded_part(module.weight, scores=layer.scores)
    numbers: Array = part.double().cpu().numpy().reshape(len(part), -1)

    def fitted(shrinks: Array) -> Tensor:
        codes, q = to_the_ends(numbers, h, output_aware_qparams(numbers, h, layer.bits, shrinks, mid_rise=mid_rise))
        grid = dequantize(codes, q)
        near = numbers.clip(grid - ROOM * q.scale, grid + ROOM * q.scale)
        # the ends themselves tell the scale
        inside = np.abs(codes - q.zero_point) < q.qmax - q.zero_point
        new = torch.as_tensor(np.where(inside, near, grid)).reshape(part.shape).to(part)
        moved: Tensor = new + (module.weight - part)
        return moved

    def lost(candidate: Tensor) -> float:
        error: Array = _added(module, candidate).double().cpu().numpy()
        return float(np.einsum("ok,ok->", error @ h, error))

    if not layer.scores:
        return fitted(SHRINKS)
    best: Tensor = min((module.weight, *(fitted(SHRINKS[i : i + 1]) for i in range(len(SHRINKS)))), key=lost)
    return best


def _added(module: Any, weight: Tensor) -> Tensor:
    """Return what computing with `weight` rounded adds to the layer's weight."""
    added: Tensor = module.rounded(weight)[0] - module.weight
    return added


def _columns(module: Any, x: Tensor) -> Tensor:
    """[N, K]: what the layer's sums read, some of them where there are many."""
    if isinstance(module, nn.Linear):
        columns = x.reshape(-1, x.shape[-1])
    else:
        spread = functional.unfold(x, module.kernel_size, module.dilation, module.padding, module.stride)
        columns = spread.transpose(1, 2).reshape(-1, spread.shape[1])
    return columns[:: max(1, len(columns) // MAX_ROWS)]
