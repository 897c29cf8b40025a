"""Output-aware rounding: choose codes that minimize the error of a layer's output.

The output error on calibration inputs X is e H e^T, for a weight error e and H = X^T X / N. GPTQ rounds one column at a
time and lets the remaining columns compensate for each error (Frantar et al. 2023, algorithm 1, after Hassibi & Stork's
optimal brain surgeon).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quarl.arrays import Array
from quarl.quant.affine import QParams, choose_qparams, dequantize, fake_quantize, quantize

DAMPING = 0.01
"""Share of H's mean diagonal added to its diagonal, so that inputs absent from calibration round to nearest."""
TRIES = 8
"""Limit of finer grids for a row that does not reach the end of its grid."""
BLOCK = 32
"""Columns per block; errors of all earlier columns reach a block in one matrix product."""


def second_moment(inputs: Array) -> Array:
    """Return H = X^T X / N of calibration inputs X [N, K], damped: float64 [K, K], positive definite."""
    x = inputs.astype(np.float64)
    h = x.T @ x / max(len(x), 1)
    mean = float(np.mean(np.diag(h)))
    h[np.diag_indices_from(h)] += DAMPING * mean if mean > 0 else 1.0
    return h


def output_aware_qparams(weight: Array, h: Array, bits: int, shrinks: Array, *, mid_rise: bool = False) -> QParams:
    """Return the symmetric per-channel grids whose nearest rounding has the least output error e H e^T.

    Args:
        weight: Weight matrix [out, K].
        h: Second moment of the inputs [K, K].
        bits: Width of the codes.
        shrinks: Factors of the full range to try; each channel takes the best one.
        mid_rise: Whether the grids leave out 0.
    """
    high = np.abs(weight).max(axis=1, keepdims=True)
    tried = high * np.reshape(shrinks, (-1, 1, 1))
    grids = choose_qparams(-tried, tried, bits, symmetric=True, mid_rise=mid_rise)
    best = np.full(len(weight), np.inf)
    chosen = grids.scale[0].copy()
    for scale in grids.scale:
        error = weight - fake_quantize(weight, replace(grids, scale=scale))
        loss = np.einsum("ok,ok->o", error @ h, error)
        better = loss < best
        chosen[better], best[better] = scale[better], loss[better]
    return replace(grids, scale=chosen)


def gptq(weight: Array, h: Array, q: QParams) -> Array:
    """Return output-aware codes [out, K], as floats like those of `quantize`.

    Columns are rounded in the order of falling diag(H): the most important directions come first, when most columns can
    still compensate.

    With H = U U^T, U upper triangular, the output error of a row of errors e is |e U|^2. Column k of e U contains no
    error of a later column, so each weight is rounded to cancel the errors of the columns before it. The codes equal
    the paper's, which computes them from the inverse of H.

    Args:
        weight: Weight matrix [out, K].
        h: Second moment of the inputs [K, K].
        q: Symmetric grid with scales [out, 1].
    """
    return _one_by_one(weight, *_pull(h), q)


def _pull(h: Array) -> tuple[Array, Array]:
    """Return the order of the columns, and U in that order divided by its diagonal: the effect on later columns."""
    order = np.argsort(-np.diag(h), kind="stable")
    backwards = order[::-1]
    upper = np.linalg.cholesky(h[np.ix_(backwards, backwards)])[::-1, ::-1]
    return order, upper / np.diag(upper)


def _one_by_one(weight: Array, order: Array, pull: Array, q: QParams) -> Array:
    """Return the codes of `gptq`."""
    w = weight.T[order].astype(np.float64)  # transposed, so that a column of the weight is contiguous
    row = replace(q, scale=q.scale[:, 0])
    codes = np.empty_like(w)
    errors = np.empty_like(w)
    for start in range(0, len(w), BLOCK):
        block = slice(start, start + BLOCK)
        target = w[block] + pull[:start, block].T @ errors[:start]
        for i, wanted in enumerate(target, start):
            codes[i] = quantize(wanted + pull[start:i, i] @ errors[start:i], row)
            errors[i] = w[i] - dequantize(codes[i], row)
    result = np.empty(weight.shape)
    result[:, order] = codes.T
    return result


def to_the_ends(weight: Array, h: Array, q: QParams) -> tuple[Array, QParams]:
    """Round like `gptq` on grids whose outermost code each row uses.

    Thus the largest number of a row determines its scale.

    A row that does not reach the end of its grid is rounded again on a finer one, at most TRIES times.

    Args:
        weight: Weight matrix [out, K].
        h: Second moment of the inputs [K, K].
        q: Symmetric grid to begin with, scales [out, 1].

    Returns:
        Float codes [out, K] and their grids.
    """
    order, pull = _pull(h)
    codes = _one_by_one(weight, order, pull, q)
    for _ in range(TRIES):
        reached, end = np.abs(codes - q.zero_point).max(axis=1), q.qmax - q.zero_point
        short = (reached > 0) & (reached < end)
        if not short.any():
            break
        finer = np.where(short, reached / end, 1)[:, None]
        q = replace(q, scale=(q.scale * finer).astype(np.float32))
        codes[short] = _one_by_one(weight[short], order, pull, replace(q, scale=q.scale[short]))
    return codes, q
