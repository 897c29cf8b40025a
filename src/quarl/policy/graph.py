"""Policy: a short list of operators, with the contract that turns its output into an action.

The raw observation is named "observation"; the value of the last operator is the output.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeGuard

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError, printable, short
from quarl.inert.reading_budget import MAX_NUMBERS, MAX_OPERATORS, MAX_PRODUCTS
from quarl.policy.inputs import Input
from quarl.policy.operators import OBSERVATION, OPERATORS, Concat, Linear, Op, QuantizedTensor, Rounded, Shape
from quarl.quant.affine import TINY, QParams
from quarl.quant.spec import QuantSpec, integer_range

LOG_STD_RANGE = (-20.0, 2.0)
"""Range to which Stable-Baselines3 clamps the log_std of a SAC actor."""
METADATA = (32, 2000)
"""Largest number of entries of a foreign file's metadata, and of characters of a value."""


@dataclass(frozen=True, eq=False, slots=True)
class ActionHead:
    """Meaning of the output.

    argmax: the output scores discrete actions; the greedy one is its argmax, or that of each of its `segments`.
    binary: the output has a logit for each bit; a bit is 1 if its logit is above 0.
    clip: the output is an action, clipped to [low, high].
    tanh: tanh of the output, mapped from [-1, 1] to [low, high]; numpy's tanh for the output of every engine.
    gaussian: the output is [mean, log_std], both [A]: tanh of a sample of that Gaussian, mapped as above (SAC); the
        greedy action is tanh of the mean.
    """

    kind: Literal["argmax", "binary", "clip", "tanh", "gaussian"]
    low: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    """Lower bounds, float32 in the shape of an action, whose numbers are one row of the output; empty for discrete
    actions."""
    high: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    start: int = 0
    """Number of the first discrete action (gymnasium's Discrete.start)."""
    zero_based: bool = False
    """The environment receives numbers from 0 regardless of `start`, as Stable-Baselines3 does in training."""
    segments: tuple[int, ...] = ()
    """Number of scores for each number of a MultiDiscrete action, in order; empty if all scores belong to one
    number."""
    log_std: Array | None = None
    """Log standard deviation of state-independent Gaussian exploration, float32 [A], for stochastic evaluation of clip
    heads."""
    width: int = 0
    """Numbers of the output that the head reads, the first ones, if the state follows them; 0 means all."""

    @property
    def is_discrete(self) -> bool:
        """Return whether actions are whole numbers, which have no bounds."""
        return self.kind in ("argmax", "binary")

    @property
    def first(self) -> int:
        """Return the smallest number of a discrete action."""
        return 0 if self.kind == "binary" or self.segments or self.zero_based else self.start

    @property
    def reading(self) -> str:
        """Return the meaning of a file's output.

        The text is empty if the output is the action, or scores of the numbers from 0.
        """
        if self.kind == "binary":
            return "its output is a number for each bit, which is 1 where that is above 0"
        if self.segments:
            widths = ", ".join(map(str, self.segments))
            return f"its output is scores, {widths} of them for each number of the action: that of the largest, from 0"
        if self.low.ndim > 1:
            return f"its output is the action in one row, within its bounds: reshape it to {self.low.shape}"
        return f"its output's first score is that of action {self.start}" if self.start and not self.zero_based else ""

    def __call__(self, output: Array, generators: list[np.random.Generator] | None = None) -> Array:
        """Return environment actions for network outputs [B, n].

        Args:
            output: Outputs of the network.
            generators: One per row. Actions are then samples (Gumbel-max over logits, Gaussian with log_std), and each
                row has its own stream, so a sample never depends on the batch.

        Returns:
            int64 [B], or [B, segments]; float32 [B, *shape of the bounds], including bits, as Stable-Baselines3 passes
                them on; a wider type if the bounds have one.
        """
        output = output[:, : self.width or None]
        if self.is_discrete:
            if generators is not None:  # the difference of two Gumbel numbers is logistic
                draws = [g.logistic if self.kind == "binary" else g.gumbel for g in generators]
                output = output + np.stack([draw(size=output.shape[1]) for draw in draws])
            if self.kind == "binary":
                return (output > 0).astype(np.float32)
            if self.segments:
                parts = np.split(output, np.cumsum(self.segments)[:-1], axis=1)
                return np.stack([part.argmax(axis=1) for part in parts], axis=1)
            numbers: Array = output.argmax(axis=1) + self.first
            return numbers
        # Continuous actions: add noise, then squash or clip to the bounds.
        log_std = self.log_std
        if self.kind == "gaussian":
            output, log_std = np.split(output, 2, axis=1)
            log_std = log_std.clip(*LOG_STD_RANGE)
        if generators is not None:
            if log_std is None:
                raise UnsupportedError(
                    "no action distribution: DDPG, TD3, D4PG and ARS have none, and files do not provide those of SAC, "
                    "TQC, CrossQ and gSDE; drop --stochastic"
                )
            noise = np.stack([g.standard_normal(output.shape[1]) for g in generators]).astype(np.float32)
            output = output + np.exp(log_std) * noise
        output = output.reshape(len(output), *self.low.shape)
        if self.kind in ("tanh", "gaussian"):
            output = self.low + np.float32(0.5) * (np.tanh(output) + np.float32(1)) * (self.high - self.low)
        actions: Array = np.clip(output, self.low, self.high)
        return actions

    def distance(self, exact: Array, actions: Array) -> Array:
        """Return the distance of actions from the exact ones [B, components], as shares of the range.

        Distances of discrete actions are 0 or 1.

        The range of actions without bounds is that of the exact ones.
        """
        if self.is_discrete:
            return np.asarray(exact != actions, np.float64).reshape(len(exact), -1)
        span = self.high - self.low
        away: Array = np.abs(exact - actions)
        shares = away / np.maximum(np.where(np.isfinite(span), span, np.ptp(exact, axis=0)), TINY)
        return shares.reshape(len(shares), -1)


def as_metadata(entries: Iterable[tuple[object, object]]) -> dict[str, str]:
    """Return the names and values that an exporter put into a foreign file as printable text.

    Of long values the middle is left out, and entries after the first METADATA[0] are dropped.
    """
    most, characters = METADATA
    return {short(str(name)): short(str(value), characters) for name, value in itertools.islice(entries, most)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Origin of a policy and its training environment: the facts that evaluation needs besides the graph."""

    algo: str = ""
    """Lower-case name of SB3, sb3-contrib or SB2, such as ppo, qrdqn and ppo2; d4pg is QuaRL's own."""
    env_id: str = ""
    """Id of the training environment; `envs.make` maps retired versions to living ones."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """The zoo's env_wrapper entries, outermost last: (dotted class name, keyword arguments)."""
    max_episode_steps: int | None = None
    """Environment steps after which an episode is truncated; None: as the environment is registered."""
    longest: int | None = None
    """Largest number of steps of an episode that the user allows, which may exceed the limit for files; never saved."""
    statistics: str = ""
    """Source of the observation statistics inside the graph, or the reason for having none, for display; "" if
    unknown."""
    stochastic: bool = False
    """Sample actions in evaluation, by the zoo's convention for this agent."""
    origin: str = ""
    """Kind of the source: sb3-zip, sb2-pickle, sb3-live, module, ..."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Text that the exporter put into the file, such as names of joints and scales of actions, as `as_metadata` bounds
    it. It is shown in contracts, and never applied."""
    choices: Mapping[str, Any] = field(default_factory=dict)
    """Arguments with which `load.read` read a file that does not define its actions: head, output_name, fix and
    activation, without empty ones."""

    def title(self, env_id: str | None = None) -> str:
        """Return the agent in a few words, as in dqn on CartPole-v1, in the environment `env_id` if one is given."""
        return f"{self.algo or 'policy'} on {env_id or self.env_id or 'no environment'}"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True, repr=False)
class Policy:
    """A network from one raw observation to one action, in float32.

    With a memory, the row that it reads is the observation followed by the state, and the row of its output is what the
    head reads followed by the next state. So every row stands for itself, and whoever plays carries the state.
    """

    observation_shape: Shape
    """Shape of what the first operators read: the observation, followed by the state."""
    observation_dtype: Literal["float32", "uint8"] = "float32"
    inputs: tuple[Input, ...] = ()
    """Parts of the observation's row; empty if the environment returns the array itself."""
    ops: tuple[Op, ...]
    head: ActionHead
    state: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    """State at the start of an episode, float32 [S]; empty without a memory."""
    provenance: Provenance = Provenance()

    def __post_init__(self) -> None:
        check(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({in_words(self)})"

    @property
    def output(self) -> str:
        return self.ops[-1].name

    @property
    def seen(self) -> Shape:
        """Return the shape of what an environment returns: the observation without the state."""
        return (self.observation_shape[0] - self.state.size,) if self.state.size else self.observation_shape

    @property
    def num_outputs(self) -> int:
        """Return the number of outputs for one observation, without the state."""
        return int(shapes(self)[self.output][0]) - self.state.size

    @property
    def linear(self) -> tuple[Linear, ...]:
        """Return the operators that carry weights, in order."""
        return tuple(op for op in self.ops if isinstance(op, Linear))

    @property
    def num_weights(self) -> int:
        """Return the number of weights of dense and convolution layers, without biases."""
        return sum(math.prod(op.weight.shape) for op in self.linear)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationGrid:
    """Static-mode quantization of one value: a per-tensor affine grid of `bits`, 2 to 16."""

    scale: float
    """Step of the grid, a float32 number."""
    zero_point: int
    bits: int = 8

    @property
    def qparams(self) -> QParams:
        """Return the grid for `quantize` and `dequantize`."""
        qmin, qmax = integer_range(self.bits, symmetric=False)
        return QParams(np.float32(self.scale), np.float32(self.zero_point), qmin, qmax)

    @property
    def steps(self) -> tuple[int, int]:
        """Return the lowest and the highest code, counted from the zero point."""
        low, high = integer_range(self.bits, symmetric=False)
        return low - self.zero_point, high - self.zero_point

    @property
    def reach(self) -> int:
        """Return the largest distance of a code from the zero point."""
        return max(map(abs, self.steps))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True, repr=False)
class QuantizedPolicy(Policy):
    """A Policy whose linear weights are codes (or half floats), and the grids of its activations.

    dynamic mode: the input of every linear operator with integer weights is quantized per row at run time. static mode:
    `grids` has a grid for the input of every such operator, and for the output of each that is not last. In both modes
    the output of the last linear operator is float32.
    """

    spec: QuantSpec
    grids: Mapping[str, ActivationGrid] = field(default_factory=dict)
    box: tuple[Array, Array] | None = None
    """Smallest and largest calibration observation, number by number, float32 [*observation_shape] each.

    None if the grids are not from recorded observations, and for images.
    """

    @classmethod
    def of(
        cls,
        policy: Policy,
        ops: Iterable[Op],
        spec: QuantSpec,
        grids: Mapping[str, ActivationGrid],
        box: tuple[Array, Array] | None = None,
    ) -> QuantizedPolicy:
        """Return the policy with these operators, in the precision of `spec`.

        Args:
            policy: Source of all other fields.
            ops: Operators of the new policy.
            spec: Its precision.
            grids: Grids of its values.
            box: Ends of the observations from which the grids are.
        """
        kept = {field.name: getattr(policy, field.name) for field in fields(Policy) if field.name != "ops"}
        return cls(**kept, ops=tuple(ops), spec=spec, grids=dict(grids), box=box)

    @property
    def bits_of_layers(self) -> dict[str, int]:
        """Return the bits of a weight in each layer, in order; half floats have 16, float32 has 32."""
        widths = {op.name: op.weight for op in self.linear}
        return {n: w.bits if isinstance(w, QuantizedTensor) else 8 * w.dtype.itemsize for n, w in widths.items()}

    @property
    def mean_bits(self) -> float:
        """Return the mean bits of a weight over all layers."""
        bits = self.bits_of_layers
        return sum(bits[op.name] * math.prod(op.weight.shape) for op in self.linear) / max(self.num_weights, 1)

    @property
    def payload(self) -> int:
        """Return the bytes of the numbers in its operators, without a file's header and calibration statistics."""
        return sum(array.nbytes for op in self.ops for array in op.arrays.values())

    @property
    def coverage(self) -> float:
        """Return the share of the weights, 0..1, that really have the spec's precision; fp32 counts as 1."""
        if self.spec.float_type == "fp32":
            return 1.0
        weights = [op.weight for op in self.linear]
        covered = sum(w.size for w in weights if isinstance(w, QuantizedTensor) or w.dtype.itemsize < 4)
        return covered / max(self.num_weights, 1)


def is_quantized(policy: Policy | None) -> TypeGuard[QuantizedPolicy]:
    """Return whether it computes with anything but float32; an artifact in fp32 is a float policy."""
    return isinstance(policy, QuantizedPolicy) and policy.spec.float_type != "fp32"


def in_words(policy: Policy) -> str:
    """Return the policy in a line.

    It lists algorithm and environment, precision, numbers into and out of its layers, and weights.
    """
    source = policy.provenance
    widths = "-".join(str(op.weight.shape[0]) for op in policy.linear)
    parts = (
        f"{source.algo} {source.env_id}".strip(),
        policy.spec.in_words if is_quantized(policy) else "fp32",
        f"{'x'.join(map(str, policy.seen))}-{widths}",
        f"{policy.num_weights:,} weights",
    )
    return printable(", ".join(filter(None, parts)))


def shapes(policy: Policy) -> dict[str, Shape]:
    """Return the shape of every value without its batch axis; refuse a graph whose operators do not fit together."""
    shapes_of: dict[str, Shape] = {OBSERVATION: policy.observation_shape}
    if len(policy.ops) > MAX_OPERATORS:
        raise QuarlError(f"the policy has more than {MAX_OPERATORS:,} operators")
    total = products = 0
    for op in policy.ops:
        if type(op) not in OPERATORS.values():
            kind = type(op).__name__
            raise UnsupportedError(f"operator {op.name!r} is a {kind}, which is not in the operator set")
        if op.name in shapes_of:
            raise QuarlError(f"two operators are named {op.name!r}")
        missing = [name for name in op.inputs if name not in shapes_of]
        if missing:
            raise QuarlError(f"operator {op.name!r} reads {missing[0]!r}, which no earlier operator computes")
        shapes_of[op.name] = shape = op.shape([shapes_of[name] for name in op.inputs])
        if 0 in shape:
            raise QuarlError(f"layer {op.name!r} has an empty result of shape {shape}")
        total += math.prod(shapes_of[op.name]) + op.padded_size(shapes_of[op.inputs[0]])
        if total > MAX_NUMBERS:
            raise QuarlError(f"up to operator {op.name!r}, one observation needs more than {MAX_NUMBERS:,} numbers")
        if isinstance(op, Linear):
            products += math.prod(op.weight.shape) * math.prod(shape[1:])
        if products > MAX_PRODUCTS:
            raise QuarlError(f"up to layer {op.name!r}, one observation takes more than {MAX_PRODUCTS:,} products")
    return shapes_of


def macs(policy: Policy) -> dict[str, int]:
    """Return the number of products of weights and inputs for one observation, by linear operator."""
    shape_of = shapes(policy)
    return {op.name: math.prod(op.weight.shape) * math.prod(shape_of[op.name][1:]) for op in policy.linear}


def ungridded(policy: QuantizedPolicy) -> str | None:
    """Return a value that needs a grid in static mode and has none; None if there is none."""
    if policy.spec.mode != "static":
        return None
    final = final_linear(policy)
    integers = [op for op in policy.linear if isinstance(op.weight, QuantizedTensor)]
    needed = [*(op.inputs[0] for op in integers), *(op.name for op in integers if op.name not in final)]
    return next((name for name in needed if name not in policy.grids), None)


def final_linear(policy: Policy) -> frozenset[str]:
    """Return the names of the linear operators whose value reaches the output without passing another, or a state.

    Their outputs are never quantized.
    """
    feeds_linear: set[str] = set()
    for op in reversed(policy.ops):
        if isinstance(op, Linear | Rounded) or op.name in feeds_linear:
            feeds_linear.update(op.inputs)
    return frozenset(op.name for op in policy.linear if op.name not in feeds_linear)


def edge_layers(policy: Policy) -> frozenset[str]:
    """Return the names of the first and the last linear operators.

    They read the observation or produce the output, with no other linear operator in between.
    """
    behind = behind_linear(policy)
    first = frozenset(op.name for op in policy.linear if op.inputs[0] not in behind)
    return first | final_linear(policy)


def edge_weights(policy: Policy) -> int:
    """Return the number of weights of `edge_layers`."""
    edges = edge_layers(policy)
    return sum(math.prod(op.weight.shape) for op in policy.linear if op.name in edges)


def behind_linear(policy: Policy) -> frozenset[str]:
    """Return the names of the values that depend on a linear operator, of this step or an earlier one."""
    behind: set[str] = set()
    for op in policy.ops:
        if isinstance(op, Linear | Rounded) or behind.intersection(op.inputs):
            behind.add(op.name)
    return frozenset(behind)


def readers(policy: Policy) -> dict[str, list[Op]]:
    """Return the operators that read each value, in order; twice if an operator reads it twice."""
    reading: dict[str, list[Op]] = {}
    for op in policy.ops:
        for name in op.inputs:
            reading.setdefault(name, []).append(op)
    return reading


def check(policy: Policy) -> None:
    """Refuse a graph that cannot run.

    Checked are shapes, functions, finite numbers, and the fit of the action head.
    """
    if not policy.ops:
        raise QuarlError("the policy has no operators")
    shapes_of = shapes(policy)
    read = {policy.output, *readers(policy)}
    if idle := [op.name for op in policy.ops if op.name not in read]:
        raise QuarlError(f"the result of operator {idle[0]!r} is never read; such a graph is refused")
    for op in policy.ops:
        op.check()
    _check_inputs(policy)
    out = shapes_of[policy.output]
    head, state = policy.head, policy.state.size
    expected: Shape = (sum(head.segments) or out[0] - state,) if head.is_discrete else (head.low.size,)
    expected = tuple(n * 2 for n in expected) if head.kind == "gaussian" else expected
    joined = isinstance(policy.ops[-1], Concat) and policy.observation_dtype == "float32"
    joined = joined and 0 < head.width == out[0] - state and state < shapes_of[OBSERVATION][0]
    if state and (len(out) + len(policy.observation_shape) != 2 or not joined or not np.isfinite(policy.state).all()):
        raise QuarlError(f"the state of {state} numbers does not follow the observation and the output")
    if len(out) != 1 or expected != (out[0] - state,) or (head.width and not state):
        raise QuarlError(f"the network's output is {out}, but the action head expects {expected}")
    _check_head(head)


def _check_inputs(policy: Policy) -> None:
    """Refuse inputs that do not match the observation's row."""
    keys, size = [each.key for each in policy.inputs], sum(each.size for each in policy.inputs)
    if keys and (policy.seen, policy.observation_dtype) != ((size,), "float32"):
        raise QuarlError(f"the inputs are {size} numbers, the observation is {policy.observation_shape}")
    if len(set(keys)) < len(keys) or (len(keys) > 1 and "" in keys):
        raise QuarlError(f"the inputs {', '.join(map(repr, keys))} do not have distinct names")


def _check_head(head: ActionHead) -> None:
    """Refuse segments without scores, empty bounds, and noise for another number of actions."""
    if head.segments and (head.kind != "argmax" or min(head.segments) < 1):
        raise QuarlError(f"the action head's segments {head.segments} must each have one score or more")
    if not head.is_discrete:
        if head.low.shape != head.high.shape or not (head.low <= head.high).all():
            raise QuarlError("the action head's bounds must be a lower and an upper number for every action")
        if head.kind != "clip" and not np.isfinite([head.low, head.high]).all():
            raise QuarlError("the action head maps tanh to bounds that are infinite")
        if head.log_std is not None and (head.log_std.shape != (head.low.size,) or not np.isfinite(head.log_std).all()):
            raise QuarlError("the action head's log_std is not a number for every action")
