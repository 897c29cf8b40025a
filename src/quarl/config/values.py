"""Checks of values that several verbs take; of types too, as a study's file gives options and can say anything."""

from __future__ import annotations

from types import NoneType
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from quarl.errors import QuarlError

WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


def check_types(config: Any) -> None:
    """Raises QuarlError, naming the option, for a value that is none of its type's."""
    for name, hint in get_type_hints(type(config)).items():
        value, kinds = getattr(config, name), get_args(hint) or (hint,)
        if get_origin(hint) is ClassVar:
            continue
        if get_origin(hint) is tuple:
            words = isinstance(value, tuple) and all(type(word) is kinds[0] for word in value)
            wanted = None if words else "a list of words"
        elif get_origin(hint) is Literal:
            wanted = None if value in kinds else " or ".join(kinds)
        else:
            wanted = None if _is_one(value, kinds) else next((WANTED[kind] for kind in kinds if kind in WANTED), None)
        if wanted is not None:
            raise QuarlError(f"--{name.replace('_', '-')} is {str(value)[:60]!r}; use {wanted}")


def _is_one(value: Any, kinds: tuple[Any, ...]) -> bool:
    return (value is None and NoneType in kinds) or type(value) in kinds or (type(value) is int and float in kinds)


def layer_widths(text: str, flag: str) -> list[int]:
    """The numbers of a text like 256,128; QuarlError, naming the flag, where it is no list of such."""
    words = text.split(",")
    if not all(word.isdecimal() and 1 <= int(word) <= 65536 for word in words):
        raise QuarlError(f"{flag} {text!r} is not a list of layer widths 1..65536, as in 256,256")
    return [int(word) for word in words]


def check_margin(margin: float) -> None:
    """Refuses what is no loss that could be acceptable, in percent."""
    if not 0 < margin < 100:
        raise QuarlError(f"--margin is a percentage between 0 and 100, got {margin:g}")
