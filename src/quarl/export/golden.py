"""Golden vectors: observations with all results of a policy, to compare any runtime with it."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.engines import check_values, reference
from quarl.engines.numpy_operators import apply
from quarl.errors import QuarlError
from quarl.inert.npz import read_npz
from quarl.policy.graph import Policy, QuantizedPolicy, shapes
from quarl.policy.operators import OBSERVATION, Linear
from quarl.quant.affine import quantize

NUM_RECORDED = 256
"""Number of observations from recorded episodes."""
NUM_OFF_PATH = 64
"""Largest number of observations off the path of the policy."""
BATCH = 64
BISECTIONS = 200
"""Halvings after which two float32 numbers of any size are adjacent."""
CODES, OUTPUTS = "codes.", "outputs"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Golden:
    """N observations and the reference's results for them."""

    observations: Array
    """[N, *shape], raw, in the policy's dtype."""
    outputs: Array
    """Outputs of the network, float32 [N, n], which the action head reads."""
    given: Array
    """Outputs of an exported file, float32 [N, m]: scores of discrete actions, or the action within its bounds; then
    the next state."""
    codes: Mapping[str, Array]
    """int8 or int16 codes [N, *shape] by value with a grid; empty except in static mode."""
    edges: int = 0
    """Number of final observations that no episode met: they were chosen to be difficult."""
    off_path: int = 0
    """Number of observations before these that are off the path of the policy."""

    def to_bytes(self) -> bytes:
        """Return the .npz file; equal vectors give equal bytes."""
        file = io.BytesIO()
        arrays: Any = {
            "observations": self.observations,
            "outputs": self.outputs,
            "given": self.given,
            "edges": np.int64(self.edges),
            "off_path": np.int64(self.off_path),
            **{f"{CODES}{name}": codes for name, codes in self.codes.items()},
        }
        np.savez_compressed(file, **arrays)
        return file.getvalue()


@dataclass(frozen=True, slots=True)
class Difference:
    """First difference of a runtime's results from the golden vectors."""

    observation: int
    """Index of the first observation that differs."""
    number: int
    """Index of the first output that differs for it."""
    expected: float
    given: float
    rows: int
    """Number of observations that differ."""
    largest: float
    """Largest of all differences."""

    def __str__(self) -> str:
        return (
            f"{self.rows} observations differ, first number {self.observation}: {self.given:.9g} in place of "
            f"{self.expected:.9g} at {self.number}; by {self.largest:.2g} at most"
        )


def record(
    policy: QuantizedPolicy, observations: Array, arithmetic: str = "f32-rne", off_path: Array | None = None
) -> Golden:
    """Return the golden vectors of observations [N, *shape] that the policy meets, and of those at their edges.

    Args:
        policy: The policy.
        observations: Raw observations.
        arithmetic: Arithmetic of the reference.
        off_path: Raw observations [M, *shape] off its path, of which NUM_OFF_PATH are taken; None takes none.

    Raises:
        QuarlError: The policy returns NaN or infinity for one of them.
    """
    edges, beyond = _edges(policy, observations), observations[:0] if off_path is None else off_path
    beyond = beyond[:: -(-len(beyond) // NUM_OFF_PATH) or 1]
    vectors = computed(policy, np.concatenate([observations, beyond, edges]), arithmetic)
    return replace(vectors, edges=len(edges), off_path=len(beyond))


def computed(policy: QuantizedPolicy, observations: Array, arithmetic: str = "f32-rne") -> Golden:
    """Return the golden vectors of these observations alone.

    Args:
        policy: The policy.
        observations: Raw observations.
        arithmetic: Arithmetic of the reference.
    """
    x = observations.astype(policy.observation_dtype)
    check_values(policy, x)
    engine = reference.load(policy, BATCH, arithmetic)
    pieces = [_wanted(engine, engine.trace(x[start : start + BATCH])) for start in range(0, len(x), BATCH)]
    values = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    outputs = values.pop(OUTPUTS)
    return Golden(observations=x, outputs=outputs, given=given(policy, outputs), codes=values)


def given(policy: Policy, outputs: Array) -> Array:
    """Return a file's outputs, float32 [N, m], for the network's outputs [N, n]; the next state follows both."""
    if policy.head.is_discrete:
        return outputs
    actions, state = policy.head(outputs).astype(np.float32), outputs[:, outputs.shape[1] - policy.state.size :]
    return np.concatenate([actions.reshape(len(outputs), -1), state], axis=1)


def carried(policy: Policy, run: Callable[[Array], Array], seen: Array) -> Array:
    """Return outputs of a file [N, m] that carries its own state, which is reset at the start and in the middle.

    Args:
        policy: The policy in the file.
        run: Function from one row to the file's outputs for it.
        seen: Observations [N, K], without the state, in order.
    """
    outputs, state = list[Array](), policy.state
    for number, observation in enumerate(seen):
        outputs.append(run(np.concatenate([observation, state])[None])[0])
        state = policy.state if number + 1 == len(seen) // 2 else outputs[-1][-policy.state.size :]
    return np.stack(outputs)


def read(data: bytes, where: str) -> Golden:
    """Return the vectors that `Golden.to_bytes` wrote; raise QuarlError, beginning with `where`, for any other file."""
    arrays = read_npz(data, where)
    try:
        observations, outputs, given = (arrays.pop(name) for name in ("observations", "outputs", "given"))
        edges, off_path = int(arrays.pop("edges")), int(arrays.pop("off_path"))
        codes = {name.removeprefix(CODES): array for name, array in arrays.items() if name.startswith(CODES)}
        sizes = {len(each) for each in (observations, outputs, given, *codes.values())}
    except (KeyError, TypeError, ValueError, OverflowError):
        raise QuarlError(f"{where} holds no golden vectors; export the policy again") from None
    if len(sizes) > 1 or not 0 <= min(edges, off_path) <= edges + off_path < min(sizes) or len(codes) < len(arrays):
        raise QuarlError(f"{where} holds golden vectors of different lengths; export the policy again")
    return Golden(observations=observations, outputs=outputs, given=given, codes=codes, edges=edges, off_path=off_path)


def first_difference(expected: Array, got: Array, tolerance: float = 0.0) -> Difference | None:
    """Return the first difference of [N, n] numbers from the expected ones beyond the tolerance; None if there is none.

    Args:
        expected: Expected numbers.
        got: Numbers to compare.
        tolerance: Largest accepted absolute difference.
    """
    with np.errstate(invalid="ignore"):
        away = np.abs(expected.astype(np.float64) - got)
    wrong = ~(away <= tolerance)  # NaN, too
    if not wrong.any():
        return None
    rows = wrong.reshape(len(wrong), -1).any(axis=1)
    first = int(rows.argmax())
    number = int(wrong[first].argmax())
    pair = float(expected[first].flat[number]), float(got[first].flat[number])
    return Difference(first, number, *pair, int(rows.sum()), float(np.nan_to_num(away, nan=np.inf).max()))


def _wanted(engine: reference.Reference, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return the codes of a batch's values that have grids, and its outputs."""
    codes = {
        name: quantize(values[name], grid.qparams).astype(np.int8 if grid.bits <= 8 else np.int16)
        for name, grid in engine.grids.items()
    }
    return {**codes, OUTPUTS: values[engine.policy.output]}


def _edges(policy: QuantizedPolicy, observations: Array) -> Array:
    """Return observations at the edges of those that were met.

    They are the ends of each number's range, alone and together, twice as far, 0, and the points at which the first
    grid rounds to one side or the other.
    """
    low, high = observations.min(axis=0), observations.max(axis=0)
    if policy.observation_dtype == "uint8":
        return np.stack([low, high, np.zeros_like(low), np.full_like(high, 255)])
    width = high - low
    rows = [low, high, low - width, high + width, np.zeros_like(low)]
    for row, other in ((low, high), (high, low)):
        mixed = row.copy()
        mixed.flat[::2] = other.flat[::2]
        rows.append(mixed)
    return np.stack([*rows, *_ties(policy, low, high)])


def _ties(policy: QuantizedPolicy, low: Array, high: Array) -> list[Array]:
    """Return two adjacent observations in float32 on either side of a tie of the first grid.

    They differ in every number that moves.

    The list is empty if that grid does not cover the observation's own numbers.
    """
    name = policy.linear[0].inputs[0]
    if (grid := policy.grids.get(name)) is None or shapes(policy)[name] != low.shape:
        return []
    before = tuple(itertools.takewhile(lambda op: not isinstance(op, Linear), policy.ops))

    def codes(x: Array) -> Array:
        values = {OBSERVATION: x[None].astype(np.float32)}
        for op in before:
            values[op.name] = apply(op, [values[source] for source in op.inputs])
        return np.asarray(quantize(values[name][0], grid.qparams))

    low, high = low.astype(np.float32), high.astype(np.float32)
    goal = codes((low + high) / 2)
    rises = codes(high) > goal  # the tie is above the middle; other numbers do not move, or fall
    low = np.where(rises, (low + high) / 2, low)
    for _ in range(BISECTIONS):
        middle = low + (high - low) / 2
        above = codes(middle) > goal
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return [low, high]
