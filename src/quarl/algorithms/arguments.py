"""Hyper-parameters in RL Zoo's words as arguments of Stable-Baselines3's constructors.

Everything in them is data. Schedules are made from numbers, and a class is one of those that stand here.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import LinearSchedule

from quarl import literals
from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.actor import FUNCTIONS

TORCH = ("", "nn.", "th.nn.", "torch.nn.")
OPTIMIZERS = ("Adam", "AdamW", "RMSprop", "SGD")
CLASSES: Mapping[str, str] = {
    **{f"{prefix}{name}": f"torch.nn.{name}" for prefix in TORCH for name in FUNCTIONS},
    **{f"{prefix}{name}": f"torch.optim.{name}" for prefix in ("", "th.optim.", "torch.optim.") for name in OPTIMIZERS},
    "RMSpropTFLike": "stable_baselines3.common.sb2_compat.rmsprop_tf_like.RMSpropTFLike",
    "WideCNN": "quarl.algorithms.wide_cnn.WideCNN",
}
"""What a class may be called in a configuration, and where it is."""
SCHEDULES = ("learning_rate", "clip_range", "clip_range_vf")


def arguments(written: Mapping[str, Any], where: Path | str) -> dict[str, Any]:
    """What `written` spells; `where` begins the line of an error."""
    found = dict(written)
    if "replay_buffer_kwargs" in found:
        found["replay_buffer_kwargs"] = mapping(found["replay_buffer_kwargs"], "replay_buffer_kwargs", where)
    if "policy_kwargs" in found:
        kwargs = mapping(found["policy_kwargs"], "policy_kwargs", where, names=True)
        found["policy_kwargs"] = _with_classes(kwargs, "policy_kwargs", where)
    for name in SCHEDULES:
        if name in found:
            found[name] = _schedule(found[name], name, where)
    if isinstance(found.get("train_freq"), list):  # YAML has no tuples
        found["train_freq"] = tuple(found["train_freq"])
    return found


def check(cls: type[BaseAlgorithm], given: Mapping[str, Any]) -> None:
    """QuarlError where an argument is text and the constructor takes none; Stable-Baselines3 fails on it much later."""
    parameters = inspect.signature(cls.__init__).parameters
    for name, value in given.items():
        if isinstance(value, str) and name in parameters:
            # as text: some annotations hold names that only type checkers see
            annotation = parameters[name].annotation
            if not re.search(r"\bstr\b", annotation if isinstance(annotation, str) else str(annotation)):
                raise QuarlError(f"{name} is {value[:60]!r}, and {cls.__name__} takes no text there: write a number")


def mapping(value: Any, name: str, where: Path | str, *, names: bool = False) -> dict[str, Any]:
    """The mapping, or the one that the text spells."""
    try:
        found = literals.read(value, names=names) if isinstance(value, str) else value
        if isinstance(found, Mapping) and all(isinstance(key, str) for key in found):
            return dict(found)
    except ValueError:
        pass
    raise QuarlError(f"{where}: {name} is {str(value)[:60]!r}; write dict(...) of plain values")


def _schedule(value: Any, name: str, where: Path | str) -> Any:
    """lin_0.1 falls from 0.1 to 0 in the course of training; a number stays."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"lin_(\d*\.?\d+(?:e[+-]?\d+)?)", str(value)[:60])
    if match is None:
        raise QuarlError(f"{where}: {name} is {str(value)[:60]!r}; write a number or lin_NUMBER")
    # Stable-Baselines3's own class, so that a saved model loads wherever Stable-Baselines3 is
    return LinearSchedule(float(match[1]), 0.0, 1.0)


def _with_classes(value: Any, name: str, where: Path | str) -> Any:
    """The value with the classes that its names stand for."""
    if isinstance(value, dict):
        return {key: _with_classes(entry, f"{name}: {key}", where) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with_classes(entry, name, where) for entry in value)
    if not isinstance(value, literals.Name):
        return value
    if value.text not in CLASSES:
        known = ", ".join(key for key in CLASSES if "." not in key)
        raise UnsupportedError(f"{where}: {name} is {value.text[:60]}, which is not supported; {known} are")
    module, _, found = CLASSES[value.text].rpartition(".")
    return getattr(importlib.import_module(module), found)
