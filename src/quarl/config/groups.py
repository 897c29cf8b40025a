"""Groups of options in --help and in the reference; a field's type names its group, and others are in WHAT."""

from __future__ import annotations

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
