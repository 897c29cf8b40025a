"""What sb3-contrib computes in front of an actor's layers or behind them, inside these layers' weights."""

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
    """The operators with the batch renormalization in front of every layer of a CrossQ actor, where it has any.

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
    """The operators with the values of actions as their output, where it is quantiles of them [quantiles, actions].

    The mean over quantiles of a layer's outputs is the output of a layer with the means of its weights (Dabney et al.
    2018, "Distributional Reinforcement Learning with Quantile Regression"). num_quantiles: None takes as many as there
    are.
    """
    op = ops[-1]
    assert isinstance(op, Dense)
    quantiles, rest = divmod(len(op.bias), num_actions)
    if rest or num_quantiles not in (None, quantiles):
        said = str(num_quantiles or "whole")[:20]
        raise QuarlError(f"the network has {len(op.bias)} outputs, not {said} quantiles of {num_actions} actions")
    layer = Layer.of(op)
    return [*ops[:-1], replace(layer, rows=layer.rows.reshape(-1, quantiles, num_actions).mean(axis=1)).made()]
