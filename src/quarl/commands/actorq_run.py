"""`quarl.actorq`: the training of the verb `quarl actorq`, from Python."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from quarl.api import Agent, load
from quarl.arguments import check
from quarl.commands.actorq import ActorQRow, train
from quarl.config import ActorQConfig
from quarl.config.base import LOUDNESS, narrow_edges
from quarl.config.environment import spelled
from quarl.errors import QuarlError, did_you_mean, is_quiet, note
from quarl.files import read_rows
from quarl.processes.signals import SIGNALLED
from quarl.runs.folder import RunFolder

KEYWORDS = [each.name for each in dataclasses.fields(ActorQConfig) if each.name not in ("plan", "json", *LOUDNESS)]
"""Options of the verb that are keywords; `quarl/__init__.pyi` has their types."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ActorQRun:
    """A finished run of `quarl.actorq`, and what its folder holds."""

    folder: Path
    """Folder of the run, with `model.zip`, `evaluations.jsonl` and the other files of the verb."""
    summary: ActorQRow
    """Row of `summary.json`: steps, updates, training seconds, the last evaluation and the deaths of actors."""

    @property
    def agent(self) -> Agent:
        """The learner's last policy in float32."""
        return load(self.folder / "policy-fp32.safetensors")

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Rows of `metrics.jsonl`: counters and times of all processes over the run."""
        return read_rows(RunFolder(self.folder).metrics)


def actorq(env: str = ActorQConfig.env, *, progress: bool = False, **options: Any) -> ActorQRun:
    """Train with a full-precision learner and quantized actor processes, as `quarl actorq` does.

    Every process imports the script, which must call this function under `if __name__ == "__main__":`. The first Ctrl-C
    saves a checkpoint and raises KeyboardInterrupt; `resume=True` continues the run.

    Args:
        env: Gymnasium id; "my_module:MyEnv-v0" first imports my_module, which registers the environment.
        progress: Show a live table on a terminal.
        **options: Options of `quarl actorq` by name, such as `algo="dqn"`, `n_timesteps=50_000`, `actors=4` and
            `output="runs/mine"`. Dictionaries are accepted for `params` and `env_kwargs`, and numbers for `net_arch`.

    Returns:
        The finished run.

    Raises:
        QuarlError: An option is invalid, the folder already holds a run, or the run ended early; the message explains
            how to resume.
    """
    if threading.current_thread() is not threading.main_thread():
        raise QuarlError("actorq handles signals: call it in the main thread")
    if unknown := [name for name in options if name not in KEYWORDS]:
        raise QuarlError(f"actorq has no keyword {unknown[0]!r}{did_you_mean(unknown[0], KEYWORDS)}")
    # Check the options as the command line does.
    config = ActorQConfig(env=env, **{name: _as_typed(name, value) for name, value in options.items()})
    check(config, {})
    config.came_from([f"--{name}" for name in options])
    for line in narrow_edges(config):
        note(line)
    # Train, and end as the run ended.
    console = Console(stderr=True, quiet=is_quiet(), force_terminal=None if progress else False)
    with contextlib.redirect_stdout(sys.stderr):
        ended, _, _ = train(config, console)
    result = ended.result
    if (number := result.exit_code - SIGNALLED) > 0:
        signal.raise_signal(number)
    if result.exit_code or result.row is None:
        raise QuarlError(result.message)
    return ActorQRun(folder=ended.config.output, summary=ActorQRow(**result.row))


def _as_typed(name: str, value: Any) -> Any:
    """Return the value of an option as the command line would have parsed it."""
    if isinstance(value, Mapping):
        return spelled(value)
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) if name == "net_arch" else tuple(value)
    return Path(value) if name == "output" else value
