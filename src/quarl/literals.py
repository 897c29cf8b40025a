"""Literals of Python in text, read as data: numbers, text, lists, tuples, dicts and dict(...), never evaluated.

RL Zoo writes hyper-parameters this way: "dict(net_arch=[256, 256], activation_fn=nn.ReLU)". A name that only code could
resolve (nn.ReLU) becomes a Name, and its reader has to know the meaning.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quarl.errors import QuarlError

NONE = "none"
"""Value of --wrapper for no wrapper."""
MAX_TEXT = 2000
"""Largest text in characters. The zoo's longest value has 300, and parsing takes memory in proportion."""
_WORD = re.compile(r"[A-Za-z_][\w.+-]{0,99}")


@dataclass(frozen=True, slots=True)
class Name:
    """A name in the text, including its dots; Python's meaning of it is not looked up."""

    text: str


def read(text: str, *, names: bool = False) -> Any:
    """Return the value of a literal; raise ValueError for anything else.

    names: accept a Name as a value.

    >>> read("dict(net_arch=[64, 64], ortho_init=False)")
    {'net_arch': [64, 64], 'ortho_init': False}
    >>> read("nn.ReLU", names=True)
    Name(text='nn.ReLU')
    """
    try:
        return _value(ast.parse(text[:MAX_TEXT].strip(), mode="eval").body, names)
    except (SyntaxError, RecursionError, MemoryError, TypeError):
        raise ValueError(f"{text[:60]!r} is not a literal") from None


def mapping(value: Any, *, names: bool = False) -> dict[str, Any]:
    """Return a mapping of names to values, given as such or as text; raise ValueError for anything else."""
    plain = read(value, names=names) if isinstance(value, str) else value
    if isinstance(plain, Mapping) and all(isinstance(key, str) for key in plain):
        return dict(plain)
    raise ValueError("not a mapping of names to values")


def written(text: str) -> Any:
    """Return the value that a YAML file would hold for `text`: a literal, or the text itself (lin_1e-3, nn.ReLU).

    Raises ValueError for a text that is not a literal, a word, or a literal with names in it.
    """
    try:
        return read(text)
    except ValueError:
        if not _WORD.fullmatch(text):
            read(text, names=True)
        return text


def spell(value: Any) -> str:
    """Return the text that `read` turns into the value."""
    if isinstance(value, Name):
        return value.text
    if isinstance(value, dict):
        if all(key.isascii() and key.isidentifier() and not keyword.iskeyword(key) for key in value):
            return f"dict({', '.join(f'{key}={spell(entry)}' for key, entry in value.items())})"
        return f"{{{', '.join(f'{key!r}: {spell(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, list | tuple):
        inside = ", ".join(map(spell, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside},)" if value else "()"
    return repr(value)


def _value(node: ast.expr, names: bool) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=elements):
            return [_value(element, names) for element in elements]
        case ast.Tuple(elts=elements):
            return tuple(_value(element, names) for element in elements)
        case ast.Dict(keys=keys, values=values):
            constants = [key.value if isinstance(key, ast.Constant) else None for key in keys]
            return {_text(key): _value(value, names) for key, value in zip(constants, values, strict=True)}
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
            return {_text(item.arg): _value(item.value, names) for item in keywords}
        case ast.Name() | ast.Attribute() if names and all(map(_is_of_a_name, ast.walk(node))):
            return Name(ast.unparse(node))
    raise ValueError("not a literal")


def _text(value: object) -> str:
    if not isinstance(value, str):  # **others has None here
        raise ValueError("a key is not text")
    return value


def _is_of_a_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute | ast.expr_context)


def named_wrapper(word: str) -> tuple[str, Mapping[str, Any]]:
    """Return (name, arguments) of NAME, NAME:K=V,... or NAME:K=V:K=V."""
    name, _, rest = word.partition(":")
    try:
        arguments = read(f"dict({re.sub(r':(?=[A-Za-z_]+=)', ',', rest)})", names=True)
    except ValueError:
        raise QuarlError(f"--wrapper {word!r} is not NAME:K=V,..., as in TimeLimit:max_episode_steps=200") from None
    return name, {key: value.text if isinstance(value, Name) else value for key, value in arguments.items()}
