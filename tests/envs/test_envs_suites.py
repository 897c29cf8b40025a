"""Every suite: real steps of a real policy, and the true last observation where only time ends an episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

import require
from quarl.calibration import quantize
from quarl.envs import Environment, home_of, make
from quarl.envs.rollout import Play, play
from quarl.envs.seeds import episode_seed
from quarl.evaluation import evaluate
from quarl.latency.networks import STANDARD, build
from quarl.policy.graph import ActionHead, Policy, Provenance
from quarl.policy.operators import Dense, mlp
from quarl.quant.spec import QuantSpec
from quarl.runs.hyperparameters import Recipe, interpret
from quarl.runs.new_model import make_environments

Array = NDArray[Any]
LIMIT = 7
TIMED = {"gymnasium.wrappers.TimeLimit": {"max_episode_steps": LIMIT}}
ATARI = "stable_baselines3.common.atari_wrappers.AtariWrapper"
TASKS = [
    pytest.param("MountainCar-v0", "gymnasium", id="classic"),
    pytest.param("LunarLander-v3", "Box2D", id="box2d"),
    pytest.param("PongNoFrameskip-v4", "ale_py", id="atari"),
    pytest.param("HopperBulletEnv-v0", "pybullet_envs_gymnasium", id="pybullet"),
    pytest.param("HalfCheetah-v5", "mujoco", id="mujoco"),
    pytest.param("dm_control/cheetah-run-v0", "dm_control", id="dm-control"),
]


def same(one: Any, other: Any) -> bool:
    """Bit for bit, in what a policy is fed."""
    return np.array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32))


def recipe(env_id: str, *more: Any) -> Recipe:
    """The zoo's for the game, with wrappers `more` around it; the outermost last."""
    of_games = {"env_wrapper": [ATARI, *more], "frame_stack": 4}
    entries = of_games if "NoFrameskip" in env_id else {"env_wrapper": [*more]}
    return interpret({"n_timesteps": 1} | entries, Path("x"))


def policy(env_id: str, *more: Any, trained: bool = True) -> Policy:
    """A policy for the environment, with random weights, or with none: it always does the same."""
    found = recipe(env_id, *more).environment.wrappers
    env = make(env_id, wrappers=found)
    env.close()
    shape, actions = env.observation_space.shape, env.action_space
    assert shape is not None
    continuous = isinstance(actions, gymnasium.spaces.Box)
    size = int(np.prod(actions.shape)) if continuous else int(actions.n)
    head = ActionHead("clip", actions.low, actions.high) if continuous else ActionHead("argmax")
    rng = np.random.default_rng(0)
    scale = 0.25 if trained else 0.0
    if len(shape) == 3:
        *ops, last = build(next(one for one in STANDARD if one.name == "nature-cnn")).ops
        ops += mlp([("out", scale * rng.normal(size=(size, 512)), np.zeros(size))], "relu", last.inputs[0])
    else:
        first = ("hidden", scale * rng.normal(size=(16, *shape)), np.zeros(16))
        ops = mlp([first, ("out", scale * rng.normal(size=(size, 16)), np.zeros(size))], "relu")
    return Policy(
        observation_shape=shape,
        observation_dtype="uint8" if len(shape) == 3 else "float32",
        ops=tuple(ops),
        head=head,
        provenance=Provenance(env_id=env_id, wrappers=found),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "package"), TASKS)
def test_a_policy_takes_real_steps_on_integer_kernels(env_id: str, package: str):
    require.module(package)
    exact = policy(env_id, {"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 40}})
    subject = quantize(exact, QuantSpec.parse("int8", scheme="per-channel"))
    played = evaluate(subject, episodes=2, batch=2)
    assert played.measured
    assert played.env_id == env_id
    assert (played.lengths > 5).all()
    assert np.isfinite(played.returns).all()
    again = evaluate(subject, episodes=2, batch=1)
    assert again.returns.tolist() == played.returns.tolist()


@pytest.mark.parametrize(("env_id", "package"), TASKS)
def test_what_a_learner_sees_at_truncation_is_the_step_s_own_observation(env_id: str, package: str):
    require.module(package)
    timed = recipe(env_id, TIMED)
    learning = make_environments(Environment.from_file(env_id, timed.environment), timed)
    alone = make(env_id, wrappers=timed.environment.wrappers)
    learning.action_space.seed(1)
    learning.seed(3)
    shown, _ = alone.reset(seed=3)
    assert same(learning.reset()[0], shown)
    for step in range(1, LIMIT + 1):
        action = learning.action_space.sample()
        observations, _, dones, infos = learning.step(np.array([action]))
        shown, _, terminated, truncated, _ = alone.step(action)
        assert bool(dones[0]) == (step == LIMIT)
        assert (terminated, truncated) == (False, step == LIMIT)
    assert infos[0]["TimeLimit.truncated"]
    assert same(infos[0]["terminal_observation"], shown)
    assert not same(observations[0], shown)
    learning.close()


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "package"), TASKS)
def test_what_evaluation_keeps_at_truncation_is_the_step_s_own_observation(env_id: str, package: str):
    require.module(package)
    subject = policy(env_id, TIMED, trained=False)
    last = subject.ops[-1]
    assert isinstance(last, Dense)
    size = last.bias.size

    def still(observations: Array) -> Array:
        return np.zeros((len(observations), size), np.float32)

    home = home_of(subject)
    told = Play(policy=subject, make=lambda: home.make_for(subject), batch=2, stream="probe", seed=0, fresh=False)
    episodes = sorted(play(told, still, range(3)), key=lambda episode: episode.index)
    alone = home.make_for(subject)
    action: Any = subject.head(still(np.zeros((1, 1))))[0]
    action = action.item() if subject.head.kind == "argmax" else action
    for k, episode in enumerate(episodes):
        assert (episode.length, episode.terminated) == (LIMIT, False)
        alone.reset(seed=episode_seed("probe", 0, k))
        for _ in range(LIMIT):
            shown, _, _, truncated, _ = alone.step(action)
        assert truncated
        assert same(episode.last_observation, shown)
