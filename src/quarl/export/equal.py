"""Whether a runtime gives what the reference gives, and in which layer it does not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from quarl import formats
from quarl.arrays import Array
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
"""Where a runtime computes in float: of the range, and the share of observations that lie so close."""
TIGHT = 1e-6
"""Of the range, where it computes in integers: what is left to its tanh."""
DIFFERS = "differs"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRow(Row):
    """One check."""

    command = "verify"
    check: Annotated[str, Column("check")]
    """sha256 of files, contract, golden vectors, rollout (fresh observations), or return (episodes)."""
    runtime: Annotated[str | None, Column("runtime", lambda name: name or "")] = None
    version: Annotated[str | None, Column("version", lambda version: version or "")] = None
    arithmetic: Annotated[str | None, Column("arithmetic", lambda arithmetic: arithmetic or "")] = None
    """What the results are compared with: f32-rne, q31-double or qdq."""
    count: Annotated[int | None, Column("of", formats.count)] = None
    """Files, observations or episodes."""
    result: Annotated[str, Column("result")] = "intact"
    """intact, equal, or equal within what; of returns the verdict; differs."""
    detail: Annotated[str, Column("", optional=True)] = ""
    """Where it differs, or the interval of a return."""


def held(check: str, policy: QuantizedPolicy, target: str, vectors: Golden, runtime: Runtime) -> VerifyRow:
    """Compare what a runtime gives for golden vectors, and the actions that come of it, with the policy's own.

    Args:
        check: Name of the check.
        policy: Which decides how close results have to be.
        target: Of the file, a key of TARGETS.
        vectors: Of the policy in the arithmetic f32-rne.
        runtime: Of the file.

    Returns:
        The row; its detail says where results differ, or by how much another arithmetic differs from f32-rne.
    """
    observations, expected = vectors.observations, vectors.given
    if not is_exact(policy, runtime.arithmetic):  # edges are where floats fall to one side or the other
        observations, expected = (each[: len(each) - vectors.edges] for each in (observations, expected))
    predicted, detail = expected, ""
    if runtime.arithmetic not in ("f32-rne", "qdq"):
        expected = golden.computed(policy, observations, runtime.arithmetic).given
    got = runtime.run(observations)
    difference, result = compare(policy, expected, got, runtime.arithmetic)
    about: dict[str, Any] = {"version": runtime.version, "arithmetic": runtime.arithmetic, "count": len(got)}
    if predicted is not expected:
        detail = _beside(policy, predicted, got)
    if difference is not None:
        detail = str(difference)
        row = vectors.observations[difference.observation : difference.observation + 1]
        detail += _layer(policy, target, runtime, row)
    return VerifyRow(check=check, runtime=runtime.name, **about, result=result, detail=detail)


def _beside(policy: QuantizedPolicy, predicted: Array, got: Array) -> str:
    """Return how far actions in TFLite Micro's arithmetic are from those of `predict`, in a clause."""
    ours, theirs = (policy.head(each) if policy.head.is_discrete else each for each in (predicted, got))
    away = golden.first_difference(ours.reshape(len(ours), -1), theirs.reshape(len(ours), -1))
    if away is None:
        return "equal to TFLite Micro's arithmetic; actions are those of predict"
    by = "" if policy.head.is_discrete else f" by up to {away.largest:.3g}"
    return f"equal to TFLite Micro's arithmetic; actions differ from predict{by} in {away.rows} of {len(got)} rows"


def is_exact(policy: QuantizedPolicy, arithmetic: str) -> bool:
    """Whether results have to be those of the reference, for all that lies between is integers."""
    return policy.spec.mode == "static" and arithmetic != "qdq"


def compare(policy: QuantizedPolicy, expected: Array, got: Array, arithmetic: str) -> tuple[Difference | None, str]:
    """(where a runtime's results [N, n] leave those that are expected, or None; the result in words).

    Integers have to be equal, except behind a tanh; if sums are of floats, or codes are chosen by such, nearly all rows
    have to be close. Discrete actions have to be equal in any arithmetic.
    """
    if got.shape != expected.shape:
        raise QuarlError(
            f"the file gives {got.shape[1:]} numbers for an observation, {expected.shape[1:]} are expected"
        )
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
    """Which layer is the first that the runtime computes otherwise, for one observation [1, *shape]: each is asked for
    as the last of a file of its own."""
    with temporary_folder() as folder:
        for op in policy.linear:
            cut = _up_to(policy, op)
            vectors = golden.computed(
                cut, observation, "f32-rne" if runtime.arithmetic == "qdq" else runtime.arithmetic
            )
            for name, content in targets.write(cut, target, "", vectors).items():
                (folder / name).write_bytes(content)
            got = runtimes.load(runtime.name, folder / targets.FILES[target]).run(observation)
            if compare(cut, vectors.given, got, runtime.arithmetic)[0] is not None:
                return f"; first in layer {op.name!r}"
    return f"; no layer differs in a file that {POLICY} is written to anew: this file is not that"


def _up_to(policy: QuantizedPolicy, last: Linear) -> QuantizedPolicy:
    """The policy whose output is that of a layer, in float32."""
    needed, ops = {last.name}, list[Op]()
    for op in reversed(policy.ops):
        if op.name in needed:
            needed.update(op.inputs)
            ops.insert(0, op)
    if len(shapes(policy)[last.name]) > 1:
        ops.append(Flatten(f"{last.name}.flat", (last.name,)))
    grids = {name: grid for name, grid in policy.grids.items() if name in needed - {last.name}}
    return replace(policy, ops=tuple(ops), head=ActionHead("argmax"), grids=grids)
