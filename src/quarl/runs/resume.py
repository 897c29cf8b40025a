"""The options of a run that is gone on with: its own, and those that may be others now."""

from __future__ import annotations

from pathlib import Path

from quarl.config import TrainConfig
from quarl.config.base import METERED
from quarl.config.environment import OPTIONS, spelled
from quarl.config.options import completed
from quarl.runs.folder import RunFolder

FREE = (
    *("n_timesteps", "vec_env", "params", "threads", "device", "track", "eval_freq", "save_freq", "save_minutes"),
    *OPTIONS,
)
"""Options that may change; the run's where they are not given."""
NEW = ("algo", "env", "folder", "resume", "json", *METERED)
"""Options that say which run it is and what to do with it."""
COMPARED_LATER = ("qat",)
"""With the checkpoint itself."""


def resumed(config: TrainConfig, folder: RunFolder) -> TrainConfig:
    """`config` completed by the options of the run in the folder; QuarlError where they contradict each other."""
    args = folder.read_args()
    if isinstance(agent := args.get("trained_agent"), str):
        args["trained_agent"] = Path(agent)
    kwargs = args.get("env_kwargs")
    args["env_kwargs"] = spelled(kwargs) if isinstance(kwargs, dict) else ()
    where = folder.settings / "args.yml"
    return completed(config, args, where, new=NEW, free=FREE, typed=config.typed, compared_later=COMPARED_LATER)
