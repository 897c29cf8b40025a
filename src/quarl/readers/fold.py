"""What sb3-contrib computes in front of an actor's layers or behind them, inside these layers' weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.policy.operators import Dense, Op, as_float32
from quarl.readers.actor import SAC, Parameters

RENORM_EPSILON = 0.001
"""CrossQPolicy's default of batch_norm_eps."""


def fold_renorm(ops: Sequence[Op], parameters: Parameters, epsilon: float) -> list[Op]:
    """The operators with the batch renormalisation in front of every layer of a CrossQ actor, where it has any.

    In evaluation it is (x - ra_mean) / sqrt(ra_var + epsilon) * scale + bias (Bhatt et al. 2024, "CrossQ: Batch
    Normalization in Deep Reinforcement Learning"), which is affine, as the layer behind it is.
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


def _renormed(op: Op, parameters: Parameters, name: str, epsilon: float) -> Dense:
    assert isinstance(op, Dense)
    parts = (parameters.take(f"{name}.{part}", op.weight.shape[1:]) for part in ("ra_mean", "ra_var", "scale", "bias"))
    mean, variance, scale, bias = (part.astype(np.float64) for part in parts)
    if not (variance + epsilon > 0).all():
        raise QuarlError(f"parameter {name}.ra_var is negative; the file is damaged")
    parameters.taken.add(f"{name}.steps")
    factor = scale / np.sqrt(variance + epsilon)
    weight = as_float32(op.weight).astype(np.float64)
    return _dense(op, weight * factor, op.bias + weight @ (bias - mean * factor))


def mean_over_quantiles(ops: Sequence[Op], num_actions: int, num_quantiles: object = None) -> list[Op]:
    """The operators with the values of actions as their output, where it is quantiles of them [quantiles, actions].

    The mean over quantiles of a layer's outputs is the output of a layer with the means of its weights (Dabney et al.
    2018, "Distributional Reinforcement Learning with Quantile Regression"). num_quantiles: None takes as many as there
    are.
    """
    op = ops[-1]
    assert isinstance(op, Dense)
    quantiles, rest = divmod(len(op.bias), num_actions)
    if rest or num_quantiles not in (None, quantiles):
        said = "whole quantiles" if num_quantiles is None else f"{str(num_quantiles)[:20]} quantiles"
        raise QuarlError(f"the network has {len(op.bias)} outputs, not {said} of {num_actions} actions")
    weight = as_float32(op.weight).astype(np.float64).reshape(quantiles, num_actions, -1)
    bias = op.bias.astype(np.float64).reshape(quantiles, num_actions)
    return [*ops[:-1], _dense(op, weight.mean(axis=0), bias.mean(axis=0))]


def _dense(op: Dense, weight: Array, bias: Array) -> Dense:
    return replace(op, weight=weight.astype(np.float32), bias=bias.astype(np.float32))
