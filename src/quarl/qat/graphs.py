"""The networks of a Stable-Baselines3 policy in quantization-aware training, and the graphs that they compute."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from quarl.algorithms.d4pg_policy import CategoricalCritic
from quarl.policy.graph import ActionHead, Policy
from quarl.policy.operators import OBSERVATION
from quarl.readers.extract import algorithm, from_model, from_module
from quarl.readers.plain_spaces import from_live, observation_box
from quarl.readers.sb3_network import LAYOUTS, ON_POLICY
from quarl.readers.trace import trace

ON_POLICY_NETWORK = ""
"""Name of the network of an on-policy policy, which is one because its parts share a features extractor."""
NETWORKS = ("q_net", "q_net_target", "actor", "actor_target", "critic", "critic_target")


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The computation of a network or of a part of it."""

    policy: Policy
    inside: str = ""
    """Prefix of layer names in the graph that their paths in the network lack."""
    prefix: str = ""
    """Prefix of layer paths in the network that their names in the graph lack."""
    acts: bool = False
    """True if the graph's head chooses actions; a critic's head has no meaning."""
    noisy: bool = False
    """True if exploration multiplies the last layer's input (gSDE, Raffin et al. 2021)."""

    def path(self, layer: str) -> str:
        """Return the path from the network to the layer of that name."""
        return self.prefix + layer.removeprefix(self.inside)


def networks_of(policy: nn.Module) -> dict[str, nn.Module]:
    """Return the networks of a policy by name, including targets."""
    attributes = {name: getattr(policy, name, None) for name in NETWORKS}
    networks = {name: network for name, network in attributes.items() if isinstance(network, nn.Module)}
    return networks or {ON_POLICY_NETWORK: policy}


def graphs_of(model: Any, *, critic: bool) -> dict[str, list[Graph]]:
    """Return the graphs of each network by its name; target networks compute the same as their originals."""
    algo = algorithm(model)
    acting = from_model(model, distribution=not model.use_sde)
    if LAYOUTS[algo] is ON_POLICY:
        return {
            ON_POLICY_NETWORK: [
                Graph(policy=acting, acts=True, noisy=model.use_sde),
                *([_value(model.policy)] if critic else []),
            ]
        }
    if algo == "dqn":
        return {"q_net": [Graph(policy=acting, inside="q_net.", acts=True)]}
    graphs = {"actor": [Graph(policy=acting, inside="actor.", acts=True, noisy=model.use_sde)]}
    return {**graphs, "critic": list(_critics(model.policy.critic))} if critic else graphs


class _Value(nn.Module):
    """The value network of an on-policy algorithm."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        from stable_baselines3.common.policies import BaseModel

        policy: Any = self.policy
        features = BaseModel.extract_features(policy, observation, policy.vf_features_extractor)
        value: torch.Tensor = policy.value_net(policy.mlp_extractor.forward_critic(features))
        return value


def _value(policy: Any) -> Graph:
    observed = observation_box(from_live(policy.observation_space, "observation_space"), "observation_space")
    shape, dtype = observed.low.shape, observed.observation_dtype
    ops = trace(_Value(policy), [(OBSERVATION, shape)], dtype, named_by=policy)
    head = ActionHead(kind="argmax")
    return Graph(policy=Policy(observation_shape=shape, observation_dtype=dtype, ops=tuple(ops), head=head))


def _critics(critic: nn.Module) -> Iterator[Graph]:
    """Yield the graph of each Q network on concatenated features and actions.

    Its extractor stays float or is the actor's.
    """
    if isinstance(critic, CategoricalCritic):
        yield _critic(nn.Sequential(OrderedDict(torso=critic.torso, head=critic.head)))
        return
    for name, network in critic.named_children():
        if isinstance(network, nn.Sequential) and any(isinstance(layer, nn.Linear) for layer in network.modules()):
            yield _critic(network, prefix=f"{name}.")


def _critic(network: nn.Module, prefix: str = "") -> Graph:
    first = next(layer for layer in network.modules() if isinstance(layer, nn.Linear))
    return Graph(policy=from_module(network, (first.in_features,), head=ActionHead(kind="argmax")), prefix=prefix)
