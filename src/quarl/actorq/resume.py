"""A run that begins or goes on: whether there is one in the folder, and the options that it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from quarl.actorq.tuning import adopt
from quarl.config import ActorQConfig
from quarl.config.options import completed, options_of
from quarl.errors import QuarlError
from quarl.runs.folder import RunFolder


def new_run(config: ActorQConfig) -> None:
    """Refuses a folder that holds a run already: weeks of training are not overwritten by a typo."""
    checkpoints = RunFolder(config.output).checkpoints()
    if checkpoints and not config.resume:
        raise QuarlError(
            f"{config.output} holds a run ({checkpoints[-1]}): go on with --resume, or name another folder"
        )
    if config.resume and not config.output.is_dir():
        raise QuarlError(f"no checkpoint in {config.output}, which does not exist; start without --resume")


def begun(config: ActorQConfig, say: Callable[[str], None]) -> ActorQConfig:
    """The options of the run: those given, completed by its own where it goes on."""
    folder, resume = RunFolder(config.output), config.resume
    if resume:
        if kept := folder.options.is_file():
            config = completed(config, folder.read_args(), folder.options)
        resume = bool(folder.checkpoints())
        if not resume:
            say(f"{config.output} holds no checkpoint yet: the run starts at its beginning")
        elif kept:
            say(f"going on to {config.steps:,} environment steps, with the options in {folder.options}")
        else:
            say(f"{folder.options} is missing: the run goes on with the options given here")
    if not resume:
        config = adopt(config, say)
    # a longer run does not move the delay
    return replace(config, resume=resume, n_timesteps=config.steps, quant_delay=config.delay(config.steps))


def write_options(config: ActorQConfig) -> None:
    """What `begun` reads, and the command that began the run."""
    folder = RunFolder(config.output)
    folder.write_options(options_of(config))
    if not config.resume:
        folder.write_command(config)
