"""The supervisor: starts learner, publisher and actors, restarts dead ones, evaluates, and writes the metrics."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from quarl.actorq import metrics, roles
from quarl.actorq.actors_evaluator import ActorsEvaluator
from quarl.actorq.build import build, limiter_of, recalled
from quarl.actorq.channel import LocalChannel
from quarl.actorq.counters import Control, Learner
from quarl.actorq.family import ActorFamily
from quarl.actorq.faults import Faults, death
from quarl.actorq.run_options import begun
from quarl.actorq.segment import segment_dtype
from quarl.actorq.weights import Template
from quarl.actorq.workers import Workers
from quarl.config import ActorQConfig
from quarl.errors import QuarlError, detail, in_one_line, note
from quarl.files import Dispensable, append_row, locked, read_rows, write_rows
from quarl.machine import usable_cores
from quarl.processes.child import Children
from quarl.processes.signals import ONCE_MORE, SIGNALLED, Interrupts
from quarl.runs.folder import RunFolder
from quarl.runs.outcome import Ended

RING_ROWS = 4096
"""Segments that an actor may be ahead of the learner's reading; fewer if observations are large."""
RING_BYTES = 64 * 2**20
TICK_S = 0.05
ROW_S = 1.0
"""Seconds between two rows of metrics."""
THIN_ROWS = 1000
"""Rows of metrics that are added before the file is thinned."""
ALONE = {"rollout/ep_rew_mean": "return_mean", "time/fps": "timesteps_per_s", "train/loss": "loss"}
"""Learner tags that the supervisor writes for trackers that allow only one process per run."""
CATCH_UP_S = 30.0
"""Seconds for the publisher to pack the newest weights before an evaluation."""
GRACE_S = 4.0
"""Seconds for actors and publisher to exit after the learner."""
FINISH_S = 30.0
"""Seconds for the learner to finish its update after a signal, on a busy machine."""
SAVE_S = 120.0
"""Seconds for a learner that writes its last checkpoint: a large replay takes time. The next signal ends it."""
USAGE, TOO_FEW = 2, 4
"""Exit codes: a user error; fewer actors than --min-actors, or none that gets anywhere."""


class Supervisor(roles.Supervisor):
    """The supervisor of one run, from the start to its last row of metrics."""

    def __init__(
        self,
        config: ActorQConfig,
        say: Callable[[str], None],
        open_channel: Callable[[int, int, np.dtype[Any], int], roles.Channel] = LocalChannel.create,
        children: Callable[[], Children] = Children,
        family: Callable[..., ActorFamily] = ActorFamily,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """Resolve the options, and create the channel and the workers without starting them.

        Args:
            config: Options of the run.
            say: Receives the lines for the user.
            open_channel: Creates the channel from the number of actors, the number of weights, the dtype of segments
                and the capacity of a ring.
            children: Creates the object that starts and ends processes.
            family: Creates the actors, from the arguments of ActorFamily.
            tell: Receives the lines about faults, which the page lists by itself; None means `say`.
        """
        # Check everything that the learner would refuse.
        config = begun(config, say)
        self.config, self.say = config, say
        environment = recalled(config)
        model = build(config, environment)
        limiter_of(config, model)  # check here for the learner's errors, before there is a folder
        self.template = Template(model)
        # Size the rings and create the channel.
        dtype = segment_dtype(model.observation_space, model.action_space)
        rows = ring_rows(dtype.itemsize, config.num_envs)
        self.channel: roles.Channel = open_channel(config.num_actors, self.template.num_floats, dtype, rows)
        self.counters = self.channel.counters
        self.faults = Faults(config.output, tell or say, self.counters.learner)
        try:
            self.evaluator = ActorsEvaluator(config, self.template, self.channel, say)
            self.workers = Workers(config, self.template, self.channel, environment, self.faults.tell, family)
        except BaseException:
            self.channel.remove()
            raise
        self.children = children()
        self.interrupts = Interrupts(self.close)
        self.files, self._metrics = Dispensable(say), RunFolder(config.output).metrics
        self._num_rows, self._next_point = 0, 0.0
        """Rows since the file was thinned; training clock at which the tracker gets its next point."""
        self.began_at: int | None = None
        """Step at which the run was resumed."""

    def run(self) -> Generator[dict[str, Any]]:
        """Yield a row of metrics every second; `result` is set when they end."""
        self.result: Ended[dict[str, Any]] = Ended(exit_code=1, message="the run did not end", row=None)
        started = time.perf_counter()
        previous: dict[str, Any] | None = None
        with contextlib.closing(self), locked(self.config.output), self.interrupts:
            # Start all processes.
            try:
                RunFolder(self.config.output).describe(self.config)
                for child in self.workers.all:
                    self.children.start(child)
                next_row = time.perf_counter()
                # Watch them, and yield the metrics.
                while (ended := self._tick()) is None:
                    if time.perf_counter() >= next_row and self.counters.learner[Learner.READY]:
                        next_row = time.perf_counter() + ROW_S
                        previous = metrics.row(self.counters, time.perf_counter() - started, previous)
                        self._log(previous)
                        self.faults.look()
                        yield previous
                # Count the last faults, evaluate the last weights, and set the result.
                self.children.kill()  # after the learner's death, actors still act
                self.workers.look()
                self.faults.look(last=True)
                last = metrics.row(self.counters, time.perf_counter() - started, previous)
                if began := bool(self.counters.learner[Learner.READY]):
                    self._log(last)
                code, message = ended
                if code == 0 and not self.evaluator.has_concluded(last["timesteps"]):
                    code, message = self._conclude()
                self.result = Ended(exit_code=code, message=message, row=self._summary(last))
                if began:
                    yield last
            except Exception:
                self._wind_up()  # after any error: let the learner save before the error propagates
                raise

    def _tick(self) -> tuple[int, str] | None:
        """Check all processes once; return (exit code, message) when the run has ended."""
        # Wait until a process ends, or for a moment.
        wait([child.sentinel for child in self.children.alive()], timeout=TICK_S)
        if self.interrupts.number is not None:
            self._wind_up()
            stopped = self._over(SIGNALLED + self.interrupts.number, "stopped by a signal")
            # a user error, such as a last checkpoint for which the disk had no room
            return self._learner_left() if self.workers.learner.result.mistake else stopped
        cells, control, workers = self.counters.learner, self.counters.control, self.workers
        # Restore a resumed run's evaluations before anything else is written.
        if self.config.resume and self.began_at is None and cells[Learner.READY]:
            self._pick_up()
        # End the run when the learner ends.
        if not workers.learner.alive():
            return self._learner_left()
        # Kill hung processes, and restart dead ones.
        workers.look()
        if self._revive_publisher():
            self._wind_up()
            return self._over(1, "the publisher keeps dying")
        if mistake := workers.actors.revive(self.children):
            self._wind_up()
            return USAGE, mistake
        # End the run when it has fewer actors than --min-actors.
        at_work, config = workers.actors.num_at_work, self.config
        control[Control.ACTORS] = workers.actors.num_alive
        if at_work < config.min_actors:
            left = f"only {at_work} of {config.actors} actors are left and --min-actors is {config.min_actors}"
            self._wind_up()
            return self._over(TOO_FEW, left)
        if workers.are_barren():
            self._wind_up()
            span, reason = "in its last ten replacements", self.faults.rows[-1]["reason"]
            return self._over(TOO_FEW, f"no actor completed an episode or 1,000 steps {span} ({reason})")
        # Play an evaluation that the learner waits for.
        if cells[Learner.EVALUATIONS] > control[Control.EVALUATED]:
            if self._catch_up() and self._evaluate() and self.evaluator.reached:
                control[Control.FINISH] = 1
            control[Control.EVALUATED] = cells[Learner.EVALUATIONS]
        return None

    def _revive_publisher(self) -> bool:
        """Restart a dead publisher; return True if it died too often."""
        publisher = self.workers.publisher
        if not publisher.alive() and (event := self.children.revive(publisher)):
            self.faults.tell(death(publisher, event))
        return publisher.parked

    def _over(self, code: int, why: str) -> tuple[int, str]:
        """Return the exit code and a message that explains how to resume, if there is anything to resume."""
        if not RunFolder(self.config.output).checkpoints():
            return code, f"{why}; there is no checkpoint yet: start again"
        return code, f"{why}; resume with --resume -o {self.config.output}"

    def _pick_up(self) -> None:
        """Restore the run's evaluations, which may already have reached the target."""
        self.began_at = int(self.counters.learner[Learner.BEGAN_AT])
        self.evaluator.resume(self.began_at)
        self._thin(self.began_at)
        if self.evaluator.reached_s is not None:
            self.say(f"--target {self.config.target:g} was reached; set a higher one to continue training")
            self.counters.control[Control.FINISH] = 1

    def _learner_left(self) -> tuple[int, str]:
        """Return the exit code and message of a run whose learner has ended."""
        if self.counters.learner[Learner.DONE]:
            self._catch_up()
            self.counters.control[Control.STOP] = 1
            self.children.wind_up(GRACE_S)
            signal = self.interrupts.number
            return (0, "") if signal is None else self._over(SIGNALLED + signal, "stopped after its last update")
        if not self.workers.learner.result.mistake:
            fault = death(self.workers.learner, "died", "the run ends")
            self.faults.record(fault)
            return self._over(1, f"the {fault}")
        reason = self.workers.learner.reason()
        return self._over(USAGE, reason) if self.counters.learner[Learner.TIMESTEPS] else (USAGE, reason)

    def _conclude(self) -> tuple[int, str]:
        """Play the last evaluation; the training is kept even if it fails."""
        there = "model and checkpoint are saved"
        try:
            whole = self._evaluate(last=True)
        except Exception as error:  # a simulator failed twice
            return 1, f"the last evaluation failed ({in_one_line(error)}); {there}"
        signal = self.interrupts.number or 0
        return (0, "") if whole else self._over(SIGNALLED + signal, f"stopped in its last evaluation; {there}")

    def _evaluate(self, *, last: bool = False) -> bool:
        """Play episodes with the weights that the learner has just pushed; return False if a signal came first.

        An error costs the evaluation and not the run, except in the last one.
        """
        try:
            return self.interrupts.attempt(partial(self.evaluator.evaluate, last=last))
        except Exception as error:  # a simulator may raise anything
            if last:
                raise
            self.say(f"an evaluation failed ({in_one_line(error)}); training continues")
            return True

    def _catch_up(self) -> bool:
        """Wait until the publisher has packed the learner's last weights; return False if a signal came first."""
        deadline = time.monotonic() + CATCH_UP_S
        while self.channel.packed.version < self.channel.floats.version and time.monotonic() < deadline:
            if self.interrupts.number is not None:
                return False
            self._revive_publisher()
            time.sleep(0.005)
        return True

    def _wind_up(self) -> None:
        """Let the learner save and all processes exit; kill those that do not."""
        self.counters.control[Control.FINISH] = self.counters.control[Control.STOP] = 1
        if self.interrupts.number is not None:
            with contextlib.suppress(OSError):  # after SIGHUP there is no terminal
                saves = "the learner finishes its update and saves; " if self.counters.learner[Learner.READY] else ""
                self.say(f"stopping: {saves}{ONCE_MORE}")
        learner, cells, start = self.workers.learner, self.counters.learner, time.monotonic()
        until = start + (FINISH_S if cells[Learner.READY] else 0)  # before READY it has nothing to save
        while learner.alive() and time.monotonic() < until:
            learner.join(TICK_S)
            if saving_since := float(cells[Learner.SAVING_S]):
                until = saving_since + SAVE_S
        self.children.wind_up(GRACE_S if cells[Learner.READY] else 0)

    def _log(self, row: dict[str, Any]) -> None:
        self.files.write(lambda: append_row(self._metrics, row))
        self._num_rows += 1
        if self._num_rows == THIN_ROWS:
            self._thin(math.inf)
        if self.config.track != "none" and row["clock_s"] >= self._next_point:  # beside the learner's own tags
            self._next_point = row["clock_s"] + metrics.spacing_s(row["clock_s"])
            for name, value in metrics.scalars(row).items():
                self.evaluator.logger.record(f"actorq/{name}", value)
            for tag, name in ALONE.items() if self.config.track != "tensorboard" else ():
                self.evaluator.logger.record(tag, row[name])
            self.evaluator.logger.dump(row["timesteps"])

    def _thin(self, timesteps: float) -> None:
        """Thin the rows of metrics up to a step, and drop later ones."""
        rows, self._num_rows = read_rows(self._metrics, timesteps, ("clock_s", "wall_s")), 0
        self.files.write(lambda: write_rows(self._metrics, metrics.thin(rows)))

    def close(self) -> None:
        """End every process and free the memory; repeated calls are harmless."""
        self.children.kill()
        self.channel.remove()
        self.evaluator.logger.close()

    def _summary(self, last: dict[str, Any]) -> dict[str, Any]:
        evaluations = self.evaluator.entries
        return {
            "algo": self.config.algo,
            "env_id": self.config.env,
            "precision": self.config.actor_precision,
            "engine": self.config.engine,
            "seed": self.config.seed,
            **{name: last[name] for name in ("clock_s", "wall_s", "timesteps", "updates", "samples_per_insert")},
            "reached_s": self.evaluator.reached_s,
            "final": evaluations[-1] if evaluations else None,
            "actor_deaths": self.faults.total("actor ", "died"),
        }


def ring_rows(size: int, num_envs: int) -> int:
    """Return the ring capacity in segments of `size` bytes; raise QuarlError if a step of all is too large."""
    rows = max(min(max(RING_ROWS, 2 * num_envs), RING_BYTES // size), 2)
    if rows < num_envs:
        raise QuarlError(
            f"--envs-per-actor {num_envs}: one step of all is {num_envs * size / 2**20:,.0f} MiB, but an actor's "
            f"ring holds {RING_BYTES // 2**20} MiB: use at most {rows}"
        )
    return rows


def warn_about_cores(config: ActorQConfig) -> None:
    """Warn if this machine has fewer cores than processes; with -v, print their niceness."""
    detail(f"niceness of learner and actors: {config.nice} above that of their publisher")
    actors = config.num_actors if config.cluster in (None, "local") else config.actors_per_node or 0
    if actors + 1 > usable_cores():
        shared = f"{actors} actors and a learner share {usable_cores()} cores"
        note(f"{shared}: they slow each other down, unless their environments wait")
