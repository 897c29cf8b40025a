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
from quarl.policy.operators import OBSERVATION, Shape
from quarl.policy.recurrent import SEEN
from quarl.readers import action_heads
from quarl.readers.onnx_constants import ONNX, Constants, attributes, parsed
from quarl.readers.onnx_operators import FLOATS, Call, evaluate
from quarl.readers.onnx_recurrent import ORDER, layer, pairs
from quarl.readers.recurrent_values import remembering
from quarl.readers.symbolic import Choice, Symbolic, Value, indices

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
        UnsupportedError: An operator has no counterpart in the graph, or the states are not clear.
        QuarlError: The file is damaged, or does not decide on output, observation or head.
    """
    model = parsed(data := file.contents(), file.path)
    if EXPORTED in data:
        raise QuarlError(f"{file.path} was written by quarl export: name the policy.quarl beside it")
    try:
        program = _Program(model, file.path.parent, fix or {})
        name = program.action(output)
        network, observation, action_head, said = program.policy(name, head)
        kind = program.inputs[observation].type.tensor_type.elem_type
        if kind not in TYPES or (TYPES[kind] == "uint8" and "state" in network):
            raise UnsupportedError(f"input {observation!r} is neither float32 nor, without a state, uint8")
        policy = Policy(
            **network,
            observation_dtype=TYPES[kind],
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
        self.states: dict[str, str] = {}
        """Outputs that are the next states, by the inputs that are the last ones."""
        self.seen: set[str] = set()
        """Inputs beside the states."""
        self.depth = 0

    def action(self, asked: str) -> str:
        """Return the name of the output that is the action."""
        if asked and asked not in self.outputs:
            raise QuarlError(f"--output-name {asked!r} is not one of its outputs {_listed(self.outputs)}")
        names = [asked] if asked else [name for name in self.outputs if self.is_computed(name)]
        if len(preferred := [name for name in names if name in ACTIONS]) == 1:
            names = preferred
        names = self.without_states(names)
        distinct: dict[Any, str] = {}
        for name in names if len(names) > 1 else ():
            value = self.value(name)
            if isinstance(value, Value):
                distinct.setdefault(self.identity(value), name)
        names = list(distinct.values()) or names
        if len(names) == 1 and names[0].lower() not in action_heads.ACTION_NAMES:
            # An output with an unknown operator may be the action too, unless it depends on other inputs.
            unread = [name for name in self.outputs if isinstance(self.values.get(name), UnsupportedError)]
            unread = [name for name in unread if name not in (*names, *self.states.values())]
            names += [name for name in unread if self.sources(name) & self.sources(names[0])]
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

    def without_states(self, names: Sequence[str]) -> list[str]:
        """Return the names of outputs that may be the action, after the states are known."""
        actions = names if len(names) == 1 else [each for each in names if each.lower() in action_heads.ACTION_NAMES]
        others = {
            name: _row(self.outputs[name]) for name in self.outputs if name not in actions and self.is_computed(name)
        }
        sources = {name: self.sources(name) for name in (*actions, *others)}
        read = set().union(*sources.values())
        floats = {each for each in read if self.inputs[each].type.tensor_type.elem_type in FLOATS}
        last = {name: _row(self.inputs[name]) for name in self.inputs if name in floats and len(read) > 1}
        self.states = pairs(last, others, sources)
        names = [name for name in names if name not in self.states.values()]
        self.seen = set().union(*map(self.sources, actions or names)) - self.states.keys()
        for place, name in enumerate(self.states):
            self.graph.budget.copy(8 * math.prod(last[name]))
            self.values[name] = self.graph.state(f"state{place}.{_plain(name)}", np.zeros(last[name], np.float32))
        for name in self.seen if self.states and len(self.seen) == 1 else ():
            row = self.graph.source(SEEN, (1, math.prod(shape := self.shape(name))))
            self.values[name] = self.graph.move(row, indices(row).reshape(shape))
        return names

    def policy(self, name: str, asked: str) -> tuple[dict[str, Any], str, ActionHead, list[str]]:
        """Return the fields of the network, the input that is the observation, the head, and lines about them.

        Args:
            name: Name of the output that is the action.
            asked: The head that the user asks for.
        """
        network, head, line = action_heads.resolve(self.graph, self.computed(name), name, asked)
        ops, carried = self.graph.ops(network), [each for each in self.states if each in self.sources(name)]
        read = {source for op in ops for source in op.inputs}
        alive = {each for each in self.inputs if getattr(self.values.get(each), "form", "") in read}
        alive = self.seen if carried else alive
        if len(alive) != 1:
            others = "; set those that are constant with --fix NAME=VALUE"
            others += "; a state has an output of its name (h_in, h_out), or the only one of its shape"
            raise UnsupportedError(
                f"output {name!r} depends on the inputs {_listed(sorted(alive))}, not on one{others if alive else ''}"
            )
        (observation,) = alive
        said = [line]
        if carried:
            both = (f"{each[:60]!r} (the next one is {self.states[each][:60]!r})" for each in carried)
            said.append(f"state, which starts at 0: {', '.join(both)}")
        if dummies := sorted(set(self.inputs) - {observation, *carried, *self.fixed}):
            said.append(f"inputs on which output {name!r} does not depend are left out: {_listed(dummies)}")
        if fixed := [f"{each} = {number:g}" for each, number in self.fixed.items()]:
            said.append(f"constant inputs: {', '.join(fixed)}")
        if any(node.op_type in SAMPLERS for node in self.nodes):
            said.append(
                "its random numbers are replaced by their most probable value: Multinomial by argmax, noise by 0"
            )
        if carried:
            following = {self.values[each].form: self.computed(self.states[each]) for each in carried}
            fields = remembering(self.graph, self.values[observation], network, following)
            return fields, observation, replace(head, width=network.size), said
        renamed = {(origin := self.values[observation].form): OBSERVATION}
        ops = [replace(op, inputs=tuple(renamed.get(source, source) for source in op.inputs)) for op in ops]
        return {"observation_shape": self.graph.shapes[origin], "ops": tuple(ops)}, observation, head, said

    def is_computed(self, name: str) -> bool:
        """Return whether the output depends on an input otherwise than by Identity and Cast."""
        while name in self.makers and self.makers[name].op_type in PASSING:
            name = self.makers[name].input[0]
        return name in self.makers and bool(self.sources(name))

    def sources(self, name: str) -> set[str]:
        """Return the inputs from which the output is computed."""
        return {each for each in self.ancestors(self.makers, [name]) if each in self.inputs and each not in self.fixed}

    def ancestors(self, makers: Mapping[str, onnx.NodeProto], names: Iterable[str]) -> set[str]:
        """Return the names of all values from which values are computed, including themselves.

        Args:
            makers: Nodes by the names of their outputs.
            names: Names of the values; a state is computed from the one before it.
        """
        seen: set[str] = set()
        stack = list(names)
        while stack:
            name = stack.pop()
            if name not in seen:
                seen.add(name)
                later = [self.states[name]] if name in self.states else []
                stack.extend(makers[name].input if name in makers else later)
        return seen

    def value(self, name: str) -> Any:
        """Return the value of an output, or the error of the operator that cannot compute it."""
        self.run(self.nodes, self.values, [name])
        return self.read(self.values, name)

    def computed(self, name: str) -> Value:
        """Return the value of an output that depends on the observation."""
        value = self.value(name)
        if isinstance(value, UnsupportedError):
            raise value
        if not isinstance(value, Value):
            raise QuarlError(f"output {name!r} is a constant; choose the action with --output-name")
        return value

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
            if node.op_type in ORDER:
                return layer(self.graph, call)
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


def _row(declared: onnx.ValueInfoProto) -> Shape:
    """Return the declared shape with 1 for dynamic axes."""
    return tuple(n or 1 for n in _dims(declared))


def _dims(declared: onnx.ValueInfoProto) -> Shape:
    """Return the declared shape; 0 for dynamic axes."""
    return tuple(max(0, int(dim.dim_value)) for dim in declared.type.tensor_type.shape.dim)


def _layer_name(node: onnx.NodeProto, label: str) -> str:
    """Return the name of a layer: that of the module that owns its weight, otherwise that of the node."""
    owner = next((name for name in node.input[1:2] if name.endswith(".weight")), "")
    return _plain(owner.removesuffix(".weight") or label.strip("/")) or "layer"


def _plain(name: str) -> str:
    """Return a name for the graph."""
    return re.sub(r"[^\w./-]", "_", name)[-80:]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name[:60]) for name in list(names)[:12]) or "none"
