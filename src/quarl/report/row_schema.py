"""JSON schemas and column terms from the classes of rows."""

from __future__ import annotations

import inspect
from types import NoneType, UnionType
from typing import Any, NotRequired, get_args, get_origin, get_type_hints

from quarl.fields import strings_under
from quarl.rows import Column, Row, by, columns

JSON_TYPES = {bool: "boolean", int: "integer", float: "number", NoneType: "null", list: "array", tuple: "array"}
JSON_TYPES |= {dict: "object", Any: "object", str: "string"}


def schema(kind: type[Any]) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a kind of row, with every key's types and meaning.

    `Document` and `Energy` have schemas too.
    """
    hints = get_type_hints(kind, include_extras=True)
    if issubclass(kind, Row):
        del hints["command"]
    said = strings_under(kind)
    properties = {
        name: {"type": _types(hint), "description": said.get(name, "".join(extras(hint, str)))}
        for name, hint in hints.items()
    }
    return {"type": "object", "description": inspect.getdoc(kind), "properties": properties}


def terms(kind: type[Row]) -> dict[str, str]:
    """Return the meanings of column headings from the docstrings of the fields that they show, if these have any."""
    hints, keys = get_type_hints(kind, include_extras=True), schema(kind)["properties"]
    shown = {name: column for name, hint in hints.items() for column in extras(hint, Column)}
    meanings = {}
    for name, column in shown.items():
        fields = dict.fromkeys((name, *(each for each in column.of if each not in shown)))
        texts = by(filter(lambda each: keys[each]["description"], fields), lambda each: keys[each]["description"])
        named = (f"{', '.join(those)}: {said}" if len(texts) > 1 else said for said, those in texts.items())
        meanings[column.heading] = " ".join(named)
    return {column.heading: meanings[column.heading] for column in columns(kind) if meanings[column.heading]}


def extras(hint: Any, kind: type[Any]) -> list[Any]:
    """Return the extras of this kind beside a type in Annotated."""
    return [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, kind)]


def _types(hint: Any) -> list[str]:
    """Return the JSON names of the types of values."""
    if hasattr(hint, "__metadata__") or get_origin(hint) is NotRequired:
        return _types(get_args(hint)[0])
    if isinstance(hint, UnionType):
        return [name for each in get_args(hint) for name in _types(each)]
    return [JSON_TYPES.get(get_origin(hint) or hint, "string")]  # the others are one of several words
