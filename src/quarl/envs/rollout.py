"""Episodes of a policy, many at a time: one batch of observations through the network, then one step of each slot.

There is no vector environment and no autoreset: a slot whose episode ends takes the next episode, so the last
observation of every episode is the true one, and an episode is the same whatever plays beside it.
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
"""Steps between two looks for episodes that do not end."""
TOLD = 1_000
"""Steps of an episode without a time limit after which it is told that it goes on."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Episode:
    """One finished episode."""

    index: int
    """k of `episode_seed(stream, seed, k)`."""
    seed: int
    """What the environment was reset with."""
    total: float
    """The undiscounted sum of raw rewards."""
    length: int
    """Environment steps."""
    terminated: bool
    """False where only the time limit ended it."""
    success: bool | None
    """What the last step's `info["is_success"]` said; None where it says nothing."""
    last_observation: Array
    """What the last step returned: the state that a truncated episode would have gone on from."""
    observations: Array | None
    """[T, *shape]: what the policy acted on at every `record`-th step, the first included; only when recorded."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Play:
    """What determines episodes: who plays, where, and from which seeds."""

    policy: Policy
    make: Callable[[], gymnasium.Env[Any, Any]]
    batch: int
    """Episodes side by side: rows of one call of the network."""
    stream: Stream
    seed: int
    fresh: bool
    """A new environment for every episode, where a reused one remembers (see `needs_fresh`)."""
    stochastic: bool = False
    """Actions are sampled, each episode's from a generator of its own."""
    record: int = 0
    """The observation of every that many steps is kept, from the first on; 0: of none."""
    alone: bool = False
    """One episode at a time: there is one environment."""
    bound: int = 0
    """Steps after which an episode that goes on is an error; 0: LONGEST."""


def play(setting: Play, run: Callable[[Array], Array], episodes: Iterable[int]) -> Generator[Episode]:
    """Plays the episodes (indices k) and yields each as it ends, which need not be in order.

    run: observations [batch, *shape] in the policy's dtype -> outputs [batch, n], each row independent of the others.
    """
    policy, batch, stream, seed, record = setting.policy, setting.batch, setting.stream, setting.seed, setting.record
    pending: Iterator[int] = iter(episodes)
    observations = np.zeros((batch, *policy.observation_shape), policy.observation_dtype)
    numbers = observations.reshape(-1) if observations.dtype.kind == "f" else None
    slots: list[_Slot] = []
    live: list[_Slot] = []
    generators = [action_generator(stream, seed, 0)] * batch if setting.stochastic else None
    head, masked = policy.head, is_masked(policy)
    tick = 0

    def begin(slot: _Slot) -> bool:
        """Puts the next episode into the slot; False when there is none left."""
        nonlocal head
        index = next(pending, None)
        if index is None:
            return False
        slot.index = index
        if slot.env is None or setting.fresh:
            slot.close()
            slot.env = setting.make()
            slot.step = slot.env.step
            slot.masks = masks_of(policy, slot.env)
            head = head_in(policy.head, slot.env.action_space)
        slot.total, slot.start, slot.trace = 0.0, tick, []
        slot.seed = episode_seed(stream, seed, index)
        try:
            take(slot.row, slot.env.reset(seed=slot.seed)[0])
        except RAISED as error:
            raise broken(slot.env, error) from error
        if generators is not None:
            generators[slot.row] = action_generator(stream, seed, index)
        return True

    def take(row: int, observation: Any, *, last: bool = False) -> None:
        check_observation(observation, policy.observation_shape, observations.dtype, last=last)
        observations[row] = observation

    try:
        for row in range(1 if setting.alone else batch):
            slots.append(_Slot(row))
            try:
                if not begin(slots[-1]):
                    break
            except QuarlError as error:
                if not live:
                    raise
                # of some environments only so many may live; an episode is the same whatever plays beside it
                note_once(f"episodes are played {len(live)} at a time, for no more environments can be made ({error})")
                pending = itertools.chain([slots[-1].index], pending)
                break
            live.append(slots[-1])
        while live:
            # what the policy is about to act on is kept, and has to be finite
            if record:
                for slot in live:
                    if (tick - slot.start) % record == 0:
                        slot.trace.append(observations[slot.row].copy())
            if numbers is not None and not math.isfinite(numbers.dot(numbers)):
                _check_finite(live, observations)
            # one call of the network: a new array each time, whose rows environments may keep and change
            outputs = run(observations)
            for slot in live if masked else ():
                if slot.masks is not None:
                    outputs[slot.row] = allowed_in(slot.env, slot.masks, outputs[slot.row])
            actions = head(outputs, generators)
            tick += 1
            # one step of each environment
            ended: list[tuple[_Slot, bool, bool | None]] = []
            slot = live[0]
            try:
                for slot in live:
                    row = slot.row
                    observation, reward, terminated, truncated, info = slot.step(actions[row])
                    slot.total += float(reward)  # which some environments give in float32
                    observations[row] = observation
                    if terminated or truncated:
                        take(row, observation, last=True)
                        success = info.get("is_success")
                        ended.append((slot, bool(terminated), None if success is None else bool(success)))
            except RAISED as error:
                raise broken(slot.env, error, UNMASKED if masked and slot.masks is None else MEND) from error
            if tick % LOOK == 0:
                _look(max(tick - slot.start for slot in live), live[0].env, setting.bound or LONGEST)
            # a slot whose episode has ended takes the next one, where there is one
            for slot, terminated, success in ended:
                yield Episode(
                    index=slot.index,
                    seed=slot.seed,
                    total=float(slot.total),
                    length=tick - slot.start,
                    terminated=terminated,
                    success=success,
                    last_observation=observations[slot.row].copy(),
                    observations=np.stack(slot.trace) if record else None,
                )
                if not begin(slot):
                    live.remove(slot)
    finally:
        for slot in slots:
            slot.close()


def _look(steps: int, env: gymnasium.Env[Any, Any] | None, bound: int) -> None:
    """Tells of an episode of so many steps that no limit ends, and refuses one beyond the bound."""
    if steps > bound:
        raise endless(bound)
    spec = env.spec if env is not None else None
    if steps > TOLD and not is_limited(spec):
        note_once(
            f"episodes{f' of {spec.id}' if spec else ''} have no time limit, and one goes on after {TOLD:,} steps: it "
            f"is an error after {bound:,}; --max-episode-steps (max_episode_steps in Python) sets a limit"
        )


def _check_finite(live: list[_Slot], observations: Array) -> None:
    """Refuses to act on what is no number; it may be large alone, or of a slot that is done."""
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
