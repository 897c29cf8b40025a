"""The options of a run that is gone on with: its own, and those that may be others now."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from quarl.config import TrainConfig
from quarl.config.base import METERED
from quarl.errors import QuarlError
from quarl.training.run_folder import RunFolder

FREE = ("n_timesteps", "vec_env", "params", "threads", "device", "track", "eval_freq", "save_freq")
"""Options that may change; the run's where they are not given."""
NEW = ("algo", "env", "folder", "resume", "json", *METERED)
"""Options that say which run it is and what to do with it."""
COMPARED_LATER = ("qat",)
"""With the checkpoint itself."""


def resumed(config: TrainConfig, folder: RunFolder) -> TrainConfig:
    """`config` completed by the options of the run in the folder; QuarlError where they contradict each other."""
    args = folder.read_args()
    where = folder.settings / "args.yml"
    found: dict[str, Any] = {}
    for field in dataclasses.fields(TrainConfig):
        name, here = field.name, getattr(config, field.name)
        given = here != field.default
        if name in NEW or (name in FREE and given):
            found[name] = here
            continue
        if name not in args and name not in FREE:
            raise QuarlError(f"{where} does not say {name}; it is no run of quarl train")
        found[name] = _option(args.get(name, field.default), field.default, name)
        if given and name not in COMPARED_LATER and here != found[name]:
            flag = f"--{name.replace('_', '-')}"
            raise QuarlError(f"{flag} is {here} here and {found[name]} in {folder.path}; resume without it")
    options = TrainConfig(**found)
    try:
        # it was not resumed when it began, perhaps from a file
        dataclasses.replace(options, resume=False).check()
    except (TypeError, AttributeError, ValueError) as error:
        raise QuarlError(f"{where} is malformed: {str(error)[:100]}") from None
    return options


def _option(value: Any, default: Any, name: str) -> Any:
    """A value of args.yml as a TrainConfig has it."""
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    return Path(value) if name == "trained_agent" and isinstance(value, str) else value
