"""Explanations of fields of specs, options and rows: their groups, their values, and the strings under them."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from typing import Any

from tyro.conf import arg


class Group(str):
    """The title of a group of options."""


ORDER = tuple(map(Group, ["what", "training", "environment", "quantization", "output", "advanced", "energy"]))
"""All groups, from the common ones to those that few users need."""
WHAT, TRAINING, ENVIRONMENT, QUANTISATION, OUTPUT, ADVANCED, ENERGY = ORDER


def shown(value: str | None = None, *aliases: str, default: str = "", meaning: str | None = None) -> Any:
    """Return the display of an option, for its Annotated type.

    Args:
        value: Name of its value; None derives it from the type.
        *aliases: Other names of the option.
        default: Default in words, unless the field's own default shows it.
        meaning: Help text instead of the string under the field.
    """
    return arg(metavar=value, aliases=aliases, help=meaning, help_behavior_hint=default or None)


def strings_under(kind: type[Any]) -> dict[str, str]:
    """Return the string under each field of the class and its bases, by name."""
    said = {}
    for base in reversed([each for each in kind.__mro__ if each.__module__.startswith("quarl.")]):
        (tree,) = ast.parse(inspect.getsource(base)).body
        for pair in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    said[name] = " ".join(text.split())
    return said
