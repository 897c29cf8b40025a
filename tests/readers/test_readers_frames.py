"""Statistics of one frame under a stack: actions are those of the library, which stacks frames that are normalised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

import quarl
from quarl.cli import main
from quarl.engines.numpy_operators import as_float
from quarl.envs import in_environment, make
from quarl.envs.environment import described
from quarl.errors import QuarlError
from quarl.policy import artifact
from quarl.policy.graph import Policy
from quarl.policy.operators import Normalize
from quarl.readers.extract import from_model
from quarl.readers.load import read
from quarl.readers.zoo import VEC_FRAME_STACK
from stress.fuzz.pickles import pickled
from stress.fuzz.seeds import box, running_mean_std, sb2_arrays, sb2_data

Array = NDArray[Any]
FRAMES, ENV = 3, "Pendulum-v1"
MEAN, VARIANCE = [0.5, -0.25, 3.0], [0.04, 0.25, 9.0]


@pytest.fixture(scope="module")
def model() -> PPO:
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make(ENV)]), training=False)
    env.obs_rms.mean, env.obs_rms.var = np.array(MEAN), np.array(VARIANCE)
    return PPO("MlpPolicy", VecFrameStack(env, FRAMES), n_steps=8, batch_size=8, seed=1, device="cpu")


def saved(model: PPO, folder: Path) -> Path:
    """The agent as RL Zoo saves it."""
    (folder / ENV).mkdir()
    model.save(folder / f"{ENV}.zip")
    statistics = model.get_vec_normalize_env()
    assert statistics is not None
    statistics.save(str(folder / ENV / "vecnormalize.pkl"))
    (folder / ENV / "config.yml").write_text(
        f"!!python/object/apply:collections.OrderedDict\n- - [frame_stack, {FRAMES}]\n  - [normalize, true]\n"
    )
    (folder / ENV / "args.yml").write_text(f"!!python/object/apply:collections.OrderedDict\n- - [env, {ENV}]\n")
    return folder / f"{ENV}.zip"


def played(policy: Policy, steps: int) -> list[float]:
    env = make(ENV, wrappers=policy.provenance.wrappers)
    observation, _ = env.reset(seed=7)
    actions = []
    for _ in range(steps):
        scores = as_float(policy, np.asarray(observation, np.float32)[None])[policy.output]
        action = policy.head(scores)[0]
        actions.append(float(action[0]))
        observation = env.step(action)[0]
    return actions


@pytest.mark.parametrize("source", ["zip", "live", "saved again"])
def test_actions_from_the_first_step_on_are_the_library_s(source: str, model: PPO, tmp_path: Path):
    policy = from_model(model) if source == "live" else read(saved(model, tmp_path))
    if source == "saved again":
        artifact.write(policy, tmp_path / "policy.safetensors")
        policy = read(tmp_path / "policy.safetensors")
    env = model.get_env()
    assert env is not None
    env.seed(7)
    observation, wanted = env.reset(), []
    for _ in range(20):
        action, _ = model.predict(observation, deterministic=True)  # type: ignore[arg-type]
        wanted.append(float(action[0, 0]))
        observation = env.step(action)[0]
    np.testing.assert_allclose(played(policy, 20), wanted, atol=2e-5)


def test_every_frame_has_the_statistics_and_the_mean_stands_before_the_first(model: PPO, tmp_path: Path):
    policy = read(saved(model, tmp_path))
    first = policy.ops[0]
    assert isinstance(first, Normalize)
    assert first.mean.tolist() == MEAN * FRAMES
    assert first.variance.tolist() == VARIANCE * FRAMES
    ((name, options),) = policy.provenance.wrappers
    assert (name, options) == (VEC_FRAME_STACK, {"n_stack": FRAMES, "before": MEAN})
    observation, _ = make(ENV, wrappers=policy.provenance.wrappers).reset(seed=3)
    assert observation[:6].tolist() == MEAN * 2


def test_the_environment_in_a_line_stays_short(model: PPO):
    home = from_model(model).provenance
    many = [(VEC_FRAME_STACK, {"n_stack": 2, "before": [0.1] * 500})]
    assert "before=[0.5, -0.25, 3.0]" in described(home)
    other = in_environment(from_model(model), frame_stack=4)[0].provenance.wrappers[-1][1]
    assert (other["n_stack"], other["before"]) == (4, MEAN)
    home = type(home)(env_id=ENV, wrappers=tuple(many))
    assert len(described(home)) < 120


def test_statistics_of_stable_baselines_2_are_those_of_each_frame(tmp_path: Path):
    arrays = sb2_arrays("a2c")
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((6, 4)).astype(np.float32)
    arrays = {name: rng.standard_normal(a.shape).astype(a.dtype) for name, a in arrays.items()}
    arrays |= {"model/pi_fc0/w:0": weight, "model/vf_fc0/w:0": weight}
    data = {**sb2_data("a2c"), "observation_space": box(6, np.inf)}
    path = tmp_path / "Env-v0.pkl"
    path.write_bytes(pickled((data, list(arrays.values())), 4))
    (tmp_path / "Env-v0").mkdir()
    statistics = running_mean_std(3)
    statistics.state["mean"], statistics.state["var"] = np.array(MEAN), np.array(VARIANCE)
    (tmp_path / "Env-v0/obs_rms.pkl").write_bytes(pickled(statistics, 3))
    with pytest.raises(
        QuarlError,
        match=r"shape \(3,\), but the policy observes \(6,\).*frames are stacked: add --frame-stack N",
    ):
        read(path)
    (tmp_path / "Env-v0/config.yml").write_text("normalize: true\nframe_stack: 2\n")
    policy = read(path)
    x = rng.standard_normal((16, 6)).astype(np.float32) * 3
    frames = np.clip((x - np.tile(MEAN, 2)) / np.sqrt(np.tile(VARIANCE, 2) + 1e-8), -10, 10)
    hidden = np.tanh(frames @ weight + arrays["model/pi_fc0/b:0"])
    wanted = hidden @ arrays["model/pi/w:0"] + arrays["model/pi/b:0"]
    np.testing.assert_allclose(as_float(policy, x)[policy.output], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("given", ["load", "evaluate", "eval", "inspect"])
@pytest.mark.parametrize("config", ["normalize: true\n", "normalize: true\nframe_stack: 2\n"])
def test_a_typed_frame_stack_is_used_for_statistics_of_one_frame(
    config: str, given: str, model: PPO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, wanted = saved(model, tmp_path), read(tmp_path / f"{ENV}.zip")
    (tmp_path / ENV / "config.yml").write_text(config)
    if given == "load":
        policy = quarl.load(path, frame_stack=FRAMES).policy
        assert policy.provenance == wanted.provenance
        assert played(policy, 20) == played(wanted, 20)
        return
    exact = quarl.Agent(wanted).evaluate(episodes=2).returns.tolist()
    if given == "evaluate":
        assert quarl.evaluate(path, frame_stack=FRAMES, episodes=2).returns.tolist() == exact
        return
    monkeypatch.chdir(tmp_path)
    words = {"eval": "--episodes 2 --json rows.json", "inspect": "--bits 8"}[given].split()
    assert main([given, str(path), *words, "--frame-stack", str(FRAMES)]) == 0
    if given == "eval":
        assert json.loads((tmp_path / "rows.json").read_text())["rows"][0]["returns"] == exact


@pytest.mark.parametrize("config", ["frame_stack: 4", "", "env_wrapper: [{VECTOR: {n_stack: 3.0}}]"])
def test_another_number_of_frames_is_one_line(config: str, model: PPO, tmp_path: Path):
    path = saved(model, tmp_path)
    (tmp_path / ENV / "config.yml").write_text(f"normalize: true\n{config.replace('VECTOR', VEC_FRAME_STACK)}\n")
    with pytest.raises(QuarlError, match=r"shape \(3,\), but the policy observes \(9,\)"):
        read(path)


@pytest.mark.parametrize("before", [[1.0], [[1.0, 2.0, 3.0]], [1.0, 2.0, float("inf")], ["a", "b", "c"], "abc", {}])
def test_what_is_no_observation_cannot_stand_before_one(before: Any):
    with pytest.raises(QuarlError, match="VecFrameStack cannot be applied"):
        make(ENV, wrappers=[(VEC_FRAME_STACK, {"n_stack": 2, "before": before})])


def test_a_stack_that_is_normalised_whole_starts_with_zeros():
    env = VecNormalize(VecFrameStack(DummyVecEnv([lambda: gymnasium.make(ENV)]), FRAMES), training=False)
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu")
    policy = from_model(model)
    assert "before" not in policy.provenance.wrappers[-1][1]
    observation, _ = make(ENV, wrappers=policy.provenance.wrappers).reset(seed=3)
    assert observation[:6].tolist() == [0] * 6
