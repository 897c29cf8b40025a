"""The rate limiter: how many batches the learner may sample now, and how far actors may insert. Pure counting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from quarl.errors import QuarlError

MAX_DENOMINATOR = 10**6
"""Maximum denominator of the ratio: it recovers every batch * gradient_steps / train_freq from its float."""


def smallest_error_buffer(
    samples_per_insert: float, batch_size: int, updates_at_once: int = 1, inserts_at_once: int = 1
) -> Fraction:
    """Return the least error_buffer with which one side can always continue, whatever the counts: lockstep.

    The error is a multiple of 1/denominator of the ratio, and below one round of updates while the learner waits. The
    largest such error must still leave room for all inserts that an actor makes at once.

    Args:
        samples_per_insert: Ratio of sampled rows to inserted rows.
        batch_size: Samples of one update.
        updates_at_once: Updates of one round.
        inserts_at_once: Inserts that an actor makes at once.
    """
    ratio = _ratio(samples_per_insert)
    return batch_size * updates_at_once + ratio * inserts_at_once - Fraction(1, ratio.denominator)


class RateLimiter:
    """A limiter that keeps error = (inserts - min_size) * samples_per_insert - samples within [0, error_buffer].

    Reverb's SampleToInsertRatio lets the error swing to either side of 0. Only the width of that window matters once
    both sides run. With its lower end at 0, the learner is never ahead of the ratio: the clock is SB3's and there is no
    burst of updates at min_size. With `smallest_error_buffer`, the loop is SB3's too. All arithmetic is in integers.
    """

    def __init__(
        self,
        samples_per_insert: float,
        batch_size: int,
        min_size: int,
        error_buffer: float | Fraction | None = None,
        *,
        updates_at_once: int = 1,
        inserts_at_once: int = 1,
    ) -> None:
        """Validate the arguments and set all counts to 0.

        Args:
            samples_per_insert: Ratio of sampled rows to inserted rows.
            batch_size: Samples of one update.
            min_size: Inserts before the ratio counts; no update happens before them.
            error_buffer: Samples by which actors may be ahead. None lets them gather the next round while the learner
                works on this one, and at least a tenth of min_size, as in Acme.
            updates_at_once: Updates of one round, which become due together (SB3's gradient_steps).
            inserts_at_once: Inserts for which an actor needs room: a step of each of its environments.

        Raises:
            QuarlError: If the learner and the actors could block each other.
        """
        _check_least(1, batch_size=batch_size, updates_at_once=updates_at_once, inserts_at_once=inserts_at_once)
        _check_least(0, min_size=min_size)
        self.batch_size, self.min_size = batch_size, min_size
        self.inserts = self.samples = 0
        self._start = (min_size, 0)
        self._ratio = _ratio(samples_per_insert)
        smallest = smallest_error_buffer(samples_per_insert, batch_size, updates_at_once, inserts_at_once)
        if error_buffer is None:
            error_buffer = max(2 * smallest, min_size * self._ratio / 10)
        if not math.isfinite(error_buffer) or error_buffer < smallest:
            raise QuarlError(
                f"error_buffer {float(error_buffer):g} lets learner and actors block each other at samples_per_insert "
                f"{samples_per_insert:g}, {updates_at_once} x {batch_size} samples a round and {inserts_at_once} steps "
                f"at once; use at least {_float_above(smallest)!r}"
            )
        self.samples_per_insert = float(self._ratio)
        self.error_buffer = float(error_buffer)
        self._updates_at_once = updates_at_once
        # The error is an integer in units of 1/denominator: (inserts - start) * up - (samples - start) * down.
        self._up, self._down = self._ratio.numerator, self._ratio.denominator
        self._round = batch_size * updates_at_once * self._down
        self._ahead = math.floor(Fraction(error_buffer) * self._down)

    def on_insert(self, count: int) -> None:
        """Count inserted rows."""
        self.inserts += count

    def on_sample(self, count: int) -> None:
        """Count sampled rows: batch_size for every update."""
        self.samples += count

    @property
    def realised(self) -> float:
        """Samples per insert past the first min_size inserts, or since the ratio was last changed; 0 before."""
        inserts, samples = self._start
        return (self.samples - samples) / (self.inserts - inserts) if self.inserts > inserts else 0.0

    @property
    def updates_per_insert(self) -> float:
        """Updates per insert at the ratio."""
        return self.samples_per_insert / self.batch_size

    def updates_owed(self) -> float:
        """Return the updates that the ratio promises for the inserts past its start, less those made."""
        inserts, samples = self._start
        return (self.inserts - inserts) * self.updates_per_insert - (self.samples - samples) / self.batch_size

    def updates_allowed(self) -> int:
        """Return the number of batches that the learner may sample now: the rest of the rounds that are due."""
        inserts, samples = self._start
        due = (self.inserts - inserts) * self._up // self._round * self._updates_at_once
        return max(due - (self.samples - samples) // self.batch_size, 0)

    def inserts_wanted(self) -> int:
        """Return the inserts missing for the next update, 0 if one is allowed; taking in no more keeps SB3's clock."""
        inserts, samples = self._start
        rounds = (self.samples - samples) * self._down // self._round + 1
        return max(inserts - (-rounds * self._round // self._up) - self.inserts, 0)

    def insert_limit(self) -> int:
        """Return the total number of inserts at which actors must wait; at least min_size.

        Inserts beyond it (a block under way when the limit was reached) are harmless: the learner owes more updates.
        """
        inserts, samples = self._start
        return inserts + ((self.samples - samples) * self._down + self._ahead) // self._up

    def state(self) -> dict[str, float]:
        """Return the numbers that `load_state` takes."""
        return {
            "inserts": self.inserts,
            "samples": self.samples,
            "start_inserts": self._start[0],
            "start_samples": self._start[1],
            "samples_per_insert": self.samples_per_insert,
            "batch_size": self.batch_size,
            "min_size": self.min_size,
        }

    def load_state(self, state: Mapping[str, float]) -> None:
        """Continue from `state`; if ratio, batch_size or min_size have changed, the ratio counts from here on.

        Otherwise a burst of updates would make up for a raised ratio, and a long wait for a lowered one.
        """
        names = ("inserts", "samples", "start_inserts", "start_samples")
        self.inserts, self.samples, inserts, samples = _counts(state, names)
        ratio = {name: getattr(self, name) for name in ("samples_per_insert", "batch_size", "min_size")}
        unchanged = ratio.items() <= state.items()
        self._start = (inserts, samples) if unchanged else (max(self.inserts, self.min_size), self.samples)

    def warm_up_again(self) -> None:
        """Wait for min_size inserts from now on before the ratio counts again, because the replay was lost."""
        self._start = (self.inserts + self.min_size, self.samples)


def _check_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise QuarlError(f"{name} must be at least {least}, got {value}")


def _ratio(samples_per_insert: float) -> Fraction:
    """Return samples_per_insert as the simple fraction behind its float: 49 * (1 / 49) must be 1."""
    ratio = Fraction(0)
    if math.isfinite(samples_per_insert):
        ratio = Fraction(samples_per_insert).limit_denominator(MAX_DENOMINATOR)
    if ratio <= 0:
        raise QuarlError(f"samples_per_insert must be a number of at least 1e-6, got {samples_per_insert}")
    return ratio


def _float_above(value: Fraction) -> float:
    """Return the least float that is not below `value`, so that a user can type the number of the message."""
    nearest = float(value)
    return nearest if nearest >= value else math.nextafter(nearest, math.inf)


def _counts(state: Mapping[str, float], names: tuple[str, ...]) -> list[int]:
    for name in names:
        value = state.get(name)
        if not isinstance(value, int) or value < 0:
            raise QuarlError(f"the limiter's state has {name} = {value!r}, not a count; the checkpoint is damaged")
    return [int(state[name]) for name in names]
