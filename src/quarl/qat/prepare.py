"""A Stable-Baselines3 model becomes one that can be trained quantization-aware, and tells how far it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import get_parameters_by_name

from quarl.config.train import LEARNERS
from quarl.errors import QuarlError, UnsupportedError, did_you_mean
from quarl.policy.operators import as_float32
from quarl.policy.trained import ACTING, KEY
from quarl.qat.balance import Factors, balance, factors_of, shared
from quarl.qat.fake_layers import layers_of
from quarl.qat.graphs import Graph, graphs_of, networks_of, optimizer_of
from quarl.qat.policies import TARGET, QatPolicy, carrying, tables_of
from quarl.qat.sites import layer_name, plan_network
from quarl.qat.start import Moved, remembered, start
from quarl.quant.spec import QatSpec, covers
from quarl.readers.extract import algorithm

RUNNING = ("running_",)
COPIED = {
    "batch_norm_stats": ("q_net", "critic"),
    "actor_batch_norm_stats": ("actor",),
    "critic_batch_norm_stats": ("critic",),
}
"""Attributes in which models list the buffers that go to target networks, and the networks they are of."""


def prepare(model: BaseAlgorithm, spec: QatSpec | str | int) -> None:
    """Makes the policy of a PPO, A2C, DQN, DDPG, TD3, SAC or D4PG model carry quantization-aware training, in place.

    Weights, optimizers and random numbers stay as they are. Pass `QuantDelay` as a callback to `learn`: until it
    switches fake quantization on, training computes what it would have, and ranges are watched.

    Raises UnsupportedError naming a layer that cannot be quantized; the model is as it was then.

    spec: a precision, as in "w4a8" or 4 (the first and the last layers keep 8), or a QatSpec.

    >>> qat.prepare(stable_baselines3.PPO("MlpPolicy", "CartPole-v1"), "w4a8")
    """
    spec = spec if isinstance(spec, QatSpec) else QatSpec.parse(spec)
    policy: Any = model.policy
    if isinstance(policy, QatPolicy):
        raise QuarlError(f"the model is prepared already, for {policy.spec.precision}; load or build it anew")
    if (algo := algorithm(model)) not in LEARNERS:
        raise UnsupportedError(
            f"quantisation-aware training takes {', '.join(LEARNERS)}, not {algo}: distil the trained agent instead"
        )
    carrier = carrying(policy)
    graphs = graphs_of(model, critic=spec.critic)
    _check_skip(spec, graphs)
    plans = {name: plan_network(name, of_network, spec) for name, of_network in graphs.items()}
    if not any(plan.layers for plan in plans.values()):
        raise QuarlError(f"skip leaves no layer to quantise: {', '.join(spec.skip)}")
    for name, network in networks_of(policy).items():
        if name in plans:
            weights = {graph.path(op.name): op for graph in graphs[name] for op in graph.policy.linear}
            for path, layer in layers_of(network, plans[name], name).items():
                bias = weights[path].bias if layer.bias is None else layer.bias.numpy(force=True)
                same = np.array_equal(as_float32(weights[path].weight), layer.weight.numpy(force=True))
                if not (same and np.array_equal(weights[path].bias, bias)):
                    raise UnsupportedError(
                        f"what layer {path!r} gives is normalised or changed by constants, which quantisation-aware "
                        "training does not imitate: leave it out with skip, or distil the trained agent instead"
                    )
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
    """Refuses names of no layer: what was meant would be quantized."""
    layers = [
        layer_name(name, graph, op.name)
        for name, of_network in graphs.items()
        for graph in of_network
        for op in graph.policy.linear
    ]
    for name in spec.skip:
        if not any(covers(name, layer) for layer in layers):
            raise QuarlError(f"skip names no layer that is quantised, {name!r}{did_you_mean(name, layers)}")


def spec_of(model: BaseAlgorithm) -> QatSpec | None:
    """What a prepared or loaded model is trained for; None where it was not prepared."""
    policy = model.policy
    return policy.spec if isinstance(policy, QatPolicy) else None


def is_active(model: BaseAlgorithm) -> bool:
    """Whether the model's policy computes with fake-quantized numbers."""
    return any(table.active for table in tables_of(model.policy).values())


def is_ready(model: BaseAlgorithm) -> bool:
    """Whether fake quantization acts and training has seen values, so that `convert` knows every range.

    An off-policy algorithm whose delay is over before its first update acts quantized, but has seen none yet.
    """
    originals = [table for name, table in tables_of(model.policy).items() if not name.endswith(TARGET)]
    return is_active(model) and all(table.grids or not table.site_of_row for table in originals)


def switched_at(model: BaseAlgorithm) -> int | None:
    """Environment steps after which fake quantization began to act; None where it does not."""
    steps = [int(table.switched_at) for table in tables_of(model.policy).values() if table.active]
    return max(steps, default=None)


def follow(model: BaseAlgorithm, *, active: bool) -> bool:
    """To be called between rollouts: puts the ranges seen so far in force, and fake quantization once `active`.

    With the switch, channels are balanced in the weights themselves, which keeps what the networks compute; those that
    act in off-policy algorithms begin at better codes (qat.start), and target networks move as far. They get the ranges
    of their originals; later ones they get as they get weights. Returns whether this call has switched fake
    quantization on.
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
        if original == name and switches:
            scales[name] = factors_of(table, networks[name], apart)
            balance(table, networks[name], scales[name], optimizer_of(model.policy, networks[name]))
            table.switch_on(model.num_timesteps)
            if observations is not None and name in ACTING:
                moved[name] = start(model.policy, networks[name], table, observations)
        elif original == name:
            table.follow()
        elif switches:  # originals come before their targets
            balance(table, networks[name], scales[original])
            with torch.no_grad():
                for parameter, change in moved.get(original, {}).items():
                    networks[name].get_parameter(parameter).add_(change)
            table.load_state_dict(tables[original].state_dict())
        else:
            table.refresh()
    return switches
