"""How wide a run is that leaves it to the machine: `--actors auto`, and `--envs-per-actor auto`, which is timed."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator
from dataclasses import replace

from quarl.actorq import throughput_plan
from quarl.actorq.supervisor import Supervisor
from quarl.config import ActorQConfig
from quarl.errors import QuarlError, in_one_line
from quarl.files import temporary_folder
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
    """`config` with numbers where it said auto, those that a run had which goes on; one line for each says why."""
    folder, config = RunFolder(config.output), copy.copy(config)  # which keeps what was typed
    if folder.checkpoints() and not (config.resume or config.plan):
        return config  # which is refused before anything starts, and need not be timed for that
    saved = folder.read_args() if config.resume and folder.options.is_file() else {}
    for name in ("actors", "envs_per_actor"):
        option, number, why = f"--{name.replace('_', '-')}", saved.get(name), "as the run had"
        if getattr(config, name) != "auto":
            continue
        if type(number) is not int and name == "actors":
            cores, threads = usable_cores(), config.learner_threads
            number, why = max(cores - threads, 1), f"of {counted(cores, 'core')} with {threads} for the learner"
        elif type(number) is not int:
            say(f"{option} auto: actors of 1, 2, 4 ... environments are timed for some seconds")
            number, why = _timed(config)
        object.__setattr__(config, name, number)
        config.check()
        say(f"{option} auto: {number}, {why}")
    return config


def _timed(config: ActorQConfig) -> tuple[int, str]:
    """The width from which two or four times as many environments make no GROWS times the steps, and why."""
    rates: dict[int, float] = {}
    number, end = 1, f"no more than {WIDTHS[-1]} are tried"
    with contextlib.closing(_rates(config)) as timed:
        try:
            for width, rates[width] in timed:
                if width == 1 or rates[width] >= GROWS * rates[number]:
                    number = width
                elif width == 4 * number:  # one slow moment says nothing yet
                    end = f"neither {2 * number} nor {width} is {GROWS:g} times as fast"
                    break
        except QuarlError as error:
            if not rates:
                raise
            end = in_one_line(error)
    return number, f"for steps/s of {', '.join(f'{rate:,.0f} with {width}' for width, rate in rates.items())}; {end}"


def _rates(config: ActorQConfig) -> Generator[tuple[int, float]]:
    """Environments of an actor, and the steps that it makes in a second; QuarlError where a run may not be so wide."""
    with temporary_folder() as folder:
        for width in WIDTHS:
            told = replace(config, envs_per_actor=width, output=folder, resume=False)
            with contextlib.closing(Supervisor(told, lambda line: None)) as supervisor:
                arm = config.actor_precision, config.engine
                (step,) = throughput_plan.steps(supervisor, [arm], SECONDS, [])
            yield width, 1 / step.seconds
