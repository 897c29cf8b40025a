"""Episodes of a policy, many at a time: one batch of observations through the network, then one step of each slot.

There is no vector environment and no autoreset: a slot whose episode ends takes the next episode. So the last
observation of every episode is the true one, and an episode does not depend on those beside it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from quarl.arrays import Array
from quarl.envs.bound import LONGEST, endless, is_limited
from quarl.envs.checked import MEND, NOT_FINITE, OddError, broken, check_observation
from quarl.envs.masks import UNMASKED, allowed_in, is_masked, masks_of
from quarl.envs.seeds import Stream, action_generator, episode_seed
from quarl.envs.spaces import head_in
from quarl.errors import RAISED, QuarlError, note_once
from quarl.policy.graph import Policy

LOOK = 500
"""Steps between two checks for episodes that do not end."""
TOLD = 1_000
"""Steps of an episode without a time limit after which a note is printed."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Episode:
    """One finished episode."""

    index: int
    """Index k in `episode_seed(stream, seed, k)`."""
    seed: int
    """Seed of the environment's reset."""
    total: float
    """Undiscounted sum of raw rewards."""
    length: int
    """Length in environment steps."""
    terminated: bool
    """False if only the time limit ended it."""
    success: bool | None
    """`info["is_success"]` of the last step; None if it is missing."""
    last_observation: Array
    """Observation of the last step: the state from which a truncated episode would have continued."""
    observations: Array | None
    """Observations [T, *shape] at every `record`-th step from the first on; None if they are not recorded."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Play:
    """Everything that determines episodes: the policy, the environment and the seeds."""

    policy: Policy
    make: Callable[[], gymnasium.Env[Any, Any]]
    batch: int
    """Episodes side by side, which is the number of rows in one call of the network."""
    stream: Stream
    seed: int
    fresh: bool
    """Make a new environment for every episode, because a reused one remembers (see `needs_fresh`)."""
    stochastic: bool = False
    """Sample actions, in each episode from its own generator."""
    record: int = 0
    """Record the observation of every that many steps, from the first on; 0 records none."""
    alone: bool = False
    """Play one episode at a time, because there is one environment."""
    bound: int = 0
    """Steps after which an unfinished episode is an error; 0 means LONGEST."""


def play(setting: Play, run: Callable[[Array], Array], episodes: Iterable[int]) -> Generator[Episode]:
    """Play the episodes and yield each as it ends, not necessarily in order.

    Args:
        setting: Policy, environment and seeds.
        run: Function of observations [batch, *shape] in the policy's dtype that returns outputs [batch, n]; rows are
            independent of each other.
        episodes: Indices k of the episodes.

    Yields:
        The finished episodes.

    Raises:
        QuarlError: The environment raises, cannot be made, returns other observations than the policy reads, or an
            episode does not end.
    """
    slots = _Slots(setting, episodes)
    try:
        slots.open()
        while slots.live:
            slots.keep()
            # one call of the network: a new array each time, because environments may keep and change its rows
            for ended in slots.step(run(slots.observations)):
                yield slots.episode(*ended)
                # a slot whose episode has ended takes the next one, if there is one
                if not slots.begin(ended[0]):
                    slots.live.remove(ended[0])
    finally:
        slots.close()


class _Slots:
    """Episodes side by side, each in the slot of its row."""

    def __init__(self, setting: Play, episodes: Iterable[int]) -> None:
        self.setting, policy = setting, setting.policy
        self.pending: Iterator[int] = iter(episodes)
        self.observations = np.zeros((setting.batch, *policy.observation_shape), policy.observation_dtype)
        # with a memory, a row is what the environment returned, then the state
        self._seen, self._states = (self.observations, np.zeros((setting.batch, 0)))
        if policy.state.size:
            self._seen, self._states = np.split(self.observations, policy.seen, axis=1)
        self._numbers = self.observations.reshape(-1) if self.observations.dtype.kind == "f" else None
        self._all: list[_Slot] = []
        self.live: list[_Slot] = []
        seed = setting.stream, setting.seed, 0
        self._generators = [action_generator(*seed)] * setting.batch if setting.stochastic else None
        self._head, self._masked = policy.head, is_masked(policy)
        self._tick = 0

    def open(self) -> None:
        """Begin an episode in each slot, in fewer if no more environments can be made."""
        for row in range(1 if self.setting.alone else self.setting.batch):
            self._all.append(slot := _Slot(row))
            try:
                if not self.begin(slot):
                    return
            except QuarlError as error:
                if not self.live:
                    raise
                # some environments allow only a few instances; an episode does not depend on those beside it
                num = len(self.live)
                note_once(f"episodes are played {num} at a time: no more environments can be made ({error})")
                self.pending = itertools.chain([slot.index], self.pending)
                return
            self.live.append(slot)

    def begin(self, slot: _Slot) -> bool:
        """Put the next episode into the slot; return False if there is none left."""
        setting = self.setting
        index = next(self.pending, None)
        if index is None:
            return False
        slot.index = index
        if slot.env is None or setting.fresh:
            slot.close()
            slot.env = setting.make()
            slot.step = slot.env.step
            slot.masks = masks_of(setting.policy, slot.env)
            self._head = head_in(setting.policy.head, slot.env.action_space)
        slot.total, slot.start, slot.trace = 0.0, self._tick, []
        slot.seed = episode_seed(setting.stream, setting.seed, index)
        try:
            self._take(slot.row, slot.env.reset(seed=slot.seed)[0])
            self._states[slot.row] = setting.policy.state
        except RAISED as error:
            raise broken(slot.env, error) from error
        if self._generators is not None:
            self._generators[slot.row] = action_generator(setting.stream, setting.seed, index)
        return True

    def _take(self, row: int, observation: Any, *, last: bool = False) -> None:
        check_observation(observation, self.setting.policy.seen, self.observations.dtype, last=last)
        self._seen[row] = observation

    def keep(self) -> None:
        """Record the observations on which the policy is about to act, which have to be finite."""
        if record := self.setting.record:
            for slot in self.live:
                if (self._tick - slot.start) % record == 0:
                    slot.trace.append(self.observations[slot.row].copy())
        if self._numbers is not None and not math.isfinite(self._numbers.dot(self._numbers)):
            _check_finite(self.live, self.observations)

    def step(self, outputs: Array) -> list[tuple[_Slot, bool, bool | None]]:
        """Step each environment by the network's outputs; return slots that ended, with `terminated` and `success`."""
        live, observations, masked = self.live, self._seen, self._masked
        if self._states.size:
            self._states[:] = outputs[:, self._head.width :]
        for slot in live if masked else ():
            if slot.masks is not None:
                outputs[slot.row] = allowed_in(slot.env, slot.masks, outputs[slot.row])
        actions = self._head(outputs, self._generators)
        self._tick += 1
        ended: list[tuple[_Slot, bool, bool | None]] = []
        slot = live[0]
        try:
            for slot in live:
                row = slot.row
                observation, reward, terminated, truncated, info = slot.step(actions[row])
                slot.total += float(reward)  # some environments return float32
                observations[row] = observation
                if terminated or truncated:
                    self._take(row, observation, last=True)
                    success = info.get("is_success")
                    ended.append((slot, bool(terminated), None if success is None else bool(success)))
        except RAISED as error:
            raise broken(slot.env, error, UNMASKED if masked and slot.masks is None else MEND) from error
        if self._tick % LOOK == 0:
            _look(max(self._tick - slot.start for slot in live), live[0].env, self.setting.bound or LONGEST)
        return ended

    def episode(self, slot: _Slot, terminated: bool, success: bool | None) -> Episode:
        """Return the episode that ended in the slot.

        Args:
            slot: The slot, with the episode's seed and sum of rewards.
            terminated: The episode reached a terminal state; otherwise it was truncated.
            success: `info["is_success"]` of the last step; None if the environment does not report it.
        """
        return Episode(
            index=slot.index,
            seed=slot.seed,
            total=float(slot.total),
            length=self._tick - slot.start,
            terminated=terminated,
            success=success,
            last_observation=self._seen[slot.row].copy(),
            observations=np.stack(slot.trace) if self.setting.record else None,
        )

    def close(self) -> None:
        """Close all environments."""
        for slot in self._all:
            slot.close()


def _look(steps: int, env: gymnasium.Env[Any, Any] | None, bound: int) -> None:
    """Print a note on a long episode without a time limit; raise QuarlError for one beyond the bound."""
    if steps > bound:
        raise endless(bound)
    spec = env.spec if env is not None else None
    if steps > TOLD and not is_limited(spec):
        note_once(
            f"episodes{f' of {spec.id}' if spec else ''} have no time limit, and one is longer than {TOLD:,} steps: it "
            f"is an error after {bound:,}; --max-episode-steps (max_episode_steps in Python) sets a limit"
        )


def _check_finite(live: list[_Slot], observations: Array) -> None:
    """Raise the error if an observation is not finite; the sum may overflow, or come from a finished slot."""
    for slot in live:
        if not np.isfinite(observations[slot.row]).all():
            raise broken(slot.env, OddError(NOT_FINITE))


class _Slot:
    """A row of the batch and the environment behind it."""

    __slots__ = ("env", "index", "masks", "row", "seed", "start", "step", "total", "trace")

    def __init__(self, row: int) -> None:
        self.row = row
        self.env: Any = None
        self.step: Callable[[Any], Any]
        self.masks: Callable[[], Any] | None = None
        self.index = self.seed = self.start = 0
        self.total = 0.0
        self.trace: list[Array] = []

    def close(self) -> None:
        if self.env is not None:
            with contextlib.suppress(*RAISED):  # its episodes are played
                self.env.close()
