"""Folding of sb3-contrib's computations before or after an actor's layers into the weights of these layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from quarl.errors import QuarlError
from quarl.policy.operators import Dense, Op
from quarl.readers.affine_values import Elementwise, Layer
from quarl.readers.sb3_network import SAC, Parameters

RENORM_EPSILON = 0.001
"""CrossQPolicy's default of batch_norm_eps."""


def fold_renorm(ops: Sequence[Op], parameters: Parameters, epsilon: float) -> list[Op]:
    """Fold the batch renormalization before each layer of a CrossQ actor into the layer; other actors do not change.

    In evaluation it is (x - ra_mean) / sqrt(ra_var + epsilon) * scale + bias (Bhatt et al. 2024, "CrossQ: Batch
    Normalization in Deep Reinforcement Learning"). That is affine, like the layer that follows it.

    Args:
        ops: Operators of the actor.
        parameters: Parameters of the policy, from which the statistics are taken.
        epsilon: Number added to the variance.

    Raises:
        QuarlError: epsilon or a variance is negative.
    """
    (chain,), output = SAC.chains, str(SAC.output)
    if f"{chain}.1.weight" not in parameters.state:
        return list(ops)
    if not isinstance(epsilon, int | float) or not epsilon >= 0:
        raise QuarlError(f"batch_norm_eps of the policy is {str(epsilon)[:40]}, not a small positive number")
    places = (f"{chain}.{3 * i}" for i in range(len(ops)))
    renormed = (isinstance(op, Dense) and op.name.startswith((f"{chain}.", output)) for op in ops)
    return [
        _renormed(op, parameters, next(places), epsilon) if has else op for op, has in zip(ops, renormed, strict=True)
    ]


def _renormed(op: Op, parameters: Parameters, name: str, epsilon: float) -> Op:
    assert isinstance(op, Dense)
    parts = (parameters.take(f"{name}.{part}", op.weight.shape[1:]) for part in ("ra_mean", "ra_var", "scale", "bias"))
    mean, variance, scale, bias = (part.astype(np.float64) for part in parts)
    if not (variance + epsilon > 0).all():
        raise QuarlError(f"parameter {name}.ra_var is negative; the file is damaged")
    parameters.taken.add(f"{name}.steps")
    factor = scale / np.sqrt(variance + epsilon)
    folded = Layer.of(op).reading(Elementwise(op.inputs[0], factor, bias - mean * factor), op.weight.shape[1:])
    assert folded is not None
    return folded.made()


def mean_over_quantiles(ops: Sequence[Op], num_actions: int, num_quantiles: object = None) -> list[Op]:
    """Replace the output of quantiles [quantiles, actions] by the action values, their means.

    The mean over quantiles of a layer's outputs is the output of a layer with the means of its weights (Dabney et al.
    2018, "Distributional Reinforcement Learning with Quantile Regression").

    Args:
        ops: Operators of the network; the last is dense.
        num_actions: Number of actions.
        num_quantiles: Expected number of quantiles; None accepts any number.

    Raises:
        QuarlError: The outputs do not divide into the expected quantiles.
    """
    op = ops[-1]
    assert isinstance(op, Dense)
    quantiles, rest = divmod(len(op.bias), num_actions)
    if rest or num_quantiles not in (None, quantiles):
        said = str(num_quantiles or "whole")[:20]
        raise QuarlError(f"the network has {len(op.bias)} outputs, not {said} quantiles of {num_actions} actions")
    layer = Layer.of(op)
    return [*ops[:-1], replace(layer, rows=layer.rows.reshape(-1, quantiles, num_actions).mean(axis=1)).made()]
