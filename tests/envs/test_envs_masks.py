"""A policy that was trained with masks chooses among what its environment allows, as sb3-contrib's own does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, registry
from sb3_contrib import MaskablePPO

import quarl
from quarl.envs.masks import allowed
from quarl.errors import QuarlError, note_once
from quarl.readers.extract import from_model

ROWS = np.random.default_rng(0).standard_normal((2_000, 3)).astype(np.float32)
SPACES = {"discrete": spaces.Discrete(6), "segments": spaces.MultiDiscrete([2, 3, 4]), "bits": spaces.MultiBinary(4)}
SCORES = {"discrete": 6, "segments": 9, "bits": 8}


class Doors(gymnasium.Env[np.ndarray, Any]):
    """Pays for the largest action; what `said` says is allowed, drawn anew after each step, or everything."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, kind: str = "discrete", masks: Any = None) -> None:
        self.action_space, self.scores, self.said = SPACES[kind], SCORES[kind], masks

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def _observe(self) -> np.ndarray:
        self.open = self.np_random.random(self.scores) < 0.5
        self.open[self.np_random.integers(self.scores)] = True
        return self.np_random.standard_normal(3).astype(np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = float(np.sum(action)) if self.scores != 6 or self.open[action] else -1e6
        return self._observe(), reward, self.steps == 20, False, {}


class Masked(Doors):
    def action_masks(self) -> Any:
        return self.open if self.said is None else self.said


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, entry in (("Masked-v0", Masked), ("Doors-v0", Doors)):
        monkeypatch.setitem(registry, name, EnvSpec(name, entry))


def trained(kind: str = "discrete") -> Any:
    env = gymnasium.make("Masked-v0", kind=kind)
    model = MaskablePPO("MlpPolicy", env, n_steps=64, seed=2, device="cpu", policy_kwargs={"net_arch": [8]})
    model.learn(64)
    with torch.no_grad():  # heads that were trained so shortly prefer no action by far
        model.policy.action_net.weight.mul_(20)
    return model


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("engine", ["reference", "litert"])
def test_the_best_of_the_allowed_actions_is_that_of_sb3_contrib(kind: str, engine: str, tmp_path: Path):
    model = trained(kind)
    model.save(tmp_path / "agent.zip")
    masks = np.random.default_rng(1).random((len(ROWS), SCORES[kind])) < 0.6  # of some rows and segments, nothing
    expected, _ = model.predict(ROWS, deterministic=True, action_masks=masks)
    unmasked, _ = model.predict(ROWS, deterministic=True)
    assert (expected != unmasked).mean() > 0.1
    for agent in (quarl.from_sb3(model), quarl.load(tmp_path / "agent.zip")):
        actions, _ = agent.predict(ROWS, action_masks=masks, engine=engine)
        np.testing.assert_array_equal(actions, expected)
        np.testing.assert_array_equal(agent.predict(ROWS[0], action_masks=masks[0])[0], expected[0])
        np.testing.assert_array_equal(agent.predict(ROWS)[0], unmasked)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPACES)
def test_episodes_have_the_returns_of_sb3_contrib_s_own_loop(kind: str):
    model = trained(kind)
    played = quarl.from_sb3(model).evaluate(episodes=20)
    assert played.stochastic is False
    env = gymnasium.make("Masked-v0", kind=kind)
    returns = []
    for seed in played.seeds:
        observation, total, ended = env.reset(seed=int(seed))[0], 0.0, False
        while not ended:
            masks = env.get_wrapper_attr("action_masks")()
            action, _ = model.predict(observation, deterministic=True, action_masks=masks)
            observation, reward, ended, _, _ = env.step(action)
            total += float(reward)
        returns.append(total)
    np.testing.assert_array_equal(played.returns, returns)
    assert len(set(returns)) > 5


def test_sampled_actions_are_drawn_from_the_allowed_ones():
    policy = from_model(trained())
    played = quarl.Agent(policy).evaluate(episodes=20, stochastic=True)
    assert (played.returns >= 0).all()  # a forbidden action costs a million
    unmasked = quarl.Agent(replace(policy, provenance=replace(policy.provenance, algo="ppo")))
    assert (unmasked.evaluate(episodes=20, stochastic=True).returns < 0).all()


def test_samples_have_the_softmax_of_the_allowed_scores():
    head = from_model(trained()).head
    scores = np.tile(np.float32([0, 1, 2, 3, 4, 5]), (20_000, 1))
    masked = allowed(scores, np.tile([True, False, True, False, False, True], (20_000, 1)))
    drawn = head(masked, [np.random.default_rng(i) for i in range(20_000)])
    weights = np.exp([0, -np.inf, 2, -np.inf, -np.inf, 5])
    np.testing.assert_allclose(np.bincount(drawn, minlength=6) / 20_000, weights / weights.sum(), atol=0.01)


def test_an_environment_without_masks_is_played_without_and_says_so(capsys: pytest.CaptureFixture[str]):
    note_once.cache_clear()
    quarl.evaluate(quarl.from_sb3(trained()), env_id="Doors-v0", env_kwargs={"kind": "discrete"}, episodes=2)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "action_masks" in line]
    assert "any action of Doors-v0, because it has no action_masks()" in line


@pytest.mark.parametrize(("said", "words"), [([True] * 5, "5 values of bool for 6 scores"), (["no"] * 6, "of <U2")])
def test_masks_that_do_not_fit_the_scores_are_said_in_one_line(said: Any, words: str):
    agent = quarl.from_sb3(trained())
    with pytest.raises(QuarlError) as caught:
        agent.evaluate(episodes=1, env_kwargs={"kind": "discrete", "masks": said})
    assert words in str(caught.value)
    assert "Masked-v0" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(QuarlError, match="6 scores"):
        agent.predict(ROWS[0], action_masks=said)


def test_exported_scores_are_said_to_be_unmasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    agent = quarl.from_sb3(trained())
    agent.save(tmp_path / "agent.tflite")
    agent.save(tmp_path / "agent.quarl")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "unmasked" in line]
    assert "agent.tflite" in line
    masks = np.arange(6) != agent.predict(ROWS[0])[0]
    read = quarl.load(tmp_path / "agent.quarl")
    assert read.predict(ROWS[0], action_masks=masks)[0] == agent.predict(ROWS[0], action_masks=masks)[0]
    assert masks[read.predict(ROWS[0], action_masks=masks)[0]]
