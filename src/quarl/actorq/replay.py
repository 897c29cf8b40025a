"""SegmentReplay: one first-in-first-out store of environment steps from many actors, which samples n-step returns.

It stores one-step rows and sums rewards when it samples, along links. A row links to the next row of its stream iff no
sequence number is missing between them and the episode continued. Samples therefore never mix actors, nor cross a gap,
the end of an episode or the death of an actor. Rows are numbered from 0 as they arrive; row n has index n %
buffer_size. A successor is newer than its row, hence overwritten later: no link of a live row points to an overwritten
one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from quarl.actorq.segment import segment_dtype
from quarl.arrays import Array
from quarl.errors import QuarlError

NEVER = -(2**62)
"""Row number of a row that was not stored: below every live row's."""
UNKNOWN = (-1, NEVER)
"""Pair (last sequence, its row's number) of a stream not seen yet."""
FEW = 64
"""Number of rows up to which a loop is faster than array operations."""


class SegmentReplay(ReplayBuffer):
    """A replay buffer for SB3's `replay_buffer_class` that also takes segments; its n-step samples have discounts."""

    def __init__(
        self,
        buffer_size: int,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        *,
        n_steps: int = 1,
        gamma: float = 0.99,
    ) -> None:
        """Allocate the columns.

        Args:
            buffer_size: Capacity in transitions, in total and not per environment.
            observation_space: Space of the observations.
            action_space: Space of the actions.
            device: Device of the sampled tensors.
            n_envs: Number of environments, for Stable-Baselines3.
            optimize_memory_usage: Must be False.
            n_steps: Maximum length of a return in steps.
            gamma: Discount per step.
        """
        if optimize_memory_usage:
            raise QuarlError("SegmentReplay stores both observations of a row; leave optimize_memory_usage False")
        for name, value in (("buffer_size", buffer_size), ("n_steps", n_steps)):
            if value < 1:
                raise QuarlError(f"{name} must be at least 1, got {value}")
        # ReplayBuffer's own constructor would allocate arrays [buffer_size, n_envs] beside the columns.
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs)
        self.optimize_memory_usage = False
        self.n_steps = n_steps
        self.gamma = gamma
        self.segment_dtype = segment_dtype(observation_space, action_space)
        self.columns = {
            name: np.zeros(buffer_size, self.segment_dtype[name])
            for name in ("observation", "next_observation", "action", "terminated", "truncated")
        }
        self.columns["reward"] = np.zeros(buffer_size, np.float32)
        self.successor = np.full(buffer_size, -1, np.int64)
        """Index of the next row of the same stream and episode; -1 if there is none."""
        self.num_rows = 0
        """Total number of stored rows."""
        self.num_duplicates = 0
        """Rows refused because their stream had reached their sequence number."""
        self.num_gaps = 0
        """Rows whose predecessor in the stream is missing."""
        self._streams: dict[tuple[int, int, int], tuple[int, int]] = {}
        # SB3 samples from numpy's global generator, which the model's seed has set before the buffer is created.
        self.set_seed(int(np.random.randint(2**31)))

    def set_seed(self, seed: int) -> None:
        """Restart the generator of samples with `seed`."""
        self._generator = np.random.default_rng(seed)

    def insert(self, segments: Array) -> int:
        """Store rows of `segment_dtype` [n] in order of arrival; count duplicates; return the number of new rows."""
        assert segments.dtype == self.segment_dtype, f"rows of {segments.dtype}, expected {self.segment_dtype}"
        rows_before = self.num_rows
        for begin in range(0, len(segments), self.buffer_size):
            rows, numbers = self._fresh(segments[begin : begin + self.buffer_size])
            # Write behind the newest rows, over the oldest, whose links end.
            start = self.num_rows % self.buffer_size
            indices = (start + np.arange(len(rows))) % self.buffer_size
            before_end = self.buffer_size - start
            self.num_rows += len(rows)
            for name, column in self.columns.items():
                column[start : start + len(rows)] = rows[name][:before_end]
                if len(rows) > before_end:
                    column[: len(rows) - before_end] = rows[name][before_end:]
            self.successor[indices] = -1
            # Link the previous row to each, if it is still live and its episode continued.
            before = numbers % self.buffer_size
            over = self.columns["terminated"][before] | self.columns["truncated"][before]
            linked = (numbers >= self.num_rows - self.buffer_size) & ~over
            self.successor[before[linked]] = indices[linked]
        self.pos, self.full = self.num_rows % self.buffer_size, self.num_rows >= self.buffer_size
        return self.num_rows - rows_before

    def _fresh(self, rows: Array) -> tuple[Array, Array]:
        """Return the rows [n] to store, without duplicates, and the number of the row before each (int64 [n])."""
        numbers = self._following(rows) if len(rows) > FEW else None
        return self._one_by_one(rows) if numbers is None else (rows, numbers)

    def _following(self, rows: Array) -> Array | None:
        """Return the number of the row before each (int64 [n]) by array operations; None if a stream has duplicates."""
        # Sort the rows by stream, in order of arrival within each.
        parts = [rows[name].astype(np.int64) for name in ("actor", "incarnation", "environment")]
        streams = parts[1] << 32 | parts[0] << 16 | parts[2]
        order = np.argsort(streams, kind="stable")
        streams, sequence, number = streams[order], rows["sequence"][order], self.num_rows + order
        heads = np.concatenate([[0], np.flatnonzero(streams[1:] != streams[:-1]) + 1])
        tails = np.concatenate([heads[1:], [len(rows)]]) - 1
        # Find each row's predecessor: the row beside it, or its stream's last one.
        places = order[heads]
        names = list(zip(*(part[places].tolist() for part in parts), strict=True))
        last = np.array([self._streams.get(name, UNKNOWN) for name in names], np.int64)
        previous, before = np.empty_like(sequence), np.empty_like(number)
        previous[1:], before[1:] = sequence[:-1], number[:-1]
        previous[heads], before[heads] = last[:, 0], last[:, 1]
        steps = sequence - previous
        if steps.min() <= 0:
            return None
        # Rows after a gap have no predecessor.
        if steps.max() > 1:
            gaps = steps > 1
            self.num_gaps += int(np.count_nonzero(gaps))
            before[gaps] = NEVER
        ends = zip(sequence[tails].tolist(), number[tails].tolist(), strict=True)
        self._streams.update(zip(names, ends, strict=True))
        numbers = np.empty_like(before)
        numbers[order] = before
        return numbers

    def _one_by_one(self, rows: Array) -> tuple[Array, Array]:
        """Do the work of `_fresh` row by row, which also handles duplicates."""
        streams = zip(*(rows[name].tolist() for name in ("actor", "incarnation", "environment")), strict=True)
        fresh: list[int] = []
        numbers: list[int] = []
        for place, (stream, sequence) in enumerate(zip(streams, rows["sequence"].tolist(), strict=True)):
            last, number = self._streams.get(stream, UNKNOWN)
            if sequence <= last:
                self.num_duplicates += 1
                continue
            if sequence != last + 1:
                self.num_gaps += 1
                number = NEVER
            self._streams[stream] = (sequence, self.num_rows + len(fresh))
            fresh.append(place)
            numbers.append(number)
        return (rows if len(fresh) == len(rows) else rows[fresh]), np.array(numbers, np.int64)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """Return a batch of n-step samples, uniform over all rows; see `_get_samples`."""
        if not self.size():
            raise QuarlError("the replay holds no row to sample; insert some first")
        return self._get_samples(self._generator.integers(0, self.size(), batch_size), env)

    def _get_samples(self, batch_inds: Array, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """Return samples that begin at these indices [B]: up to n_steps rows, fewer at a gap, an end or the newest row.

        rewards [B, 1] = sum gamma^k r_k, discounts [B, 1] = gamma^(rows used); next observation and done are those of
        the last row. Rewards are normalized before they are summed, as in SB3.
        """
        indices, used = self.paths(batch_inds)  # [B, n_steps], [B, 1]
        last = indices[:, -1]
        steps = np.arange(self.n_steps, dtype=np.float32)
        rewards = self._normalize_reward(self.columns["reward"][indices], env)
        rewards = (rewards * self.gamma**steps * (steps < used)).sum(axis=1, keepdims=True)
        done = self.columns["terminated"][last]  # truncated rows bootstrap
        observations = self._normalize_obs(self.columns["observation"].take(batch_inds, axis=0), env)
        next_observations = self._normalize_obs(self.columns["next_observation"].take(last, axis=0), env)
        actions = self.columns["action"].take(batch_inds, axis=0).reshape(len(batch_inds), -1)
        arrays = (
            observations,
            actions,
            next_observations,
            done[:, None].astype(np.float32),
            rewards,
            self.gamma ** used.astype(np.float32),
        )
        return ReplayBufferSamples(*(torch.as_tensor(array, device=self.device) for array in arrays))

    def paths(self, first: Array) -> tuple[Array, Array]:
        """Return the indices [B, n_steps] along the links from `first` [B], and the number of rows used [B, 1].

        Behind the end of a path, its last index is repeated.
        """
        indices = np.empty((len(first), self.n_steps), np.int64)
        used = np.ones((len(first), 1), np.int64)
        indices[:, 0] = current = first
        for step in range(1, self.n_steps):
            following = self.successor[current]
            goes_on = following >= 0
            indices[:, step] = current = np.where(goes_on, following, current)
            used[:, 0] += goes_on
        return indices, used

    def reset(self) -> None:
        """Drop every row; streams continue at their sequence numbers."""
        super().reset()
        self.successor.fill(-1)
        self.num_rows = 0
        self._streams = {stream: (sequence, NEVER) for stream, (sequence, _) in self._streams.items()}

    def state(self) -> dict[str, Array]:
        """Return the arrays that `load_state` takes: views of the filled part, so write them before the next insert."""
        size = self.size()
        state = {name: column[:size] for name, column in self.columns.items()}
        state["successor"], state["ends"] = self.successor[:size], state["terminated"] | state["truncated"]
        state["streams"] = np.array([(*key, *last) for key, last in self._streams.items()], np.int64).reshape(-1, 5)
        counters = [self.num_rows, self.buffer_size, self.num_duplicates, self.num_gaps]
        state["counters"] = np.array(counters, np.int64)
        state["generator"] = np.frombuffer(json.dumps(self._generator.bit_generator.state).encode(), np.uint8)
        return state

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Restore a saved replay, which then produces the same samples.

        The spaces and the buffer size must be the same.
        """
        # Check that the arrays have the right names, types and lengths.
        here = self.state()
        if wrong := sorted(here.keys() ^ state.keys()):
            raise QuarlError(
                f"the saved replay differs in {wrong[0]!r}: the checkpoint is damaged, or from an older QuaRL"
            )
        for name, array in here.items():
            if (state[name].dtype, state[name].shape[1:]) != (array.dtype, array.shape[1:]):
                raise QuarlError(
                    f"the saved replay's {name} has another dtype or shape; resume with the same environment"
                )
        num_rows, capacity = state["counters"][:2].tolist()
        if capacity != self.buffer_size:
            raise QuarlError(f"the saved replay has room for {capacity} rows, this one for {self.buffer_size}")
        size = min(num_rows, capacity)
        free = ("streams", "counters", "generator")  # arrays with their own lengths
        links = state["successor"]
        if (
            any(len(array) != size for name, array in state.items() if name not in free)
            or ((links < -1) | (links >= size)).any()
        ):
            raise QuarlError("the saved replay's arrays do not match each other; the checkpoint is damaged")
        # Copy the arrays and counters.
        for name, column in self.columns.items():
            column[:size] = state[name]
        self.successor[:size], self.successor[size:] = state["successor"], -1
        self.num_rows, _, self.num_duplicates, self.num_gaps = state["counters"].tolist()
        self.pos, self.full = num_rows % capacity, num_rows >= capacity
        self._streams = {(a, i, e): (sequence, number) for a, i, e, sequence, number in state["streams"].tolist()}
        self._generator.bit_generator.state = json.loads(state["generator"].tobytes())
