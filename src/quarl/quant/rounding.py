"""Output-aware rounding: codes chosen for what the layer computes, not for what the weights are.

A layer's output error on calibration inputs X is e H e^T for a weight error e and H = X^T X / N. Rounding one column
at a time and letting the columns that are still free make up for each error is GPTQ (Frantar et al. 2023,
algorithm 1, after Hassibi & Stork's optimal brain surgeon).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.quant.affine import QParams, choose_qparams, dequantize, fake_quantize, quantize

Array = NDArray[Any]
DAMPING = 0.01
"""Share of H's mean diagonal added to its diagonal: what calibration never saw is rounded to nearest."""
BLOCK = 32
"""Columns whose updates are gathered before the rest of the matrix sees them."""


def second_moment(inputs: Array) -> Array:
    """H = X^T X / N of calibration inputs X [N, K], damped: float64 [K, K], positive definite."""
    x = inputs.astype(np.float64)
    h = x.T @ x / max(len(x), 1)
    mean = float(np.mean(np.diag(h)))
    h[np.diag_indices_from(h)] += DAMPING * mean if mean > 0 else 1.0
    return h


def output_aware_qparams(weight: Array, h: Array, bits: int, shrinks: Array) -> QParams:
    """Symmetric per-channel grids of weight [out, K] whose nearest rounding leaves the least output error e H e^T.

    The scale of each channel is the best of the full range times `shrinks`.
    """
    high = np.abs(weight).max(axis=1, keepdims=True)
    tried = high * np.reshape(shrinks, (-1, 1, 1))
    grids = choose_qparams(-tried, tried, bits, symmetric=True)
    best = np.full(len(weight), np.inf)
    chosen = grids.scale[0].copy()
    for scale in grids.scale:
        error = weight - fake_quantize(weight, replace(grids, scale=scale))
        loss = np.einsum("ok,ok->o", error @ h, error)
        better = loss < best
        chosen[better], best[better] = scale[better], loss[better]
    return replace(grids, scale=chosen)


def gptq(weight: Array, h: Array, q: QParams) -> Array:
    """Codes [out, K] of weight [out, K] on the symmetric grid q (scale [out, 1]), rounded output-aware.

    Columns are taken in order of falling diag(H), so that the directions that matter most are rounded first, while
    the most columns are still free to make up for it. Float codes, as `quantize` gives them.
    """
    order = np.argsort(-np.diag(h), kind="stable")
    # Upper Cholesky factor of H^-1: row i holds how an error in column i spreads over the columns after it.
    inverse = np.linalg.inv(h[np.ix_(order, order)])
    spread = np.linalg.cholesky((inverse + inverse.T) / 2).T
    w = weight.T[order].astype(np.float64)  # transposed: a column of the weight lies in one piece
    row = replace(q, scale=q.scale[:, 0])
    codes = np.empty_like(w)
    errors = np.empty_like(w)
    for start in range(0, len(w), BLOCK):
        stop = min(start + BLOCK, len(w))
        for i in range(start, stop):
            codes[i] = quantize(w[i], row)
            errors[i] = (w[i] - dequantize(codes[i], row)) / spread[i, i]
            w[i + 1 : stop] -= spread[i, i + 1 : stop, None] * errors[i]
        w[stop:] -= spread[start:stop, stop:].T @ errors[start:stop]
    result = np.empty(weight.shape)
    result[:, order] = codes.T
    return result
