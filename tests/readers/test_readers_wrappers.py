"""Wrappers around a live model's environment: used by the policy, harmless, named, or refused by name."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium import wrappers as G
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper, VecMonitor, VecNormalize

import quarl
from quarl.errors import QuarlError, UnsupportedError, note_once
from quarl.readers.extract import _around, from_model
from sb3_archives import Still, write_run

VECTOR = spaces.Box(-3, 3, (5,), np.float32)
BOX = spaces.Box(np.float32([-2, -1, 0]), np.float32([1, 3, 0.5]))


class Passing(VecEnvWrapper):
    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()


def model_in(env: Any) -> Any:
    return PPO("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu", seed=0)


def inside(*wrappers: Any) -> Any:
    """Return a vectorized environment of one Still inside gymnasium's wrappers, the outermost last."""
    env: Any = Still(VECTOR, BOX)
    for wrapper in wrappers:
        env = wrapper(env)
    return DummyVecEnv([lambda: env])


def stepped(env: Any) -> Any:
    """Return a model in the environment, whose running statistics have seen steps."""
    model = model_in(env)
    model.get_env().reset()
    for _ in range(20):
        model.get_env().step(np.stack([model.action_space.sample()] * env.num_envs))
    return model


RESCALE = partial(G.RescaleAction, min_action=np.float32(-1), max_action=np.float32(1))
DOUBLE = partial(G.TransformObservation, func=lambda seen: 2 * seen, observation_space=VECTOR)


@pytest.mark.parametrize(
    "make",
    [
        lambda: inside(G.NormalizeObservation),
        lambda: inside(
            partial(G.NormalizeObservation, epsilon=0.5), Monitor, partial(G.TimeLimit, max_episode_steps=9)
        ),
        lambda: inside(DOUBLE, G.NormalizeObservation, RESCALE, G.NormalizeReward),
        lambda: VecMonitor(inside(G.NormalizeObservation)),
        lambda: VecNormalize(inside(G.NormalizeObservation), norm_obs=False),
    ],
)
def test_statistics_of_gymnasiums_normalizer_become_part_of_the_policy(make: Any, tmp_path: Path):
    model = stepped(make())
    (wrapper,) = (env for env in _around(model.get_env()) if isinstance(env, G.NormalizeObservation))
    agent = quarl.from_sb3(model)
    agent.save(tmp_path / "agent.quarl")
    wrapper.update_running_mean = False
    raw = np.random.default_rng(0).normal(0, 3, (50, *VECTOR.shape)).astype(np.float32)
    right, _ = model.predict(np.stack([wrapper.observation(row) for row in raw]), deterministic=True)
    for each in (agent, quarl.load(tmp_path / "agent.quarl")):
        np.testing.assert_allclose(each.predict(raw, engine="reference")[0], right, atol=1e-5)
        assert each.policy.provenance.statistics == "the model's NormalizeObservation"
    assert np.abs(model.predict(raw, deterministic=True)[0] - right).max() > 1e-3


def test_a_normalizer_of_a_registered_environment_is_not_made_again():
    model = model_in(G.NormalizeObservation(gymnasium.make("CartPole-v1")))
    assert (model.get_env().reset(), from_model(model).provenance.wrappers)[1] == ()
    assert quarl.from_sb3(model).evaluate(episodes=2).env_id == "CartPole-v1"


class OwnNormalizer(VecNormalize):
    """One that may normalize as it likes."""


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: inside(G.NormalizeObservation, DOUBLE), "TransformObservation around NormalizeObservation"),
        (lambda: VecNormalize(inside(G.NormalizeObservation)), "VecNormalize around NormalizeObservation"),
        (lambda: inside(*[G.NormalizeObservation] * 2), "NormalizeObservation around NormalizeObservation"),
        (lambda: OwnNormalizer(inside()), "OwnNormalizer"),
        (lambda: inside(type("Own", (G.NormalizeObservation,), {})), "Own"),
        (lambda: type("Halved", (Passing,), {})(VecNormalize(inside())), "Halved around VecNormalize"),
    ],
)
def test_normalized_observations_that_others_change_are_refused_by_name(make: Any, names: str):
    with pytest.raises(UnsupportedError, match=f"^observations pass {names}: a policy has the statistics of one"):
        quarl.from_sb3(model_in(make()))


def test_statistics_of_several_environments_are_refused():
    env = DummyVecEnv([lambda: G.NormalizeObservation(Still(VECTOR, BOX))] * 2)
    with pytest.raises(UnsupportedError, match="each environment has a NormalizeObservation with its own statistics"):
        quarl.from_sb3(model_in(env))


@pytest.mark.parametrize(
    ("wrappers", "named"),
    [
        ((), ""),
        ((Monitor, partial(G.TimeLimit, max_episode_steps=9), G.NormalizeReward, G.NormalizeObservation), ""),
        ((DOUBLE, RESCALE), "RescaleAction, TransformObservation"),
        ((RESCALE, Monitor), "RescaleAction"),
        ((type("Own", (gymnasium.ObservationWrapper,), {"observation": lambda self, seen: seen}),), "Own"),
    ],
)
def test_wrappers_that_are_not_part_of_the_policy_are_named(wrappers: Any, named: str, capsys: Any):
    note_once.cache_clear()
    quarl.from_sb3(model_in(inside(*wrappers)))
    (said,) = capsys.readouterr().err.splitlines()
    assert said.endswith(f"; {named} is not part of the policy" if named else "or register it with Gymnasium")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Box low's precision:UserWarning", "ignore:.*Box high's precision:UserWarning")
def test_files_name_the_wrappers_that_they_do_without(tmp_path: Path, capsys: Any):
    env = G.RescaleAction(gymnasium.make("Pendulum-v1"), -1.0, 1.0)
    agent = quarl.from_sb3(model_in(env))
    agent.save(tmp_path / "agent.onnx")
    line = "it acts inside wrappers that are not part of the file: RescaleAction"
    assert f"agent.onnx: {line}" in capsys.readouterr().err
    agent.export("c", tmp_path / "c", observations=np.zeros((10, 3), np.float32))
    assert line in (tmp_path / "c/README.md").read_text()


def test_zoo_runs_inside_gymnasiums_normalizer_are_refused(tmp_path: Path):
    folder = write_run(tmp_path)
    (folder / "Still-v0/config.yml").write_text("env_wrapper: gymnasium.wrappers.NormalizeObservation\n")
    with pytest.raises(
        QuarlError, match=r"config\.yml names NormalizeObservation, whose statistics are not in any file"
    ):
        quarl.load(folder)
