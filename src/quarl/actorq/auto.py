"""How wide a run is that leaves it to the machine: `--actors auto`, and `--envs-per-actor auto`, which is timed."""

from __future__ import annotations

import contextlib
import copy
import tempfile
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

from quarl.actorq import plan
from quarl.actorq.supervisor import Supervisor
from quarl.config import ActorQConfig
from quarl.errors import QuarlError, in_one_line
from quarl.formats import counted
from quarl.machine import usable_cores
from quarl.runs.folder import RunFolder

WIDTHS = (1, 2, 4, 8, 16, 32, 64)
"""Environments of an actor that are tried."""
GROWS = 1.1
"""Twice as many environments are worth it where an actor makes so many times the steps."""
SECONDS = 0.5
"""For each width, and as long again for its actor to start."""


def chosen(config: ActorQConfig, say: Callable[[str], None]) -> ActorQConfig:
    """`config` with numbers where it said auto; one line for each says which, and why.

    A run that goes on keeps those that it had.
    """
    numbers: dict[str, int] = {}
    left = [name for name in ("actors", "envs_per_actor") if getattr(config, name) == "auto"]
    options = RunFolder(config.output).options
    if config.resume and options.is_file():
        saved = RunFolder(config.output).read_args()
        numbers = {name: saved[name] for name in left if type(saved.get(name)) is int}
        for name, number in numbers.items():
            say(f"--{name.replace('_', '-')} auto: {number}, as the run had")
    if "actors" in left and "actors" not in numbers:
        cores, threads = usable_cores(), config.learner_threads
        numbers["actors"] = max(cores - threads, 1)
        say(f"--actors auto: {numbers['actors']}, of {counted(cores, 'core')} with {threads} for the learner")
    if "envs_per_actor" in left and "envs_per_actor" not in numbers:
        numbers["envs_per_actor"] = _timed(_with(config, numbers), say)
    config = _with(config, numbers)
    if numbers:
        config.check()
    return config


def _with(config: ActorQConfig, numbers: dict[str, int]) -> ActorQConfig:
    """The same, and what was typed stays typed."""
    changed = copy.copy(config)
    for name, number in numbers.items():
        object.__setattr__(changed, name, number)
    return changed


def _timed(config: ActorQConfig, say: Callable[[str], None]) -> int:
    """The first width from which an actor makes no GROWS times more steps with twice the environments."""
    rates: dict[int, float] = {}
    number, end = 1, f"no more than {WIDTHS[-1]} are tried"
    say("--envs-per-actor auto: actors of 1, 2, 4 ... environments are timed for some seconds")
    with contextlib.closing(_rates(config)) as timed:
        try:
            for width, rate in timed:
                rates[width] = rate
                if width == 1 or rate >= GROWS * rates[number]:
                    number = width
                elif width == 4 * number:  # one slow moment says nothing yet
                    end = f"neither {2 * number} nor {width} are {GROWS:g} times as fast"
                    break
        except QuarlError as error:
            if not rates:
                raise
            end = in_one_line(error)
    steps = ", ".join(f"{rate:,.0f} with {width}" for width, rate in rates.items())
    say(f"--envs-per-actor auto: {number}; an actor's steps/s are {steps}; {end}")
    return number


def _rates(config: ActorQConfig) -> Generator[tuple[int, float]]:
    """Environments of an actor, and the steps that it makes in a second; QuarlError where a run may not be so wide."""
    with tempfile.TemporaryDirectory(prefix="quarl-auto-") as folder:
        for width in WIDTHS:
            told = replace(config, envs_per_actor=width, output=Path(folder), resume=False)
            with contextlib.closing(Supervisor(told, lambda line: None)) as supervisor:
                arm = config.actor_precision, config.engine
                (step,) = plan.steps(supervisor, [arm], SECONDS, [])
            yield width, 1 / step.seconds
