"""Output-aware rounding: codes chosen for what the layer computes, not for what the weights are.

A layer's output error on calibration inputs X is e H e^T for a weight error e and H = X^T X / N. Rounding one column
at a time and letting the columns that are still free make up for each error is GPTQ (Frantar et al. 2023,
algorithm 1, after Hassibi & Stork's optimal brain surgeon).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.quant.affine import QParams, choose_qparams, dequantize, fake_quantize, quantize

Array = NDArray[Any]
DAMPING = 0.01
"""Share of H's mean diagonal added to its diagonal: what calibration never saw is rounded to nearest."""
BLOCK = 128
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
    best = np.full(len(weight), np.inf)
    chosen = np.ones((len(weight), 1))
    for shrink in shrinks:
        error = weight - fake_quantize(weight, choose_qparams(-high * shrink, high * shrink, bits, symmetric=True))
        loss = np.einsum("ok,ok->o", error @ h, error)
        better = loss < best
        chosen[better], best[better] = shrink, loss[better]
    return choose_qparams(-high * chosen, high * chosen, bits, symmetric=True)


def gptq(weight: Array, h: Array, q: QParams) -> Array:
    """Codes [out, K] of weight [out, K] on the grid q (per-channel arrays [out, 1]), rounded output-aware.

    Columns are taken in order of falling diag(H), so that the directions that matter most are rounded first, while
    the most columns are still free to make up for it. Float codes, as `quantize` gives them.
    """
    order = np.argsort(-np.diag(h), kind="stable")
    w = weight[:, order].astype(np.float64)
    # Upper Cholesky factor of H^-1: row i holds how an error in column i spreads over the columns after it.
    inverse = np.linalg.inv(h[np.ix_(order, order)])
    spread = np.linalg.cholesky((inverse + inverse.T) / 2).T
    codes = np.empty_like(w)
    for start in range(0, w.shape[1], BLOCK):
        stop = min(start + BLOCK, w.shape[1])
        errors = np.empty((len(w), stop - start))
        for i in range(start, stop):
            column = quantize(w[:, i : i + 1], q)
            codes[:, i : i + 1] = column
            errors[:, i - start] = (w[:, i] - dequantize(column, q)[:, 0]) / spread[i, i]
            w[:, i + 1 : stop] -= np.outer(errors[:, i - start], spread[i, i + 1 : stop])
        w[:, stop:] -= errors @ spread[start:stop, stop:]
    result = np.empty_like(codes)
    result[:, order] = codes
    return result
