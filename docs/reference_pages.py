"""The generated parts of README and docs/reference: supported agents, rows, options of commands, study files."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import quarl
from quarl.config import VERBS
from quarl.config.manual import Option, options
from quarl.config.words import below
from quarl.fields import ORDER, strings_under
from quarl.lab.file import BOUNDS, OF_METHOD, TRAIN, Cap, Derived, MethodEntry, PolicyEntry, Study
from quarl.report.row_schema import extras, schema
from quarl.rows import Column, Row

BAR = "\\|"
"""An escaped pipe for cells, because a plain one would end them."""
VALUES = {str: "word", int: "whole number", float: "number", bool: "true or false", Path: "path"}
VALUES |= {tuple[str, ...]: "word, or list of words", tuple[int, ...]: "list of numbers"}
"""Names of value types in the tables."""
MARK = "<!-- generated: make reference -->\n"
"""Marks before and behind the generated part of a page."""


def kinds() -> list[type[Row]]:
    """Return all classes of rows in the package, by command."""
    for module in pkgutil.walk_packages(quarl.__path__, "quarl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    # by command: a dataclass with slots is made twice, and the later one belongs to its module
    commands = {kind.command: kind for kind in _below(Row) if "command" in vars(kind)}
    return [commands[command] for command in sorted(commands)]


def _below(kind: type[Row]) -> Iterator[type[Row]]:
    for each in kind.__subclasses__():
        yield from (each, *_below(each))


def rows() -> str:
    """Return a Markdown table of keys for each kind of rows."""
    lines: list[str] = []
    for kind in kinds():
        hints, about = get_type_hints(kind, include_extras=True), schema(kind)
        entries = []
        for name, key in about["properties"].items():
            heading = "".join(column.heading for column in extras(hints[name], Column))
            entries.append((f"`{name}`", " or ".join(key["type"]), heading, key["description"]))
        lines += [f"## `{kind.command}`", "", about["description"], ""]
        lines += _table(("key", "type", "column", "meaning"), entries)
    return "\n".join(lines)


def verbs() -> str:
    """Return Markdown with the examples of each command and a table of options for each group."""
    lines: list[str] = []
    for kind in (verb for entry in VERBS for verb in below(entry)):
        listed = options(kind)
        words = "".join(f" {option.value}" for option in listed if not option.names)
        lines += [f"## `quarl {kind.verb}{words}`", "", _marked(inspect.getdoc(kind) or "")]
        lines += ["", "```sh", *kind.examples, "```", ""]
        for group in ORDER:
            entries = [_option(option) for option in listed if option.group == group]
            lines += _table((group, "value", "default", "meaning"), entries) if entries else []
    return "\n".join(lines)


def _option(option: Option) -> tuple[str, ...]:
    names = ", ".join(f"`{name}`" for name in option.names)
    default = f"`{option.default}`" if option.default in (*option.choices, "default") else _marked(option.default)
    return (
        names or f"`{option.value}`",
        f"`{option.value}`" if option.names and option.value else "",
        default,
        _marked(option.meaning),
    )


BELOW = ("The cap of a method", Cap), ("The derived arms of a method", Derived)
"""Keys that have keys of their own."""


def study_file() -> str:
    """Return Markdown with the keys of a study file, of its policies and its methods."""
    lines: list[str] = []
    for title, kind in (("The file", Study), ("A policy", PolicyEntry), ("A method", MethodEntry), *BELOW):
        said = strings_under(kind)
        keys = [field for field in dataclasses.fields(kind) if "check" in field.metadata or field.name == "method"]
        entries = []
        for key in keys:
            default = "the file's name" if (kind, key.name) == (Study, "name") else _default(key)
            entries.append((f"`{key.name}`", _value(kind, key.name), default, _marked(said[key.name])))
        lines += [f"## {title}", "", *_table(("key", "value", "default", "meaning"), entries)]
    of_methods = [
        (f"`{method}`", ", ".join(f"`{key}`" for key in keys) or "none") for method, keys in OF_METHOD.items()
    ]
    lines += ["## Keys of each method", "", *_table(("method", "keys"), of_methods)]
    of_train = f"`train` of a policy takes {', '.join(f'`{name}`' for name in TRAIN)}; `actorq` what the method takes."
    lines += [*textwrap.wrap(of_train, 120), ""]
    return "\n".join(lines)


def _value(kind: type[Any], name: str) -> str:
    """Return the name of a key's type."""
    hint = get_type_hints(kind)[name]
    inner = next(
        each for each in (get_args(hint) if get_origin(hint) is UnionType else (hint,)) if each is not NoneType
    )
    return VALUES.get(inner, "list" if get_origin(inner) is tuple else "values by name")


def _default(key: dataclasses.Field[Any]) -> str:
    if key.default is dataclasses.MISSING:
        return "" if key.default_factory is not dataclasses.MISSING else "must be there"
    if key.default is BOUNDS:
        return f"`{{minutes: {BOUNDS.minutes:g}, memory_gb: {BOUNDS.memory_gb:g}}}`"
    if key.default == Path():
        return "the file's folder"
    text = json.dumps([*key.default] if isinstance(key.default, tuple) else key.default).replace('"', "")
    return "" if key.default in (None, "", ()) else f"`{text}`"


def _table(headings: Sequence[str], entries: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |" for row in (headings, *entries)]
    return [lines[0], f"|{len(headings) * '---|'}", *lines[1:], ""]


def _marked(text: str) -> str:
    """Return the text with options as code, so that their dashes are kept."""
    return re.sub(r"(?<![\w-])(--?[a-z][\w-]*)", r"`\1`", text).replace("None: ", "without it: ")


def write(page: Path, text: str) -> None:
    """Put the text between the marks of the page."""
    head, _, tail = page.read_text().split(MARK)
    page.write_text(f"{head}{MARK}\n{text}\n{MARK}{tail}")


def agents() -> str:
    """Return Markdown with a table of algorithms, one of spaces, one of modules."""
    import supported  # imported here: tests that read keys of rows need no PyTorch

    lines: list[str] = []
    for title, (headings, entries) in supported.tables().items():
        lines += [f"## {title}", "", *_table(headings, entries)]
    return "\n".join(lines)


def front() -> str:
    """Return the same as one Markdown table."""
    import supported  # imported here for the same reason

    return "\n".join(_table(*supported.front()))


PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/agents.md": agents,
    "docs/reference/cli.md": verbs,
    "docs/reference/json.md": rows,
    "docs/reference/study-file.md": study_file,
    "README.md": front,
}
"""Generators of pages by their path in the repository."""

if __name__ == "__main__":
    for name, made in PAGES.items():
        write(Path(__file__).parents[1] / name, made())
