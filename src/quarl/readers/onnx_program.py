"""Policies in .onnx files: their operators are read as data and become the policy's graph; nothing is run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError, in_one_line, note, printable
from quarl.inert.zip import Opened
from quarl.policy.graph import ActionHead, Policy, Provenance, as_metadata
from quarl.policy.operators import OBSERVATION, Op, Shape
from quarl.readers import action_heads
from quarl.readers.onnx_constants import ONNX, Constants, attributes, parsed
from quarl.readers.onnx_operators import Call, evaluate
from quarl.readers.symbolic import Choice, Symbolic, Value

MASKS = "action_masks"
"""ML-Agents' input of allowed discrete actions, which becomes ones."""
ACTIONS = ("continuous_actions", "discrete_actions")
"""ML-Agents' outputs among others; an output that any of them names is the action."""
PASSING = ("Identity", "Cast")
SAMPLERS = ("Multinomial", "RandomNormal", "RandomNormalLike")
MAX_DEPTH = 16
"""Largest depth of functions that call functions."""
EXPORTED = b'{"format":"quarl-contract-'
"""Start of the contract in files that QuaRL exports."""
TYPES: Mapping[int, Literal["float32", "uint8"]] = {1: "float32", 11: "float32", 2: "uint8"}
"""Number types of observations by ONNX's numbers."""
COST = 64
"""Parsed values that the evaluation of a node counts as: functions that call each other repeat nodes."""
Values = dict[str, Any]
"""Values by name: operands, None for a missing input, and the error of a node without a counterpart."""


def read(file: Opened, head: str = "", output: str = "", fix: Mapping[str, float] | None = None) -> Policy:
    """Return the policy of an .onnx file.

    Args:
        file: The file; external data must be in its folder.
        head: Meaning of the output, as in "clip:-1,1"; "" leaves it to the file.
        output: Name of the output that is the action; "" chooses the only one.
        fix: Constant numbers for inputs that are not the observation.

    Raises:
        UnsupportedError: An operator has no counterpart in the graph, or the policy has a state.
        QuarlError: The file is damaged, or does not decide on output, observation or head.
    """
    model = parsed(data := file.contents(), file.path)
    if EXPORTED in data:
        raise QuarlError(f"{file.path} was written by quarl export: name the policy.quarl beside it")
    try:
        program = _Program(model, file.path.parent, fix or {})
        name = program.action(output)
        ops, observation, action_head, said = program.policy(name, head)
        kind = program.inputs[observation].type.tensor_type.elem_type
        if kind not in TYPES:
            raise UnsupportedError(f"input {observation!r} is neither float32 nor uint8")
        policy = Policy(
            observation_shape=program.graph.shapes[observation],
            observation_dtype=TYPES[kind],
            ops=tuple(ops),
            head=action_head,
            provenance=Provenance(
                origin="onnx", metadata=as_metadata((each.key, each.value) for each in model.metadata_props)
            ),
        )
    except QuarlError as error:
        raise type(error)(f"{file.path}: {printable(str(error))}") from error
    for line in said:
        note(line)
    return policy


class _Program:
    """One model, evaluated for an observation that stays unknown."""

    def __init__(self, model: onnx.ModelProto, folder: Path, fix: Mapping[str, float]) -> None:
        self.constants, self.graph, self.nodes = Constants(model, folder), Symbolic(), model.graph.node
        self.functions = {(function.domain, function.name): function for function in model.functions}
        self.makers = {name: node for node in self.nodes for name in node.output if name}
        named = [*(name for node in self.nodes for name in node.output if name), *self.constants.tensors]
        if len(set(named)) < len(named) or self.makers.keys() & {each.name for each in model.graph.input}:
            raise QuarlError("two of its values have one name; export it again")
        self.inputs = {each.name: each for each in model.graph.input if each.name not in self.constants.tensors}
        self.outputs = {each.name: each for each in model.graph.output}
        self.fixed = {name: 1.0 for name in self.inputs if name == MASKS} | dict(fix)
        if unknown := set(fix) - set(self.inputs):
            raise QuarlError(f"--fix names {sorted(unknown)[0]!r}, but its inputs are {_listed(self.inputs)}")
        self.values: Values = {}
        self.depth = 0

    def action(self, asked: str) -> str:
        """Return the name of the output that is the action."""
        if asked and asked not in self.outputs:
            raise QuarlError(f"--output-name {asked!r} is not one of its outputs {_listed(self.outputs)}")
        names = [asked] if asked else [name for name in self.outputs if self.is_computed(name)]
        if len(preferred := [name for name in names if name in ACTIONS]) == 1:
            return preferred[0]
        distinct: dict[Any, str] = {}
        for name in names if len(names) > 1 else ():
            value = self.value(name)
            if isinstance(value, Value):
                distinct.setdefault(self.identity(value), name)
        names = list(distinct.values()) or names
        if len(names) == 1 and names[0].lower() not in action_heads.ACTION_NAMES:
            # An output with an unknown operator may be the action too, unless it depends on other inputs.
            unread = [name for name in self.outputs if isinstance(self.values.get(name), UnsupportedError)]
            names += [name for name in unread if name not in names and self.sources(name) & self.sources(names[0])]
        for name in names if len(names) > 1 else ():
            self.check_states(name, self.sources(name))
        if len(names) != 1:
            raise QuarlError(f"its outputs are {_listed(names or self.outputs)}; choose the action with --output-name")
        return names[0]

    def identity(self, value: Value) -> Any:
        """Return the same for values that the same operators compute."""
        try:
            scores = value.form.scores if isinstance(value.form, Choice) else (value,)
            return isinstance(value.form, Choice), *map(self.graph.name, scores)
        except UnsupportedError:
            return value

    def policy(self, name: str, asked: str) -> tuple[list[Op], str, ActionHead, list[str]]:
        """Return the operators of the action, the input that is the observation, the head, and lines about them.

        Args:
            name: Name of the output that is the action.
            asked: The head that the user asks for.
        """
        value = self.value(name)
        if isinstance(value, UnsupportedError):
            self.check_states(name, self.sources(name))
            raise value
        if not isinstance(value, Value):
            raise QuarlError(f"output {name!r} is a constant; choose the action with --output-name")
        network, head, line = action_heads.resolve(self.graph, value, name, asked)
        ops = self.graph.ops(network)
        alive = {source for op in ops for source in op.inputs if source in self.inputs}
        self.check_states(name, alive)
        if len(alive) != 1:
            others = "; set those that are constant with --fix NAME=VALUE" if alive else ""
            raise UnsupportedError(
                f"output {name!r} depends on the inputs {_listed(sorted(alive))}, not on one{others}"
            )
        observation = alive.pop()
        said = [line]
        if dummies := sorted(set(self.inputs) - {observation, *self.fixed}):
            said.append(f"inputs on which output {name!r} does not depend are left out: {_listed(dummies)}")
        if fixed := [f"{each} = {number:g}" for each, number in self.fixed.items()]:
            said.append(f"constant inputs: {', '.join(fixed)}")
        if any(node.op_type in SAMPLERS for node in self.nodes):
            said.append(
                "its random numbers are replaced by their most probable value: Multinomial by argmax, noise by 0"
            )
        renamed = {observation: OBSERVATION}
        ops = [replace(op, inputs=tuple(renamed.get(source, source) for source in op.inputs)) for op in ops]
        return ops, observation, head, said

    def check_states(self, action: str, inputs: Iterable[str]) -> None:
        """Refuse a policy with a memory.

        A state is one of several inputs on which the action depends, from which another output of its shape is
        computed.
        """
        inputs = sorted(inputs)
        for name in inputs if len(inputs) > 1 else ():
            for other in self.outputs:
                same = _dims(self.outputs[other]) == _dims(self.inputs[name])
                if other != action and same and self.is_computed(other) and name in self.sources(other):
                    raise UnsupportedError(f"input {name!r} is a state; recurrent policies are not read yet")

    def is_computed(self, name: str) -> bool:
        """Return whether the output depends on an input otherwise than by Identity and Cast."""
        while name in self.makers and self.makers[name].op_type in PASSING:
            name = self.makers[name].input[0]
        return name in self.makers and bool(self.sources(name))

    def sources(self, name: str) -> set[str]:
        """Return the inputs from which the output is computed."""
        return {each for each in self.ancestors(self.makers, [name]) if each in self.inputs and each not in self.fixed}

    def ancestors(self, makers: Mapping[str, onnx.NodeProto], names: Iterable[str]) -> set[str]:
        """Return the names of all values from which values are computed, including themselves."""
        seen: set[str] = set()
        stack = list(names)
        while stack:
            name = stack.pop()
            if name not in seen:
                seen.add(name)
                stack.extend(makers[name].input if name in makers else ())
        return seen

    def value(self, name: str) -> Any:
        """Return the value of an output, or the error of the operator that cannot compute it."""
        self.run(self.nodes, self.values, [name])
        return self.read(self.values, name)

    def run(
        self, nodes: Sequence[onnx.NodeProto], values: Values, wanted: Sequence[str], outer: Call | None = None
    ) -> None:
        """Evaluate the nodes that the wanted values need, in the order of the file.

        Args:
            nodes: Nodes of the graph or of a function.
            values: Values by name; results are added.
            wanted: Names of the wanted values.
            outer: Call of the function that the nodes belong to.
        """
        needed = self.ancestors({name: node for node in nodes for name in node.output if name}, wanted)
        for node in nodes:
            names = [name for name in node.output if name in needed and name not in values]
            if names:
                results = self.results(node, values, outer)
                if not isinstance(results, list):  # an error is that of all outputs
                    known = results if isinstance(results, UnsupportedError) else None
                    rest = known or UnsupportedError(
                        f"operator {node.op_type[:60]}: only its first output is supported"
                    )
                    results = [results, *[rest] * (len(node.output) - 1)]
                values.update(zip(node.output, results, strict=False))

    def results(self, node: onnx.NodeProto, values: Values, outer: Call | None) -> Any:
        """Return the results of a node; an error that is raised when another node reads it."""
        self.graph.budget.parse(COST)
        label = node.name or next(iter(node.output), "")
        options = {key: self.option(value) for key, value in attributes(node, outer.options if outer else None).items()}
        inputs = [self.read(values, name) for name in node.input]
        call = Call(node.op_type, _layer_name(node, label), label, inputs, options, len(node.output))
        try:
            if error := next((each for each in inputs if isinstance(each, UnsupportedError)), None):
                return error
            if (node.domain, node.op_type) in self.functions:
                return self.inlined(call, self.functions[node.domain, node.op_type])
            if node.domain not in ONNX:
                raise UnsupportedError(f"it is in the domain {node.domain[:60]!r}, which is not ONNX's own")
            return _constant(options) if node.op_type == "Constant" else evaluate(self.graph, call)
        except UnsupportedError as error:
            return error if str(error).startswith("operator ") else call.error(error)
        except (ValueError, IndexError, TypeError, KeyError, OverflowError) as error:
            return call.error(f"its arguments do not fit ({in_one_line(error)[:100]})")

    def inlined(self, call: Call, function: onnx.FunctionProto) -> list[Any]:
        """Return the results of a function of the file."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnsupportedError("functions call each other too deeply")
        values: Values = dict(zip(function.input, call.inputs, strict=False))
        self.run(function.node, values, function.output, call)
        self.depth -= 1
        return [self.read(values, name) for name in function.output]

    def read(self, values: Values, name: str) -> Any:
        """Return the value of a name: computed before, a constant, or an input of the model; None for no name."""
        if name in values or not name:
            return values.get(name)
        if name in self.constants.tensors:
            values[name] = self.number(self.constants.tensors[name])
        elif name in self.inputs:
            shape = self.shape(name)
            values[name] = (
                np.full(shape, self.fixed[name], np.float32) if name in self.fixed else self.graph.source(name, shape)
            )
        else:
            raise QuarlError(f"a node reads {name[:80]!r}, which no node before it computes; export it again")
        return values[name]

    def shape(self, name: str) -> Shape:
        """Return the shape of an input for one observation."""
        dims = _dims(self.inputs[name])
        shape = (1, *dims[1:]) if dims[:1] == (0,) else dims
        if not shape or 0 in shape or (len(shape) > 1 and shape[0] != 1):
            known = ["?" if n == 0 else n for n in dims]
            raise UnsupportedError(
                f"input {name!r} has shape {known}; only the batch may be dynamic, else it must be 1"
            )
        self.graph.budget.copy(8 * math.prod(shape))
        return shape

    def number(self, tensor: onnx.TensorProto) -> Array:
        """Return the numbers of a constant."""
        array = self.constants.numbers(tensor)
        if (
            array is None
            or array.dtype.kind == "V"
            or array.dtype.itemsize == 2
            or array.dtype.name.startswith("float8")
        ):
            raise UnsupportedError(f"constant {tensor.name[:80]!r} does not hold float32 numbers; export it in float32")
        return array

    def option(self, value: Any) -> Any:
        """Return the value of an attribute, a tensor as its numbers."""
        return self.number(value) if isinstance(value, onnx.TensorProto) else value


def _constant(options: Mapping[str, Any]) -> Array:
    """Return the value of a Constant node."""
    for key, dtype in (
        ("value", None),
        ("value_float", "f4"),
        ("value_floats", "f4"),
        ("value_int", "i8"),
        ("value_ints", "i8"),
    ):
        if key in options:
            return np.asarray(options[key], dtype)
    raise UnsupportedError("its value is not numbers")


def _dims(declared: onnx.ValueInfoProto) -> Shape:
    """Return the declared shape; 0 for dynamic axes."""
    return tuple(int(dim.dim_value) for dim in declared.type.tensor_type.shape.dim)


def _layer_name(node: onnx.NodeProto, label: str) -> str:
    """Return the name of a layer: that of the module that owns its weight, otherwise that of the node."""
    owner = next((name for name in node.input[1:2] if name.endswith(".weight")), "")
    return re.sub(r"[^\w./-]", "_", owner.removesuffix(".weight") or label.strip("/"))[-80:] or "layer"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name[:60]) for name in list(names)[:12]) or "none"
