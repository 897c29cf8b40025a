"""Comparison of a runtime's results with the reference's, and the first layer that differs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from quarl import formats
from quarl.arrays import Array
from quarl.engines import reference
from quarl.errors import QuarlError
from quarl.export import golden, runtimes, targets
from quarl.export.contract import POLICY
from quarl.export.golden import Difference, Golden
from quarl.export.runtimes import Runtime
from quarl.files import temporary_folder
from quarl.policy.graph import ActionHead, QuantizedPolicy, shapes
from quarl.policy.operators import Flatten, Linear, Op
from quarl.rows import Column, Row

CLOSE, CLOSE_SHARE = 1e-5, 0.995
"""Tolerance for a runtime that computes in float: share of the range, and share of observations within it."""
TIGHT = 1e-6
"""Tolerance for a runtime that computes in integers, as a share of the range: only its tanh may differ."""
DIFFERS, NOT_PROVEN = "differs", "not proven"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRow(Row):
    """One check."""

    command = "verify"
    check: Annotated[str, Column("check")]
    """sha256 of files, contract, golden vectors, sequence (with the file's own state), rollout (fresh observations),
    recorded observations, against fp32 (on a kind of states), return or success (episodes); of C: 32-bit sums, points
    of the first grid, or grid of a layer."""
    runtime: Annotated[str | None, Column("runtime", lambda name: name or "")] = None
    version: Annotated[str | None, Column("version", lambda version: version or "")] = None
    arithmetic: Annotated[str | None, Column("arithmetic", lambda arithmetic: arithmetic or "")] = None
    """Arithmetic of the expected results: f32-rne, q31-double, int16x8 or qdq."""
    count: Annotated[int | None, Column("of", formats.count)] = None
    """Number of files, observations, episodes, calls, points or codes."""
    result: Annotated[str, Column("result")] = "intact"
    """intact, equal, or equal within a tolerance; the verdict on returns or successes; reported, which no limit judges;
    proven or not proven; all run; cannot saturate, saturates, or not decided; differs."""
    static: Annotated[float | None, Column("static %", formats.three_digits, optional=True)] = None
    """With --envelope: actions that differ from those of fp32, in percent; for continuous ones their RMS error, in
    percent of the range."""
    static_largest: Annotated[float | None, Column("largest, static", formats.three_digits, optional=True)] = None
    """Largest decision gap of fp32 among these actions, in median gaps; largest error of continuous ones, in percent of
    the range."""
    dynamic: Annotated[float | None, Column("dynamic %", formats.three_digits, optional=True)] = None
    """`static` for the same weights in dynamic mode."""
    dynamic_largest: Annotated[float | None, Column("largest, dynamic", formats.three_digits, optional=True)] = None
    """`static_largest` for the same weights in dynamic mode."""
    detail: Annotated[str, Column("", optional=True)] = ""
    """First difference, the interval of a return, the ends of each output, or the codes of a grid and an observation at
    which it saturates."""


def held(check: str, policy: QuantizedPolicy, target: str, vectors: Golden, runtime: Runtime) -> VerifyRow:
    """Compare a runtime's results for golden vectors, and the resulting actions, with the policy's own.

    Args:
        check: Name of the check.
        policy: The policy, which determines the tolerance.
        target: Target of the file, a key of TARGETS.
        vectors: Vectors of the policy in the arithmetic of `targets.reference_of`.
        runtime: Runtime of the file.

    Returns:
        The row; its detail locates differences, or measures the difference of another arithmetic from f32-rne.
    """
    observations, expected = vectors.observations, vectors.given
    if not is_exact(policy, runtime.arithmetic):  # at the edges, floats may round to either side
        observations, expected = (each[: len(each) - vectors.edges] for each in (observations, expected))
    predicted, detail = expected, ""
    if runtime.arithmetic == "q31-double":
        expected = golden.computed(policy, observations, runtime.arithmetic).given
    got = runtime.run(observations)
    difference, result = compare(policy, expected, got, runtime.arithmetic)
    if predicted is not expected:
        detail = _beside(policy, predicted, got)
    if difference is not None:
        detail = str(difference)
        row = vectors.observations[difference.observation : difference.observation + 1]
        detail += _layer(policy, target, runtime, row)
    return VerifyRow(
        check=check,
        runtime=runtime.name,
        version=runtime.version,
        arithmetic=runtime.arithmetic,
        count=len(got),
        result=result,
        detail=detail,
    )


def held_in_order(policy: QuantizedPolicy, vectors: Golden, runtime: Runtime) -> VerifyRow:
    """Compare a runtime with the reference over recorded observations in order, each with its own state.

    Args:
        policy: The policy, which has a memory.
        vectors: Golden vectors, of which the recorded observations are used.
        runtime: Runtime of the file.
    """
    seen = vectors.observations[: len(vectors.given) - vectors.edges - vectors.off_path, : policy.seen[0]]
    engine = reference.load(policy, 1, "f32-rne" if runtime.arithmetic == "qdq" else runtime.arithmetic)
    expected, got = (
        golden.carried(policy, run, seen[: golden.NUM_RECORDED])
        for run in (lambda row: golden.given(policy, engine.run(row)), runtime.run)
    )
    difference, result = compare(policy, expected, got, runtime.arithmetic)
    return VerifyRow(
        check="sequence",
        runtime=runtime.name,
        version=runtime.version,
        arithmetic=runtime.arithmetic,
        count=len(got),
        # one rounding moves all later states
        result=result if difference is None or is_exact(policy, runtime.arithmetic) else "reported",
        detail=str(difference or ""),
    )


def _beside(policy: QuantizedPolicy, predicted: Array, got: Array) -> str:
    """Return a clause about the distance of actions in TFLite Micro's arithmetic from those of `predict`."""
    ours, theirs = (
        policy.head(each) if policy.head.is_discrete else each[:, : each.shape[1] - policy.state.size]
        for each in (predicted, got)
    )
    away = golden.first_difference(ours.reshape(len(ours), -1), theirs.reshape(len(ours), -1))
    if away is None:
        return "equal to TFLite Micro's arithmetic; actions are those of predict"
    by = "" if policy.head.is_discrete else f" by up to {away.largest:.3g}"
    return f"equal to TFLite Micro's arithmetic; actions differ from predict{by} in {away.rows} of {len(got)} rows"


def is_exact(policy: QuantizedPolicy, arithmetic: str) -> bool:
    """Return whether results must equal those of the reference, because all arithmetic in between is integer."""
    return policy.spec.mode == "static" and arithmetic != "qdq"


def compare(policy: QuantizedPolicy, expected: Array, got: Array, arithmetic: str) -> tuple[Difference | None, str]:
    """Return the first difference of a runtime's results [N, n], or None, and the result in words.

    Integers must be equal, except behind a tanh. If sums or the choice of codes use floats, nearly all rows must be
    close. Discrete actions must be equal in any arithmetic.

    Args:
        policy: The policy.
        expected: Expected results.
        got: Results of the runtime.
        arithmetic: Arithmetic of the runtime.

    Raises:
        QuarlError: The numbers of outputs differ.
    """
    if got.shape != expected.shape:
        raise QuarlError(f"the file returns {got.shape[1:]} numbers for an observation, expected {expected.shape[1:]}")
    if np.array_equal(expected, got):
        return None, "equal"
    span = max(float(np.ptp(expected)), 1.0)
    acts = not policy.head.is_discrete or np.array_equal(policy.head(expected), policy.head(got))
    if is_exact(policy, arithmetic):
        difference = golden.first_difference(expected, got, TIGHT * span * acts)
        return difference, f"equal within {TIGHT:g}" if difference is None else DIFFERS
    difference = golden.first_difference(expected, got, CLOSE * span)
    if difference is None or (acts and difference.rows <= (1 - CLOSE_SHARE) * len(got)):
        close = 1 - (difference.rows if difference else 0) / len(got)
        return None, f"{100 * close:.4g} % within {CLOSE:g}"
    return difference, DIFFERS


def _layer(policy: QuantizedPolicy, target: str, runtime: Runtime, observation: Array) -> str:
    """Return the first layer that the runtime computes differently for one observation [1, *shape].

    Each layer is tested as the last one of a separate file.
    """
    with temporary_folder() as folder:
        for op in policy.linear:
            cut = _up_to(policy, op)
            vectors = golden.computed(
                cut, observation, "f32-rne" if runtime.arithmetic == "qdq" else runtime.arithmetic
            )
            for name, content in targets.write(cut, target, "", vectors).items():
                (folder / name).write_bytes(content)
            got = runtimes.coded(runtimes.load(runtime.name, folder / targets.FILES[target]), cut, target).run(
                observation
            )
            if compare(cut, vectors.given, got, runtime.arithmetic)[0] is not None:
                return f"; first in layer {op.name!r}"
    return f"; no layer differs in a new export of {POLICY}, so this file is another one"


def _up_to(policy: QuantizedPolicy, last: Linear) -> QuantizedPolicy:
    """Return the policy whose output is that of a layer, in float32."""
    needed, ops = {last.name}, list[Op]()
    for op in reversed(policy.ops):
        if op.name in needed:
            needed.update(op.inputs)
            ops.insert(0, op)
    if len(shapes(policy)[last.name]) > 1:
        ops.append(Flatten(f"{last.name}.flat", (last.name,)))
    grids = {name: grid for name, grid in policy.grids.items() if name in needed - {last.name}}
    return replace(policy, ops=tuple(ops), head=ActionHead("argmax"), grids=grids, state=policy.state[:0])
