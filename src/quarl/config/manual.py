"""A verb's options in --help and the reference, read from its class."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from quarl.config.base import Config, in_words, summary
from quarl.config.environment import EnvironmentConfig
from quarl.fields import ORDER, WHAT, Group, shown, strings_under

COMMON = tuple((f"--{field.name.replace('_', '-')}",) for field in fields(EnvironmentConfig))
INDENT = 24 * " "
"""Indentation of descriptions."""
VALUES = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}
"""Names of values by type, for options without a name of their own."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option as it is typed, or a positional argument."""

    names: tuple[str, ...]
    """Names; the field's is the last; a positional argument has none."""
    value: str
    """Name of its value; empty for a flag."""
    choices: tuple[str, ...]
    """All values, if they are few."""
    default: str
    """Default in words; empty if it is obvious."""
    meaning: str
    group: Group

    @property
    def typed(self) -> str:
        """Names and name of the value."""
        return f"{', '.join(self.names)} {self.value}".strip()

    @property
    def said(self) -> str:
        """Description with the default."""
        default = f" (default: {self.default})" if self.default else ""
        return self.meaning + ("" if self.names or self.value.startswith("[") else " (required)") + default


def options(kind: type[Config]) -> list[Option]:
    """Return the options of a verb in the order of display."""
    hints, meanings = get_type_hints(kind), strings_under(kind)
    bases = [get_type_hints(base, include_extras=True) for base in kind.__mro__]
    listed = []
    for field in fields(kind):
        extras = [getattr(base.get(field.name), "__metadata__", ()) for base in bases]
        # a field that is declared again keeps its group
        group = next((extra for each in extras for extra in each if isinstance(extra, Group)), WHAT)
        told = next((extra for extra in extras[0] if hasattr(extra, "metavar")), shown())
        listed.append(_option(kind, field, hints[field.name], told, told.help or meanings[field.name], group))
    # within a group, positional arguments come first, and common options last
    return sorted(listed, key=lambda each: (ORDER.index(each.group), bool(each.names), each.names[-1:] in COMMON))


def _option(kind: type[Config], field: Field[Any], hint: Any, told: Any, meaning: str, group: Group) -> Option:
    """Return the option of a field; `told` is the result of `shown`."""
    name = f"--{field.name.replace('_', '-')}"
    off = (f"--no-{name[2:]}",) if field.default is True else ()
    inner = next(each for each in (*get_args(hint), hint) if each is not NoneType)
    choices = next((get_args(each) for each in (hint, inner) if get_origin(each) is Literal), ())
    return Option(
        names=() if field.name in kind.positional else (*told.aliases, *off, name),
        value=told.metavar or (f"{{{','.join(choices)}}}" if choices else VALUES.get(inner, "")),
        choices=choices,
        default=told.help_behavior_hint or in_words(field.default),
        meaning=meaning,
        group=group,
    )


def manual(kind: type[Config]) -> str:
    """Return the --help text of a verb: its options by group, then examples."""
    listed = options(kind)
    words = [f" {option.value}" for option in listed if not option.names]
    lines = [f"usage: quarl {kind.verb}{''.join(words)} [options]", "", _filled(inspect.getdoc(kind) or "")]
    for group in ORDER:
        entries = [_beside(option.typed, option.said) for option in listed if option.group == group]
        lines += ["", f"{group}:", *entries] if entries else []
    return "\n".join([*lines, "", "for example:", *(f"  {command}" for command in kind.examples)])


def overview(usage: str, about: str, verbs: Sequence[tuple[Any, type[Config]]]) -> str:
    """Return the --help text of several verbs, each with an example.

    Args:
        usage: Words of the usage line.
        about: Description.
        verbs: Pairs of a verb and the verb whose example is shown.
    """
    lines = [f"usage: quarl {usage} [options]", "", _filled(about), ""]
    for kind, shown_by in verbs:
        lines += [_beside(kind.verb, f"{summary(kind)}."), f"{INDENT}{shown_by.examples[0]}"]
    return "\n".join(lines)


def _beside(name: str, meaning: str) -> str:
    """Return the name with its meaning beside it, or below it if the name is long."""
    indented = _filled(meaning, INDENT)
    return f"  {name:20}  {indented.lstrip()}" if len(name) <= 20 else f"  {name}\n{indented}"


def _filled(text: str, indent: str = "") -> str:
    """Return the text's paragraphs, wrapped to the terminal's width."""
    width = shutil.get_terminal_size().columns
    each = (textwrap.fill(part, width, initial_indent=indent, subsequent_indent=indent) for part in text.split("\n\n"))
    return "\n\n".join(each)
