"""A run's options in a file beside it, and those of a run that is gone on with: its own, but for what may change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from quarl.config.base import Config
from quarl.config.learner import LearnerOptions
from quarl.config.values import check_types
from quarl.errors import QuarlError
from quarl.quant.spec import QatSpec

C = TypeVar("C", bound=LearnerOptions)


def plain(value: Any) -> Any:
    """The value in YAML's own types."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def options_of(config: Config) -> dict[str, Any]:
    """The options by their names, in YAML's own types."""
    return {field.name: plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def completed(config: C, saved: Mapping[str, Any], where: Path) -> C:
    """`config` completed by the run's options `saved`; QuarlError where they contradict each other.

    where: the file of these. An option counts as given where it was typed, or is not the default.
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        name, here = field.name, getattr(config, field.name)
        given = name in config.typed or here != field.default
        if name == "params":
            # one by one: those of the run that are not given anew hold on
            before = saved.get(name, [])
            if not isinstance(before, list) or not all(isinstance(word, str) for word in before):
                raise QuarlError(f"{where} is malformed: params are no list of NAME:VALUE")
            words = {word.partition(":")[0]: word for word in (*before, *here)}
            found[name] = tuple(words.values())
            continue
        if name in config.new or (name in config.free and given):
            found[name] = here
            continue
        if name not in saved and name not in config.free:
            raise QuarlError(f"{where} does not say {name}; it is no run of quarl {config.verb}")
        value = saved.get(name, field.default)
        found[name] = tuple(value) if isinstance(field.default, tuple) and isinstance(value, list) else value
        there = found[name]
        if name == "qat" and given:  # 8 and w8a8 are the same
            here, there = (QatSpec.parse(str(words)).precision if words else "fp32" for words in (here, there))
        if given and here != there:
            raise QuarlError(f"--{name.replace('_', '-')} is {here} here and {there} in {where}; resume without it")
        if name == "env" and here != found[name] and ":" in str(found[name]):  # a module's: to make it is to import it
            raise QuarlError(f"{where} names a module to import, which only you may do: add --env {found[name]}")
    options = type(config)(**found)
    try:
        check_types(options)
        # it was not resumed when it began, perhaps from a file
        type(config)(**found | {"resume": False}).check()
    except (TypeError, AttributeError, ValueError) as error:
        raise QuarlError(f"{where} is malformed: {str(error)[:100]}") from None
    return options
