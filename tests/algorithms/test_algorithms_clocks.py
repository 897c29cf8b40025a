"""Runs that would learn nothing are refused, and schedules of a run that goes on do not rise."""

from __future__ import annotations

import pytest
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.utils import LinearSchedule

from quarl.algorithms.clocks import check_updates, hold, standing
from quarl.errors import QuarlError

FALLING = LinearSchedule(1e-3, 0.0, 1.0)


def dqn(**options):
    return DQN("MlpPolicy", "CartPole-v1", buffer_size=50, device="cpu", policy_kwargs={"net_arch": [8]}, **options)


@pytest.mark.parametrize(
    ("options", "end", "said"),
    [
        ({"learning_starts": 1000}, 1000, "learning starts after step 1,000 and the run ends at 1,000: nothing would"),
        ({"learning_starts": 1000, "train_freq": 256}, 768, "lower --params learning_starts"),
        ({"learning_starts": 1000, "train_freq": (2, "episode")}, 1000, "lower --params learning_starts"),
        ({"learning_starts": 0, "train_freq": 64}, 63, "learning starts after step 63 and the run ends at 63"),
        ({"learning_starts": 0, "train_freq": 64}, 63, "lower --params train_freq"),
        ({"learning_starts": 0, "gradient_steps": 0}, 100, "gradient_steps:0 would train nothing"),
    ],
)
def test_a_run_without_an_update_is_refused(options, end, said):
    with pytest.raises(QuarlError, match=said):
        check_updates(dqn(**options), end)


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({"learning_starts": 1000}, 1001),
        ({"learning_starts": 1000, "train_freq": 256}, 1001),  # whose last round ends at 1,024
        ({"learning_starts": 0, "train_freq": 64, "gradient_steps": -1}, 64),
        ({"learning_starts": 900, "train_freq": (2, "episode")}, 1000),
    ],
)
def test_a_run_with_one_update_is_not_refused_and_makes_it(options, end):
    model = dqn(**options)
    check_updates(model, end)
    model.learn(end)
    assert model._n_updates > 0


def test_what_has_learnt_already_may_end_at_once():
    model = dqn(learning_starts=1000)
    model.num_timesteps, model._n_updates = 1200, 50
    check_updates(model, 1201)
    check_updates(PPO("MlpPolicy", "CartPole-v1", device="cpu"), 10)  # its rollout of 2,048 steps is made whole


def test_epsilon_and_rates_stay_where_they_stopped_until_a_longer_run_has_come_as_far():
    model = dqn(learning_starts=10, learning_rate=FALLING, exploration_fraction=0.5, exploration_final_eps=0.1)
    model.learn(300)
    model._current_progress_remaining = 0.25  # as if it had stopped at step 225, with epsilon at its end
    model.num_timesteps = 225
    assert hold(model, 1000).endswith(
        "schedules do not rise again in the longer run: learning_rate at most 0.00025, epsilon at most 0.1"
    )
    seen = {}
    for steps in (226, 700, 750, 800, 1000):
        model._update_current_progress_remaining(steps, 1000)
        seen[steps] = round(model.lr_schedule(model._current_progress_remaining), 9)
        assert model.exploration_schedule(model._current_progress_remaining) == 0.1
    assert seen == {226: 2.5e-4, 700: 2.5e-4, 750: 2.5e-4, 800: 2e-4, 1000: 0.0}


def test_a_rate_that_has_come_to_its_end_stays_there_and_the_numbers_to_give_are_said():
    model = PPO(
        "MlpPolicy",
        "CartPole-v1",
        n_steps=64,
        device="cpu",
        learning_rate=FALLING,
        clip_range=LinearSchedule(0.2, 0, 1),
    )
    model.learn(64)
    assert hold(model, 128) == (
        "; schedules do not rise again in the longer run: learning_rate at most 0, clip_range at most 0; at 0 nothing "
        "more is learned: set constants, as in --params learning_rate:0.0001 clip_range:0.02"
    )
    model.learn(64, reset_num_timesteps=False)
    assert model.lr_schedule(model._current_progress_remaining) == 0


def test_nothing_is_said_where_nothing_would_rise():
    model = A2C("MlpPolicy", "CartPole-v1", device="cpu")
    model.learn(50)
    assert hold(model, 500) == ""  # its rate is constant
    assert standing(model) == "resuming at step 50 after 10 updates"
    model = dqn(learning_rate=FALLING, learning_starts=10)
    model.learn(60)
    model.num_timesteps, model._current_progress_remaining = 60, 1 - 60 / 100
    assert hold(model, 100) == ""  # to the end that it had
    assert standing(model).startswith("resuming at step 60 after 13 updates, 50 rows of replay, epsilon ")
