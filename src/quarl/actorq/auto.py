"""Automatic widths of a run: `--actors auto` from the cores, and `--envs-per-actor auto` from timed trials."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace

from quarl.actorq import throughput_plan
from quarl.actorq.supervisor import Supervisor
from quarl.config import ActorQConfig
from quarl.errors import QuarlError, in_one_line
from quarl.files import temporary_folder
from quarl.runs.folder import RunFolder

WIDTHS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of environments per actor to try."""
GROWS = 1.1
"""Minimum gain in steps per second for which a larger number of environments is chosen."""
SECONDS = 0.5
"""Seconds of timing for each width; starting its actor takes as long again."""


def chosen(config: ActorQConfig, say: Callable[[str], None]) -> ActorQConfig:
    """Return `config` with numbers instead of auto, and report the reason for each in one line.

    A resumed run keeps the numbers that it had.
    """
    folder, config = RunFolder(config.output), copy.copy(config)  # a copy: the original keeps the typed values
    if folder.checkpoints() and not (config.resume or config.plan):
        return config  # refused later, before anything starts, so do not spend time on timing it
    saved = folder.read_args() if config.resume and folder.options.is_file() else {}
    for name, timed in (("actors", _actors), ("envs_per_actor", _environments)):
        if getattr(config, name) != "auto":
            continue
        option, number, why = f"--{name.replace('_', '-')}", saved.get(name), "as the run had"
        if type(number) is not int:
            say(f"{option} auto: the run's parts are timed for some seconds")
            number, why = timed(config)
        object.__setattr__(config, name, number)
        config.check()
        say(f"{option} auto: {number}, {why}")
    return config


def _actors(config: ActorQConfig) -> tuple[int, str]:
    """Return the number of actors that the cores, or an environment that waits, leave room for, and the reason."""
    one = replace(
        config, actors=1, min_actors=1, envs_per_actor=1 if config.envs_per_actor == "auto" else config.num_envs
    )
    rates = throughput_plan.measure(one, [(config.actor_precision, config.engine)], seconds=SECONDS)
    return throughput_plan.actors_for(rates, one, rates.steps[0])


def _environments(config: ActorQConfig) -> tuple[int, str]:
    """Return the smallest width that two and four times as many environments do not beat by GROWS, and the reason."""
    rates: dict[int, float] = {}
    number, end = 1, f"no more than {WIDTHS[-1]} are tried"
    with contextlib.closing(_rates(config)) as timed:
        try:
            for width, rates[width] in timed:
                if width == 1 or rates[width] >= GROWS * rates[number]:
                    number = width
                elif width == 4 * number:  # one slow moment proves nothing yet
                    end = f"neither {2 * number} nor {width} is {GROWS:g} times as fast"
                    break
        except QuarlError as error:
            if not rates:
                raise
            end = in_one_line(error)
    return number, f"for steps/s of {', '.join(f'{rate:,.0f} with {width}' for width, rate in rates.items())}; {end}"


def _rates(config: ActorQConfig) -> Generator[tuple[int, float]]:
    """Yield each number of environments per actor with its steps per second.

    Raises QuarlError if a run cannot be so wide.
    """
    with temporary_folder() as folder:
        for width in WIDTHS:
            told = replace(config, envs_per_actor=width, output=folder, resume=False)
            with contextlib.closing(Supervisor(told, lambda line: None)) as supervisor:
                arm = config.actor_precision, config.engine
                (step,) = throughput_plan.steps(supervisor, [arm], SECONDS, deque(maxlen=1))
            yield width, 1 / step.seconds
