"""What no constructor of a learner takes is refused before anything is made; every default passes as it is."""

from __future__ import annotations

import inspect

import pytest

from quarl.algorithms.learners import CLASSES, learner_class
from quarl.algorithms.zoo_arguments import CODE, OURS, checked
from quarl.errors import QuarlError

EVERYWHERE = [
    ({"learning_rate": "abc"}, "learning_rate is 'abc', not a number"),
    ({"gamma": [1]}, r"gamma is '\[1\]', not a number"),
    ({"gamma": 1.5}, "gamma is '1.5', not a number from 0 to 1"),
    ({"gamma": float("nan")}, "gamma is 'nan', not a number"),
    ({"n_steps": 0}, "n_steps is '0', not a whole number from 1 on"),
    ({"n_steps": 1.5}, "n_steps is '1.5', not a whole number from 1 on"),
    ({"n_steps": True}, "n_steps is 'True', not a whole number"),
    ({"n_steps": 10**400}, "n_steps is '1000"),
    ({"gamma": 10**400}, "gamma is '1000"),
    ({"n_steps": float("inf")}, "n_steps is 'inf', not a whole number"),
]


@pytest.mark.parametrize("algo", CLASSES)
def test_every_default_passes_unchanged(algo):
    cls = learner_class(algo)
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(cls.__init__).parameters.items()
        if name not in (*OURS, *CODE) and parameter.default not in (inspect.Parameter.empty, None)
    }
    assert defaults.keys() >= {"learning_rate", "gamma", "n_steps"}
    assert checked(cls, defaults) == defaults


@pytest.mark.parametrize("algo", CLASSES)
@pytest.mark.parametrize(("given", "said"), EVERYWHERE)
def test_numbers_are_numbers_in_every_learner(algo, given, said):
    cls = learner_class(algo)
    with pytest.raises(QuarlError, match=f"{cls.__name__}'s {said}"):
        checked(cls, given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train_freq": 0}, "train_freq is '0', not a whole number from 1 on"),
        ({"train_freq": (1,)}, r"train_freq is '\(1,\)'; use a number, or a pair such as \[1, 'episode'\]"),
        ({"train_freq": (0, "episode")}, "train_freq is"),
        ({"train_freq": (1, "week")}, "train_freq is"),
        ({"train_freq": "episode"}, "train_freq is 'episode', not a whole number"),
        ({"gradient_steps": -2}, "gradient_steps is '-2', not a whole number from -1 on"),
        ({"learning_starts": -1}, "learning_starts is '-1', not a whole number from 0 on"),
        ({"buffer_size": -1}, "buffer_size is '-1', not a whole number from 1 on"),
        ({"optimize_memory_usage": "off"}, "optimize_memory_usage is 'off', not True or False"),
        ({"tau": 2}, "tau is '2', not a number from 0 to 1"),
    ],
)
def test_off_policy_learners_clocks_are_checked(given, said):
    with pytest.raises(QuarlError, match=f"DoubleDQN's {said}"):
        checked(learner_class("dqn", double=True), given)


def test_noise_is_not_negative():
    with pytest.raises(QuarlError, match="TD3's target_policy_noise is '-1', not a number from 0 on"):
        checked(learner_class("td3"), {"target_policy_noise": -1})


def test_what_is_meant_passes():
    words = {"ent_coef": "auto_0.1", "target_entropy": "auto", "train_freq": (1, "episode"), "gradient_steps": -1}
    assert checked(learner_class("sac"), words) == words
    schedule = {"learning_rate": lambda progress: progress, "policy_kwargs": {"net_arch": [8]}}
    assert checked(learner_class("ppo"), schedule) == schedule
    assert checked(learner_class("ppo"), {"target_kl": None}) == {"target_kl": None}
    whole = checked(learner_class("dqn"), {"buffer_size": 1e4, "train_freq": 4.0})
    assert whole == {"buffer_size": 10_000, "train_freq": 4}
    assert all(type(value) is int for value in whole.values())
