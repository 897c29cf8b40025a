"""One `quarl train`: options, environments and learner, the training, and its row."""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, cast

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from quarl import qat
from quarl.algorithms.clocks import check_updates, hold, standing
from quarl.algorithms.cpu import threads
from quarl.algorithms.d4pg import D4PG
from quarl.config import TrainConfig
from quarl.config.base import check_tracking
from quarl.envs.checked import BrokenEnvironmentError
from quarl.envs.environment import Environment
from quarl.errors import NothingSavedError, QuarlError, detail
from quarl.files import Dispensable, append_row, read_rows, write_rows
from quarl.machine import usable_cores
from quarl.policy.graph import QuantizedPolicy
from quarl.processes.signals import ONCE_MORE, SIGNALLED, Interrupts
from quarl.qat.delay import check_delay
from quarl.runs import checkpoint
from quarl.runs.callback import Progress, Stopped, TrainingCallback
from quarl.runs.checkpointer import AgentCheckpointer
from quarl.runs.evaluator import BestEvaluator
from quarl.runs.folder import RunFolder
from quarl.runs.hyperparameters import RunOptions
from quarl.runs.new_model import build, check_spaces, make_environments
from quarl.runs.outcome import Ended, TrainRow
from quarl.runs.tracking import make_logger


class Training:
    """A training session. Its constructor checks and builds everything and writes nothing."""

    def __init__(self, config: TrainConfig, say: Callable[[str], None]) -> None:
        self._say, self._notes = say, list[str]()  # printed only if nothing was wrong: an error is one line
        self._files = Dispensable(say)
        # options
        self.options = options = RunOptions(config, self._notes.append)
        self.config = config = options.config
        self._folder, self.n_timesteps = options.folder, options.recipe.n_timesteps
        # environments and learner
        env = make_environments(options.environment, options.recipe, self._notes.append)
        with ExitStack() as stack:
            stack.callback(env.close)
            images = check_spaces(config.algo, options.environment.env_id, env).is_image
            self.threads = config.threads or (usable_cores() if images else 1)
            with threads(self.threads):
                self.model = build(options, env, self._notes.append, images=images)
            if isinstance(self.model, D4PG):
                self.model.say = say
            learner = f"{type(self.model).__name__} on {self.model.device}"
            detail(f"learner: {learner}; threads: {self.threads}; environments side by side: {env.num_envs}")
            # checkpoints and evaluations
            self.checkpointer = AgentCheckpointer(self.model, self.folder, say, config.seed)
            self.evaluator = BestEvaluator(config, options.environment, self.folder, say)
            self.evaluator.learners = cast("DummyVecEnv", env.unwrapped).envs[0]
            self.clock_before = self.checkpointer.resume() if config.resume else 0.0
            self.steps_before = self.model.num_timesteps
            # options with no effect
            check_updates(self.model, self.n_timesteps)
            if config.quant_delay is not None:
                check_delay(self.model, config.quant_delay, self.steps_before, self.n_timesteps)
            check_tracking(config.track)
            self.updates_before = 0.0
            if config.resume:
                self._go_on()
            stack.pop_all()

    def folder(self) -> RunFolder:
        """Return the run's folder, which is made when something is to be written."""
        if self._folder is None:
            self._folder = RunFolder.new(self.config.folder, self.config.algo, self.options.environment.env_id)
            self._describe(self._folder)
        return self._folder

    def run(self, progress: Progress, *, one_stretch: bool = False) -> Ended[TrainRow]:
        """Train to the end or until a signal. Checkpoints are kept if training diverges.

        A run in stretches, each of which resumes the one before, is the same bit for bit after any kill, because its
        environments restart at every checkpoint. A signal therefore saves no checkpoint in a stretch.

        Args:
            progress: Called with a label and the number of new environment steps.
            one_stretch: Stop at the next checkpoint of save_freq, without a row.

        Returns:
            The exit code, the message and the row of the session.

        Raises:
            QuarlError: Training diverges.
        """
        started = time.perf_counter()
        said = "" if one_stretch else f"quarl: stopping: the update is finished and saved; {ONCE_MORE}\n"
        with threads(self.threads), Interrupts(lambda: None, said) as interrupts, ExitStack() as open_environments:
            open_environments.callback(self._close)
            callback = TrainingCallback(
                self.evaluator,
                self.checkpointer,
                interrupts,
                progress,
                clock_s=self.clock_before,
                update_s=self.updates_before,
                keep=None if one_stretch else self._keep,
                one_stretch=one_stretch,
            )
            progress("training", self.steps_before)
            try:
                self._learn(callback)
                clock_s = callback.clock_s
                self.checkpointer.check_finite()
                self._save_last(clock_s)
                open_environments.close()  # some environments allow only one instance; the next evaluation needs it
                integers = None if self.config.qat is None else self.evaluator.integers(self.model)
                if integers is not None:  # the result of quantization-aware training
                    self.folder().write_integers(integers)
                evaluated = {entry[0] for entry in self.evaluator.entries}
                if callback.eval_freq and self.model.num_timesteps not in evaluated:
                    callback.look()
                row = self._conclude(interrupts, integers, clock_s, started)
            except Stopped:
                callback.record()
                if not one_stretch:
                    self._save_last(callback.clock_s)
                elif interrupts.number is None:
                    self.checkpointer.save(callback.clock_s)
                row = None
            if row is None and interrupts.number is not None:
                return Ended(exit_code=SIGNALLED + interrupts.number, message=self._stopped(), row=None)
            return Ended(exit_code=0, message="", row=row)

    def _learn(self, callback: TrainingCallback) -> None:
        """Run Stable-Baselines3's own loop."""
        model, delay = self.model, self.config.quant_delay
        hyperparameters = self.options.written
        model.set_logger(make_logger(self.config, lambda: self.folder().path, self._say, hyperparameters))
        callbacks: list[BaseCallback] = (
            [callback] if delay is None else [qat.QuantDelay(delay, say=self._say), callback]
        )
        steps = self.n_timesteps - model.num_timesteps
        try:
            model.learn(steps, callback=callbacks, reset_num_timesteps=not self.config.resume)
        except BrokenEnvironmentError as error:
            self.checkpointer.check_finite()
            if self.checkpointer.newest is None or callback.one_stretch:
                raise
            callback.leave_rollout()
            if not self.checkpointer.save(callback.clock_s) or not model.num_timesteps:
                raise
            raise QuarlError(
                f"{error}; after {model.num_timesteps:,} steps, which are saved: {self._resuming()}"
            ) from None
        except (QuarlError, Stopped):
            raise
        except Exception:  # a distribution of NaN raises in the middle of an update, an environment at NaN actions
            self.checkpointer.check_finite()
            if model.num_timesteps > self.steps_before:  # before that the callback has no model
                callback.leave_rollout()
            self.checkpointer.save(callback.clock_s)
            raise
        finally:
            model.logger.close()
        callback.show()

    def _save_last(self, clock_s: float) -> None:
        """Save agent and checkpoint; if the disk is full, raise QuarlError with the command to resume."""
        try:
            self.checkpointer.save(clock_s, last=True)
        except checkpoint.CheckpointError as error:
            raise QuarlError(
                f"{error} and {'start again' if self.checkpointer.newest is None else self._resuming()}"
            ) from None

    def _conclude(
        self, interrupts: Interrupts, integers: QuantizedPolicy | None, clock_s: float, started: float
    ) -> TrainRow | None:
        """Play the last evaluation and return the row; None if a signal interrupts it."""
        returns: dict[str, Any] = {}
        try:
            if not interrupts.attempt(lambda: returns.update(self.evaluator.conclude(self.model, integers))):
                return None
        except QuarlError as error:
            raise QuarlError(
                f"the last evaluation failed ({error}); the agent is saved as {self.folder().agent}"
            ) from None
        spec, best = qat.spec_of(self.model), self.evaluator.best
        steps = self.model.num_timesteps
        return TrainRow(
            algo=self.config.algo,
            env_id=self.options.environment.env_id,
            precision="fp32" if spec is None else spec.precision,
            quant_delay=self.config.quant_delay,
            switched_at=qat.switched_at(self.model),
            learner_dtype=self.config.learner_dtype,
            seed=self.config.seed,
            timesteps=steps,
            updates=self.model._n_updates,
            clock_s=clock_s,
            wall_s=time.perf_counter() - started,
            steps_per_s=(steps - self.steps_before) / max(clock_s - self.clock_before, 1e-9),
            best_mean=None if best is None else best[1],
            best_timesteps=None if best is None else best[2],
            folder=str(self.folder().path),
            **returns,
        )

    def _go_on(self) -> None:
        """Resume evaluations, options and clocks; raise QuarlError if the run is already complete."""
        self.evaluator.resume(steps := self.model.num_timesteps)
        if self.model.num_timesteps >= self.n_timesteps:
            raise QuarlError(
                f"{self.folder().path} is trained to its end ({self.model.num_timesteps:,} steps); "
                "resume it with more, as in -n " + str(2 * steps)
            )
        self._notes.append(f"{standing(self.model)}{hold(self.model, self.n_timesteps)}")
        self._describe(run := self.folder())
        if rows := read_rows(run.metrics, steps, ("clock_s", "update_s")):
            self.updates_before = rows[-1]["update_s"]
            self._files.write(lambda: write_rows(run.metrics, rows))

    def _describe(self, folder: RunFolder) -> None:
        written = self.options.written
        # the zoo's scripts read env_kwargs from args.yml
        args = {"env": self.options.environment.env_id, "log_folder": str(self.config.folder)}
        folder.describe(self.config, written, **args, env_kwargs=written.get("env_kwargs") or None)
        self.say_notes()

    def _keep(self, row: dict[str, Any]) -> None:
        self._files.write(lambda: append_row(self.folder().metrics, row))

    def say_notes(self) -> None:
        """Print the choices made for the user."""
        for note in self._notes:
            self._say(note)

    def _stopped(self) -> str:
        if self.model.num_timesteps >= self.n_timesteps:
            return f"stopped in its last evaluation; agent and checkpoint are in {self.folder().path}"
        return f"stopped by a signal after {self.model.num_timesteps:,} steps; {self._resuming()}"

    def _resuming(self) -> str:
        config = self.config
        return f"resume with quarl train --resume --algo {config.algo} --env {config.env} -f {config.folder}"

    def _close(self) -> None:
        """Close the learner's environments; errors are ignored, because training is over."""
        self.evaluator.learners = None
        assert self.model.env is not None
        with suppress(Exception):
            self.model.env.close()


def in_stretches(config: TrainConfig, say: Callable[[str], None]) -> tuple[RunFolder, Ended[TrainRow]]:
    """Train the only run in `config.folder` to its end in stretches.

    Each stretch resumes from the checkpoint saved by the one before. A killed and resumed run produces the same agent.

    Args:
        config: Options of the run.
        say: Receives notes, one line each.

    Returns:
        The run's folder and the end of its last stretch; `Ended.row` stays empty after a signal.

    Raises:
        QuarlError: Training diverges, or no checkpoint can be written.
    """
    before = -1
    while True:
        # Models and environments refer to each other: without this, a replay of gigabytes would remain during the next
        # stretch.
        gc.collect()
        run, ended, steps = _stretch(from_here(config, say), say)
        if ended.row is not None or ended.exit_code:
            return run, ended
        if steps <= before:
            raise QuarlError("training cannot continue because no checkpoint can be written: free some disk space")
        before = steps


def _stretch(config: TrainConfig, say: Callable[[str], None]) -> tuple[RunFolder, Ended[TrainRow], int]:
    """Return the run, the end of its stretch and its environment steps; afterwards nothing refers to the learner."""
    session = Training(config, say)
    ended = session.run(lambda label, done: None, one_stretch=True)
    return session.folder(), ended, session.model.num_timesteps


def from_here(config: TrainConfig, say: Callable[[str], None]) -> TrainConfig:
    """Return options that resume the run from its last stretch.

    `config` itself, with an empty folder, if there is none.

    A run in the folder is taken for this one: change the folder together with the options.

    Raises:
        QuarlError: A checkpoint cannot be read, for example because a newer QuaRL wrote it; it is not changed.
    """
    try:
        run = RunFolder.latest(config.folder, config.algo, Environment.typed_by_user(config.env).env_id)
        saved = checkpoint.load_latest(run.path)
        if config.n_timesteps is not None and saved.timesteps >= config.n_timesteps:
            # killed in its last evaluation: train the last stretch again, which ends the same
            saved.path.unlink()
            saved = checkpoint.load_latest(run.path)
        if saved.timesteps > 0:
            return TrainConfig(algo=config.algo, env=config.env, folder=config.folder, resume=True)
    except NothingSavedError as error:
        if any(config.folder.rglob("checkpoint-*")):
            say(f"training restarts from the beginning: {error}")
    shutil.rmtree(config.folder, ignore_errors=True)
    return config
