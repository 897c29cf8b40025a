"""A run that is gone on with: whether there is one, its own options, and those that may be others now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import yaml

from quarl.actorq.tuning import adopt
from quarl.config import ActorQConfig
from quarl.config.base import METERED
from quarl.config.environment import OPTIONS
from quarl.config.options import completed, options_of
from quarl.errors import QuarlError
from quarl.folder import write_bytes
from quarl.inert.yaml import read_yaml

NEW = ("output", "resume", "json", "plan", *METERED)
"""Options that say which run it is and what to do with it."""
LENGTHS = ("n_timesteps", "updates", "target", "eval_freq", "save_freq", "save_minutes", "save_replay_buffer")
CREW = ("actors", "min_actors", "max_staleness", "env_timeout", "learner_threads", "device", "track")
FREE = (*LENGTHS, *CREW, "params", *OPTIONS)
"""Options that may change; the run's where they are not given."""


def checkpoints(config: ActorQConfig) -> list[str]:
    """Names of those that the output folder holds, oldest first."""
    return sorted(path.name for path in config.output.glob("checkpoint-*"))


def new_run(config: ActorQConfig) -> None:
    """Refuses a folder that holds a run already: weeks of training are not overwritten by a typo."""
    found = checkpoints(config)
    if found and not config.resume:
        raise QuarlError(f"{config.output} holds a run ({found[-1]}): go on with --resume, or name another folder")
    if config.resume and not config.output.is_dir():
        raise QuarlError(f"no checkpoint in {config.output}, which does not exist; start without --resume")


def begun(config: ActorQConfig, say: Callable[[str], None]) -> ActorQConfig:
    """The options of the run: those given, completed by its own where it goes on."""
    resume = config.resume
    if resume:
        where = _where(config)
        if kept := where.is_file():
            config = completed(config, read_yaml(where), where, new=NEW, free=FREE, typed=config.typed)
        resume = bool(checkpoints(config))
        if not resume:
            say(f"{config.output} holds no checkpoint yet: the run starts at its beginning")
        elif kept:
            say(f"going on to {config.steps:,} environment steps, with the options in {where}")
        else:
            say(f"{where} is missing: the run goes on with the options given here")
    if not resume:
        config = adopt(config, say)
    # a longer run does not move the delay
    return replace(config, resume=resume, n_timesteps=config.steps, quant_delay=config.delay(config.steps))


def write_options(config: ActorQConfig) -> None:
    """What `begun` reads, and the command that began the run."""
    write_bytes(yaml.safe_dump(options_of(config), sort_keys=True).encode(), _where(config))
    if not config.resume:
        write_bytes(config.command_line().encode() + b"\n", config.output / "command.txt")


def _where(config: ActorQConfig) -> Path:
    return config.output / "args.yml"
