"""Policy: a short list of operators from a closed set, with the contract that turns its output into an action.

A value is named by the operator that makes it; the raw observation is called "observation" and the last operator's
value is the output. Shapes never name the batch axis: every value is [B, *shape].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quarl.errors import QuarlError, UnsupportedError
from quarl.quant.spec import QuantSpec

Array = NDArray[Any]
Shape = tuple[int, ...]
OBSERVATION = "observation"
ACTIVATIONS = ("relu", "tanh", "sigmoid", "elu", "leaky_relu")
LEAKY_SLOPE = 0.01
"""torch's default negative slope; another one is refused by the readers."""
MAX_NUMBERS = 2**27
"""Of one value for one observation: 0.5 GB. A file can ask for more with a few bytes, and no policy needs it."""


@dataclass(frozen=True, eq=False, slots=True)
class QuantizedTensor:
    """Integer codes of a weight and the grid they live on; channels are axis 0."""

    codes: Array
    """int8, int16, int32 or int64: the smallest that holds every code; same shape as the weight."""
    scale: Array
    """float32 [channels]; a per-tensor scale is repeated."""
    zero_point: Array
    """int32 [channels]; all 0 for symmetric weights."""
    bits: int

    @property
    def shape(self) -> Shape:
        return self.codes.shape

    @property
    def size(self) -> int:
        return self.codes.size

    def dequantize(self) -> Array:
        """float32 weights, same shape: (codes - zero_point) * scale."""
        along = (-1,) + (1,) * (self.codes.ndim - 1)
        centred = self.codes.astype(np.float32) - self.zero_point.astype(np.float32).reshape(along)
        return centred * self.scale.reshape(along)


Weight = Array | QuantizedTensor
"""float32, float16 or ml_dtypes.bfloat16 array, or integer codes."""


def as_float32(weight: Weight) -> Array:
    """The weight's real values, float32."""
    return weight.dequantize() if isinstance(weight, QuantizedTensor) else weight.astype(np.float32, copy=False)


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """Makes the value `name` from the values `inputs`."""

    name: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Dense(Op):
    """x @ weight.T + bias; weight [out, in], bias float32 [out]."""

    weight: Weight
    bias: Array


@dataclass(frozen=True, eq=False, slots=True)
class Conv2d(Op):
    """Cross-correlation of [C, H, W] values; weight [out, in, kh, kw], bias float32 [out], zero padding."""

    weight: Weight
    bias: Array
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)


Linear = Dense | Conv2d
"""The operators whose weights are quantised."""


@dataclass(frozen=True, eq=False, slots=True)
class Activation(Op):
    """An elementwise function: one of ACTIVATIONS."""

    kind: str


@dataclass(frozen=True, eq=False, slots=True)
class LayerNorm(Op):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis; weight, bias float32 [n]."""

    weight: Array
    bias: Array
    epsilon: float


@dataclass(frozen=True, eq=False, slots=True)
class Normalize(Op):
    """clip((x - mean) / sqrt(variance + epsilon), -clip, clip): VecNormalize and its kin, always in float32.

    mean, variance: float64, the observation's shape.
    """

    mean: Array
    variance: Array
    epsilon: float
    clip: float

    @property
    def mean_parts(self) -> tuple[Array, Array]:
        """The mean as a float32 number and the float32 rest that it leaves out.

        One float32 number is not enough: a mean of many standard deviations, rounded, moves every normalised value.
        """
        mean = self.mean.astype(np.float32)
        return mean, (self.mean - mean).astype(np.float32)

    @property
    def inverse_std(self) -> Array:
        """float32: 1 / sqrt(variance + epsilon)."""
        return (1.0 / np.sqrt(self.variance + self.epsilon)).astype(np.float32)

    def __call__(self, x: Array) -> Array:
        """The normalised float32 value of x [B, *shape]; every engine follows this order of float32 operations."""
        mean, rest = self.mean_parts
        scaled: Array = (x - mean - rest) * self.inverse_std
        return scaled.clip(np.float32(-self.clip), np.float32(self.clip))


@dataclass(frozen=True, eq=False, slots=True)
class Scale(Op):
    """x * factor in float32: x / 255 of images, or one factor per feature to equalise observations."""

    factor: Array
    """float32, a scalar [] or the value's own shape."""


@dataclass(frozen=True, eq=False, slots=True)
class Flatten(Op):
    """[B, ...] to [B, n], row-major."""


@dataclass(frozen=True, eq=False, slots=True)
class Concat(Op):
    """Inputs side by side along the last axis."""


@dataclass(frozen=True, eq=False, slots=True)
class Add(Op):
    """Sum of two values; one may be [B, 1] and is then repeated (the dueling head's V + A)."""


@dataclass(frozen=True, eq=False, slots=True)
class ActionHead:
    """What the output means.

    argmax: the output scores discrete actions; the greedy one is its argmax.
    clip: the output is an action, clipped to [low, high].
    tanh: tanh of the output, mapped from [-1, 1] to [low, high]; numpy's tanh, whatever engine made the output.
    """

    kind: Literal["argmax", "clip", "tanh"]
    low: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    """float32 [A]; empty for argmax."""
    high: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    start: int = 0
    """The first discrete action's number (gymnasium's Discrete.start)."""
    log_std: Array | None = None
    """float32 [A]: state-independent Gaussian exploration, for stochastic evaluation of clip heads."""

    def __call__(self, output: Array, generators: list[np.random.Generator] | None = None) -> Array:
        """Environment actions of network outputs [B, n]; int64 [B] or float32 [B, A].

        generators: one per row makes the actions samples (Gumbel-max over logits, Gaussian with log_std), each row
        from its own stream, so that a sample never depends on the batch.
        """
        if self.kind == "argmax":
            if generators is not None:
                output = output + np.stack([g.gumbel(size=output.shape[1]) for g in generators])
            numbers: Array = output.argmax(axis=1) + self.start
            return numbers
        if generators is not None:
            if self.log_std is None:
                raise UnsupportedError("this policy is deterministic: it has no action distribution; drop --stochastic")
            noise = np.stack([g.standard_normal(self.log_std.size) for g in generators]).astype(np.float32)
            output = output + np.exp(self.log_std) * noise
        if self.kind == "tanh":
            output = self.low + np.float32(0.5) * (np.tanh(output) + np.float32(1)) * (self.high - self.low)
        return np.clip(output, self.low, self.high).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a policy comes from, and the environment it was trained on: what evaluation needs besides the graph."""

    algo: str = ""
    """SB3's or SB2's name, lower case: ppo, a2c, dqn, ddpg, td3, sac, ppo2."""
    env_id: str = ""
    """The id it was trained on; `envs.make` maps retired versions to living ones."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """The zoo's env_wrapper entries, outermost last: (dotted class name, keyword arguments)."""
    stochastic: bool = False
    """The zoo's convention for evaluation of this agent."""
    origin: str = ""
    """What was read: sb3-zip, sb2-pickle, sb3-live, module, ..."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Policy:
    """A network from one raw observation to one action, in float32."""

    observation_shape: Shape
    observation_dtype: Literal["float32", "uint8"] = "float32"
    ops: tuple[Op, ...]
    head: ActionHead
    provenance: Provenance = Provenance()

    def __post_init__(self) -> None:
        check(self)

    @property
    def output(self) -> str:
        return self.ops[-1].name

    @property
    def linear(self) -> tuple[Linear, ...]:
        """The operators that carry weights, in order."""
        return tuple(op for op in self.ops if isinstance(op, Dense | Conv2d))

    @property
    def num_weights(self) -> int:
        """Weights of dense and convolution layers, biases not counted."""
        return sum(math.prod(op.weight.shape) for op in self.linear)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ActivationGrid:
    """Static-mode quantisation of one value: a per-tensor affine int8 grid."""

    scale: float
    """A float32 number."""
    zero_point: int
    bits: int = 8


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class QuantizedPolicy(Policy):
    """A Policy whose linear weights are codes (or half floats), and the grids of its activations.

    dynamic mode: the input of every linear operator with integer weights is quantised per row at run time.
    static mode: `grids` gives the grid of every value that is the input of such an operator, or the output of one
    that is not last. Either way the output of the last linear operator is float32.
    """

    spec: QuantSpec
    grids: Mapping[str, ActivationGrid] = field(default_factory=dict)

    @property
    def coverage(self) -> float:
        """Share of the weights that the spec's precision really covers, 0..1; fp32 counts as 1."""
        if self.spec.float_type == "fp32":
            return 1.0
        covered = sum(op.weight.size for op in self.linear if _is_reduced(op.weight))
        return covered / max(self.num_weights, 1)


def _is_reduced(weight: Weight) -> bool:
    return isinstance(weight, QuantizedTensor) or weight.dtype.itemsize < 4


def shapes(policy: Policy) -> dict[str, Shape]:
    """Shape of every value, batch axis left out; refuses a graph whose operators do not fit together."""
    known: dict[str, Shape] = {OBSERVATION: policy.observation_shape}
    for op in policy.ops:
        if op.name in known:
            raise QuarlError(f"two operators are called {op.name!r}")
        missing = [name for name in op.inputs if name not in known]
        if missing:
            raise QuarlError(f"operator {op.name!r} reads {missing[0]!r}, which nothing before it makes")
        known[op.name] = output_shape(op, [known[name] for name in op.inputs])
        if math.prod(known[op.name]) > MAX_NUMBERS:
            raise QuarlError(f"operator {op.name!r} makes more than {MAX_NUMBERS:,} numbers of one observation")
    return known


def output_shape(op: Op, inputs: list[Shape]) -> Shape:
    """Shape of the value that `op` makes of values of these shapes; refuses inputs that do not fit."""

    def misfit(expected: object) -> QuarlError:
        got = ", ".join(map(str, inputs))
        return QuarlError(f"operator {op.name!r} ({type(op).__name__}) expects input {expected}, got {got}")

    expected_inputs = 2 if isinstance(op, Add) else len(inputs) if isinstance(op, Concat) else 1
    if len(inputs) != max(expected_inputs, 1):
        raise misfit(f"from {expected_inputs} operators")
    first = inputs[0]
    match op:
        case Dense():
            if len(op.weight.shape) != 2 or first != (op.weight.shape[1],):
                raise misfit(op.weight.shape[1:])
            return (op.weight.shape[0],)
        case Conv2d():
            if len(op.weight.shape) != 4 or len(first) != 3 or first[0] != op.weight.shape[1]:
                raise misfit("[channels, height, width]")
            if min(op.stride) < 1 or min(op.padding) < 0:
                raise QuarlError(f"operator {op.name!r} has stride {op.stride} and padding {op.padding}")
            size = [
                (n + 2 * p - k) // s + 1
                for n, k, s, p in zip(first[1:], op.weight.shape[2:], op.stride, op.padding, strict=True)
            ]
            if min(size) < 1:
                raise misfit(f"at least {op.weight.shape[2:]}")
            return (op.weight.shape[0], *size)
        case LayerNorm():
            if first[-1:] != op.weight.shape or op.bias.shape != op.weight.shape:
                raise misfit(op.weight.shape)
            return first
        case Normalize():
            if first != op.mean.shape or first != op.variance.shape:
                raise misfit(op.mean.shape)
            return first
        case Flatten():
            return (math.prod(first),)
        case Concat():
            if any(s[:-1] != first[:-1] for s in inputs):
                raise misfit("shapes equal but for the last axis")
            return (*first[:-1], sum(s[-1] for s in inputs))
        case Add():
            wide, narrow = sorted(inputs, reverse=True)
            if wide != narrow and narrow != (1,) * len(wide):
                raise misfit("two equal shapes, or one of [1]")
            return wide
        case Scale():
            if op.factor.shape not in ((), first):
                raise misfit(op.factor.shape)
            return first
        case Activation():
            return first
        case _:
            raise UnsupportedError(f"operator {op.name!r} is a {type(op).__name__}, which is not in the operator set")


def final_linear(policy: Policy) -> frozenset[str]:
    """Names of the linear operators whose value reaches the output without passing another: never quantised."""
    feeds_linear: set[str] = set()
    for op in reversed(policy.ops):
        if isinstance(op, Dense | Conv2d) or op.name in feeds_linear:
            feeds_linear.update(op.inputs)
    return frozenset(op.name for op in policy.linear if op.name not in feeds_linear)


def check(policy: Policy) -> None:
    """Refuses a graph that cannot run: shapes, unknown functions, non-finite numbers, an action head that misfits."""
    if not policy.ops:
        raise QuarlError("the policy has no operators")
    known = shapes(policy)
    for op in policy.ops:
        if isinstance(op, Activation) and op.kind not in ACTIVATIONS:
            raise UnsupportedError(f"activation {op.kind!r} of {op.name!r} is not one of {', '.join(ACTIVATIONS)}")
        for label, array in _arrays(op):
            if not np.isfinite(array).all():
                raise QuarlError(f"{label} of layer {op.name!r} holds NaN or infinity; the policy cannot be used")
    out = known[policy.output]
    if len(out) != 1 or (policy.head.kind != "argmax" and policy.head.low.shape != out):
        raise QuarlError(f"the network's output is {out}, but the action head expects {policy.head.low.shape}")


def _arrays(op: Op) -> list[tuple[str, Array]]:
    match op:
        case Dense() | Conv2d():
            weight = op.weight.scale if isinstance(op.weight, QuantizedTensor) else op.weight
            if op.bias.shape != op.weight.shape[:1]:
                raise QuarlError(f"bias of layer {op.name!r} is {op.bias.shape}, its weight {op.weight.shape}")
            return [("the weight", weight), ("the bias", op.bias)]
        case LayerNorm():
            return [("the gain", op.weight), ("the offset", op.bias)]
        case Normalize():
            with np.errstate(all="ignore"):  # in float32, as engines have them
                mean, inverse_std = op.mean.astype(np.float32), op.inverse_std
            return [("the mean", mean), ("the variance", op.variance), ("the inverse deviation", inverse_std)]
        case Scale():
            return [("the factor", op.factor)]
        case _:
            return []


def mlp(layers: list[tuple[str, Array, Array]], activation: str, source: str = OBSERVATION) -> list[Op]:
    """Dense operators with `activation` between them (none after the last).

    layers: (name, weight [out, in], bias [out]) in order; the first reads the value `source`.
    """
    ops: list[Op] = []
    for index, (name, weight, bias) in enumerate(layers):
        ops.append(Dense(name, (source,), np.ascontiguousarray(weight, np.float32), np.asarray(bias, np.float32)))
        source = name
        if index + 1 < len(layers):
            source = f"{name}.{activation}"
            ops.append(Activation(source, (name,), activation))
    return ops
