"""Metrics for a tracker under Stable-Baselines3's own tags: TensorBoard events, Weights & Biases."""

from __future__ import annotations

import contextlib
import importlib
import numbers
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import KVWriter, Logger, TensorBoardOutputFormat, filter_excluded_keys

from quarl.config.learner_options import LearnerOptions, options_of
from quarl.errors import in_one_line
from quarl.evaluation import Evaluation


def make_logger(
    config: LearnerOptions,
    folder: Callable[[], Path],
    say: Callable[[str], None],
    hyperparameters: Mapping[str, Any] | None = None,
    *,
    beside: bool = False,
) -> Logger:
    """Return the logger for a learner and its evaluations; without --track it writes nothing.

    Args:
        config: Options of the run.
        folder: Returns the run's folder; called when there is something to write.
        say: Receives a line if the tracker fails.
        hyperparameters: Those in force, which some trackers store with the run's options.
        beside: True if another process of the run logs too, which only TensorBoard supports.

    Returns:
        The logger.
    """
    if config.track == "none" or (beside and config.track != "tensorboard"):
        return Logger(folder=None, output_formats=[])
    told = {**options_of(config), **(hyperparameters or {})}
    return Logger(folder=None, output_formats=[Tracker(config.track, folder, told, say)])


def record_evaluation(logger: Logger, played: Evaluation, name: str = "") -> None:
    """Log the means of an evaluation under the tags of Stable-Baselines3's EvalCallback.

    Args:
        logger: Logger that receives them.
        played: The evaluation.
        name: Suffix of the tags.
    """
    logger.record(f"eval/mean_reward{name}", float(played.returns.mean()))
    logger.record(f"eval/mean_ep_length{name}", float(played.lengths.mean()))


class Tracker(KVWriter):
    """A writer to the tracker of --track. If the tracker raises, a line reports it once and only metrics are lost."""

    def __init__(
        self, name: str, folder: Callable[[], Path], told: Mapping[str, Any], say: Callable[[str], None]
    ) -> None:
        self._name, self._folder, self._told, self._say = name, folder, told, say
        self._output: KVWriter | None = None
        self._is_lost = False

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Write one point for each number.

        Args:
            key_values: Values by name.
            key_excluded: Names of the writers that skip a value, by its name.
            step: Step of the points.
        """
        self._attempt(lambda: self._opened().write(key_values, key_excluded, step))

    def close(self) -> None:
        """Write the remaining points."""
        if self._output is not None:
            self._attempt(self._output.close)

    def _opened(self) -> KVWriter:
        if self._output is None and self._name == "tensorboard":
            self._output = TensorBoardOutputFormat(str(self._folder() / self._name))
        elif self._output is None:
            self._output = TrackedRun(self._folder(), self._told)
        return self._output

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do the work unless an earlier write failed: after a full disk TensorBoard's thread is dead."""
        if self._is_lost:
            return
        try:
            work()
        except Exception as error:  # trackers raise exceptions of any type without a network, a login or disk space
            self._is_lost = True
            said = error.strerror if isinstance(error, OSError) and error.strerror else in_one_line(error)
            where = self._folder() / self._name if self._name == "tensorboard" else self._name
            self._say(f"metrics are no longer written to {where}: {said}; training continues")


class TrackedRun(KVWriter):
    """A run in Weights & Biases, whose output goes to stderr."""

    def __init__(self, folder: Path, told: Mapping[str, Any]) -> None:
        """Start the run; `told` holds its options and hyper-parameters. Raises any exception of the service."""
        project = os.environ.get("WANDB_PROJECT", "quarl")
        with contextlib.redirect_stdout(sys.stderr):
            wandb: Any = importlib.import_module("wandb")
            self._run = wandb.init(project=project, name=folder.name, config=told, dir=str(folder))

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Log the numbers at that step, without those that Stable-Baselines3 keeps out of TensorBoard.

        Args:
            key_values: Values by name; other values than numbers are skipped.
            key_excluded: Names of the writers that skip a value, by its name.
            step: Step of the points.
        """
        shown = filter_excluded_keys(key_values, key_excluded, "tensorboard")
        points = {name: float(value) for name, value in shown.items() if isinstance(value, numbers.Real)}
        self._run.log(points, step=step)

    def close(self) -> None:
        """Return when all points are handed over."""
        with contextlib.redirect_stdout(sys.stderr):
            self._run.finish()
