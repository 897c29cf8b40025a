"""How options stand in --help and in the reference: in groups, which fields name in their types; others are WHAT."""

from __future__ import annotations

from typing import Any

from tyro.conf import arg


class Group(str):
    """The title of a group of options."""


ORDER = tuple(map(Group, ["what", "training", "environment", "quantisation", "output", "advanced", "energy"]))
"""From the common ones to those that few need."""
WHAT, TRAINING, ENVIRONMENT, QUANTISATION, OUTPUT, ADVANCED, ENERGY = ORDER


def shown(value: str | None = None, *aliases: str, default: str = "", meaning: str | None = None) -> Any:
    """How an option is shown, for its Annotated type.

    value: what its value is called; None: as the type is. aliases: other names of the option. default: what holds
    without it, where the field's own default does not say so. meaning: in place of the string under the field.
    """
    return arg(metavar=value, aliases=aliases, help=meaning, help_behavior_hint=default or None)
