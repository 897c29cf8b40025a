"""Partial evaluation of TorchScript: constants fold, and what depends on the observation becomes a graph."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from quarl.errors import QuarlError, UnsupportedError, first_line, printable
from quarl.inert.objects import Inert
from quarl.readers.script_archive import Archive
from quarl.readers.symbolic import Symbolic, Value
from quarl.readers.torch_operators import PLAIN, VIEWS, WEIGHT, operate

MAX_STEPS = 10_000
"""Largest number of expressions that are evaluated; a policy of ten layers takes 500."""
NO_STATE = "only float tensors of the module, overwritten as a whole, are a policy's state"
TYPED = ("annotate", "unchecked_cast", "uninitialized")
"""Functions that only declare a type: that of their second argument, or of a value that is never read."""


class Evaluator:
    """One evaluation of a program for an observation of one width."""

    def __init__(self, archive: Archive, graph: Symbolic, written: Collection[str]) -> None:
        self.archive, self.graph, self.steps, self.written = archive, graph, 0, written
        self.shared: dict[Value, Value] = {}
        """Values that share their numbers with others in torch's memory, and the value of which all are views."""
        self.overwritten: set[Value] = set()
        self.newer: dict[int, Value] = {}
        """Newest values of states, by the ids of their older ones: names of these are names of the same tensor."""
        self.states: dict[str, Value] = {}
        """Newest values of the attributes that are `written`, by dotted name."""

    def run(self, observation: Value) -> Any:
        """Return the result of the module's `forward`."""
        module = self.archive.value(self.archive.module, "")
        forward = self.method(module, "forward", ast.Pass())
        return self.call(forward, [module, observation], {}, forward)

    def method(self, module: Any, name: str, node: ast.AST) -> Any:
        """Return a method of an object, which `node` calls."""
        cls = f"{module.module}.{module.name}" if isinstance(module, Inert) else type(module).__name__
        if f"{cls}.{name}" not in self.archive.globals:
            raise self.error(node, f"{cls:.100} has no method {name:.60}")
        return self.archive.globals[f"{cls}.{name}"]

    def call(self, function: ast.FunctionDef, args: Sequence[Any], kwargs: Mapping[str, Any], node: ast.AST) -> Any:
        """Return the result of a function of the program.

        Args:
            function: The function.
            args: Positional arguments.
            kwargs: Arguments by name.
            node: The place that calls it.
        """
        parameters, defaults = [each.arg for each in function.args.args], function.args.defaults
        names = {name: self.value(each, {}) for name, each in zip(parameters[::-1], defaults[::-1], strict=False)}
        names.update(zip(parameters, args, strict=False), **kwargs)
        if set(names) != set(parameters) or len(args) > len(parameters):
            raise self.error(
                node, f"{function.name:.60} takes {', '.join(parameters):.100}, but gets {len(args)} values"
            )
        returned = self.body(function.body, names)
        return returned[0] if returned else None

    def body(self, statements: Sequence[ast.stmt], names: dict[str, Any]) -> tuple[Any] | None:
        """Run statements; return the value of a return statement in a tuple, or None if there is none."""
        for node in statements:
            match node:
                case ast.Return(value=ast.expr() as value):
                    return (self.value(value, names),)
                case (
                    ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value)
                ):
                    self.assign(target, self.value(value, names), names)
                case ast.If(test=test, body=body, orelse=orelse):
                    condition = self.value(test, names)
                    if isinstance(condition, Value) or np.size(condition) != 1:
                        raise self.error(test, "a branch depends on the observation")
                    if returned := self.body(body if condition else orelse, names):
                        return returned
                case ast.Expr(value=value):
                    self.value(value, names)
                case ast.Pass() | ast.AnnAssign():
                    pass
                case _:
                    raise self.error(
                        node, f"statement {type(node).__name__} is not read; export the policy without loops"
                    )
        return None

    def assign(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        """Bind a value to a name, or its parts to several names."""
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, list) and len(value) == len(target.elts):
            for part, each in zip(target.elts, value, strict=True):
                self.assign(part, each, names)
        elif (
            isinstance(target, ast.Attribute)
            and isinstance(value, Value)
            and not self.parts(value)
            and len(parts := self.parts(self.value(target, names))) == 1
        ):
            self.states[parts[0]] = value
        else:
            raise self.error(target, f"forward writes to {ast.unparse(target)[:60]!r}: {NO_STATE}")

    def parts(self, value: Any) -> list[str]:
        """Return the names of the parts of the state with which a value shares its numbers."""
        whole = self.shared.get(value, value) if isinstance(value, Value) else None
        return [name for name, newest in self.states.items() if self.shared.get(newest, newest) is whole]

    def value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        """Return the value of an expression."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise self.error(node, f"the program takes more than {MAX_STEPS:,} steps, more than any policy needs")
        match node:
            case ast.Constant(value=constant) if not isinstance(constant, int) or abs(constant) < 2**63:
                return constant
            case ast.Name(id=name) if name in names:
                return self.newer.get(id(names[name]), names[name])
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return [self.value(part, names) for part in parts]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.operate("neg", [self.value(operand, names)], {}, node)
            case ast.Subscript(value=owner, slice=place):
                return self.operate("__getitem__", [self.value(owner, names), self.value(place, names)], {}, node)
            case ast.Attribute():
                return self.attribute(node, names)
            case ast.Call():
                return self.called(node, names)
            case _:
                raise self.error(node, f"{ast.unparse(node)[:60]!r} is not read")

    def attribute(self, node: ast.Attribute, names: dict[str, Any]) -> Any:
        """Return a function, a constant, or an attribute of an object."""
        path = ast.unparse(node)
        if path in self.archive.globals:
            return self.archive.value(self.archive.globals[path], path, "constants")
        return self.member(self.value(node.value, names), node.attr, node)

    def member(self, owner: Any, name: Any, node: ast.AST) -> Any:
        """Return the newest value of an attribute of an object, which `node` reads."""
        attributes = owner.attributes if isinstance(owner, Inert) else {}
        if not isinstance(name, str) or name not in attributes:
            raise self.error(node, f"there is no attribute {str(name)[:60]!r}")
        value = self.archive.value(attributes[name], f"{self.archive.names.get(id(owner), '')}.{name}".lstrip("."))
        path = self.archive.names.get(id(value), "")
        if name in self.written and path not in self.states and getattr(value, "dtype", np.dtype(int)).kind == "f":
            self.states[path] = self.graph.state(path, value.astype(np.float32))
        return self.states.get(path, value)

    def called(self, node: ast.Call, names: dict[str, Any]) -> Any:
        """Return the result of a call: of an operator, or of a function or a method of the program."""
        name = ast.unparse(node.func)
        if name in TYPED:
            return self.value(node.args[1], names) if len(node.args) == 2 else None
        args = [self.value(each, names) for each in node.args]
        kwargs = {str(each.arg): self.value(each.value, names) for each in node.keywords}
        if name == "getattr" and len(args) == 2:
            return self.member(args[0], args[1], node)
        if name.startswith("torch.") or name in PLAIN:
            return self.operate(name.removeprefix("torch."), args, kwargs, node)
        if isinstance(node.func, ast.Attribute) and name not in self.archive.globals:
            owner = self.value(node.func.value, names)
            return self.call(self.method(owner, node.func.attr, node), [owner, *args], kwargs, node)
        function = self.value(node.func, names)
        if not isinstance(function, ast.FunctionDef):
            raise self.error(node, f"{name[:60]!r} is not a function of the program")
        return self.call(function, args, kwargs, node)

    def operate(self, name: str, args: Sequence[Any], options: Mapping[str, Any], node: ast.AST) -> Any:
        """Return the result of one of torch's operators.

        Args:
            name: Name of the operator without "torch.".
            args: Positional arguments.
            options: Arguments by name.
            node: The place that calls it.
        """
        in_place, said = name.endswith("_") and not name.endswith("__"), f"operator torch.{name:.60}"
        kind = name.removesuffix("_") if in_place else name
        each_arg = [x for arg in args for x in (arg if isinstance(arg, list) else [arg])]
        if kind not in PLAIN and any(isinstance(x, list) for x in each_arg):
            raise self.error(node, f"{said} reads lists of lists")
        given = [x for x in each_arg if isinstance(x, Value)]
        if in_place and not (args and isinstance(args[0], Value)):
            raise self.error(node, f"{said} writes to a tensor of the module: {NO_STATE}")
        whole = self.shared.get(given[0], given[0]) if given else None
        parts = self.parts(args[0]) if in_place else []
        if self.overwritten.intersection(given) or (in_place and given[0] in self.shared and not parts):
            raise self.error(node, f"{said} reads or writes a value that is overwritten in place; use inplace=False")
        labels = filter(WEIGHT.search, (f".{self.archive.names.get(id(x), '')}" for x in each_arg))
        try:
            result = operate(self.graph, kind, WEIGHT.sub("", next(labels, ".layer"))[1:] or "weight", args, options)
        except QuarlError as error:
            raise self.error(node, f"{said}: {first_line(error)[:160]}") from None
        if parts and isinstance(whole, Value):
            if (
                len(parts) > 1
                or not isinstance(result, Value)
                or not result.size == given[0].size == whole.size
                or self.graph.name(given[0]) != self.graph.name(whole)
            ):
                raise self.error(node, f"{said} writes to a part of {parts[0][:60]!r}, or a constant: {NO_STATE}")
            # in torch, earlier views have the new numbers
            self.overwritten |= {whole} | {view for view, of in self.shared.items() if of is whole}
            result = self.states[parts[0]] = Value(whole.shape, self.graph.name(result, (result.size,)))
            self.newer |= {old: result for old in (id(whole), *self.newer) if self.newer.get(old, whole) is whole}
        elif in_place:
            self.overwritten.add(given[0])
        elif kind in VIEWS and whole is not None:
            views = [whole, *(result if isinstance(result, list) else [result])]
            self.shared |= {view: whole for view in views if isinstance(view, Value)}
        return result

    def error(self, node: ast.AST, why: str) -> UnsupportedError:
        """Return an error that names the place in the program."""
        return UnsupportedError(printable(f"{self.archive.place(node)}: {why}"))
