"""Metrics as TensorBoard events, under Stable-Baselines3's own tags."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import KVWriter, Logger, TensorBoardOutputFormat

from quarl.config.learner import LearnerOptions
from quarl.evaluation import Evaluation


def make_logger(config: LearnerOptions, folder: Callable[[], Path], say: Callable[[str], None]) -> Logger:
    """What a learner and its evaluations record metrics in; without --track they are written nowhere.

    folder: the run's, asked for when there is something to write.
    """
    return Logger(folder=None, output_formats=[] if config.track == "none" else [Events(folder, say)])


def record_evaluation(logger: Logger, played: Evaluation, name: str = "") -> None:
    """The means of an evaluation, by the tags of Stable-Baselines3's EvalCallback with `name` behind them."""
    logger.record(f"eval/mean_reward{name}", float(played.returns.mean()))
    logger.record(f"eval/mean_ep_length{name}", float(played.lengths.mean()))


class Events(KVWriter):
    """Events in the folder's tensorboard/. After a full disk no more are written: the writer's thread is dead."""

    def __init__(self, folder: Callable[[], Path], say: Callable[[str], None]) -> None:
        self._folder, self._say, self._is_full = folder, say, False
        self._output: TensorBoardOutputFormat | None = None

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """One point for every number."""
        if self._is_full:
            return
        try:
            self._output = self._output or TensorBoardOutputFormat(str(self._folder() / "tensorboard"))
            self._output.write(key_values, key_excluded, step)
        except OSError as error:
            self._is_full = True
            self._say(f"no more events in {self._folder()}/tensorboard: {error.strerror or error}; training goes on")

    def close(self) -> None:
        """Writes what is still to be written."""
        if self._output is not None and not self._is_full:
            self._output.close()
