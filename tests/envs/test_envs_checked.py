"""What environments give that nobody can use is one line, whoever meets it."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import numpy as np
import pytest

import difficult_environments
from quarl import Agent, engines
from quarl.__main__ import main
from quarl.envs import Environment
from quarl.envs.checked import BrokenEnvironmentError, Checked
from quarl.errors import QuarlError, note_once
from quarl.evaluation import record
from quarl.policy import artifact
from quarl.policy.graph import ActionHead, Policy, QuantizedPolicy
from quarl.policy.operators import Dense
from quarl.quant.spec import QuantSpec

HERE = "difficult_environments:"
TO_THE_MIDDLE = QuantizedPolicy(
    observation_shape=(2,),
    ops=(Dense("out", ("observation",), np.array([[-1.0, 1.0]], np.float32), np.zeros(1, np.float32)),),
    head=ActionHead("clip", np.float32([-1.0]), np.float32([1.0])),
    spec=QuantSpec.parse("fp32"),
)
FAULTS = {
    "Exiting": "Exiting-v0 raised SystemExit: no licence (difficult_environments.py, line ",
    "ExitingAtReset": "ExitingAtReset-v0 raised SystemExit: 3 (difficult_environments.py, line ",
    "Raising": "Raising-v0 raised ConnectionError: simulator connection lost (difficult_environments.py, line ",
    "NanObservation": "NanObservation-v0 gave an observation that is NaN or infinite: fix its step() or reset()",
    "ArrayReward": "ArrayReward-v0: its step() returns a reward of shape (1,): return a number, as float(reward) is",
    "OldStep": "OldStep-v0: its step() returns 4 values, as in Gym before 0.26: return observation, reward, ",
    "OldReset": "OldReset-v0: its reset() returns the observation alone, as in Gym before 0.26: return observation, {}",
    "Unseeded": "Unseeded-v0: its reset() takes no seed, as in Gym before 0.26: write reset(self, *, seed=None",
    "Short": "Short-v0 gave an observation of float32 (1,) but its space has float32 (2,)",
    "ShortLater": "ShortLater-v0 gave an observation of float32 (1,) but its space has float32 (2,)",
}


def played(name, **options):
    agent = Agent(TO_THE_MIDDLE)
    return agent.evaluate(env_id=f"{HERE}{name}-v0", engine="reference", **{"episodes": 3} | options)


@pytest.mark.parametrize("name", FAULTS)
def test_evaluation_says_what_an_environment_did_wrong(name):
    with pytest.raises(BrokenEnvironmentError) as caught:
        played(name)
    assert str(caught.value).startswith(FAULTS[name])


@pytest.mark.slow
def test_a_worker_says_it_in_the_same_words():
    with pytest.raises(BrokenEnvironmentError) as caught:
        played("NanObservation", num_workers=2)
    assert str(caught.value) == FAULTS["NanObservation"]


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        *itertools.product(("eval", "ptq", "train"), ("Exiting", "ExitingAtReset", "ExitingWhenMade")),
        *(pytest.param("actorq", name, marks=pytest.mark.slow) for name in ("ExitingAtReset", "ExitingWhenMade")),
    ],
)
def test_an_environment_that_exits_is_one_line_and_exit_code_2(verb, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    artifact.write(TO_THE_MIDDLE, tmp_path / "a.safetensors")
    words = {
        "eval": ["a.safetensors", "--episodes", "1"],
        "ptq": ["float.safetensors", "--episodes", "1"],
        "train": ["--algo", "a2c", "-n", "64", "--eval-freq", "0", "--params", "n_steps:8", "n_envs:1"],
        "actorq": ["--algo", "ddpg", "-n", "60", "--actors", "1"],
    }[verb]
    artifact.write(
        Policy(observation_shape=(2,), ops=TO_THE_MIDDLE.ops, head=TO_THE_MIDDLE.head), Path("float.safetensors")
    )
    assert main([verb, *words, "--env", f"{HERE}{name}-v0"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert "SystemExit" in error.splitlines()[-1]
    assert f"{name}-v0" in error.splitlines()[-1]


def test_infinite_rewards_are_refused_as_they_were():
    with pytest.raises(
        QuarlError, match=r"InfiniteReward-v0 gave rewards that are NaN or infinite, in 3 of 3 episodes"
    ):
        played("InfiniteReward")


@pytest.mark.parametrize("name", ["Listing", "Doubles", "NanAtTheEnd", "Unclosable"])
def test_what_stable_baselines3_takes_is_played_as_it_is(name, capfd):
    plain = played("Line", batch=1)
    found = played(name)
    if name != "NanAtTheEnd":  # its episodes end after 20 of 50 steps
        assert np.array_equal(found.returns, plain.returns)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["Single", "SingleWorld"])
@pytest.mark.parametrize("batch", [1, 16])
def test_where_one_environment_may_live_episodes_are_the_same_one_at_a_time(name, batch, capfd):
    note_once.cache_clear()
    plain = played("Line", episodes=5)
    assert np.array_equal(played(name, episodes=5, batch=batch).returns, plain.returns)
    said = capfd.readouterr().err
    assert ("episodes are played 1 at a time: no more environments can be made" in said) == (batch > 1)
    env_id = f"{HERE}{name}-v0"
    engine = engines.load(TO_THE_MIDDLE, "reference", batch=batch)
    met, others = (
        record(TO_THE_MIDDLE, engine=engine, num=100, environment=Environment.typed_by_user(one))
        for one in (env_id, f"{HERE}Line-v0")
    )
    assert np.array_equal(met, others)
    assert not difficult_environments.Single.lives


def test_an_environment_that_is_there_is_played_in_and_left_open():
    with contextlib.closing(Environment.typed_by_user(f"{HERE}Single-v0").make()) as env:
        found = played("Single", env=env, episodes=5)
        assert difficult_environments.Single.lives
    assert np.array_equal(found.returns, played("Line", episodes=5).returns)


def test_bytes_that_are_fractions_are_refused():
    env = Checked(difficult_environments.Fractions())
    with pytest.raises(BrokenEnvironmentError, match=r"float32 with values that the uint8 of its space cannot hold"):
        env.reset(seed=0)


def test_a_refusal_from_inside_stays_what_it_is():
    class Refusing(difficult_environments.Line):
        def step(self, action):
            raise QuarlError("an episode has not ended")

    env = Checked(Refusing())
    env.reset(seed=0)
    with pytest.raises(QuarlError, match=r"^an episode has not ended$"):
        env.step(np.zeros(1, np.float32))
