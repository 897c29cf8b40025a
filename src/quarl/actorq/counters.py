"""Counters: the numbers that the processes of a run show each other, each with one writer.

float64 cells in shared memory: a cell is written and read whole, counters are exact up to 2**53, and a write costs
less than a function call. Times are seconds that add up over the run; what a process was killed in the middle of is
missing from them, nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, auto
from typing import Any

import numpy as np

from quarl.actorq.shared_memory import Block, Memory
from quarl.arrays import Array

CLASSES = 2048
"""Classes of a histogram of whole numbers; the last one holds everything from there on."""


class _Column(IntEnum):
    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[Any]) -> int:
        return count


class Control(_Column):
    """Written by the supervisor."""

    FINISH = auto()
    """1: the learner finishes its update, saves and leaves; the others stay for its last weights."""
    STOP = auto()
    """1: everyone leaves."""
    EVALUATED = auto()
    """Evaluations that are over; the learner goes on when it has caught up with its EVALUATIONS."""
    ACTORS = auto()
    """Actors that are alive."""


class Learner(_Column):
    """Written by the learner."""

    READY = auto()
    DONE = auto()
    BEGAN_AT = auto()
    """Environment steps that an earlier learner of the run had taken in."""
    PAUSED = auto()
    """1 while an evaluation runs: the training clock stands still and actors wait."""
    EVALUATIONS = auto()
    """Evaluations asked for so far."""
    TIMESTEPS = auto()
    """Environment steps that are in replay's books: SB3's num_timesteps."""
    UPDATES = auto()
    TRAINED_FOR = auto()
    """1 when the weights pushed last were trained for what --qat asks; always where it asks nothing."""
    VERSION = auto()
    """Of the newest weights that were pushed."""
    INSERT_LIMIT = auto()
    """Environment steps, counted as in the actors' STEPS, after which actors must wait."""
    RANDOM_UNTIL = auto()
    """Environment steps, counted likewise, that are played at random."""
    UPDATES_PER_INSERT = auto()
    UPDATES_OFFSET = auto()
    """offset + per_insert * n: updates that the learner may have done when n environment steps, counted likewise, are
    in replay. So an actor knows how old its weights will be when what they do is learnt from."""
    EXPLORATION = auto()
    """DQN's epsilon by SB3's schedule."""
    CLOCK_S = auto()
    """The training clock: since actors and learner were ready, evaluations left out."""
    TRAIN_S = auto()
    INSERT_S = auto()
    PUSH_S = auto()
    WAIT_S = auto()
    """Waiting for experience: the limiter's learner side."""
    CHECKPOINT_S = auto()
    SAVING_S = auto()
    """time.monotonic() at the start of the checkpoint that is being written; 0: none is."""
    SAMPLES_PER_INSERT = auto()
    """As realised since the warm-up."""
    EPISODES = auto()
    RETURN_MEAN = auto()
    """Of the last 100 training episodes, exploration included."""
    LOSS = auto()
    """train/loss, or the critic's."""
    ACTOR_LOSS = auto()
    ROLLBACKS = auto()
    DUPLICATES = auto()
    GAPS = auto()


class Publisher(_Column):
    """Written by the publisher."""

    VERSION = auto()
    PUBLISHED = auto()
    REFUSED = auto()
    """Snapshots with NaN or infinity, which were not quantized."""
    REFUSED_VERSION = auto()
    """Of the last one of them."""
    PULL_S = auto()
    PACK_S = auto()
    """From tensors to bytes."""
    QUANTIZE_S = auto()
    """Of that, from tensors to codes."""
    PUBLISH_S = auto()
    CPU_S = auto()
    BYTES = auto()
    """On the wire, of all versions together."""
    FLOAT_BYTES = auto()
    """What the same weights are in float32."""
    HEARTBEAT_S = auto()


class Actor(_Column):
    """Written by one actor, and by its successors after it."""

    INCARNATION = auto()
    STEPS = auto()
    """Environment steps sent."""
    VERSION = auto()
    """Of the weights it acts with."""
    INFERENCE_S = auto()
    ENVIRONMENT_S = auto()
    INSERT_S = auto()
    PULL_S = auto()
    """Looking for a new version, whether there is one or none."""
    DESERIALIZE_S = auto()
    LOAD_S = auto()
    """Making the engine, its first run included."""
    WAIT_S = auto()
    """Ahead of the limiter, or in front of a full ring."""
    STALE_S = auto()
    """At the staleness bound."""
    LOOP_S = auto()
    """Everything since its first action, waits included."""
    PULLS = auto()
    SKIPPED = auto()
    """Pulls that found no new version."""
    LATENCY_S = auto()
    """From a learner's step to the first action on its weights, added over the pulls that latency_ms counts."""
    ERRORS = auto()
    """Environments that raised and were made anew."""
    DROPPED = auto()
    """Steps of the episodes that went with them, which replay has and no episode's end."""
    SIGMA = auto()
    """This actor's rung of the ladder: noise, or the exponent of DQN's epsilon."""
    HEARTBEAT_S = auto()


class Relay(_Column):
    """Written by the relay of a cluster."""

    HEARTBEAT_S = auto()
    INCARNATIONS = auto()
    """Those given out to the machines' actors so far."""
    CPU_S = auto()
    VERSIONS = auto()
    """Put up for all machines."""


class Node(_Column):
    """Of one machine of a cluster; written by the relay."""

    BEGUN = auto()
    """Times that its agent began: with a new one or a new relay, its actors begin anew."""
    ANSWERS = auto()
    """1: its agent does."""
    ACTORS = auto()
    """Its actors that are alive."""
    AT_WORK = auto()
    """Its actors that are there, or will be again."""
    DEATHS = auto()
    """Of its actors."""
    ROWS = auto()
    """Segments that came from it."""
    ROWS_BYTES = auto()
    WEIGHTS_BYTES = auto()
    """Of the versions that went to it."""
    VERSION = auto()
    """Of the newest weights in its memory."""
    WEIGHTS_S = auto()
    """From the learner's stamp until these were there."""
    DELAY_S = auto()
    """Of an answer to the least of questions, lately at best."""
    PIECE_S = auto()
    """Since its last segments came, lately in the mean."""
    CPU_S = auto()
    """Of its agent, without actors."""


TIMES = (
    *(Actor.INFERENCE_S, Actor.ENVIRONMENT_S, Actor.INSERT_S, Actor.PULL_S, Actor.DESERIALIZE_S, Actor.LOAD_S),
    *(Actor.WAIT_S, Actor.STALE_S),
)
"""What an actor's loop is made of; the rest of it is exploration and the loop itself."""


class Counters:
    """All rows; each process writes its own and reads the others'."""

    def __init__(self, memory: Memory) -> None:
        self.control: Array = memory.array("counters.control")
        self.learner: Array = memory.array("counters.learner")
        self.publisher: Array = memory.array("counters.publisher")
        self.actors: Array = memory.array("counters.actors")
        self.relay: Array = memory.array("counters.relay")
        self.nodes: Array = memory.array("counters.nodes")
        """A row for each machine of a cluster; none without one."""
        self.weights_ms: Array = memory.array("counters.weights_ms")
        """[machines, classes]: versions by milliseconds from learner step to the machine's memory."""
        self.staleness: Array = memory.array("counters.staleness")
        """Rows that the learner took in by the age of their weights in updates."""
        self.latency_ms: Array = memory.array("counters.latency_ms")
        """[actors, classes]: pulls by milliseconds from learner step to acting, without those that an evaluation held
        up."""
        self.blocked_ms: Array = memory.array("counters.blocked_ms")
        """[actors, classes]: pulls by tenths of a millisecond that the actor did not act."""

    @staticmethod
    def blocks(num_actors: int, num_nodes: int = 0) -> dict[str, Block]:
        """The memory of a counters."""
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
    """Of an actor's seconds, by the names of its columns, what is neither its work, nor new weights, nor a wait."""
    return times["loop_s"] - sum(times[column.name.lower()] for column in TIMES if column is not Actor.INSERT_S)


def percentile(histogram: Array, share: float) -> float:
    """The class below or at which `share` (0..1) of the counts lie; nan where there are none."""
    total = histogram.sum()
    return float(np.searchsorted(histogram.cumsum(), share * total)) if total else float("nan")
