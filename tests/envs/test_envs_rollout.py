"""Episodes played side by side are the episodes played alone."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from quarl.envs.reseed import needs_fresh
from quarl.envs.rollout import Episode, Play, play
from quarl.envs.seeds import episode_seed
from quarl.errors import QuarlError
from quarl.policy.graph import ActionHead, Policy
from quarl.policy.operators import Dense

Array = NDArray[Any]


class Countdown(gymnasium.Env[Array, int]):
    """Shows (seed mod 1000, steps taken), pays the action, and ends after 2 + seed mod 5 steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)
    made: ClassVar[list[Any]] = []

    def __init__(self, *, forgets: bool = True) -> None:
        Countdown.made.append(self)
        self.forgets = forgets
        self.closed = False
        self.lives = 0

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        assert seed is not None
        self.seed, self.taken = seed, 0
        self.lives += not self.forgets
        return self.show(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        assert not self.closed
        self.taken += 1
        ended = self.taken == 2 + self.seed % 5
        return self.show(), float(action), ended and self.seed % 2 == 0, ended and self.seed % 2 == 1, {}

    def show(self) -> Array:
        return np.array([self.seed % 1000 + self.lives, self.taken], np.float64)

    def close(self) -> None:
        self.closed = True


weight = np.array([[0.0, 0.0], [0.0, 1.0]], np.float32)
POLICY = Policy(
    observation_shape=(2,),
    ops=(Dense("out", ("observation",), weight, np.float32([1.5, 0.0])),),
    head=ActionHead("argmax"),
)
"""Action 1 from the second step taken on: an episode of n steps returns n - 2."""


def run(observations: Array) -> Array:
    assert observations.dtype == np.float32
    return observations @ weight.T + np.float32([1.5, 0.0])


def told(batch: int, make: Any, **options: Any) -> Play:
    defaults: dict[str, Any] = {"stream": "evaluation", "seed": 7, "fresh": False}
    return Play(policy=POLICY, make=make, batch=batch, **(defaults | options))


def episodes(batch: int, num: int = 12, **options: Any) -> list[Episode]:
    played = play(told(batch, Countdown, **options), run, range(num))
    return sorted(played, key=lambda episode: episode.index)


def test_totals_lengths_and_ends_are_those_worked_out_by_hand() -> None:
    for k, episode in enumerate(episodes(3)):
        seed = episode_seed("evaluation", 7, k)
        length = 2 + seed % 5
        assert (episode.index, episode.seed, episode.length, episode.total) == (k, seed, length, length - 2)
        assert episode.terminated == (seed % 2 == 0)


class Goal(Countdown):
    """Says at every step whether it has lasted four steps, as some environments do."""

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        *step, _ = super().step(action)
        return *step, {"is_success": np.float64(self.taken == 4)}  # type: ignore[return-value]


def test_a_success_is_what_the_last_step_says_and_none_where_it_says_nothing() -> None:
    lengths = {episode.length: episode.success for episode in play(told(2, Goal), run, range(12))}
    assert lengths == {2: False, 3: False, 4: True, 5: False, 6: False}
    assert {episode.success for episode in episodes(2)} == {None}


class Dimes(Countdown):
    """Pays a tenth in float32."""

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        observation, _, *rest = super().step(action)
        return observation, np.float32(0.1), *rest


def test_rewards_in_float32_are_added_as_a_monitor_adds_them() -> None:
    for episode in play(told(2, Dimes), run, range(5)):
        assert episode.total == sum([float(np.float32(0.1))] * episode.length)


def test_the_last_observation_is_the_true_one_and_not_the_next_reset() -> None:
    for episode in episodes(4):
        assert episode.last_observation.tolist() == [episode.seed % 1000, episode.length]


@pytest.mark.parametrize("batch", [1, 2, 5, 12, 40])
def test_episodes_do_not_depend_on_the_batch(batch: int) -> None:
    for ours, alone in zip(episodes(batch, record=True), episodes(1, record=True), strict=True):
        assert (ours.index, ours.total, ours.length, ours.terminated) == (
            alone.index,
            alone.total,
            alone.length,
            alone.terminated,
        )
        assert np.array_equal(ours.observations, alone.observations)


@pytest.mark.parametrize("interval", [True, 2, 3])
def test_recorded_observations_are_those_acted_on_at_their_interval(interval: int) -> None:
    for episode in episodes(5, record=interval):
        assert episode.observations is not None
        recorded = range(0, episode.length, interval)
        assert episode.observations.tolist() == [[episode.seed % 1000, step] for step in recorded]
        assert episode.observations.dtype == np.float32


def test_sampled_actions_belong_to_the_episode_and_not_to_the_batch() -> None:
    alone, beside = (episodes(batch, num=30, stochastic=True) for batch in (1, 7))
    assert [e.total for e in alone] == [e.total for e in beside]
    assert [e.total for e in alone] != [e.total for e in episodes(7, num=30)]


def test_environments_are_reused_unless_fresh_ones_are_needed_and_all_are_closed() -> None:
    for fresh, count in ((False, 3), (True, 12)):
        Countdown.made.clear()
        list(play(told(3, Countdown, fresh=fresh), run, range(12)))
        assert len(Countdown.made) == count
        assert all(env.closed for env in Countdown.made)


def test_an_endless_run_that_is_closed_early_closes_its_environments() -> None:
    Countdown.made.clear()
    endless = play(told(2, Countdown), run, itertools.count())
    next(endless)
    endless.close()
    assert [env.closed for env in Countdown.made] == [True, True]


def test_a_task_without_an_end_is_an_error_and_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Countdown):
        def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
            return *super().step(action)[:2], False, False, {}

    monkeypatch.setattr("quarl.envs.rollout.LONGEST", 5000)
    endless = play(told(2, Endless), run, range(2))
    with pytest.raises(QuarlError, match=r"not ended after 5,000 steps: give the environment a time limit"):
        list(endless)


def test_the_reseed_test_finds_an_environment_that_remembers_its_past() -> None:
    assert not needs_fresh(Countdown, "forgets")
    assert needs_fresh(lambda: Countdown(forgets=False), "remembers")


def test_the_reseed_test_is_made_once_for_each_key() -> None:
    needs_fresh(Countdown, "once")
    before = len(Countdown.made)
    needs_fresh(Countdown, "once")
    assert len(Countdown.made) == before
