"""Exported graphs of modules and the ATen calls in them: kinds, arguments, shapes and refusals."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn

from quarl.errors import QuarlError, UnsupportedError, first_line
from quarl.readers.torch_operators import MOVES, VIEWS

SOFTMAX = frozenset(["softmax", "log_softmax"])
ARITHMETIC = frozenset(["add", "sub", "rsub", "mul", "div"])
ELEMENTWISE = ARITHMETIC | {"clamp", "clamp_min", "clamp_max", "clip", "expand_as"}
"""Operators whose arguments broadcast."""
IN_DOUBLE = ELEMENTWISE | VIEWS | {"neg"}
"""Operators that may compute in float64: constants are folded in it, and statistics keep a mean in two float32
numbers."""
FOLDED = ARITHMETIC | MOVES | VIEWS | {"mean", "sum", "neg", "batch_norm", "output", "getitem"}
"""Operators that can become part of the layer before them."""
WAYS: Mapping[tuple[str, ...], str] = {
    ("instance_norm", "group_norm", "rms_norm"): "use nn.LayerNorm or nn.BatchNorm",
    ("celu", "log_sigmoid", "shrink", "prelu", "softplus"): "use nn.SiLU, nn.ELU or another activation of torch's",
    ("rnn_",): "use nn.LSTM or nn.GRU",
    ("batch_norm",): "a policy sees one row: use running statistics",
    ("log_softmax",): "leave it out: the largest score is the same without",
    (".argmax.", ".max.", "multinomial", "bernoulli"): "leave it out and return the scores: QuaRL chooses the action",
}
"""Replacement to suggest, by words in the name of an ATen operator."""
OTHERWISE = "use nn.Linear, nn.Conv2d, nn.LayerNorm, nn.Flatten, pooling, and activations such as ReLU, Tanh or SiLU"


def exported(module: nn.Module, examples: tuple[torch.Tensor, ...]) -> torch.export.ExportedProgram:
    """Return the module's graph in evaluation mode, without operators that overwrite values, and without contexts."""
    # Gradients are off, so that contexts that turn them off leave no trace.
    with evaluating(module), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export warns about itself
        try:
            program = torch.export.export(module, examples, strict=False)
            # Decomposing takes time, and leaves a semaphore of tqdm behind in a process that ends at once.
            rewritten = any(kind(node).endswith("_") or kind(node).startswith("wrap_") for node in program.graph.nodes)
            return program.run_decompositions({}) if rewritten else program
        except Exception as error:  # its errors have no common base; all of them mean the same here
            reason = first_line(error)[:200]
    fix = (
        "; export it with dynamic_shapes that leave its batch open"
        if isinstance(module, torch.fx.GraphModule)
        else "; if that is its state, give the one of a new episode, as in state=(np.zeros((1, 64)),)"
        if "required argument" in reason
        else ""
    )
    raise UnsupportedError(f"torch.export cannot follow {type(module).__name__}: {reason}{fix}")


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode inside the block (dropout off), and restore the mode of every submodule afterwards.

    The module of an ExportedProgram keeps the mode in which it was exported; its calls name that mode.
    """
    modes = [(child, child.training) for child in module.modules()]
    with suppress(NotImplementedError):
        module.eval()
    for child, _ in modes:
        child.training = False
    try:
        yield
    finally:
        for child, mode in modes:
            child.training = mode


def chosen(results: Sequence[Any], output: int | None) -> Any:
    """Return the policy's output among the nodes that the module returns.

    Args:
        results: The nodes.
        output: Index of the output among them, from 0; None for a module with a single output.

    Raises:
        UnsupportedError: The module returns several tensors and no output is chosen.
        QuarlError: There is no output with that index.
    """
    if len(results) != 1 and output is None:
        way = (
            f"choose the policy's with output=0 to output={len(results) - 1}"
            if results
            else "return the output before the state"
        )
        raise UnsupportedError(f"the module returns {len(results) or 'no'} values: {way}")
    if not 0 <= (output or 0) < len(results):
        raise QuarlError(f"output={output} is not one of the module's {len(results)} values, counted from 0")
    return results[output or 0]


def kind(node: torch.fx.Node) -> str:
    """Return the name of the ATen operator that a node calls."""
    if node.target is operator.getitem:
        return "getitem"
    return str(node.target).removeprefix("aten.").split(".")[0]


def tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    """Return example tensors of the results of a node; a batch norm has one."""
    results: Any = node.meta.get("val")
    return (
        list(results)[: 1 if "batch_norm" in kind(node) else None] if isinstance(results, list | tuple) else [results]
    )


def instead(kind: str, otherwise: str = OTHERWISE) -> str:
    """Return the replacement to suggest for an operator without a counterpart in the graph."""
    return next((way for words, way in WAYS.items() if any(word in f".{kind}." for word in words)), otherwise)


def refusal(node: torch.fx.Node, why: str) -> UnsupportedError:
    """Return an error that names the call, the module that makes it and, for some operators, the way out."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, cls = stack[-1] if stack else ("", "")
    cls = cls if isinstance(cls, str) else getattr(cls, "__name__", "")
    place = f"module {path!r} ({cls.rpartition('.')[2]})" if path else "the module's own code"
    way = instead(kind(node), why)
    return UnsupportedError(f"{place} calls {node.target}: {why}{'' if way in why else '; ' + way}")
