"""Agents that observe a Dict or discrete numbers: actions are Stable-Baselines3's own, from zips and live models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3 as sb3
from gymnasium import spaces
from stable_baselines3.common.envs import BitFlippingEnv, SimpleMultiObsEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

import quarl

pytestmark = pytest.mark.slow

ROWS = 2000
SMALL: dict[str, Any] = {"seed": 0, "device": "cpu"}


class Shown(gymnasium.Env[Any, Any]):
    """Random observations of a space; episodes of 20 steps."""

    def __init__(self, space: spaces.Space[Any], action_space: spaces.Space[Any], scale: float = 1.0) -> None:
        self.observation_space, self.action_space, self.scale = space, action_space, scale

    def _shown(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._shown(), float(np.sum(action)), False, self.steps == 20, {}


GOAL = spaces.Dict(
    {
        "achieved": spaces.Box(-10, 30, (3,)),
        "desired": spaces.Box(-5, 5, (2, 2)),
        "far": spaces.Box(-np.inf, np.inf, (1,), np.float64),
        "mode": spaces.Discrete(4),
        "bits": spaces.MultiBinary(3),
        "tools": spaces.MultiDiscrete([2, 3]),
    }
)
VECTORS = spaces.Dict({key: GOAL[key] for key in ("achieved", "desired", "far")})
MOVE = spaces.Box(-1, 2, (2,))


def ppo(env: Any, policy: str = "MlpPolicy", **options: Any) -> Any:
    return sb3.PPO(policy, env, n_steps=64, batch_size=32, **SMALL, **options).learn(64)


def normalized(keys: list[str] | None) -> Callable[[], Any]:
    def train() -> Any:
        env = VecNormalize(DummyVecEnv([lambda: Shown(VECTORS, MOVE)]), norm_obs_keys=keys)
        arch = {"policy_kwargs": {"net_arch": [16]}}
        return sb3.TD3("MultiInputPolicy", env, learning_starts=64, **arch, **SMALL).learn(100)

    return train


def hindsight() -> Any:
    env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=5, continuous=True)])
    return sb3.SAC("MultiInputPolicy", env, replay_buffer_class=sb3.HerReplayBuffer, learning_starts=64, **SMALL).learn(
        100
    )


TRAINED: Mapping[str, Callable[[], Any]] = {
    "Discrete": lambda: ppo("FrozenLake-v1"),
    "Discrete, DQN": lambda: sb3.DQN("MlpPolicy", "Taxi-v4", learning_starts=50, **SMALL).learn(100),
    "MultiDiscrete": lambda: ppo(Shown(spaces.MultiDiscrete([3, 5, 2]), spaces.Discrete(3))),
    "MultiBinary": lambda: ppo(Shown(spaces.MultiBinary([2, 3]), MOVE)),
    "Dict of all": lambda: ppo(Shown(GOAL, MOVE), "MultiInputPolicy"),
    "every key normalised": normalized(None),
    "some keys normalised": normalized(["desired", "far"]),
    "image and vector": lambda: ppo(SimpleMultiObsEnv(), "MultiInputPolicy"),
    "image and vector, channels first, DQN": lambda: sb3.DQN(
        "MultiInputPolicy", SimpleMultiObsEnv(channel_last=False), buffer_size=500, learning_starts=50, **SMALL
    ).learn(100),
    "hindsight": hindsight,
}


class Case:
    """A model, the agents of its zip and of itself, what it observed in a rollout, and its own actions there."""

    def __init__(self, name: str, folder: Path) -> None:
        self.model = TRAINED[name]()
        env: VecEnv = self.model.get_env()
        self.model.save(folder / "agent.zip")
        statistics = "none"
        if isinstance(env, VecNormalize):
            env.training = False
            env.save(folder / "vecnormalize.pkl")
            statistics = str(folder / "vecnormalize.pkl")
        self.agents = {
            "zip": quarl.load(folder / "agent.zip", normalize=statistics),
            "live": quarl.from_sb3(self.model),
        }
        env.seed(1)
        env.action_space.seed(1)
        seen, acted, observation = [], [], env.reset()
        for _ in range(ROWS if "image" not in name else ROWS // 10):
            seen.append(env.get_original_obs() if isinstance(env, VecNormalize) else observation)
            acted.append(self.model.predict(observation, deterministic=True)[0])
            observation = env.step(np.stack([env.action_space.sample()]))[0]
        self.actions = np.concatenate(acted)
        first = seen[0]
        self.observations: Any = (
            {key: np.concatenate([each[key] for each in seen]) for key in first}
            if isinstance(first, dict)
            else np.concatenate(seen)
        )

    def some(self, count: int) -> Any:
        if isinstance(self.observations, dict):
            return {key: part[:count] for key, part in self.observations.items()}
        return self.observations[:count]


@pytest.fixture(scope="module", params=TRAINED)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("case"))


def assert_same(agent: quarl.Agent, actions: np.ndarray, expected: np.ndarray) -> None:
    assert actions.shape == expected.shape
    if agent.policy.head.is_discrete:
        np.testing.assert_array_equal(actions, expected)
    else:
        span = (agent.policy.head.high - agent.policy.head.low).max()
        assert np.abs(actions - expected).max() <= 1e-5 * span


@pytest.mark.parametrize("engine", ["reference", "litert"])
@pytest.mark.parametrize("source", ["zip", "live"])
def test_actions_are_the_library_s_own(case: Case, source: str, engine: str) -> None:
    agent = case.agents[source]
    assert_same(agent, agent.predict(case.observations, engine=engine)[0], case.actions)
    single = case.some(1)
    alone = {key: part[0] for key, part in single.items()} if isinstance(single, dict) else single[0]
    assert_same(agent, agent.predict(alone, engine=engine)[0], case.actions[0])


def test_zip_and_live_model_are_the_same_graph(case: Case) -> None:
    zipped, live = ([(type(op), op.name, op.inputs) for op in agent.policy.ops] for agent in case.agents.values())
    assert zipped == live
    assert case.agents["zip"].policy.inputs == case.agents["live"].policy.inputs


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_quantised_ones_are_the_same_in_every_engine_and_come_back_from_their_file(
    case: Case, mode: Any, tmp_path: Path
) -> None:
    agent = case.agents["zip"].quantize("int8", mode=mode, observations=case.some(128))
    agent.save(tmp_path / "agent.quarl")
    again = quarl.load(tmp_path / "agent.quarl")
    assert again.policy.inputs == agent.policy.inputs
    some = case.some(64)
    outputs = {engine: again.predict(some, engine=engine)[0] for engine in ("reference", "litert", "onnx")}
    transcendental = any(getattr(op, "kind", "") == "tanh" for op in agent.policy.ops)
    for engine in ("litert", "onnx"):
        if mode == "static" or not transcendental:
            np.testing.assert_array_equal(outputs[engine], outputs["reference"])
        else:
            np.testing.assert_allclose(outputs[engine], outputs["reference"], atol=0.05)
