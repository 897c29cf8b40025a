"""Conversion of a model trained with fake quantization into a policy with integer weights, on the same grids."""

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
    """Return the model's policy in integers as an agent, which predicts, evaluates and saves.

    >>> qat.convert(model)
    Agent(ppo CartPole-v1, int4 static, 4-64-64-2, 4,480 weights)

    Raises:
        QuarlError: Fake quantization is not active.
    """
    return Agent(quantized_policy(model))


def quantized_policy(model: BaseAlgorithm, *, distribution: bool = False) -> QuantizedPolicy:
    """Return the model's policy in integers, in static mode.

    It computes the same as the model's fake-quantized forward pass.

    Args:
        model: Model trained with fake quantization.
        distribution: Return the parameters of the action distribution, as in readers.extract.from_model.

    Returns:
        The quantized policy.

    Raises:
        QuarlError: The model is not prepared, or fake quantization is not active.
    """
    spec = spec_of(model)
    if spec is None:
        raise QuarlError("the model is not prepared for quantization-aware training; quantize it with quarl ptq")
    if not is_active(model):
        raise QuarlError(
            "quantization was never active in this model's training: learn with callback=qat.QuantDelay(), and beyond "
            "its delay"
        )
    policy = from_model(model, distribution=distribution)
    return trained.on_grids(policy, spec.deployed, bits=layer_bits(model, policy), grids=trained_grids(model, policy))


def layer_bits(model: BaseAlgorithm, policy: Policy) -> dict[str, int]:
    """Return the weight bits of each layer of the model's extracted policy, without layers that stay float."""
    return {name: plan.bits for name, plan in _plans(model, policy).items()}


def trained_grids(model: BaseAlgorithm, policy: Policy) -> dict[str, ActivationGrid]:
    """Return the grids in force for the activations of the model's extracted policy."""
    table = next(iter(tables_of(model.policy).values()))  # the network that acts
    return trained.trained_grids(policy, table.spec, _plans(model, policy), table.grid_of)


def _plans(model: BaseAlgorithm, policy: Policy) -> dict[str, trained.LayerPlan]:
    """Return the plans of the policy's layers that were not skipped."""
    return {
        op.name: layer.plan
        for op in policy.linear
        if isinstance(layer := model.policy.get_submodule(op.name), QatLayer)
    }
