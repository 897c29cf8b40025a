"""Preparation of a Stable-Baselines3 model for quantization-aware training, and its progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import get_parameters_by_name

from quarl.errors import QuarlError, UnsupportedError, did_you_mean
from quarl.policy.operators import as_float32
from quarl.policy.trained import ACTING, KEY
from quarl.qat.balance import Factors, balance, factors_of, shared
from quarl.qat.fake_layers import layers_of
from quarl.qat.graphs import Graph, graphs_of, networks_of
from quarl.qat.policies import TARGET, QatPolicy, carrying, tables_of
from quarl.qat.sites import layer_name, plan_network
from quarl.qat.start import Moved, remembered, start
from quarl.quant.spec import QatSpec, covers
from quarl.readers.extract import algorithm
from quarl.specs import LEARNERS

RUNNING = ("running_",)
COPIED = {
    "batch_norm_stats": ("q_net", "critic"),
    "actor_batch_norm_stats": ("actor",),
    "critic_batch_norm_stats": ("critic",),
}
"""Attributes in which models list the buffers to copy to target networks, with the networks of these buffers."""


def prepare(model: BaseAlgorithm, spec: QatSpec | str | int) -> None:
    """Prepare the policy of a PPO, A2C, DQN, DDPG, TD3, SAC or D4PG model for quantization-aware training, in place.

    Weights, optimizers and random numbers do not change. Pass `QuantDelay` as a callback to `learn`: until it switches
    fake quantization on, training computes the same as without it, and ranges are watched.

    >>> qat.prepare(stable_baselines3.PPO("MlpPolicy", "CartPole-v1"), "w4a8")

    Args:
        model: Model to prepare.
        spec: A precision such as "w4a8" or 4 (the first and last layers keep 8 bits), or a QatSpec.

    Raises:
        UnsupportedError: A layer cannot be quantized; the message names it, and the model does not change.
        QuarlError: The model is already prepared, or skip excludes all layers.
    """
    spec = spec if isinstance(spec, QatSpec) else QatSpec.parse(spec)
    policy: Any = model.policy
    if isinstance(policy, QatPolicy):
        raise QuarlError(f"the model is already prepared for {policy.spec.precision}; load or build a new one")
    if (algo := algorithm(model)) not in LEARNERS:
        raise UnsupportedError(
            f"quantization-aware training supports {', '.join(LEARNERS)}, not {algo}: distill the trained agent instead"
        )
    # plan every network before anything changes
    carrier = carrying(policy)
    graphs = graphs_of(model, critic=spec.critic)
    _check_skip(spec, graphs)
    plans = {name: plan_network(name, of_network, spec) for name, of_network in graphs.items()}
    if not any(plan.layers for plan in plans.values()):
        raise QuarlError(f"skip leaves no layer to quantize: {', '.join(spec.skip)}")
    # reject layers whose weight the graph has changed
    for name, network in networks_of(policy).items():
        if name in plans:
            weights = {graph.path(op.name): op for graph in graphs[name] for op in graph.policy.linear}
            for path, layer in layers_of(network, plans[name], name).items():
                bias = weights[path].bias if layer.bias is None else layer.bias.numpy(force=True)
                same = np.array_equal(as_float32(weights[path].weight), layer.weight.numpy(force=True))
                if not (same and np.array_equal(weights[path].bias, bias)):
                    raise UnsupportedError(
                        f"the output of layer {path!r} is normalized or changed by constants, which quantization-aware "
                        "training does not imitate: exclude it with skip, or distill the trained agent instead"
                    )
    # change the model; its saved form restores the plans
    qat = {"spec": spec.to_json(), "networks": {name: plan.to_json() for name, plan in plans.items()}}
    policy.__class__ = carrier
    policy.carry(qat)
    model.policy_class = carrier
    model.policy_kwargs = {**model.policy_kwargs, KEY: qat}
    for attribute, names in COPIED.items():
        for suffix in ("", "_target"):
            if hasattr(model, attribute + suffix):
                network = next(getattr(policy, name + suffix) for name in names if hasattr(policy, name))
                setattr(model, attribute + suffix, get_parameters_by_name(network, RUNNING))


def _check_skip(spec: QatSpec, graphs: Mapping[str, Sequence[Graph]]) -> None:
    """Raise QuarlError if a name in skip matches no layer, because the intended layer would be quantized."""
    layers = [
        layer_name(name, graph, op.name)
        for name, of_network in graphs.items()
        for graph in of_network
        for op in graph.policy.linear
    ]
    for name in spec.skip:
        if not any(covers(name, layer) for layer in layers):
            raise QuarlError(f"skip matches no quantized layer: {name!r}{did_you_mean(name, layers)}")


def spec_of(model: BaseAlgorithm) -> QatSpec | None:
    """Return the precision that a prepared or loaded model is trained for; None if it was not prepared."""
    policy = model.policy
    return policy.spec if isinstance(policy, QatPolicy) else None


def is_active(model: BaseAlgorithm) -> bool:
    """Return True if the model's policy computes with fake-quantized numbers."""
    return any(table.active for table in tables_of(model.policy).values())


def is_ready(model: BaseAlgorithm) -> bool:
    """Return True if fake quantization is active and training has seen values, so that `convert` knows every range.

    An off-policy algorithm whose delay ends before its first update acts quantized but has seen no values yet.
    """
    originals = [table for name, table in tables_of(model.policy).items() if not name.endswith(TARGET)]
    return is_active(model) and all(table.grids or not table.site_of_row for table in originals)


def switched_at(model: BaseAlgorithm) -> int | None:
    """Return the environment steps at which fake quantization became active; None if it is not active."""
    steps = [int(table.switched_at) for table in tables_of(model.policy).values() if table.active]
    return max(steps, default=None)


def follow(model: BaseAlgorithm, *, active: bool) -> bool:
    """Put the ranges seen so far in force, and activate fake quantization once `active`; call it between rollouts.

    At the switch, channels are balanced in the weights themselves, which does not change the networks' outputs. Acting
    networks of off-policy algorithms start from better codes (qat.start), and target networks move by the same amount.
    Targets also receive the ranges of their originals; later they receive ranges as they receive weights.

    Args:
        model: The prepared model.
        active: Fake quantization is due.

    Returns:
        True if this call has switched fake quantization on.
    """
    assert isinstance(model.policy, QatPolicy)
    model.policy.followed = True
    switches = active and not is_active(model)
    tables = tables_of(model.policy)
    networks = networks_of(model.policy)
    apart = shared(model.policy) if switches else set()
    observations = remembered(model) if switches else None
    moved: dict[str, Moved] = {}
    scales: dict[str, Factors] = {}
    for name, table in tables.items():
        original = name.removesuffix(TARGET)
        if original == name:
            if switches:
                scales[name] = factors_of(table, networks[name], apart)
                owner = networks[name] if hasattr(networks[name], "optimizer") else model.policy
                balance(table, networks[name], scales[name], owner.optimizer)
                table.switched_at.fill_(model.num_timesteps)
            table.follow()
            if observations is not None and name in ACTING:
                moved[name] = start(model.policy, networks[name], table, observations)
        elif switches:  # originals come before their targets
            balance(table, networks[name], scales[original])
            with torch.no_grad():
                for parameter, change in moved.get(original, {}).items():
                    networks[name].get_parameter(parameter).add_(change)
            table.load_state_dict(tables[original].state_dict())
        else:
            table.refresh()
    return switches
