"""Counters: numbers that the processes of a run share, each with one writer.

They are float64 cells in shared memory: a cell is written and read atomically, counters are exact up to 2**53, and a
write costs less than a function call. Times are seconds that accumulate over the run. If a process is killed, the
interrupted operation is missing from them; nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, auto
from typing import Any

import numpy as np

from quarl.actorq.shared_memory import Block, Memory
from quarl.arrays import Array

CLASSES = 2048
"""Number of classes of a histogram of whole numbers; the last class holds all larger values."""


class _Column(IntEnum):
    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[Any]) -> int:
        return count


class Control(_Column):
    """Columns that the supervisor writes."""

    FINISH = auto()
    """1: the learner finishes its update, saves and exits; the others stay for its last weights."""
    STOP = auto()
    """1: all processes exit."""
    EVALUATED = auto()
    """Completed evaluations; the learner resumes when this reaches its EVALUATIONS."""
    ACTORS = auto()
    """Actors that are alive."""


class Learner(_Column):
    """Columns that the learner writes."""

    READY = auto()
    DONE = auto()
    BEGAN_AT = auto()
    """Environment steps that earlier learners of the run had taken in."""
    PAUSED = auto()
    """1 during an evaluation: the training clock pauses and actors wait."""
    EVALUATIONS = auto()
    """Evaluations requested so far."""
    TIMESTEPS = auto()
    """Environment steps counted by replay: SB3's num_timesteps."""
    UPDATES = auto()
    TRAINED_FOR = auto()
    """1 if the most recently pushed weights were trained as --qat asks; always 1 without --qat."""
    VERSION = auto()
    """Version of the most recently pushed weights."""
    INSERT_LIMIT = auto()
    """Environment steps, counted as in the actors' STEPS, after which actors must wait."""
    RANDOM_UNTIL = auto()
    """Environment steps, counted likewise, with random actions."""
    UPDATES_PER_INSERT = auto()
    UPDATES_OFFSET = auto()
    """Line offset + per_insert * n: updates that the learner may have made when n environment steps are in replay.

    Steps are counted likewise. An actor derives from it the age of its weights when its steps are learned from.
    """
    EXPLORATION = auto()
    """DQN's epsilon, from SB3's schedule."""
    CLOCK_S = auto()
    """The training clock in seconds since actors and learner were ready, without evaluations."""
    TRAIN_S = auto()
    INSERT_S = auto()
    PUSH_S = auto()
    WAIT_S = auto()
    """Seconds of waiting for experience: the limiter's learner side."""
    CHECKPOINT_S = auto()
    SAVING_S = auto()
    """Start of the checkpoint being written, by time.monotonic(); 0 if none is."""
    SAMPLES_PER_INSERT = auto()
    """Realized ratio since the warm-up."""
    EPISODES = auto()
    RETURN_MEAN = auto()
    """Mean of the last 100 training episodes, exploration included."""
    LOSS = auto()
    """train/loss, or the critic's loss."""
    ACTOR_LOSS = auto()
    ROLLBACKS = auto()
    DUPLICATES = auto()
    GAPS = auto()


class Publisher(_Column):
    """Columns that the publisher writes."""

    VERSION = auto()
    PUBLISHED = auto()
    REFUSED = auto()
    """Snapshots with NaN or infinity, which were not quantized."""
    REFUSED_VERSION = auto()
    """Version of the last refused snapshot."""
    PULL_S = auto()
    PACK_S = auto()
    """Seconds from tensors to bytes."""
    QUANTIZE_S = auto()
    """Seconds of PACK_S from tensors to codes."""
    PUBLISH_S = auto()
    CPU_S = auto()
    BYTES = auto()
    """Bytes on the wire, summed over all versions."""
    FLOAT_BYTES = auto()
    """Bytes of the same weights in float32."""
    HEARTBEAT_S = auto()


class Actor(_Column):
    """Columns that one actor and its successors write."""

    INCARNATION = auto()
    STEPS = auto()
    """Environment steps sent."""
    VERSION = auto()
    """Version of the weights it acts with."""
    INFERENCE_S = auto()
    ENVIRONMENT_S = auto()
    INSERT_S = auto()
    PULL_S = auto()
    """Seconds of checking for a new version, successful or not."""
    DESERIALIZE_S = auto()
    LOAD_S = auto()
    """Seconds of creating the engine, its first run included."""
    WAIT_S = auto()
    """Seconds of waiting for the limiter, or for room in the ring."""
    STALE_S = auto()
    """Seconds of waiting at the staleness bound."""
    LOOP_S = auto()
    """Seconds since its first action, waits included."""
    CPU_S = auto()
    """Seconds of its process on a core; only a plan counts them."""
    QUEUED_S = auto()
    """Seconds in which its process was ready but had no core; only a plan counts them."""
    PULLS = auto()
    SKIPPED = auto()
    """Seconds from a learner's step to the first action on its weights; the sum over the pulls in latency_ms."""
    LATENCY_S = auto()
    """Seconds from a learner's step to the first action on its weights; the sum over the pulls in latency_ms."""
    EPISODES = auto()
    """Episodes that ended."""
    DEATHS = auto()
    """Deaths of its processes; the watchdog of its machine writes it."""
    ERRORS = auto()
    """Environments that raised and were replaced."""
    DROPPED = auto()
    """Steps of their unfinished episodes, which are in replay without an episode end."""
    SIGMA = auto()
    """This actor's rung of the ladder: noise, or the exponent of DQN's epsilon."""
    HEARTBEAT_S = auto()


class Relay(_Column):
    """Columns that the relay of a cluster writes."""

    HEARTBEAT_S = auto()
    INCARNATIONS = auto()
    """Incarnations given to the machines' actors so far."""


class Node(_Column):
    """Columns of one machine of a cluster; the relay writes them."""

    BEGUN = auto()
    """Number of agent starts; after a new agent or a new relay, the actors are restarted."""
    ANSWERS = auto()
    """1 while its agent answers."""
    ACTORS = auto()
    """Actors of the machine that are alive."""
    AT_WORK = auto()
    """Actors of the machine that are alive or will be restarted."""
    ROWS = auto()
    """Segments received from it."""
    ROWS_BYTES = auto()
    WEIGHTS_BYTES = auto()
    """Bytes of the versions sent to it."""
    VERSION = auto()
    """Newest version in its memory."""
    WEIGHTS_S = auto()
    """Seconds from the learner's stamp until these weights arrived."""
    DELAY_S = auto()
    """Seconds of round trip for the smallest request: the recent minimum."""
    PIECE_S = auto()
    """Seconds between two batches of segments: the recent mean."""


TIMES = (
    *(Actor.INFERENCE_S, Actor.ENVIRONMENT_S, Actor.INSERT_S, Actor.PULL_S, Actor.DESERIALIZE_S, Actor.LOAD_S),
    *(Actor.WAIT_S, Actor.STALE_S),
)
"""Columns that make up an actor's loop; the rest is exploration and the loop itself."""


class Counters:
    """All rows of counters; each process writes its own and reads the others'."""

    def __init__(self, memory: Memory) -> None:
        self.control: Array = memory.array("counters.control")
        self.learner: Array = memory.array("counters.learner")
        self.publisher: Array = memory.array("counters.publisher")
        self.actors: Array = memory.array("counters.actors")
        self.relay: Array = memory.array("counters.relay")
        self.nodes: Array = memory.array("counters.nodes")
        """One row for each machine of a cluster; empty without one."""
        self.weights_ms: Array = memory.array("counters.weights_ms")
        """[machines, classes]: versions by milliseconds from learner step to the machine's memory."""
        self.staleness: Array = memory.array("counters.staleness")
        """Rows taken in by the learner, by the age of their weights in updates."""
        self.latency_ms: Array = memory.array("counters.latency_ms")
        """[actors, classes]: pulls by ms from learner step to acting, except pulls that an evaluation delayed."""
        self.blocked_ms: Array = memory.array("counters.blocked_ms")
        """[actors, classes]: pulls by tenths of a millisecond without acting."""

    @staticmethod
    def blocks(num_actors: int, num_nodes: int = 0) -> dict[str, Block]:
        """Return the memory layout of the counters."""
        real, whole = np.dtype("f8"), np.dtype("i8")
        return {
            "counters.control": Block(real, (len(Control),)),
            "counters.learner": Block(real, (len(Learner),)),
            "counters.publisher": Block(real, (len(Publisher),)),
            "counters.actors": Block(real, (num_actors, -(-len(Actor) // 8) * 8)),
            "counters.relay": Block(real, (len(Relay),)),
            "counters.nodes": Block(real, (num_nodes, len(Node))),
            "counters.weights_ms": Block(whole, (num_nodes, CLASSES)),
            "counters.staleness": Block(whole, (CLASSES,)),
            "counters.latency_ms": Block(whole, (num_actors, CLASSES)),
            "counters.blocked_ms": Block(whole, (num_actors, CLASSES)),
        }


def overhead_s(times: Mapping[str, float]) -> float:
    """Return an actor's seconds outside its work, new weights and waits; `times` has its columns by name."""
    return times["loop_s"] - sum(times[column.name.lower()] for column in TIMES if column is not Actor.INSERT_S)


def percentile(histogram: Array, share: float) -> float:
    """Return the smallest class that covers `share` (0..1) of the counts; nan if there are none."""
    total = histogram.sum()
    return float(np.searchsorted(histogram.cumsum(), share * total)) if total else float("nan")
