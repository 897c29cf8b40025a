"""The reference of --json files, made from the classes of rows: their schemas and the page's tables of keys."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NotRequired, get_args, get_origin, get_type_hints

import quarl
from quarl.rows import Column, Row, columns

JSON_TYPES = {bool: "boolean", int: "integer", float: "number", NoneType: "null", list: "array", tuple: "array"}
JSON_TYPES |= {dict: "object", Any: "object", str: "string"}
MARK = "<!-- generated: make reference -->\n"
"""Lies before and behind the part of the page that is made here."""


def kinds() -> list[type[Row]]:
    """All classes of rows that the package has, by command."""
    for module in pkgutil.walk_packages(quarl.__path__, "quarl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    # by command: a dataclass with slots is made twice, and the later one is the one that stands in its module
    commands = {kind.command: kind for kind in _below(Row) if "command" in vars(kind)}
    return [commands[command] for command in sorted(commands)]


def _below(kind: type[Row]) -> Iterator[type[Row]]:
    for each in kind.__subclasses__():
        yield from (each, *_below(each))


def schema(kind: type[Any]) -> dict[str, Any]:
    """JSON Schema (2020-12) of a row of this kind, of `Document` or of `Energy`: every key's types and meaning."""
    hints = get_type_hints(kind, include_extras=True)
    if issubclass(kind, Row):
        del hints["command"]
    said = _under_fields(kind)
    properties = {
        name: {"type": _types(hint), "description": said.get(name, "".join(_extras(hint, str)))}
        for name, hint in hints.items()
    }
    return {"type": "object", "description": inspect.getdoc(kind), "properties": properties}


def tables(of: Iterable[type[Row]]) -> str:
    """Markdown: a table of keys for each kind of rows."""
    lines: list[str] = []
    for kind in of:
        hints, about = get_type_hints(kind, include_extras=True), schema(kind)
        lines += [f"## `{kind.command}`", "", about["description"], ""]
        lines += ["| key | type | column | meaning |", "|---|---|---|---|"]
        for name, key in about["properties"].items():
            heading = "".join(column.heading for column in _extras(hints[name], Column))
            words = (f"`{name}`", " or ".join(key["type"]), heading, key["description"].replace("|", "\\|"))
            lines.append(f"| {' | '.join(words)} |")
        lines.append("")
    return "\n".join(lines)


def terms(kind: type[Row]) -> dict[str, str]:
    """What the headings of the columns mean, in the words of the fields that they show, where these have any."""
    hints, keys = get_type_hints(kind, include_extras=True), schema(kind)["properties"]
    shown = {name: column for name, hint in hints.items() for column in _extras(hint, Column)}
    meanings = {}
    for name, column in shown.items():
        fields = dict.fromkeys((name, *(each for each in column.of if each not in shown)))
        meanings[column.heading] = " ".join(filter(None, (keys[each]["description"] for each in fields)))
    return {column.heading: meanings[column.heading] for column in columns(kind) if meanings[column.heading]}


def _extras(hint: Any, kind: type[Any]) -> list[Any]:
    return [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, kind)]


def _types(hint: Any) -> list[str]:
    """What JSON calls the types of values."""
    if hasattr(hint, "__metadata__") or get_origin(hint) is NotRequired:
        return _types(get_args(hint)[0])
    if isinstance(hint, UnionType):
        return [name for each in get_args(hint) for name in _types(each)]
    return [JSON_TYPES.get(get_origin(hint) or hint, "string")]  # else one of several words


def _under_fields(kind: type[Any]) -> dict[str, str]:
    """The string under each field that has one."""
    said = {}
    for base in reversed([each for each in kind.__mro__ if each.__module__.startswith("quarl.")]):
        (tree,) = ast.parse(inspect.getsource(base)).body
        for pair in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    said[name] = " ".join(text.split())
    return said


if __name__ == "__main__":
    page = Path(sys.argv[1])
    head, _, tail = page.read_text().split(MARK)
    page.write_text(f"{head}{MARK}\n{tables(kinds())}\n{MARK}{tail}")
