"""Operators of torch, translated to those of ONNX, for which `onnx_operators` has the rules.

Programs in TorchScript and exported graphs of modules call the same operators.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from quarl.errors import UnsupportedError, first_line
from quarl.policy.operators import LEAKY_SLOPE
from quarl.policy.recurrent import Weights
from quarl.readers import recurrent_values
from quarl.readers.onnx_operators import END, Call, evaluate
from quarl.readers.symbolic import Operand, Symbolic, Value

RECURRENT = ("lstm", "gru", "lstm_cell", "gru_cell")
WEIGHT = re.compile(r"\.(weight(_[ih]h)?(_l0)?|_flat_weights)$")
"""Last part of the names of weights, behind the name of the layer."""
Node = tuple[str, Sequence[Any], Mapping[str, Any]]
"""Operator of ONNX, its inputs and its attributes."""
TYPES = {None: 1, 3: 6, 4: 7, 6: 1, 7: 11}
"""ONNX's numbers of int32, int64, float and double, by torch's."""
PLAIN: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "floordiv")},
    **{"int": int, "float": float, "bool": bool, "Int": int, "Float": float, "Bool": bool, "list": list},
    "__contains__": lambda values, value: value in values,
    "__getitem__": lambda values, place: values[place],
    "__is__": operator.is_,
    "__isnot__": operator.is_not,
    "__not__": operator.not_,
    "device": lambda *args, **options: None,
    "dim": lambda x: len(x.shape),
    "format": lambda text, *values: text,
    "len": lambda x: len(x) if isinstance(x, list) else x.shape[0],
    "numel": lambda x: math.prod(x.shape),
    "size": lambda x, dim=None: list(x.shape) if dim is None else x.shape[dim],
}
"""Operators whose results are not tensors: functions of Python's numbers and lists, and of shapes."""


def operate(graph: Symbolic, kind: str, name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Return the result of an operator of torch.

    Args:
        graph: The graph under construction.
        kind: Name of the operator.
        name: Name of the layer, if it is one.
        args: Its positional arguments.
        options: Its arguments by name.

    Raises:
        UnsupportedError: The operator has no counterpart.
    """
    if kind not in PLAIN and kind not in NODES and kind not in RECURRENT:
        raise UnsupportedError("it is not in the operator set")
    try:
        if kind in RECURRENT:
            return _recurrent(graph, kind, name, *args)
        if kind in PLAIN:
            return PLAIN[kind](*args, **options)
        node, inputs, attributes = NODES[kind](*args, **options)
        operands = [x if x is None or isinstance(x, Value) else np.asarray(x) for x in inputs]
        return evaluate(graph, Call(node, name, kind, operands, attributes, 1))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UnsupportedError(f"its arguments do not fit ({first_line(error)[:100]})") from None


def _recurrent(graph: Symbolic, kind: str, name: str, x: Value, last: Any, *rest: Any) -> Any:
    """Return the results of a cell, or of stacked layers, whose weights and options are the `rest`."""
    is_cell, states = kind.endswith("_cell"), last if isinstance(last, list | tuple) else [last]
    layers, dropout, training, both = (1, 0.0, False, False) if is_cell else rest[2:6]
    weights = [np.asarray(each, np.float32) for each in (rest if is_cell else rest[0]) if each is not None]
    count, size, steps = len(weights) // layers, weights[1].shape[1], list[Sequence[Value]]()
    if both or count not in (2, 4) or (dropout and training):
        raise UnsupportedError("it is bidirectional, has projections or drops out; only plain layers are supported")
    if not all(isinstance(each, Value) for each in states):
        raise UnsupportedError(
            "it is recurrent, but starts each call from the same state, which no call writes or returns"
        )
    if x.size != x.shape[-1] or any(each.size != layers * size for each in states):
        raise UnsupportedError(
            f"it reads {list(x.shape)} and a state {list(states[0].shape)}; a policy takes one step of one row per call"
        )
    bias = [np.zeros(len(weights[0]), np.float32)] * (4 - count)
    for layer in range(layers):
        row, label = steps[-1][0] if steps else x, f"{name}.{layer}" if layers > 1 else name
        parts = [graph.move(each, np.arange(layer * size, (layer + 1) * size)) for each in states]
        given = Weights(*weights[layer * count :][:count], *bias)
        steps.append(
            recurrent_values.lstm(graph, label, row, parts, given)
            if "lstm" in kind
            else [recurrent_values.gru(graph, label, row, parts[0], given)]
        )
    joined = [graph.name(graph.concat(parts, 0)) for parts in zip(*steps, strict=True)]  # type: ignore[arg-type]
    graph.hidden.add(joined[0])
    results = [Value(each.shape, part) for each, part in zip(states, joined, strict=True)]
    return (
        [Value((*x.shape[:-1], size), steps[-1][0].form), *results]
        if not is_cell
        else results
        if len(results) > 1
        else results[0]
    )


def _node(kind: str, *inputs: Any, only: bool = True, **attributes: Any) -> Node:
    """Return a node; its options are supported `only` if this is true."""
    if not only:
        raise UnsupportedError("its options are not supported; a module saved in training mode needs eval()")
    return kind, inputs, attributes


def _slice(x: Operand, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Node:
    return _node("Slice", x, [start or 0], [END if end is None else end], [dim], [step])


def _split(x: Operand, size: int | Sequence[int], dim: int = 0) -> Node:
    width = x.shape[dim]
    sizes = [min(size, width - start) for start in range(0, width, size)] if isinstance(size, int) else size
    return _node("Split", x, sizes, axis=dim, only=sum(sizes) == width)


def _each(x: Operand, option: int | Sequence[int]) -> list[int]:
    """Return an option for each axis of an image."""
    numbers = [option] if isinstance(option, int) else list(option)
    return numbers * (len(x.shape) - 2) if len(numbers) == 1 else numbers


def _convolution(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    **options: Any,
) -> Node:
    named = isinstance(padding, str)
    options |= {"auto_pad": padding.upper().encode()} if named else {"pads": 2 * _each(x, padding)}
    steps, between = _each(x, stride), _each(x, dilation)
    return _node("Conv", x, weight, bias, strides=steps, dilations=between, group=groups, **options)


def _pool(kind: str, x: Operand, kernel: Any, stride: Any, padding: Any, **options: Any) -> Node:
    steps = _each(x, stride or kernel)
    return _node(kind, x, kernel_shape=_each(x, kernel), strides=steps, pads=2 * _each(x, padding), **options)


def _cast(x: Operand, *args: Any, dtype: int | None = None, **options: Any) -> Node:
    code = next((each for each in (dtype, *args[:2]) if type(each) is int), None)
    return _node("Cast", x, to=TYPES.get(code), only=code in TYPES)


def _clip(x: Operand, low: Any = None, high: Any = None, **ends: Any) -> Node:
    return _node("Clip", x, ends.get("min", low), ends.get("max", high))


_ALIKE = {
    **{name: name.capitalize() for name in ("abs", "exp", "log", "neg", "pow", "reciprocal", "sqrt")},
    **{name: name.capitalize() for name in ("hardsigmoid", "mish", "relu", "sigmoid", "silu", "tanh")},
    **{"hardswish": "HardSwish", "matmul": "MatMul", "mm": "MatMul", "mul": "Mul", "prelu": "PRelu", "t": "Transpose"},
}
"""Operators without options."""
NODES: Mapping[str, Callable[..., Node]] = {
    **{name: lambda *inputs, kind=kind: _node(kind, *inputs) for name, kind in _ALIKE.items()},
    **dict.fromkeys(
        ("alias", "clone", "contiguous", "detach", "tensor", "type_as"),
        lambda x, *args, **options: _node("Identity", x),
    ),
    **dict.fromkeys(("clamp", "clamp_min", "clip"), _clip),
    **dict.fromkeys(("to", "_to_copy"), _cast),
    **dict.fromkeys(("dropout", "feature_dropout"), lambda x, p, train: _node("Identity", x, only=not train)),
    **dict.fromkeys(
        ("norm", "linalg_vector_norm"),
        lambda x, p, dim, keepdim=False: _node("ReduceL2", x, dim, keepdims=keepdim, only=p == 2),
    ),
    **dict.fromkeys(("conv1d", "conv2d"), _convolution),
    **dict.fromkeys(
        ("max_pool1d", "max_pool2d"),
        lambda x, kernel, stride=(), padding=0, dilation=1, ceil=False: _pool(
            "MaxPool", x, kernel, stride, padding, dilations=_each(x, dilation), ceil_mode=ceil
        ),
    ),
    **dict.fromkeys(
        ("avg_pool1d", "avg_pool2d"),
        lambda x, kernel, stride=(), padding=0, ceil=False, count=True, divisor=None: _pool(
            "AveragePool", x, kernel, stride, padding, ceil_mode=ceil, count_include_pad=count, only=divisor is None
        ),
    ),
    **dict.fromkeys(
        ("adaptive_avg_pool1d", "adaptive_avg_pool2d"),
        lambda x, size: _node("GlobalAveragePool", x, only=set(_each(x, size)) == {1}),
    ),
    **{
        name: lambda x, dim=None, keepdim=False, dtype=None, kind=kind: _node(
            kind, x, dim, keepdims=keepdim, only=dtype in (None, 6)
        )
        for name, kind in {"mean": "ReduceMean", "sum": "ReduceSum"}.items()
    },
    **dict.fromkeys(("reshape", "view"), lambda x, shape: _node("Reshape", x, shape, allowzero=1)),
    **dict.fromkeys(("split", "split_with_sizes", "unsafe_split"), _split),
    **dict.fromkeys(("chunk", "unsafe_chunk"), lambda x, chunks, dim=0: _split(x, -(-x.shape[dim] // chunks), dim)),
    "_convolution": lambda x, weight, bias, stride, margin, dilation, transposed, output, groups, *flags: _convolution(
        x, weight, bias, stride, margin, dilation, groups, only=not transposed
    ),
    "_native_batch_norm_legit_no_training": lambda x, gain, offset, mean, variance, momentum, eps: _node(
        "BatchNormalization", x, gain, offset, mean, variance, epsilon=eps
    ),
    "add": lambda a, b, alpha=1: _node("Add", a, b, alpha=alpha),
    "addmm": lambda bias, x, m, beta=1, alpha=1: _node("Gemm", x, m, bias, alpha=alpha, beta=beta),
    "argmax": lambda x, dim=-1, keepdim=False: _node("ArgMax", x, axis=dim, keepdims=keepdim),
    "batch_norm": lambda x, gain, offset, mean, variance, training, momentum, eps, cudnn=True: _node(
        "BatchNormalization", x, gain, offset, mean, variance, epsilon=eps, only=not training and mean is not None
    ),
    "cat": lambda parts, dim=0: _node("Concat", *parts, axis=dim),
    "copy": lambda x, other, waits=False: _node("Expand", other, x.shape),
    "clamp_max": lambda x, high: _clip(x, None, high),
    "div": lambda a, b: _node("Div", a if isinstance(a, Value) else np.asarray(a, np.float64), b),
    "elu": lambda x, alpha=1, scale=1, input_scale=1: _node("Elu", x, alpha=alpha, gamma=scale, only=input_scale == 1),
    "expand": lambda x, sizes, implicit=False: _node("Expand", x, [1 if n == -1 else n for n in sizes]),
    "expand_as": lambda x, other: _node("Expand", x, other.shape),
    "flatten": lambda x, start=0, end=-1: _node(
        "Reshape", x, [*x.shape[:start], -1], only=end in (-1, len(x.shape) - 1)
    ),
    "gelu": lambda x, approximate="none": _node("Gelu", x, approximate=approximate.encode()),
    "hardtanh": lambda x, low=-1, high=1: _clip(x, low, high),
    "layer_norm": lambda x, shape, weight=None, bias=None, eps=1e-5, cudnn=True: _node(
        "LayerNormalization", x, weight, bias, axis=-len(shape), epsilon=eps
    ),
    "leaky_relu": lambda x, slope=LEAKY_SLOPE: _node("LeakyRelu", x, alpha=slope),
    "linear": lambda x, weight, bias=None: _node("Gemm", x, weight, bias, transB=1),
    "relu6": lambda x: _clip(x, 0, 6),
    "rsub": lambda a, b, alpha=1: _node("Sub", b, a, alpha=alpha),
    "select": lambda x, dim, index: _node("Gather", x, index, axis=dim),
    "selu": lambda x: _node("Selu", x),
    "slice": _slice,
    "softmax": lambda x, dim, dtype=None: _node("Softmax", x, axis=dim, only=dtype in (None, 6)),
    "softplus": lambda x, beta=1, threshold=20: _node("Softplus", x, only=beta == 1 and threshold == 20),
    "squeeze": lambda x, dim: _node("Squeeze", x, [dim]) if x.shape[dim] == 1 else _node("Identity", x),
    "sub": lambda a, b, alpha=1: _node("Sub", a, b, alpha=alpha),
    "unsqueeze": lambda x, dim: _node("Unsqueeze", x, [dim]),
    "zeros": lambda shape, **options: _node("ConstantOfShape", shape),
}
"""Operators by name, with torch's parameters; every other one is refused."""
MOVES = frozenset(
    [
        *("alias", "clone", "contiguous", "detach", "expand", "flatten", "identity", "reshape", "squeeze", "t"),
        *("unflatten", "unsqueeze", "view", "_unsafe_view"),
        *("chunk", "narrow", "permute", "select", "slice", "split", "split_with_sizes", "transpose", "unbind"),
    ]
)
"""Operators that keep or move the numbers of their first argument."""
VIEWS = (MOVES - {"clone"}) | {"dropout", "feature_dropout", "expand_as", "to", "_to_copy"}
"""Operators whose result can share its numbers with their first argument."""
