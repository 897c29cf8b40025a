"""Hyper-parameters in RL Zoo's notation as arguments of Stable-Baselines3's constructors.

All values are data. Schedules are created from numbers, and classes are limited to those listed here.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import LinearSchedule

from quarl import literals
from quarl.errors import QuarlError, UnsupportedError, did_you_mean
from quarl.readers.sb3_network import FUNCTIONS

TORCH = ("", "nn.", "th.nn.", "torch.nn.")
OPTIMIZERS = ("Adam", "AdamW", "RMSprop", "SGD")
CLASSES: Mapping[str, str] = {
    **{f"{prefix}{name}": f"torch.nn.{name}" for prefix in TORCH for name in FUNCTIONS},
    **{f"{prefix}{name}": f"torch.optim.{name}" for prefix in ("", "th.optim.", "torch.optim.") for name in OPTIMIZERS},
    "RMSpropTFLike": "stable_baselines3.common.sb2_compat.rmsprop_tf_like.RMSpropTFLike",
    "WideCNN": "quarl.algorithms.wide_cnn.WideCNN",
}
"""Names of classes in a configuration, and their import paths."""
OURS = ("env", "seed", "device", "verbose", "tensorboard_log", "action_noise", "_init_setup_model", "monitor_kwargs")
"""Learner arguments that are not hyper-parameters."""
CODE = ("callback", "replay_buffer_class", "rollout_buffer_class", "rollout_buffer_kwargs", "vec_env_wrapper")
"""Arguments for which the zoo passes code."""
COUNTS = ("batch_size", "buffer_size", "n_epochs", "n_steps", "train_freq", "target_update_interval", "policy_delay")
"""Whole numbers from 1."""
LEAST: Mapping[str, int] = {
    **dict.fromkeys(COUNTS, 1),
    **dict.fromkeys(("learning_starts", "target_policy_noise", "target_noise_clip", "max_grad_norm"), 0),
    "gradient_steps": -1,
    "num_atoms": 2,
}
SHARES = ("gamma", "gae_lambda", "tau", "exploration_fraction", "exploration_initial_eps", "exploration_final_eps")
"""Numbers from 0 to 1."""
SCHEDULES = ("learning_rate", "clip_range", "clip_range_vf")


def arguments(written: Mapping[str, Any], where: Path | str) -> dict[str, Any]:
    """Return the argument values of `written`; `where` prefixes error messages."""
    values = dict(written)
    if "replay_buffer_kwargs" in values:
        values["replay_buffer_kwargs"] = mapping(values["replay_buffer_kwargs"], "replay_buffer_kwargs", where)
    if "policy_kwargs" in values:
        kwargs = mapping(values["policy_kwargs"], "policy_kwargs", where, names=True)
        values["policy_kwargs"] = _with_classes(kwargs, "policy_kwargs", where)
    values |= {name: _schedule(values[name], name, where) for name in SCHEDULES if name in values}
    if isinstance(values.get("train_freq"), list):  # YAML has no tuples
        values["train_freq"] = tuple(values["train_freq"])
    return values


def checked(cls: type[BaseAlgorithm], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the validated arguments, with whole numbers converted to int (such as 1e4).

    Raises QuarlError for an unknown hyper-parameter or an invalid value; Stable-Baselines3 would fail on many of them
    only during training.
    """
    parameters = inspect.signature(cls.__init__).parameters
    names = parameters.keys() - {"self", "policy", *OURS, *CODE}
    values = dict(given)
    for name, value in given.items():
        if name not in names:
            raise QuarlError(f"{cls.__name__} has no hyper-parameter {name!r}{did_you_mean(name, names)}")
        if value is not None and not callable(value) and not isinstance(value, dict):
            # Compare as text: some annotations have names that exist only for type checkers.
            annotation = parameters[name].annotation
            types = set(re.findall(r"\w+", str(annotation)))
            values[name] = _checked(f"{cls.__name__}'s {name}", name, value, types)
    return values


def _checked(what: str, name: str, value: Any, types: set[str]) -> Any:
    shown = f"{what} is {str(value)[:60]!r}"
    if isinstance(value, tuple) and "tuple" in types:
        if len(value) != 2 or not whole(value[0], 1) or value[1] not in ("step", "episode"):
            raise QuarlError(f"{shown}; use a number, or a pair such as [1, 'episode']")
    elif isinstance(value, str | bool) and type(value).__name__ in types - ({"str"} if "tuple" in types else set()):
        pass
    elif "int" in types and "float" not in types:
        least = LEAST.get(name)
        if not whole(value, least):
            raise QuarlError(f"{shown}, not a whole number" + ("" if least is None else f" from {least} on"))
        return int(value)
    elif "float" in types:
        if not _number(value):
            raise QuarlError(f"{shown}, not a number")
        if value < LEAST.get(name, -math.inf):
            raise QuarlError(f"{shown}, not a number from {LEAST[name]} on")
        if name in SHARES and not 0 <= value <= 1:
            raise QuarlError(f"{shown}, not a number from 0 to 1")
    elif "bool" in types:
        raise QuarlError(f"{shown}, not True or False")
    return value


def _number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


def whole(value: Any, least: int | None) -> bool:
    """Return True for a whole number that is at least `least`, even if YAML has read it as a float (1e6)."""
    return _number(value) and value == int(value) and (least is None or value >= least)


def mapping(value: Any, name: str, source: Path | str, *, names: bool = False) -> dict[str, Any]:
    """Return the mapping, or parse it from text.

    Args:
        value: Mapping or text.
        name: Name of the value in errors.
        source: Prefix of errors.
        names: Allow names of classes as values.
    """
    try:
        return literals.mapping(value, names=names)
    except ValueError:
        raise QuarlError(f"{source}: {name} is {str(value)[:60]!r}; use dict(...) of literals") from None


def _schedule(value: Any, name: str, where: Path | str) -> Any:
    """Return a number unchanged, or a schedule: lin_0.1 falls from 0.1 to 0 during training."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"lin_([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)", str(value)[:60])
    if match is None:
        raise QuarlError(f"{where}: {name} is {str(value)[:60]!r}; write a number or lin_NUMBER")
    # Stable-Baselines3's own class: a saved model loads without QuaRL
    return LinearSchedule(float(match[1]), 0.0, 1.0)


def _with_classes(value: Any, name: str, where: Path | str) -> Any:
    """Replace the names in the value by their classes."""
    if isinstance(value, dict):
        return {key: _with_classes(entry, f"{name}: {key}", where) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with_classes(entry, name, where) for entry in value)
    if not isinstance(value, literals.Name):
        return value
    if value.text not in CLASSES:
        supported = ", ".join(key for key in CLASSES if "." not in key)
        raise UnsupportedError(f"{where}: {name} is {value.text[:60]}, which is not supported; {supported} are")
    module, _, cls = CLASSES[value.text].rpartition(".")
    return getattr(importlib.import_module(module), cls)
