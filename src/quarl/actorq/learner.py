"""The learner process: inserts segments into replay, runs Stable-Baselines3's `train`, and pushes weights.

Stable-Baselines3 counts environment steps in `collect_rollouts`, which never runs here. Its clocks (num_timesteps, the
schedules' progress, `_on_step` with DQN's target network and epsilon) advance with every segment that arrives.
"""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import dataclass

import numpy as np

from quarl import qat
from quarl.actorq import roles
from quarl.actorq.build import build, limiter_of
from quarl.actorq.counters import Control, Learner, Publisher
from quarl.actorq.learner_checkpointer import LearnerCheckpointer
from quarl.actorq.metrics import spacing_s
from quarl.actorq.replay import SegmentReplay
from quarl.actorq.replay_insert import ReplayInsert
from quarl.actorq.versions import Versions
from quarl.actorq.weights import Template
from quarl.algorithms.captured import Updates, graphs_for
from quarl.algorithms.cpu import start_threads
from quarl.algorithms.precision import Precision
from quarl.config import ActorQConfig
from quarl.envs.checked import Recalled
from quarl.errors import QuarlError, note
from quarl.processes.inside import die_with_parent, give_way
from quarl.runs.checkpoint_model import not_finite
from quarl.runs.tracking import make_logger

NAP_S, LONGEST_NAP_S = 0.0002, 0.001
GATHER_S = 0.005
"""Maximum seconds to wait for segments that can be taken in together."""
SHOWN_S = 0.005
"""Seconds between two updates of counters that no process waits for."""
AT_ONCE, AT_ONCE_BYTES = 1024, 2**22
"""Maximum segments, and bytes, taken in between two checks of the limiter."""
IDLE_S = 0.25
"""Seconds without experience until the newest weights are pushed out of turn: actors may be waiting for them."""


@dataclass(frozen=True, kw_only=True)
class LearnerSpec(roles.Start):
    """The start arguments of the learner process."""

    config: ActorQConfig
    environment: Recalled | None = None
    """Environment data for its model, if the supervisor has it."""


class LearnerLoop(roles.Learner):
    """A learner that trains a Stable-Baselines3 model."""

    def __init__(self, spec: LearnerSpec) -> None:
        super().__init__(spec)
        self.config = config = spec.config
        # Build the model and its updates.
        start_threads(config.learner_threads)
        self.cells = self.counters.learner
        self.model = build(config, spec.environment)
        self.template = Template(self.model)
        self.delay = config.delay(config.steps)
        precision = Precision.of(self.model, config.learner_dtype)
        self.updates = Updates(self.model, precision, graphs_for(self.model, precision, qat=config.qat is not None))
        # Prepare to take in segments.
        assert isinstance(self.model.replay_buffer, SegmentReplay)
        self.replay = self.model.replay_buffer
        dtype = self.channel.dtype
        self.staging = np.zeros(min(AT_ONCE, max(AT_ONCE_BYTES // dtype.itemsize, 1)), dtype)
        self.limiter = limiter_of(config, self.model)
        self.versions = Versions(config.output)
        self.replay_insert = ReplayInsert(self.model, self.limiter, self.versions, self.counters.staleness)
        self.checkpointer = LearnerCheckpointer(config, self.model, self.limiter, self.versions)
        # The logger's values are read after every update, and written from time to time if tracking is on.
        self.model.set_logger(make_logger(config, lambda: config.output, note, beside=True))
        self.model._setup_learn(config.steps, reset_num_timesteps=not config.resume)
        # Resume the last checkpoint, and set the next evaluation and save.
        self.clock_before = self.checkpointer.resume() if config.resume else 0.0
        self.updates.forget()
        self.evaluations = self.pushed_step = self.sound_version = 0
        self.last_insert, self.shown = time.monotonic(), 0.0
        self.inserts_before = self.model.num_timesteps
        self.next_evaluation = self._next(config.eval_freq if config.eval_episodes else 0)
        self.next_save = self._next(config.save_freq)
        self.save_s = 60 * config.save_minutes or math.inf
        self.saved = self.tracked = time.monotonic()
        self.started: float | None = None
        self.paused_s = 0.0

    def conclude(self) -> None:
        """Push and save the last weights, and write the agent; refuse if fake quantization never became active."""
        self._push()
        self._save(last=True)
        self.model.dump_logs()
        if not self.checkpointer.is_trained_for() and not self.counters.control[Control.STOP]:
            raise QuarlError(
                f"the run ended at step {self.model.num_timesteps:,}, before fake quantization began at step "
                f"{self.delay:,}: use a smaller --quant-delay, or --resume with more --updates or -n"
            )
        self.checkpointer.write_agent()
        self._show()
        self.cells[Learner.DONE] = 1

    def begin(self) -> None:
        """Push the first weights for the actors, and save a checkpoint."""
        for cell in (Learner.RETURN_MEAN, Learner.LOSS, Learner.ACTOR_LOSS):
            self.cells[cell] = math.nan  # unknown yet, which differs from 0
        self.cells[Learner.BEGAN_AT] = self.inserts_before
        name = "exploration_rate" if self.model.num_timesteps else "exploration_initial_eps"
        self.cells[Learner.EXPLORATION] = getattr(self.model, name, 0.0)
        self._show()
        self._save()
        self._push()
        self.cells[Learner.READY] = 1

    def step(self) -> None:
        # Make an update, or take in experience.
        if self.limiter.updates_allowed():
            self.update()
        else:
            self._gather()
            if not self.receive():
                self._rest()
        # Update the counters that let actors continue.
        if time.monotonic() - self.shown > SHOWN_S:
            self._show()
        else:
            self._show_limits()
        if self.config.track != "none" and time.monotonic() - self.tracked >= spacing_s(self._clock()):
            self.tracked = time.monotonic()
            self.updates.losses()
            self.model.dump_logs()  # Stable-Baselines3's own tags
        # Pause for an evaluation.
        steps = self.model.num_timesteps
        if steps >= self.next_evaluation:
            self.next_evaluation = self._next(self.config.eval_freq)
            self._evaluate()
        # Save regularly, to bound the loss of a crash.
        if steps >= self.next_save or time.monotonic() - self.saved >= self.save_s:
            self.next_save = self._next(self.config.save_freq)
            self._save()

    def _wanted(self) -> int:
        """Return the number of segments to take in at once; actors may have made a step more than they should."""
        left = self.config.steps - self.model.num_timesteps
        return min(self.limiter.inserts_wanted(), len(self.staging), left)

    def _gather(self) -> None:
        """Wait briefly for the wanted segments: taking in a single one costs as much as taking in many."""
        wanted, nap = self._wanted(), NAP_S
        start = now = time.perf_counter()
        while now - start < GATHER_S and self.channel.num_waiting() < wanted:
            time.sleep(nap)
            nap, now = min(2 * nap, LONGEST_NAP_S), time.perf_counter()
        self.cells[Learner.WAIT_S] += now - start

    def _rest(self) -> None:
        """Push new weights if the current ones bring no more experience."""
        if (
            time.monotonic() - self.last_insert > IDLE_S
            and self.pushed_step < self.model._n_updates
            and self._is_sound()
        ):
            self._push()

    def receive(self) -> int:
        """Take in available segments, up to the limiter's demand; return their number."""
        start = time.perf_counter()
        wanted = self._wanted()
        received = self.channel.drain(self.staging[:wanted]) if wanted > 0 else 0
        if received:
            try:
                self.replay_insert.take(self.staging[:received])
            except QuarlError as error:  # NaN from an environment: the training up to here is valid
                self._save()
                raise QuarlError(f"{self.config.env}: {error}") from None
            if self.started is None:
                self.started = start
            self.cells[Learner.INSERT_S] += time.perf_counter() - start
            self.last_insert = time.monotonic()
        return received

    def update(self) -> None:
        """Make one gradient step, count and check it, and push the weights if a push is due."""
        start = time.perf_counter()
        model = self.model
        # Run Stable-Baselines3's own gradient step on a batch of replay.
        try:
            self.updates.update()
        except ValueError:  # SAC's distribution rejects NaN
            if not_finite(model) is None:
                raise
            self._roll_back()
            return
        self.limiter.on_sample(model.batch_size)
        # Do not wait for a GPU unless the losses are needed: a value that is not finite stays so until the next push.
        due = model._n_updates % self.config.publish_interval == 0
        looked_at = due or self.updates.graphs is None or time.monotonic() - self.shown > SHOWN_S
        sound = looked_at and self._is_sound()  # waits for the GPU; the time belongs to its update
        self.cells[Learner.TRAIN_S] += time.perf_counter() - start
        if sound and due:
            self._push()

    def _is_sound(self) -> bool:
        """Return True if losses and published weights are finite; show the losses, or roll back."""
        losses, cells = self.updates.losses(), self.cells
        cells[Learner.LOSS] = losses.get("train/loss", losses.get("train/critic_loss", cells[Learner.LOSS]))
        cells[Learner.ACTOR_LOSS] = losses.get("train/actor_loss", cells[Learner.ACTOR_LOSS])
        refused = self.counters.publisher[Publisher.REFUSED_VERSION] > self.sound_version
        sound = not refused and all(map(math.isfinite, losses.values()))
        if not sound:
            self._roll_back()
        return sound

    def _push(self) -> None:
        """Put the actor's tensors on the board for the publisher; never waits."""
        start = time.perf_counter()
        if self.delay is not None:
            due = self.model.num_timesteps >= self.delay and self.model._n_updates > 0
            if qat.follow(self.model, active=due):
                self.checkpointer.float_updates = self.model._n_updates
        step, size = self.model._n_updates, 4 * self.template.num_floats
        version = self.versions.next(step)
        with self.channel.floats.slot(size, version=version, step=step) as slot:
            self.template.flatten_into(self.model, slot.view(np.float32))
        self.cells[Learner.PUSH_S] += time.perf_counter() - start
        self.cells[Learner.VERSION], self.pushed_step = version, step
        self.cells[Learner.TRAINED_FOR] = self.checkpointer.is_trained_for()

    def _evaluate(self) -> None:
        """Pause, with the actors, while the supervisor plays its episodes with the weights pushed here."""
        start = time.perf_counter()
        if not_finite(self.model) is not None:  # the publisher would refuse them only later
            self._roll_back()
        self.cells[Learner.PAUSED] = 1
        self._push()
        self.evaluations += 1
        self.cells[Learner.EVALUATIONS] = self.evaluations
        control = self.counters.control
        while control[Control.EVALUATED] < self.evaluations and not self._told_to_end():
            time.sleep(0.01)
        self.paused_s += time.perf_counter() - start
        self.cells[Learner.PAUSED] = 0

    def _roll_back(self) -> None:
        """Return to the last finite weights and push them; earlier pushes no longer count."""
        self.checkpointer.roll_back()
        self.updates.forget()
        self.sound_version = self.versions.newest
        self.cells[Learner.ROLLBACKS] = self.checkpointer.rollbacks
        self._push()

    def _save(self, *, last: bool = False) -> None:
        """Save a checkpoint of finite weights; raise CheckpointError if the last one cannot be written."""
        start = time.perf_counter()
        self.cells[Learner.SAVING_S] = time.monotonic()
        if not self.checkpointer.save(self._clock(), last=last):
            self._roll_back()
            self.checkpointer.save(self._clock(), last=last)
        self.cells[Learner.SAVING_S], self.saved = 0, time.monotonic()
        self.cells[Learner.CHECKPOINT_S] += time.perf_counter() - start

    def _next(self, interval: int) -> float:
        return (self.model.num_timesteps // interval + 1) * interval if interval else math.inf

    def finished(self) -> bool:
        """Return True when all steps or updates are done, or an end was requested."""
        config = self.config
        done = self.model.num_timesteps >= config.steps and not self.limiter.updates_allowed()
        done |= config.updates is not None and self.model._n_updates >= config.updates
        return bool(done or self._told_to_end())

    def _told_to_end(self) -> bool:
        return bool(self.counters.control[Control.FINISH]) or self.stopped()

    def _clock(self) -> float:
        running = 0.0 if self.started is None else time.perf_counter() - self.started - self.paused_s
        return self.clock_before + running

    def _show_limits(self) -> None:
        """Update the counters that actors wait for."""
        cells, model = self.cells, self.model
        # An actor steps all its environments or none; steps beyond the run's last one are not taken in.
        limit = min(self.limiter.insert_limit(), self.config.steps + self.config.num_envs - 1)
        cells[Learner.INSERT_LIMIT] = limit - self.inserts_before
        # Describe updates as a line over inserts.
        cells[Learner.UPDATES_PER_INSERT] = per_insert = self.limiter.updates_per_insert
        taken = self.limiter.inserts - self.inserts_before
        cells[Learner.UPDATES_OFFSET] = model._n_updates + self.limiter.updates_owed() - per_insert * taken
        cells[Learner.TIMESTEPS], cells[Learner.UPDATES] = model.num_timesteps, model._n_updates

    def _show(self) -> None:
        """Update all counters that actors and supervisor read."""
        self._show_limits()
        cells, model = self.cells, self.model
        cells[Learner.RANDOM_UNTIL] = model.learning_starts - self.inserts_before
        self.shown = time.monotonic()
        cells[Learner.SAMPLES_PER_INSERT] = self.limiter.realised
        if self.started is not None:
            cells[Learner.EXPLORATION] = getattr(model, "exploration_rate", 0.0)
        cells[Learner.CLOCK_S] = self._clock()
        if model.ep_info_buffer and cells[Learner.EPISODES] != model._episode_num:
            cells[Learner.RETURN_MEAN] = sum(e["r"] for e in model.ep_info_buffer) / len(model.ep_info_buffer)
        cells[Learner.EPISODES] = model._episode_num
        cells[Learner.DUPLICATES], cells[Learner.GAPS] = self.replay.num_duplicates, self.replay.num_gaps


def main(spec: LearnerSpec) -> None:
    give_way(spec.config.nice)
    loop = LearnerLoop(spec)
    die_with_parent(False)  # now there is something to save, and the loop checks for its supervisor itself
    loop.run()
    if loop.orphaned():
        spec.channel.remove()
    sys.stdout.flush()
    os._exit(0)  # exit at once: unloading torch takes a second, which would delay Ctrl-C
