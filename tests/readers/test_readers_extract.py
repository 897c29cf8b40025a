"""A live model, its saved zip and SB3's own predict agree; modules outside the set are refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper, VecFrameStack, VecMonitor, VecNormalize
from torch import nn

import quarl
import require
from quarl.engines.numpy_operators import as_float
from quarl.envs import home_of
from quarl.errors import QuarlError, UnsupportedError, note_once
from quarl.policy.graph import Policy, Provenance
from quarl.policy.operators import Dense, Normalize
from quarl.readers import load
from quarl.readers.extract import from_model
from sb3_archives import Still, assert_same

IMAGE = spaces.Box(0, 255, (3, 36, 36), np.uint8)
VECTOR = spaces.Box(-3, 3, (5,), np.float32)
TABLE = spaces.Box(-np.inf, np.inf, (2, 3), np.float32)
BOX = spaces.Box(np.float32([-2, -1, 0]), np.float32([1, 3, 0.5]))
ROWS = spaces.Box(np.float32([[-2, -1, 0], [-1, 0, 1]]), np.float32([[1, 3, 0.5], [2, 1, 3]]))
CHOICE = spaces.Discrete(4)
VECTOR.seed(0)
SMALL_CNN = {"features_extractor_kwargs": {"features_dim": 16}}

# (algorithm, policy, observations, actions, policy_kwargs, other arguments)
MODELS: list[tuple[type[BaseAlgorithm], str, spaces.Box, spaces.Space[Any], dict[str, Any], dict[str, Any]]] = [
    (PPO, "MlpPolicy", VECTOR, BOX, {}, {}),
    (PPO, "MlpPolicy", VECTOR, CHOICE, {"activation_fn": nn.ELU, "net_arch": {"pi": [7], "vf": []}}, {}),
    (PPO, "MlpPolicy", TABLE, BOX, {"activation_fn": nn.LeakyReLU, "net_arch": []}, {}),
    (PPO, "MlpPolicy", VECTOR, BOX, {"squash_output": True, "net_arch": [8]}, {"use_sde": True}),
    (PPO, "MlpPolicy", VECTOR, BOX, {"net_arch": [8]}, {"use_sde": True}),
    (PPO, "MlpPolicy", IMAGE, CHOICE, {"net_arch": [8]}, {}),
    (PPO, "CnnPolicy", IMAGE, CHOICE, SMALL_CNN | {"share_features_extractor": False}, {}),
    (A2C, "MlpPolicy", VECTOR, CHOICE, {"activation_fn": nn.ReLU}, {}),
    (A2C, "CnnPolicy", IMAGE, BOX, SMALL_CNN | {"net_arch": [9]}, {}),
    (DQN, "MlpPolicy", VECTOR, CHOICE, {"activation_fn": nn.Tanh}, {}),
    (DQN, "CnnPolicy", IMAGE, CHOICE, SMALL_CNN, {}),
    (DQN, "CnnPolicy", spaces.Box(0, 1, (3, 36, 36)), CHOICE, SMALL_CNN | {"normalize_images": False}, {}),
    (DDPG, "MlpPolicy", VECTOR, BOX, {"net_arch": [12, 8]}, {}),
    (DDPG, "CnnPolicy", IMAGE, BOX, SMALL_CNN | {"net_arch": [8]}, {}),
    (TD3, "MlpPolicy", VECTOR, BOX, {"net_arch": {"pi": [9], "qf": [5]}, "activation_fn": nn.Sigmoid}, {}),
    (TD3, "CnnPolicy", IMAGE, BOX, SMALL_CNN | {"net_arch": [8], "share_features_extractor": True}, {}),
    (SAC, "MlpPolicy", VECTOR, BOX, {"net_arch": [8]}, {}),
    (SAC, "MlpPolicy", VECTOR, BOX, {"net_arch": [8], "clip_mean": 0.05}, {"use_sde": True}),
    (SAC, "CnnPolicy", IMAGE, BOX, SMALL_CNN | {"net_arch": [8]}, {}),
    (PPO, "MlpPolicy", TABLE, spaces.Box(-1, 1, (1, 3)), {"net_arch": [8], "ortho_init": False}, {}),
    *((kind, "MlpPolicy", TABLE, ROWS, {"net_arch": [8]}, {}) for kind in (A2C, TD3, SAC)),
]


def sample(rng: np.random.Generator, space: spaces.Box, rows: int) -> np.ndarray:
    if space.dtype == np.uint8:
        return rng.integers(0, 256, (rows, *space.shape), np.uint8)
    return rng.standard_normal((rows, *space.shape)).astype(np.float32)


def build(
    algorithm: type[BaseAlgorithm],
    policy: str,
    observed: spaces.Box,
    acts: spaces.Space[Any],
    kwargs: Any,
    options: Any,
) -> BaseAlgorithm:
    if algorithm not in (PPO, A2C):
        options = options | {"buffer_size": 10}
    env = Still(observed, acts)
    model = algorithm(policy, env, policy_kwargs=dict(kwargs), seed=3, device="cpu", **options)  # type: ignore[call-arg]
    with torch.no_grad():  # fresh heads give almost 0, where a missing tanh or clip would not show
        for layer in (module for module in model.policy.modules() if isinstance(module, nn.Linear)):
            layer.weight.mul_(2.0)
            layer.bias.add_(0.05)
    return model


def actions(policy: Policy, observations: np.ndarray) -> np.ndarray:
    return policy.head(as_float(policy, observations)[policy.output])


def identify(case: tuple[Any, ...]) -> str:
    return f"{case[0].__name__}-{case[1]}-{type(case[3]).__name__}-{'-'.join([*case[4], *case[5]])}"


@pytest.mark.parametrize("case", MODELS, ids=identify)
def test_model_zip_and_predict_agree(case: tuple[Any, ...], tmp_path: Path):
    model = build(*case)
    policy = from_model(model)
    model.save(tmp_path / "agent.zip")
    read = load.read(tmp_path / "agent.zip")
    assert_same(policy, read)
    assert read.provenance.algo == policy.provenance.algo == type(model).__name__.lower()
    observations = sample(np.random.default_rng(1), case[2], 2_000)
    expected, _ = model.predict(observations, deterministic=True)
    output = as_float(policy, observations)[policy.output]
    assert (np.ptp(output, axis=0) > 1e-3).all()  # not saturated: the comparison means something
    np.testing.assert_allclose(policy.head(output), expected, rtol=0, atol=1e-5)
    names = {name.removesuffix(".weight") for name, _ in model.policy.named_parameters()}
    assert names.issuperset(op.name for op in policy.linear)
    head_is_gaussian = isinstance(case[3], spaces.Box) and type(model) in (PPO, A2C) and not model.use_sde
    assert (policy.head.log_std is not None) == head_is_gaussian


def test_a_policy_does_not_change_when_training_goes_on():
    model = build(PPO, "MlpPolicy", VECTOR, BOX, {}, {})
    policy = from_model(model)
    observations = sample(np.random.default_rng(1), VECTOR, 5)
    before = actions(policy, observations)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.fill_(1.0)
    np.testing.assert_array_equal(actions(policy, observations), before)
    assert policy.head.log_std is not None
    assert not (policy.head.log_std == 1.0).any()


def test_a_model_keeps_its_training_mode():
    model = build(PPO, "MlpPolicy", VECTOR, BOX, {}, {})
    model.policy.set_training_mode(True)
    model.policy.value_net.eval()
    from_model(model)
    assert model.policy.training
    assert model.policy.action_net.training
    assert not model.policy.value_net.training


@pytest.mark.parametrize("clip", [10.0, 0.5])
def test_normalisation_becomes_part_of_the_policy(clip: float, tmp_path: Path):
    env = VecNormalize(DummyVecEnv([lambda: Still(VECTOR, BOX)]), clip_obs=clip)
    model = PPO("MlpPolicy", env, seed=0, device="cpu")
    env.reset()
    for _ in range(50):
        env.step([BOX.low])
    policy = from_model(model)
    assert isinstance(policy.ops[0], Normalize)
    raw = 3 * sample(np.random.default_rng(1), VECTOR, 2_000)
    expected, _ = model.predict(env.normalize_obs(raw), deterministic=True)
    np.testing.assert_allclose(actions(policy, raw), expected, rtol=0, atol=1e-5)
    run = tmp_path / "Drift-v0_1"
    (run / "Drift-v0").mkdir(parents=True)
    model.save(run / "Drift-v0.zip")
    env.save(str(run / "Drift-v0/vecnormalize.pkl"))
    assert_same(policy, load.read(run))


def test_rewards_alone_are_not_normalised_in_the_policy():
    env = VecNormalize(DummyVecEnv([lambda: Still(VECTOR, BOX)]), norm_obs=False)
    assert isinstance(from_model(PPO("MlpPolicy", env, device="cpu")).ops[0], Dense)


def test_statistics_of_single_frames_do_not_fit_a_stack_of_them():
    env = VecFrameStack(VecNormalize(DummyVecEnv([lambda: Still(VECTOR, BOX)])), 2)
    with pytest.raises(QuarlError, match=r"shape \(5,\), but the policy observes \(10,\)"):
        from_model(PPO("MlpPolicy", env, device="cpu"))


def test_the_environment_of_a_live_model_is_remembered():
    model = DQN("MlpPolicy", gymnasium.make("CartPole-v1", sutton_barto_reward=True), buffer_size=10, device="cpu")
    provenance = from_model(model).provenance
    assert (provenance.env_id, provenance.origin) == ("CartPole-v1", "sb3-live")
    assert provenance.env_kwargs["sutton_barto_reward"] is True


def wrapped(how: str) -> gymnasium.Env[Any, Any]:
    env = gymnasium.make("CartPole-v1", sutton_barto_reward=(lambda: True) if how == "kwargs" else False)
    if how == "observation":
        return gymnasium.wrappers.TransformObservation(env, lambda seen: -3 * seen, env.observation_space)
    return Monitor(env)


@pytest.mark.parametrize(("how", "known"), [("plain", "CartPole-v1"), ("observation", ""), ("kwargs", "")])
def test_an_environment_that_its_id_does_not_tell_is_none(how: str, known: str):
    """Evaluation in the bare environment would be of another task."""
    model = DQN("MlpPolicy", wrapped(how), buffer_size=10, device="cpu")
    assert from_model(model).provenance.env_id == known


def test_wrappers_of_vectors_that_may_change_what_is_observed_leave_no_environment():
    class Halved(VecEnvWrapper):
        def reset(self) -> Any:
            return self.venv.reset() / 2

        def step_wait(self) -> Any:
            observations, *others = self.venv.step_wait()
            return observations / 2, *others

    made = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])
    assert from_model(A2C("MlpPolicy", VecMonitor(made), device="cpu")).provenance.env_id == "CartPole-v1"
    assert from_model(A2C("MlpPolicy", Halved(made), device="cpu")).provenance.env_id == ""


def test_statistics_are_those_of_the_one_that_normalises_observations():
    inner = VecNormalize(DummyVecEnv([lambda: Still(VECTOR, BOX)]), norm_reward=False)
    model = PPO("MlpPolicy", VecNormalize(inner, norm_obs=False), device="cpu")
    assert isinstance(from_model(model).ops[0], Normalize)
    model = PPO("MlpPolicy", VecNormalize(inner), device="cpu")
    with pytest.raises(
        UnsupportedError, match="observations pass VecNormalize around VecNormalize: a policy has the statistics of one"
    ):
        from_model(model)


class Contrary(ActorCriticPolicy):
    def _predict(self, observation: Any, deterministic: bool = False) -> torch.Tensor:
        return -super()._predict(observation, deterministic)


def test_a_policy_class_that_does_more_than_its_networks_is_refused(tmp_path: Path):
    model = PPO(Contrary, Still(VECTOR, BOX), device="cpu")
    with torch.no_grad():
        model.policy.action_net.bias.fill_(0.2)
    with pytest.raises(UnsupportedError, match="Contrary"):
        from_model(model)
    model.save(tmp_path / "agent.zip")
    with pytest.raises(UnsupportedError, match="policy class is from"):
        load.read(tmp_path / "agent.zip")


class Squares(BaseFeaturesExtractor):
    """A features extractor of the author's own, of operators that are known."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, 5)
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 5), nn.Tanh())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(("learner", "called"), [(PPO, "PPO"), (SAC, "SAC"), (MaskablePPO, "MaskablePPO")])
def test_the_two_lines_that_the_refusal_of_a_custom_extractor_names_read_the_agent(
    learner: Any, called: str, normalized: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    venv: Any = DummyVecEnv([lambda: Still(VECTOR, BOX if learner is SAC else CHOICE)])
    env = VecNormalize(venv) if normalized else venv
    model = learner("MlpPolicy", env, policy_kwargs={"features_extractor_class": Squares}, device="cpu")
    model.save(tmp_path / "agent.zip")
    if normalized:
        env.obs_rms.mean += 0.25
        env.save(tmp_path / "vecnormalize.pkl")
    with pytest.raises(UnsupportedError) as refused:
        load.read(tmp_path / "agent.zip")
    said = str(refused.value)
    first, second = re.fullmatch(r".*; its own code reads it: (model = .*); (quarl\.from_sb3.*)", said).groups()
    assert f"model = {called}.load(path" in first
    assert ("VecNormalize" in first) == normalized
    monkeypatch.chdir(tmp_path)
    names = {"quarl": quarl, called: learner, "VecNormalize": VecNormalize, "venv": venv, "path": "agent.zip"}
    exec(f"{first}\n{second}", names)
    rows = venv.observation_space.sample()[None]
    expected, _ = model.predict(env.normalize_obs(rows) if normalized else rows, deterministic=True)
    np.testing.assert_allclose(quarl.load("policy.quarl").predict(rows)[0], expected, atol=1e-5)


def test_other_models_and_spaces_are_refused_by_name():
    with pytest.raises(UnsupportedError, match="ActorCriticPolicy is not a model of ppo"):
        from_model(PPO("MlpPolicy", Still(VECTOR, BOX), device="cpu").policy)
    with pytest.raises(UnsupportedError, match="MultiDiscrete that does not count from 0"):
        from_model(PPO("MlpPolicy", Still(VECTOR, spaces.MultiDiscrete([2, 2], start=[1, 1])), device="cpu"))


def test_weights_that_are_not_numbers_are_refused():
    model = build(PPO, "MlpPolicy", VECTOR, CHOICE, {}, {})
    with torch.no_grad():
        model.policy.mlp_extractor.policy_net[2].weight[0, 0] = float("nan")
    with pytest.raises(QuarlError, match=r"mlp_extractor\.policy_net\.2"):
        from_model(model)


def model_in(env: Any) -> Any:
    policy = "CnnPolicy" if len(env.observation_space.shape) == 3 else "MlpPolicy"
    return PPO(policy, env, n_steps=8, batch_size=8, device="cpu", seed=0)


def test_the_step_limit_of_a_live_environment_is_the_policys():
    model = model_in(gymnasium.make("CartPole-v1", max_episode_steps=8))  # no pole falls so soon
    mean, _ = evaluate_policy(model, model.get_env(), 10)
    played = quarl.Agent(from_model(model)).evaluate(episodes=10)
    assert mean == played.returns.mean() == played.lengths.max() == 8
    longer = gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1"), 1000)
    assert from_model(model_in(longer)).provenance.max_episode_steps is None  # the registered 500 hold
    shorter = gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1"), 100)
    assert from_model(model_in(shorter)).provenance.max_episode_steps == 100


def test_arguments_wrappers_and_frames_of_a_live_environment_are_the_policys():
    require.module("sb3_contrib")
    from sb3_contrib.common.wrappers import TimeFeatureWrapper

    def made() -> gymnasium.Env[Any, Any]:
        env = gymnasium.make("MountainCarContinuous-v0", goal_velocity=0.5, render_mode="rgb_array")
        return TimeFeatureWrapper(gymnasium.wrappers.TimeAwareObservation(env))

    model = model_in(VecFrameStack(make_vec_env(made, n_envs=2), 3))
    policy = from_model(model)
    assert policy.provenance.env_kwargs == {"goal_velocity": 0.5}
    assert [(name.rpartition(".")[2], kwargs) for name, kwargs in policy.provenance.wrappers] == [
        ("TimeAwareObservation", {"flatten": True, "normalize_time": False, "dict_time_key": "time"}),
        ("TimeFeatureWrapper", {"max_steps": 999, "test_mode": False}),
        ("VecFrameStack", {"n_stack": 3, "channels_order": "last"}),
    ]
    theirs, ours = model.get_env(), home_of(policy).make_for(policy)
    theirs.seed(7)
    assert np.array_equal(theirs.reset()[0], ours.reset(seed=7)[0])
    for _ in range(4):
        action = np.float32([1.5])
        assert np.array_equal(theirs.step(np.stack([action, action]))[0][0], ours.step(action)[0])


def test_the_preprocessing_of_a_live_atari_game_is_the_policys():
    require.module("ale_py")
    env = make_atari_env("PongNoFrameskip-v4", wrapper_kwargs={"noop_max": 7, "clip_reward": False})
    provenance = from_model(model_in(VecFrameStack(env, 4))).provenance
    assert provenance.env_kwargs == {}
    assert [(name.rpartition(".")[2], kwargs) for name, kwargs in provenance.wrappers] == [
        ("NoopResetEnv", {"noop_max": 7}),
        ("MaxAndSkipEnv", {"skip": 4}),
        ("EpisodicLifeEnv", {}),
        ("FireResetEnv", {}),
        ("WarpFrame", {"width": 84, "height": 84}),
        ("VecFrameStack", {"n_stack": 4, "channels_order": "last"}),
    ]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: wrapped("observation"), "the argument func of TransformObservation is not JSON: .*"),
        (lambda: wrapped("kwargs"), "the argument sutton_barto_reward of CartPole-v1 is not JSON: .*"),
        (lambda: Still(VECTOR, BOX), "it is not registered with Gymnasium"),
        (lambda: gymnasium.make("CartPole-v1", max_episode_steps=-1), "its time limit was removed"),
        (lambda: type("Mine", (gymnasium.Wrapper,), {})(gymnasium.make("CartPole-v1")), "Mine of .* is around it"),
    ],
)
def test_an_environment_that_cannot_be_made_again_is_told(make: Any, reason: str, capsys: Any):
    note_once.cache_clear()
    assert from_model(model_in(make())).provenance == Provenance(algo="ppo", origin="sb3-live")
    (said,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(f"quarl: the policy does not record its environment: {reason}. Pass it as env, .*", said)


@pytest.mark.parametrize("compiled", ["policy", "mlp_extractor", "action_net"])
def test_from_model_reads_a_compiled_model_under_its_plain_names(compiled: str):
    plain = from_model(model := build(*MODELS[1]))
    if compiled == "policy":
        model.policy = torch.compile(model.policy, backend="eager")
    else:
        setattr(model.policy, compiled, torch.compile(getattr(model.policy, compiled), backend="eager"))
    assert_same(from_model(model), plain)


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("sbx.sac.sac", "SAC", r"SAC is an agent of SBX \(Stable-Baselines Jax\).*quarl\.from_module"),
        ("mine", "Agent", "Agent is not a model of ppo, .*quarl.from_module"),
    ],
)
def test_from_model_names_the_kind_of_a_model_it_cannot_read(module: str, name: str, words: str):
    with pytest.raises(UnsupportedError, match=words):
        from_model(type(name, (), {"__module__": module})())
