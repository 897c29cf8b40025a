"""Checks of values in a file written by a user; a mistake is one line that names the line in the file."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import Any

from quarl.errors import QuarlError, did_you_mean
from quarl.removed import without_removed
from quarl.specs import SEEDS


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a value in a study file, given by the keys and numbers that lead to it."""

    path: Path
    lines: Mapping[tuple[str | int, ...], int]
    """Line numbers of all places."""
    keys: tuple[str | int, ...] = ()

    def __truediv__(self, key: str | int) -> Place:
        return replace(self, keys=(*self.keys, key))

    @property
    def name(self) -> str:
        """The last of its keys that is not a number."""
        return next((key for key in reversed(self.keys) if isinstance(key, str)), "a study")

    @property
    def line(self) -> int:
        """The line of the value, or of its parent if it is missing; 0 for the whole file."""
        keys = self.keys
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return self.lines[keys] if keys else 0

    def __str__(self) -> str:
        return f"{self.path}{f', line {self.line}' if self.line else ''}"

    def wrong(self, message: str) -> QuarlError:
        """Return the error for a mistake here, in one line."""
        return QuarlError(f"{self}: {message}")


Check = Callable[[Any, Place], Any]
"""Function from (value, place) to the value in the study, None for the default; raises `Place.wrong`."""


def check_keys(value: Any, known: Sequence[str], at: Place, what: str) -> None:
    """Raise an error unless the value is a mapping with known keys.

    Args:
        value: Value to check.
        known: Names of the allowed keys.
        at: Place of the value.
        what: Name of the value in messages.
    """
    if not isinstance(value, Mapping):
        raise at.wrong(f"{what} is settings by name, as in {{{known[0]}: ...}}, got {str(value)[:60]!r}")
    for key in without_removed(value, at):
        if key not in known:
            meant = did_you_mean(str(key), known) or f"; known: {', '.join(known[:12])}"
            raise (at / key).wrong(f"unknown key {str(key)[:60]!r} of {what}{meant}")


def checked(kind: type[Any], entry: Any, at: Place, what: str, known: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values of the keys that the kind declares; the check of a missing key without a default refuses it.

    Args:
        kind: Dataclass with fields made by `key`.
        entry: Mapping of the file.
        at: Its place.
        what: Its name in messages.
        known: Names of the allowed keys, if they differ from the kind's fields.

    Returns:
        The checked values by name.
    """
    fields = [field for field in dataclasses.fields(kind) if "check" in field.metadata]
    check_keys(entry, known or [field.name for field in fields], at, what)
    values = {}
    for field in fields:
        required = field.default is MISSING and field.default_factory is MISSING
        if required or field.name in entry:
            value = field.metadata["check"](entry.get(field.name), at / field.name)
            if value is not None:
                values[field.name] = value
    return values


def key(check: Check, **default: Any) -> Any:
    """Return a field for a key of the file; without a default the key is required."""
    return dataclasses.field(metadata={"check": check}, **default)


def must(allowed: Callable[[Any], bool], message: str, check: Check = lambda value, at: value) -> Check:
    """Return a check that requires every value from `check` to be allowed.

    Args:
        allowed: Function that returns True for an allowed value.
        message: Message with {} for the value and {name} for the key.
        check: Check that parses the value first.

    Returns:
        The combined check.
    """

    def check_allowed(value: Any, at: Place) -> Any:
        parsed = check(value, at)
        for each in parsed if isinstance(parsed, tuple) else (parsed,):
            if not allowed(each):
                raise at.wrong(message.format(each, name=at.name))
        return parsed

    return check_allowed


mapping = must(lambda value: isinstance(value, Mapping), "{name} must be values by name, got '{!s:.60}'")


def word(value: Any, at: Place, *, printable: bool = True) -> str:
    """Return a word, or a few on one line."""
    if not isinstance(value, str) or len(value) > 400 or (printable and not value.isprintable()):
        raise at.wrong(f"{at.name} must be a word, got {str(value)[:60]!r}")
    return " ".join(value.split())


def words(value: Any, at: Place) -> tuple[str, ...]:
    """Return one word or number, or a list of them, as words."""
    if value == []:
        raise at.wrong(f"{at.name} is an empty list; name at least one, or drop {at.name}")
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str | int) and not isinstance(each, bool) for each in listed):
        raise at.wrong(f"{at.name} must be a word or a list of words, got {str(value)[:60]!r}")
    return tuple(str(each) for each in listed)


def check_plain(value: Any, at: Place) -> None:
    """Raise an error for YAML values that cells cannot contain.

    Examples are dates, bytes, sets, infinities, and keys other than text.
    """
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise at.wrong(f"{at.name} has the key {str(name)[:60]}; write it as text, in quotes")
            check_plain(inner, at / name)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            check_plain(inner, at / number)
    elif not isinstance(value, str | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
        raise at.wrong(f"{at.name} is {str(value)[:60]!r}; write a number, text, a list or values by name")


def listed(value: Any, at: Place, *, read: Check) -> tuple[Any, ...]:
    """Return the entries of a list with at least one."""
    if not isinstance(value, list) or not value:
        raise at.wrong(f"{at.name} is missing: a list of at least one")
    return tuple(read(entry, at / number) for number, entry in enumerate(value))


def real(value: Any, at: Place, above: float = -(2**53)) -> float:
    """Return a number above a bound; YAML reads 1e6 as a word, because it has no decimal point."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and above < float(value) < 2**53:
            return float(value)
    raise at.wrong(f"{at.name} must be a number{' above 0' if above == 0 else ''}, got {str(value)[:60]!r}")


def number(value: Any, at: Place) -> Any:
    """Return a number above 0."""
    parsed = real(value, at, above=0)
    return parsed if isinstance(value, str) else value


def count(value: Any, at: Place) -> int:
    """Return a whole number from 1 on, which YAML files often contain as 1e6."""
    parsed = number(value, at)
    if parsed != int(parsed) or parsed < 1:
        raise at.wrong(f"{at.name} must be a whole number from 1 on, got {parsed}")
    return int(parsed)


def seeds(value: Any, at: Place) -> tuple[int, ...] | None:
    """Return seeds that environments accept; None if the key has no value."""
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(type(seed) is int and 0 <= seed < SEEDS for seed in value):
        raise at.wrong(f"seeds must be a list of numbers from 0 to 2**32 - 1, got {str(value)[:60]!r}")
    return tuple(value)
