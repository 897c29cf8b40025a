"""Metrics for a tracker, under Stable-Baselines3's own tags: TensorBoard's events, Weights & Biases, Trackio."""

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
    """What a learner and its evaluations record metrics in; without --track they are written nowhere.

    folder: the run's, asked for when there is something to write. hyperparameters: those in force, for trackers that
    keep them with the run, beside its options. beside: whether another process of the run writes too, which TensorBoard
    alone takes.
    """
    if config.track == "none" or (beside and config.track != "tensorboard"):
        return Logger(folder=None, output_formats=[])
    told = {**options_of(config), **(hyperparameters or {})}
    return Logger(folder=None, output_formats=[Tracker(config.track, folder, told, say)])


def record_evaluation(logger: Logger, played: Evaluation, name: str = "") -> None:
    """The means of an evaluation, by the tags of Stable-Baselines3's EvalCallback with `name` behind them."""
    logger.record(f"eval/mean_reward{name}", float(played.returns.mean()))
    logger.record(f"eval/mean_ep_length{name}", float(played.lengths.mean()))


class Tracker(KVWriter):
    """Writes to what --track names. Whatever it raises costs the metrics and not the run, and is said once."""

    def __init__(
        self, name: str, folder: Callable[[], Path], told: Mapping[str, Any], say: Callable[[str], None]
    ) -> None:
        self._name, self._folder, self._told, self._say = name, folder, told, say
        self._output: KVWriter | None = None
        self._is_lost = False

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """One point for every number."""
        self._attempt(lambda: self._opened().write(key_values, key_excluded, step))

    def close(self) -> None:
        """Writes what is still to be written."""
        if self._output is not None:
            self._attempt(self._output.close)

    def _opened(self) -> KVWriter:
        if self._output is None and self._name == "tensorboard":
            self._output = TensorBoardOutputFormat(str(self._folder() / self._name))
        elif self._output is None:
            self._output = TrackedRun(self._name, self._folder(), self._told)
        return self._output

    def _attempt(self, work: Callable[[], None]) -> None:
        """Does it, unless something has been lost: after a full disk TensorBoard's thread is dead."""
        if self._is_lost:
            return
        try:
            work()
        except Exception as error:  # whatever a tracker raises without a network, a login or room
            self._is_lost = True
            said = error.strerror if isinstance(error, OSError) and error.strerror else in_one_line(error)
            where = self._folder() / self._name if self._name == "tensorboard" else self._name
            self._say(f"no more metrics in {where}: {said}; training goes on")


class TrackedRun(KVWriter):
    """A run in Weights & Biases or Trackio, whose functions have the same names; what they print goes to stderr."""

    def __init__(self, module: str, folder: Path, told: Mapping[str, Any]) -> None:
        """told: options and hyper-parameters, which are kept with the run. Raises whatever the module raises."""
        where = {"dir": str(folder)} if module == "wandb" else {}
        project = os.environ.get(f"{module.upper()}_PROJECT", "quarl")
        with contextlib.redirect_stdout(sys.stderr):
            tracker: Any = importlib.import_module(module)
            self._run = tracker.init(project=project, name=folder.name, config=told, **where)

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """The numbers at that step, without those that Stable-Baselines3 keeps from TensorBoard."""
        shown = filter_excluded_keys(key_values, key_excluded, "tensorboard")
        points = {name: float(value) for name, value in shown.items() if isinstance(value, numbers.Real)}
        self._run.log(points, step=step)

    def close(self) -> None:
        """Returns when everything is handed over."""
        with contextlib.redirect_stdout(sys.stderr):
            self._run.finish()
