"""What the classes of rows say of --json files and of tables: schemas, and the terms of columns."""

from __future__ import annotations

import inspect
from types import NoneType, UnionType
from typing import Any, NotRequired, get_args, get_origin, get_type_hints

from quarl.config.manual import strings_under
from quarl.rows import Column, Row, columns

JSON_TYPES = {bool: "boolean", int: "integer", float: "number", NoneType: "null", list: "array", tuple: "array"}
JSON_TYPES |= {dict: "object", Any: "object", str: "string"}


def schema(kind: type[Any]) -> dict[str, Any]:
    """JSON Schema (2020-12) of a row of this kind, of `Document` or of `Energy`: every key's types and meaning."""
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
    """What the headings of the columns mean, in the words of the fields that they show, where these have any."""
    hints, keys = get_type_hints(kind, include_extras=True), schema(kind)["properties"]
    shown = {name: column for name, hint in hints.items() for column in extras(hint, Column)}
    meanings = {}
    for name, column in shown.items():
        fields = dict.fromkeys((name, *(each for each in column.of if each not in shown)))
        meanings[column.heading] = " ".join(filter(None, (keys[each]["description"] for each in fields)))
    return {column.heading: meanings[column.heading] for column in columns(kind) if meanings[column.heading]}


def extras(hint: Any, kind: type[Any]) -> list[Any]:
    """What of this kind stands beside a type in Annotated."""
    return [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, kind)]


def _types(hint: Any) -> list[str]:
    """What JSON calls the types of values."""
    if hasattr(hint, "__metadata__") or get_origin(hint) is NotRequired:
        return _types(get_args(hint)[0])
    if isinstance(hint, UnionType):
        return [name for each in get_args(hint) for name in _types(each)]
    return [JSON_TYPES.get(get_origin(hint) or hint, "string")]  # else one of several words
