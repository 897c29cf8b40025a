"""A session: one `quarl train`, from its options to the row that says how it ended."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv

from quarl import qat
from quarl.algorithms import tuned
from quarl.algorithms.clocks import check_updates, hold, standing
from quarl.algorithms.cpu import threads
from quarl.algorithms.d4pg import D4PG
from quarl.config import TrainConfig
from quarl.config.base import check_tracking
from quarl.config.environment import spelled
from quarl.config.options import completed
from quarl.envs import resolve
from quarl.envs.bound import LIMIT, longest
from quarl.envs.checked import BrokenEnvironmentError
from quarl.envs.names import is_atari
from quarl.envs.options import EnvironmentOptions, described
from quarl.errors import QuarlError
from quarl.machine import usable_cores
from quarl.policy.graph import Provenance, QuantizedPolicy
from quarl.processes.signals import ONCE_MORE, SIGNALLED, Interrupts
from quarl.qat.delay import check_delay
from quarl.runs.callback import Progress, Stopped, TrainingCallback, check_finite, diverged
from quarl.runs.checkpoint_model import not_finite
from quarl.runs.checkpointer import AgentCheckpointer
from quarl.runs.environments import check_spaces, make_environments
from quarl.runs.evaluator import BestEvaluator
from quarl.runs.folder import RunFolder
from quarl.runs.hyperparameters import interpret
from quarl.runs.model import build, learn_in
from quarl.runs.outcome import Ended, TrainRow
from quarl.runs.replay import stored_replay
from quarl.runs.tracking import make_logger
from quarl.runs.trained_agent import TrainedAgent, act_before_learning

Say = Callable[[str], None]


class Training:
    """Everything is checked and built when it is made; nothing has been written."""

    def __init__(self, config: TrainConfig, say: Say) -> None:
        self._say, self._notes = say, list[str]()  # said when nothing was wrong: a mistake is one line
        self.env_id = resolve(config.env, trusted=True)
        self._folder: RunFolder | None = None
        given = config.hyperparameters()
        path, agent = config.trained_agent, None
        if path is not None:
            agent = TrainedAgent(path, config.algo, config.normalize)
        asked: str | None = None
        before: dict[str, Any] = {}
        if config.resume:
            self._folder = RunFolder.latest(config.folder, config.algo, self.env_id)
            spec = config.spec()
            asked = None if spec is None else spec.precision
            config = completed(config, _options(self._folder), self._folder.options)
            before = self._folder.read_config()
            written = before | given
        else:
            atari = is_atari(self.env_id)
            found = tuned.read(config.algo, self.env_id, atari=atari)
            self._notes.append(f"hyper-parameters: {found.origin}")
            written = found.written | given if agent is None else agent.adapt(found.written, given, self._notes.append)
        written |= {name: getattr(config, name) or written.get(name) for name in ("n_timesteps", "n_envs")}
        written = EnvironmentOptions.said(config).over(written)
        self.has_changed = config.resume and any(written.get(name) != before.get(name) for name in written)
        """Whether it goes on with other options than it began with, which no single command repeats."""
        # the zoo's scripts take what is there for set
        self.written = written = {name: value for name, value in written.items() if value is not None}
        where = Path("hyper-parameters") if self._folder is None else self._folder.settings / "config.yml"
        self.recipe = recipe = interpret(written, where)
        longest(recipe.env_kwargs.get(LIMIT), config.max_episode_steps)
        if self._folder is None and atari:
            made = Provenance(env_id=self.env_id, env_kwargs=recipe.env_kwargs, wrappers=recipe.wrappers)
            self._notes.append(f"a game of Atari: {described(made)}")
        spec, delay = config.spec(), config.delay(recipe.n_timesteps)
        self.config = dataclasses.replace(config, n_timesteps=recipe.n_timesteps, quant_delay=delay)
        env = make_environments(config.env, recipe, config.vec_env, self._notes.append)
        with ExitStack() as stack:
            stack.callback(env.close)
            images = check_spaces(config.algo, self.env_id, env).is_image
            self.threads = config.threads or (usable_cores() if images else 1)
            with threads(self.threads):
                self.model = build(config, recipe, env, self._notes.append, images=images)
                if agent is not None:
                    agent.give(self.model)
                elif config.trained_agent is not None and isinstance(self.model, OffPolicyAlgorithm):
                    act_before_learning(self.model)
                if spec is not None:
                    qat.prepare(self.model, spec)
            learn_in(self.model, config)
            if isinstance(self.model, D4PG):
                self.model.say = say
            self.checkpointer = AgentCheckpointer(self.model, self.folder, say, stored_replay(self.model))
            self.evaluator = BestEvaluator(self.config, recipe, self.folder, say)
            if isinstance(env.unwrapped, DummyVecEnv):
                self.evaluator.learners = env.unwrapped.envs[0]
            self.clock_before = self.checkpointer.resume(asked, config.seed) if config.resume else 0.0
            self.steps_before = self.model.num_timesteps
            check_updates(self.model, self.n_timesteps)
            if delay is not None:
                check_delay(self.model, delay, self.steps_before, self.n_timesteps)
            check_tracking(self.config.track)
            if config.resume:
                self._go_on()
            stack.pop_all()

    @property
    def n_timesteps(self) -> int:
        """Of the whole run."""
        return self.recipe.n_timesteps

    def folder(self) -> RunFolder:
        """The run's folder, made when something is to be written."""
        if self._folder is None:
            self._folder = RunFolder.new(self.config.folder, self.config.algo, self.env_id)
            self._folder.describe(self.config, self.written, self.env_id)
            self._folder.write_command(self.config)
            self.say_notes()
        return self._folder

    def run(self, progress: Progress, *, one_stretch: bool = False) -> Ended:
        """Trains to the end, or to a signal; QuarlError where training diverges, its checkpoints kept.

        one_stretch: or to the next checkpoint of save_freq, with no row. A run in stretches, each of which resumes the
        one before, is bit for bit the same wherever it was killed, as its environments begin anew at every checkpoint:
        so a signal makes none.
        """
        started = time.perf_counter()
        said = "" if one_stretch else f"quarl: stopping: the update ends and is saved; {ONCE_MORE}\n"
        with threads(self.threads), Interrupts(lambda: None, said) as interrupts, ExitStack() as world:
            world.callback(self._close)
            callback = TrainingCallback(
                self.evaluator,
                self.checkpointer,
                interrupts,
                progress,
                clock_s=self.clock_before,
                one_stretch=one_stretch,
            )
            progress("training", self.steps_before)
            try:
                self._learn(callback)
                clock_s = callback.clock_s
                check_finite(self.model, self.checkpointer)
                self.checkpointer.save(clock_s)
                world.close()  # of some environments only one may live, which is the next evaluation's now
                integers = self._integers()
                if callback.eval_freq and self.evaluator.timesteps[-1:] != [self.model.num_timesteps]:
                    callback.look()
                row = self._conclude(interrupts, integers, clock_s, started)
            except Stopped:
                if not one_stretch or interrupts.number is None:
                    self.checkpointer.save(callback.clock_s)
                row = None
            if row is None and interrupts.number is not None:
                return Ended(exit_code=SIGNALLED + interrupts.number, message=self._stopped(), row=None)
            return Ended(exit_code=0, message="", row=row)

    def _learn(self, callback: TrainingCallback) -> None:
        """Stable-Baselines3's own loop."""
        model, delay = self.model, self.config.quant_delay
        model.set_logger(make_logger(self.config, lambda: self.folder().path, self._say))
        callbacks: list[BaseCallback] = (
            [callback] if delay is None else [qat.QuantDelay(delay, say=self._say), callback]
        )
        steps = self.n_timesteps - model.num_timesteps
        try:
            model.learn(steps, callback=callbacks, reset_num_timesteps=not self.config.resume)
        except BrokenEnvironmentError as error:
            if not_finite(model) is not None:
                raise diverged(model, self.checkpointer) from None
            if self.checkpointer.newest is None or callback.one_stretch:
                raise
            callback.leave_rollout()
            self.checkpointer.save(callback.clock_s)
            if not model.num_timesteps:
                raise
            raise QuarlError(
                f"{error}; after {model.num_timesteps:,} steps, which are saved: {self._resuming()}"
            ) from None
        except (QuarlError, Stopped):
            raise
        except Exception:  # a distribution of NaN raises in the middle of an update, an environment at NaN actions
            if not_finite(model) is None:
                if model.num_timesteps > self.steps_before:  # before that the callback knows no model
                    callback.leave_rollout()
                self.checkpointer.save(callback.clock_s)
                raise
            raise diverged(model, self.checkpointer) from None
        finally:
            model.logger.close()
        callback.show()

    def _integers(self) -> QuantizedPolicy | None:
        """What quantisation-aware training was for, written; None in float32."""
        if self.config.qat is None:
            return None
        integers = self.evaluator.integers(self.model)
        self.folder().write_integers(integers)
        return integers

    def _conclude(
        self, interrupts: Interrupts, integers: QuantizedPolicy | None, clock_s: float, started: float
    ) -> TrainRow | None:
        """The last evaluation and the row; None where a signal breaks it off."""
        returns: dict[str, Any] = {}
        try:
            if not interrupts.attempt(lambda: returns.update(self.evaluator.conclude(self.model, integers))):
                return None
        except QuarlError as error:
            raise QuarlError(
                f"the last evaluation failed ({error}); the agent is there: {self.folder().agent}"
            ) from None
        spec, best = qat.spec_of(self.model), self.evaluator.best
        steps = self.model.num_timesteps
        return TrainRow(
            algo=self.config.algo,
            env_id=self.env_id,
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
            best_mean=None if best is None else best[0],
            best_timesteps=None if best is None else best[1],
            folder=str(self.folder().path),
            **returns,
        )

    def _go_on(self) -> None:
        """Picks the thread up: evaluations so far, options from here on; refuses where nothing is left to do."""
        self.evaluator.resume(self.model.num_timesteps)
        if self.model.num_timesteps >= self.n_timesteps:
            raise QuarlError(
                f"{self.folder().path} is trained to its end ({self.model.num_timesteps:,} steps); "
                "resume it with more, as in -n " + str(2 * self.n_timesteps)
            )
        self._notes.append(f"{standing(self.model)}{hold(self.model, self.n_timesteps)}")
        self.folder().describe(self.config, self.written, self.env_id)
        self.say_notes()

    def say_notes(self) -> None:
        """Says what was chosen for the user."""
        for note in self._notes:
            self._say(note)

    def _stopped(self) -> str:
        if self.model.num_timesteps >= self.n_timesteps:
            return f"stopped in its last evaluation; agent and checkpoint are in {self.folder().path}"
        return f"stopped by a signal after {self.model.num_timesteps:,} steps; {self._resuming()}"

    def _resuming(self) -> str:
        config = self.config
        return f"go on with quarl train --resume --algo {config.algo} --env {config.env} -f {config.folder}"

    def _close(self) -> None:
        """Ends the learner's environments; one that cannot be closed has done its work."""
        self.evaluator.learners = None
        assert self.model.env is not None
        with suppress(Exception):
            self.model.env.close()


def _options(folder: RunFolder) -> dict[str, Any]:
    """Those that the run in the folder began with."""
    options = folder.read_args()
    if isinstance(agent := options.get("trained_agent"), str):
        options["trained_agent"] = Path(agent)
    kwargs = options.get("env_kwargs")
    return {**options, "env_kwargs": spelled(kwargs) if isinstance(kwargs, dict) else ()}
