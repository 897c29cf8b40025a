"""What environments are handed: the types and values of Stable-Baselines3's own loops, and arrays that are theirs."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise

from quarl import engines
from quarl.actorq.exploration import Explorer
from quarl.calibration import quantize
from quarl.envs.reseed import needs_fresh
from quarl.envs.rollout import Play, play
from quarl.policy.graph import ActionHead, Policy
from quarl.policy.operators import Dense
from quarl.quant.spec import QuantSpec
from quarl.readers.extract import from_model

Array = NDArray[Any]
HIGH = 0.1
"""float32's nearest number lies above it: an action rounded to that is outside of a float64 space."""
BOXES = {
    "float32": spaces.Box(np.float32([-2, 0]), np.float32([2, 1]), dtype=np.float32),
    "unit": spaces.Box(-1, 1, (2,), np.float32),
    "float64": spaces.Box(np.array([-HIGH, 0.0]), np.array([HIGH, 0.3]), dtype=np.float64),
    "unit64": spaces.Box(-1, 1, (2,), np.float64),
}


class Recorder(gymnasium.Env[Array, Any]):
    """Notes what it is handed, as that is in its moment, and then spoils it; five steps an episode."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)

    def __init__(self, action_space: spaces.Space[Any], log: list[Any]) -> None:
        self.action_space, self.log, self.kept = action_space, log, []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        assert seed is None or type(seed) is int
        assert options is None
        super().reset(seed=seed)
        self.rng, self.taken = np.random.default_rng(0), 0
        return self.look(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        # Stable-Baselines3's own np.int64 is in no Discrete of other integers
        space, numbers = self.action_space, (action, action + getattr(self.action_space, "start", 0))  # or from 0
        assert any(map(space.contains, numbers)) or space.dtype == np.int32, action
        self.log.append((type(action), getattr(action, "dtype", None), np.shape(action), np.array(action)))
        for spoilt in self.kept[-1:]:
            assert (spoilt == 9).all()  # what was handed over before is still this environment's own
        if isinstance(action, np.ndarray):
            action[...] = 9
            self.kept.append(action)
        self.taken += 1
        return self.look(), 1.0, False, self.taken == 5, {}

    def look(self) -> Array:
        return self.rng.uniform(-1, 1, 3).astype(np.float32)


def model(kind: Any, space: spaces.Space[Any], log: list[Any]) -> Any:
    options: dict[str, Any] = {"policy_kwargs": {"net_arch": [16]}, "device": "cpu", "seed": 1}
    if kind is PPO:
        options |= {"n_steps": 10, "batch_size": 10, "n_epochs": 1}
    else:
        options |= {"learning_starts": 8, "buffer_size": 100}
    if kind is TD3:
        options["action_noise"] = NormalActionNoise(np.zeros(2), np.full(2, 0.3))
    made = kind("MlpPolicy", Recorder(space, log), **options)
    if kind is PPO and isinstance(space, spaces.Box):
        made.policy.action_net.bias.data[:] = 3.0  # beyond the bounds: the clipping is looked at too
    return made


def played(policy: Policy, space: spaces.Space[Any], batch: int = 2, episodes: int = 2) -> list[Any]:
    log: list[Any] = []
    engine = engines.load(quantize(policy, QuantSpec.parse("fp32")), "torch", batch=batch)
    make_env = partial(Recorder, space, log)
    told = Play(policy=policy, make=make_env, batch=batch, stream="evaluation", seed=0, fresh=False)
    list(play(told, engine.run, range(episodes)))
    return log


@pytest.mark.parametrize(
    ("kind", "space"),
    [
        (DQN, spaces.Discrete(3)),
        (PPO, spaces.Discrete(3)),
        (PPO, spaces.Discrete(3, start=5)),
        (PPO, spaces.MultiDiscrete([2, 4, 3])),
        (PPO, spaces.MultiDiscrete([3])),
        (PPO, spaces.MultiBinary(5)),
        (PPO, BOXES["float32"]),
        (PPO, BOXES["float64"]),
        (TD3, BOXES["unit"]),
        (SAC, BOXES["float64"]),
        (TD3, BOXES["unit64"]),
    ],
)
def test_evaluation_hands_over_what_evaluate_policy_does(kind: Any, space: spaces.Space[Any]) -> None:
    log: list[Any] = []
    learner = model(kind, space, log)
    evaluate_policy(learner, learner.get_env(), 1)
    for ours, theirs in zip(played(from_model(learner), space, 1, 1), log, strict=True):
        assert ours[:3] == theirs[:3]
        np.testing.assert_allclose(ours[3], theirs[3], atol=1e-6)
    assert log[0][0] is (np.int64 if isinstance(space, spaces.Discrete) else np.ndarray)


@pytest.mark.parametrize("start", [0, 5, -3])
def test_discrete_actions_are_numpy_integers_from_the_spaces_start(start: int) -> None:
    weight = np.eye(3, dtype=np.float32)
    policy = Policy(
        observation_shape=(3,),
        ops=(Dense("out", ("observation",), weight, np.zeros(3, np.float32)),),
        head=ActionHead("argmax", start=start),
    )
    log = played(policy, spaces.Discrete(3, start=start))
    assert {entry[0] for entry in log} == {np.int64}
    assert {int(entry[3]) for entry in log} == {start, start + 1, start + 2}


@pytest.mark.parametrize(
    ("kind", "space"),
    [
        (DQN, spaces.Discrete(3)),
        (DQN, spaces.Discrete(3, dtype=np.int32)),
        *((TD3, space) for space in BOXES.values()),
        (SAC, BOXES["float64"]),
    ],
)
def test_actors_hand_over_what_learn_does(kind: Any, space: spaces.Space[Any]) -> None:
    theirs: list[Any] = []
    learner = model(kind, space, theirs)
    learner.exploration_schedule = lambda left: 0.0
    learner.learn(12)  # the first eight are random
    ours: list[Any] = []
    envs = [Recorder(space, ours) for _ in range(2)]
    head = from_model(learner).head
    rng = np.random.default_rng(0)
    if kind is SAC:
        head, outputs = ActionHead("gaussian", head.low, head.high), rng.normal(size=(2, 4)).astype(np.float32)
    else:
        outputs = rng.normal(size=(2, 3 if kind is DQN else 2)).astype(np.float32)
    explorer = Explorer(head, space, 0.3, rng)
    for chosen, expected in ((explorer.random(2), theirs[0]), (explorer.act(outputs, 0.0), theirs[-1])):
        ours.clear()
        before = chosen[1].copy()
        for env, action in zip(envs, chosen[0], strict=True):
            env.reset()
            env.step(action)
        assert [entry[:3] for entry in ours] == [expected[:3]] * 2
        assert np.array_equal(chosen[1], before)  # what replay stores is not what the environment changed


@pytest.mark.parametrize("space", [spaces.Discrete(3), BOXES["float64"]])
def test_an_environment_that_changes_its_actions_is_not_taken_for_one_that_remembers(space: spaces.Space[Any]) -> None:
    class Doubling(Recorder):
        """Shows the action that it was given."""

        def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
            shown = np.resize(np.float32(action), 3)
            return (shown, *super().step(action)[1:])

    assert not needs_fresh(lambda: Doubling(space, []), f"doubling {space}")
