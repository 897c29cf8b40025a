"""Published agents of Stable-Baselines 2, one of each algorithm: their formula in float64, and published returns."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

import quarl
import require
from quarl import stats
from quarl.calibration import quantize
from quarl.engines import greedy
from quarl.engines.numpy_operators import as_float
from quarl.envs.suites import robotics_muted
from quarl.policy.graph import Policy
from quarl.policy.inputs import flatten
from quarl.quant.spec import EXACT, QuantSpec
from quarl.readers.load import read
from quarl.readers.sb2 import contents

Array = NDArray[Any]
OBSERVATIONS = 2_000
ENVIRONMENTS = {"Pendulum-v0": "Pendulum-v1", "MountainCar-v0": "MountainCar-v0"}
ACTOR_CRITICS = ("acer/MountainCar-v0", "acktr/MountainCar-v0", "trpo/Pendulum-v0")
ACTORS = ("sac/Pendulum-v0", "td3/Pendulum-v0", "her/FetchReach-v1")


class Bare(pickle.Unpickler):
    """Objects of whatever class, as their attributes."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(module, name) if module.startswith("numpy") else type(name, (), {})


def formula(agent: str, folder: Path) -> Callable[[Array], Array]:
    """Logits, the mean of the action, or the action before its tanh, of observations: the library's own in float64."""
    _, arrays = contents(folder / f"{agent}.pkl")
    if isinstance(arrays, dict):  # names that 2.7 saved
        layers = [(arrays[f"model/pi/{n}/kernel"], arrays[f"model/pi/{n}/bias"]) for n in ("fc0", "fc1", "dense")]
    else:  # pi_fc0 vf_fc0 pi_fc1 vf_fc1 vf pi, or fc0 fc1 dense
        places = (0, 4, 10) if agent in ACTOR_CRITICS else (0, 2, 4)
        layers = [(arrays[place], arrays[place + 1]) for place in places]
    mean, deviation, clip = 0.0, 1.0, np.inf
    if agent.endswith("MountainCar-v0"):  # the zoo applies obs_rms.pkl where no config.yml beside it says otherwise
        with (folder / agent / "obs_rms.pkl").open("rb") as file:
            statistics = vars(Bare(file).load())
        mean, deviation, clip = statistics["mean"], np.sqrt(statistics["var"] + 1e-8), 10.0

    def forward(x: Array) -> Array:
        x = np.clip((x.astype(np.float64) - mean) / deviation, -clip, clip)
        for index, (weight, bias) in enumerate(layers):
            x = x @ weight.astype(np.float64) + bias.astype(np.float64)
            if index < 2:
                x = np.tanh(x) if agent in ACTOR_CRITICS else np.maximum(x, 0)
        return x

    return forward


def acted(agent: str, outputs: Array) -> Array:
    """Deterministic actions of the outputs."""
    if agent.endswith("MountainCar-v0"):
        return outputs.argmax(axis=1)
    low, high = (-2.0, 2.0) if agent.endswith("Pendulum-v0") else (-1.0, 1.0)
    return np.clip(outputs, low, high) if agent in ACTOR_CRITICS else high * np.tanh(outputs)


def visited(agent: str, forward: Callable[[Array], Array]) -> Array:
    """Observations [N, n] of the agent's episodes; of an environment whose package is not here, of normal numbers."""
    env_id = agent.partition("/")[2]
    if env_id not in ENVIRONMENTS:
        return np.random.default_rng(0).standard_normal((OBSERVATIONS, 16)).astype(np.float32)
    env, shown = gymnasium.make(ENVIRONMENTS[env_id]), []
    observation, _ = env.reset(seed=5)
    for _ in range(OBSERVATIONS):
        shown.append(observation)
        observation, _, terminated, truncated, _ = env.step(acted(agent, forward(observation[None]))[0])
        if terminated or truncated:
            observation, _ = env.reset()
    return np.array(shown, np.float32)


@pytest.mark.parametrize("agent", [*ACTOR_CRITICS, *ACTORS])
def test_outputs_and_actions_are_those_of_the_formula_in_float64(agent: str, more_agents: Path):
    folder = more_agents / "sb2"
    policy, forward = read(folder / f"{agent}.pkl"), formula(agent, folder)
    assert type(policy) is Policy
    x = visited(agent, forward)
    outputs = forward(x)
    np.testing.assert_allclose(as_float(policy, x)[policy.output], outputs, rtol=0, atol=1e-5 * np.abs(outputs).max())
    actions = acted(agent, outputs)
    for engine in ("reference", "litert"):
        mine = greedy(quantize(policy, EXACT), x, engine)
        if actions.dtype == np.int64:
            assert (mine == actions).all()
        else:
            np.testing.assert_allclose(mine, actions, rtol=0, atol=1e-5 * (actions.max() - actions.min()))


@pytest.mark.slow
@pytest.mark.parametrize("agent", [*ACTOR_CRITICS, "sac/Pendulum-v0", "td3/Pendulum-v0"])
def test_the_published_return_lies_in_the_interval_of_a_hundred_episodes(agent: str, more_agents: Path):
    published = json.loads((more_agents / "reference.json").read_text())["sb2"][agent]
    evaluation = quarl.evaluate(more_agents / "sb2" / f"{agent}.pkl", episodes=100)
    assert evaluation.stochastic == (agent in ACTOR_CRITICS)
    row = stats.summary(evaluation.returns, np.random.default_rng(0))
    assert row.ci_low is not None
    assert row.ci_high is not None
    assert row.ci_low <= published[0] <= row.ci_high


@pytest.mark.parametrize("agent", [*ACTOR_CRITICS, *ACTORS])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_eight_bits_act_almost_as_the_formula_does(agent: str, mode: Any, more_agents: Path):
    folder = more_agents / "sb2"
    forward = formula(agent, folder)
    x = visited(agent, forward)
    actions = acted(agent, forward(x))
    policy = read(folder / f"{agent}.pkl")
    mine = greedy(quantize(policy, QuantSpec.parse("int8", mode=mode), x), x)
    if actions.dtype == np.int64:
        assert (mine == actions).mean() > 0.97
    else:
        assert np.abs(mine - actions).mean() < 0.05 * (actions.max() - actions.min())


def test_the_agent_that_learnt_by_hindsight_reaches_every_goal(more_agents: Path):
    gymnasium.register_envs(require.module("gymnasium_robotics"))
    policy = read(more_agents / "sb2" / "her/FetchReach-v1.pkl")
    assert type(policy) is Policy
    with robotics_muted():
        env, reached, shown = gymnasium.make("FetchReach-v4"), [], []
    for precision in ("fp32", "int8"):
        quantized = quantize(policy, QuantSpec.parse(precision), np.concatenate(shown) if shown else None)
        for seed in range(10):
            (observation, _), over = env.reset(seed=seed), False
            while not over:
                shown.append(flatten(policy.inputs, observation)[0].astype(np.float32))
                observation, _, _, over, info = env.step(greedy(quantized, shown[-1])[0])
            reached.append(info["is_success"])
    assert len(reached) == 20
    assert all(reached)
