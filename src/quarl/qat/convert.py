"""A trained model with fake quantization becomes a policy with integer weights, on the grids it was trained with."""

from __future__ import annotations

from stable_baselines3.common.base_class import BaseAlgorithm

from quarl.api import Agent
from quarl.errors import QuarlError
from quarl.policy import trained
from quarl.policy.graph import ActivationGrid, Policy, QuantizedPolicy
from quarl.qat.fake_layers import QatLayer
from quarl.qat.policies import tables_of
from quarl.qat.prepare import is_active, spec_of
from quarl.readers.extract import from_model


def convert(model: BaseAlgorithm) -> Agent:
    """The model's policy in integers as an agent, which predicts, evaluates and saves; raises as `quantized_policy`.

    >>> qat.convert(model)
    Agent(ppo CartPole-v1, int4 static, 4-64-64-2, 4,480 weights)
    """
    return Agent(quantized_policy(model))


def quantized_policy(model: BaseAlgorithm, *, distribution: bool = False) -> QuantizedPolicy:
    """The model's policy in integers, in static mode: what its fake-quantized forward pass computes.

    distribution: as in readers.extract.from_model. Raises QuarlError where fake quantization is not active.
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
    return trained.on_grids(policy, spec.deployed, bits=layer_bits(model, policy), grids=trained_grids(model, policy))


def layer_bits(model: BaseAlgorithm, policy: Policy) -> dict[str, int]:
    """Return the bits of the weights of each layer of the model's extracted policy, without layers that stay float."""
    return {name: plan.bits for name, plan in _plans(model, policy).items()}


def trained_grids(model: BaseAlgorithm, policy: Policy) -> dict[str, ActivationGrid]:
    """Return the grids in force of the values of the model's extracted policy."""
    table = next(iter(tables_of(model.policy).values()))  # of the network that acts
    return trained.trained_grids(policy, table.spec, _plans(model, policy), table.grid_of)


def _plans(model: BaseAlgorithm, policy: Policy) -> dict[str, trained.LayerPlan]:
    """Return the plans of the policy's layers that were not skipped."""
    return {
        op.name: layer.plan
        for op in policy.linear
        if isinstance(layer := model.policy.get_submodule(op.name), QatLayer)
    }
