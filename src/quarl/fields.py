"""Explanations of fields of specs, options and rows: their groups, their values, and the strings under them."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from tyro.conf import arg


class Group(str):
    """The title of a group of options."""


ORDER = tuple(map(Group, ["what", "training", "environment", "quantization", "output", "advanced", "energy"]))
"""All groups, from the common ones to those that few users need."""
WHAT, TRAINING, ENVIRONMENT, QUANTISATION, OUTPUT, ADVANCED, ENERGY = ORDER


class Bound(NamedTuple):
    """The range of an option's number, or of its number of values, for its Annotated type; `Spec.check` holds it."""

    words: str
    """The range as the predicate of an error message, such as "must be at least 1"."""
    holds: Callable[[Any], bool]
    advice: str = ""
    """End of the message."""


AT_LEAST_ONE = Bound("must be at least 1", lambda number: number >= 1)
NOT_NEGATIVE = Bound("must not be negative", lambda number: number >= 0)
ZERO_IS_OFF = NOT_NEGATIVE._replace(advice="; 0 switches it off")
ABOVE_ZERO = Bound("must be above 0", lambda number: 0 < number < math.inf)
SOME = Bound("requires at least one value", bool)
PERCENTAGE = Bound("is a percentage between 0 and 100", lambda number: 0 < number < 100)


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
