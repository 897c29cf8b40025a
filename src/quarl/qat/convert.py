"""A trained model with fake quantisation becomes a policy with integer weights, on the grids it was trained with."""

from __future__ import annotations

from stable_baselines3.common.base_class import BaseAlgorithm

from quarl.api import Agent
from quarl.calibration import on_grids
from quarl.errors import QuarlError
from quarl.policy.graph import ActivationGrid, Policy, QuantizedPolicy
from quarl.policy.grids import origin, trained_rules
from quarl.qat.layers import QatLayer
from quarl.qat.plan import Site
from quarl.qat.prepare import is_active, spec_of
from quarl.qat.table import RangeTable
from quarl.readers.extract import from_model


def convert(model: BaseAlgorithm) -> Agent:
    """The model's policy in integers as an agent, which predicts, evaluates and saves; raises as `quantized_policy`.

    >>> qat.convert(model)
    Agent(ppo CartPole-v1, int4 static, 4-64-64-2, 4,480 weights)
    """
    return Agent(quantized_policy(model))


def quantized_policy(model: BaseAlgorithm, *, distribution: bool = False) -> QuantizedPolicy:
    """The model's policy in integers, in static mode: what its fake-quantised forward pass computes.

    distribution: as in readers.extract.from_model. Raises QuarlError where fake quantisation is not active.
    """
    spec = spec_of(model)
    if spec is None:
        raise QuarlError("the model is not prepared for quantisation-aware training; quantise it with quarl ptq")
    if not is_active(model):
        raise QuarlError(
            "quantisation has not acted in this model's training yet: learn with callback=qat.QuantDelay(), and beyond "
            "its delay"
        )
    policy = from_model(model, distribution=distribution)
    return on_grids(policy, spec.deployed, bits=layer_bits(model, policy), grids=trained_grids(model, policy))


def layer_bits(model: BaseAlgorithm, policy: Policy) -> dict[str, int]:
    """Bits of the weights of each layer of the model's extracted policy; layers that stay float are left out."""
    return {name: layer.plan.bits for name, layer in _layers(model, policy).items()}


def trained_grids(model: BaseAlgorithm, policy: Policy) -> dict[str, ActivationGrid]:
    """The grids in force of the values of the model's extracted policy."""
    spec = spec_of(model)
    assert spec is not None
    rules = trained_rules(policy, spec.skips) if spec.activation_bits is not None else {}
    layers = _layers(model, policy)
    sites: dict[str, tuple[RangeTable, Site | None]] = {}
    for op in policy.linear:
        if (layer := layers.get(op.name)) is not None:
            sites.setdefault(origin(rules, op.inputs[0]), (layer.table, layer.plan.source))
            sites[op.name] = layer.table, layer.plan.behind
    return {name: _in_force(name, *sites[origin(rules, name)]) for name in rules}


def _in_force(name: str, table: RangeTable, site: Site | None) -> ActivationGrid:
    grid = None if site is None else table.grid_of(site)
    if grid is None:
        raise QuarlError(f"training has seen no values of {name!r}; train on, so that its range becomes known")
    return grid


def _layers(model: BaseAlgorithm, policy: Policy) -> dict[str, QatLayer]:
    """The layers of the policy that were not skipped."""
    layers = {op.name: model.policy.get_submodule(op.name) for op in policy.linear}
    return {name: layer for name, layer in layers.items() if isinstance(layer, QatLayer)}
