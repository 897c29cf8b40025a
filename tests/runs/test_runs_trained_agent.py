"""Fine-tuning starts from exactly the agent in the file, and nothing in the file is executed."""

from __future__ import annotations

import base64
import json
import pickle

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from training_runs import QUIET, SMALL, same, train, weights

import quarl
from quarl.api import Agent
from quarl.cli import main, parse
from quarl.errors import QuarlError
from quarl.readers.extract import from_model
from quarl.runs.train import Training
from sb3_archives import data_with, kwargs_with, tensors_with, unzipped, zipped


def session(path, algo, env, *more, say=lambda line: None):
    config = parse(["train", "--algo", algo, "--env", env, "-i", str(path), *QUIET, *map(str, more)])
    config.check()
    return Training(config, say)


def observations(model, num=256):
    rng = np.random.default_rng(0)
    return rng.normal(size=(num, *model.observation_space.shape)).astype(np.float32)


def same_actions(one, other):
    rows = observations(one)
    return np.array_equal(one.predict(rows, deterministic=True)[0], other.predict(rows, deterministic=True)[0])


@pytest.mark.parametrize(
    ("algo", "cls", "env", "kwargs"),
    [
        ("ppo", PPO, "CartPole-v1", {"net_arch": {"pi": [12, 9], "vf": [7]}, "activation_fn": torch.nn.ReLU}),
        ("ppo", PPO, "Pendulum-v1", {}),
        ("dqn", DQN, "CartPole-v1", {"net_arch": [24], "activation_fn": torch.nn.Tanh}),
        ("sac", SAC, "Pendulum-v1", {"net_arch": [16, 8]}),
        ("td3", TD3, "Pendulum-v1", {"net_arch": [16]}),
    ],
)
def test_actions_at_step_0_are_the_file_s_agent_s(algo, cls, env, kwargs, tmp_path):
    torch.manual_seed(7)
    theirs = cls("MlpPolicy", env, policy_kwargs=kwargs, device="cpu", seed=5)
    with torch.no_grad():
        for parameter in theirs.policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    theirs.save(tmp_path / "agent.zip")
    ours = session(tmp_path / "agent.zip", algo, env).model
    assert same_actions(ours, theirs)
    own, found = weights(theirs), weights(ours)
    assert {name for name in own if not np.array_equal(own[name], found[name])} <= {
        name for name in own if "_target." in name
    }


def test_targets_start_as_copies_and_dqn_explores_at_its_final_epsilon_and_acts_itself(tmp_path):
    DQN("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [8]}, device="cpu").save(tmp_path / "agent.zip")
    model = session(tmp_path / "agent.zip", "dqn", "CartPole-v1").model
    assert same(
        {name: tensor.numpy() for name, tensor in model.q_net.state_dict().items()},
        {name: tensor.numpy() for name, tensor in model.q_net_target.state_dict().items()},
    )
    assert {model.exploration_schedule(progress) for progress in (1.0, 0.9, 0.5, 0.0)} == {0.04}  # the zoo's
    model._setup_learn(1000)
    model.exploration_rate = 0.0
    greedy = model.predict(model._last_obs, deterministic=True)[0]
    assert all(model._sample_action(1000, None, 1)[0] == greedy for _ in range(20))


def test_the_entropy_coefficient_is_the_file_s(tmp_path):
    theirs = SAC("MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": [8]}, ent_coef="auto_0.05", device="cpu")
    theirs.save(tmp_path / "agent.zip")
    model = session(tmp_path / "agent.zip", "sac", "Pendulum-v1").model
    assert model.log_ent_coef.item() == theirs.log_ent_coef.item()
    assert model.log_ent_coef.requires_grad


def test_statistics_and_wrappers_come_from_the_agent_s_folder(tmp_path):
    wrapper = "env_wrapper:sb3_contrib.common.wrappers.TimeFeatureWrapper"
    train(tmp_path, "ppo", "CartPole-v1", 256, "normalize:True", wrapper)
    path = tmp_path / "logs/ppo/CartPole-v1_1/CartPole-v1.zip"
    found = session(path, "ppo", "CartPole-v1")
    saved = pickle.loads((path.parent / "CartPole-v1/vecnormalize.pkl").read_bytes())  # our own, of a moment ago
    wrapper = found.model.get_vec_normalize_env()
    for name in ("obs_rms", "ret_rms"):
        ours, theirs = getattr(wrapper, name), getattr(saved, name)
        assert (ours.mean == theirs.mean).all()
        assert (ours.var == theirs.var).all()
        assert ours.count == theirs.count
    assert found.options.recipe.environment.wrappers == (("sb3_contrib.common.wrappers.TimeFeatureWrapper", {}),)
    agent, again = quarl.load(path), from_model(found.model)
    rows = observations(found.model)
    assert np.array_equal(agent.predict(rows)[0], Agent(again).predict(rows)[0])


def pushed(tmp_path, normalize, agent, statistics):
    """The path of a trained agent of that name, beside nothing but its statistics, of that name."""
    train(tmp_path, "ppo", "CartPole-v1", 256, normalize)
    run, folder = tmp_path / "logs/ppo/CartPole-v1_1", tmp_path / "pushed"
    folder.mkdir()
    (run / "CartPole-v1/vecnormalize.pkl").rename(folder / statistics)
    return (run / "CartPole-v1.zip").rename(folder / agent)


def test_statistics_beside_a_lone_zip_go_on_being_its_own(tmp_path):
    path = pushed(tmp_path, "normalize:True", "ppo-CartPole-v1.zip", "vec_normalize.pkl")
    said = []
    found = session(path, "ppo", "CartPole-v1", say=said.append)
    saved = pickle.loads((tmp_path / "pushed/vec_normalize.pkl").read_bytes())  # our own, of a moment ago
    assert (found.model.get_vec_normalize_env().obs_rms.mean == saved.obs_rms.mean).all()
    assert not any("vecnormalize.pkl" in line for line in said)


def test_a_lone_zip_is_normalised_as_its_statistics_say(tmp_path):
    options = "normalize:dict(clip_obs=0.5,epsilon=0.01,norm_reward=False)"
    path = pushed(tmp_path, options, "agent.zip", "vecnormalize.pkl")
    found = session(path, "ppo", "CartPole-v1")
    wrapper = found.model.get_vec_normalize_env()
    assert (wrapper.clip_obs, wrapper.epsilon, wrapper.norm_reward, wrapper.norm_obs) == (0.5, 0.01, False, True)
    rows = observations(found.model)
    agent = quarl.load(path)
    assert np.array_equal(agent.predict(rows)[0], Agent(from_model(found.model)).predict(rows)[0])
    other = session(path, "ppo", "CartPole-v1", "--params", "normalize:dict(clip_obs=9.0)")
    assert other.model.get_vec_normalize_env().clip_obs == 9.0


def test_bounds_that_do_not_clip_are_kept(tmp_path):
    PPO("MlpPolicy", "CartPole-v1", device="cpu").save(tmp_path / "agent.zip")
    wrapper = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]), clip_obs=np.inf)
    wrapper.reset()
    wrapper.save(tmp_path / "vecnormalize.pkl")
    found = session(tmp_path / "agent.zip", "ppo", "CartPole-v1")
    assert found.model.get_vec_normalize_env().clip_obs == np.inf


def test_a_lone_zip_is_not_normalised_though_the_zoo_would(tmp_path):
    PPO("MlpPolicy", "Acrobot-v1", device="cpu").save(tmp_path / "agent.zip")
    said = []
    found = session(tmp_path / "agent.zip", "ppo", "Acrobot-v1", say=said.append)
    assert found.model.get_vec_normalize_env() is None
    found.folder()
    assert any("no VecNormalize statistics: observations are not normalized" in line for line in said)
    forced = session(tmp_path / "agent.zip", "ppo", "Acrobot-v1", "--params", "normalize:True")
    assert forced.model.get_vec_normalize_env() is not None


@pytest.mark.slow
def test_a_fine_tuned_run_trains_and_resumes_without_its_file(tmp_path, capsys):
    path = tmp_path / "agent.zip"
    DQN("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [8]}, device="cpu").save(path)
    words = ["train", "--algo", "dqn", "-n", "300", "-i", str(path), *QUIET, "--qat", "4", "--quant-delay", "100"]
    words += ["--params", *SMALL["dqn"].split()]
    assert main(words) == 0
    path.unlink()
    assert main(["train", "--resume", "--algo", "dqn", "-n", "400", "--json", "row.json"]) == 0
    (row,) = json.loads((tmp_path / "row.json").read_text())["rows"]
    assert (row["timesteps"], row["precision"]) == (400, "w4a8e8")
    assert row["switched_at"] == 112  # the first rollout of 16 steps from step 100 on
    said = capsys.readouterr().err
    assert said.count("fake quantization is active from step 112 on") == 1
    assert said.count("no VecNormalize statistics") == 1
    assert said.count("quarl: ") == 4  # and where the hyper-parameters are from, and where it goes on


@pytest.mark.parametrize(
    ("algo", "env", "run"),
    [
        ("dqn", "CartPole-v1", "dqn/CartPole-v1_1"),
        ("dqn", "MountainCar-v0", "dqn/MountainCar-v0_1"),
        ("ddpg", "MountainCarContinuous-v0", "ddpg/MountainCarContinuous-v0_1"),
        ("ppo", "CartPole-v1", "ppo/CartPole-v1_1"),
        ("ppo", "MountainCarContinuous-v0", "ppo/MountainCarContinuous-v0_1"),
    ],
)
def test_the_zoo_s_agents_of_2021_can_be_fine_tuned(algo, env, run, agents):
    folder = agents / "sb3" / run
    found = session(folder, algo, env)
    policy = quarl.load(folder)
    rows = observations(found.model)
    expected, actions = policy.predict(rows)[0], Agent(from_model(found.model)).predict(rows)[0]
    np.testing.assert_allclose(actions, expected, atol=1e-5)


def saved(tmp_path, change):
    """The path of a PPO's zip, changed."""
    model = PPO("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [8], "activation_fn": torch.nn.ReLU})
    path = tmp_path / "agent.zip"
    model.save(path)
    members = unzipped(path.read_bytes())
    change(members)
    path.write_bytes(zipped(members))
    return path


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_nothing_in_the_file_is_executed(tmp_path):
    canary = tmp_path / "canary"
    bomb = {":type:": "x", ":serialized:": base64.b64encode(pickle.dumps(Bomb(canary))).decode()}
    kwargs = {**bomb, "net_arch": [8], "activation_fn": "<class 'torch.nn.modules.activation.ReLU'>"}
    path = saved(tmp_path, data_with(learning_rate=bomb, lr_schedule=bomb, policy_kwargs=kwargs, clip_range=bomb))
    session(path, "ppo", "CartPole-v1")
    assert not canary.exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (kwargs_with(net_arch=[10**6]), "which its weights are not"),
        (kwargs_with(net_arch=[8, 8]), "missing"),
        (kwargs_with(net_arch={"pi, x=__import__('os')": [8]}), "not numbers by name"),
        (kwargs_with(net_arch="__import__('os')"), "which its weights are not"),
        (kwargs_with(activation_fn="<class 'os.system'>"), "activation function"),
        (tensors_with(lambda state: state.update(extra=torch.zeros(3))), "extra"),
        (tensors_with(lambda state: state["action_net.bias"].fill_(float("nan"))), "NaN"),
        (tensors_with(lambda state: state.pop("value_net.bias")), "value_net.bias is missing in the file"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused_in_one_line(change, said, tmp_path):
    path = saved(tmp_path, change)
    with pytest.raises(QuarlError, match=said):
        session(path, "ppo", "CartPole-v1")


def test_another_algorithm_s_or_environment_s_zip_is_named(tmp_path):
    path = saved(tmp_path, lambda members: None)
    with pytest.raises(QuarlError, match="is a ppo agent, not a2c"):
        session(path, "a2c", "CartPole-v1")
    with pytest.raises(QuarlError, match=r"observes \(4,\) and this environment gives \(6,\)"):
        session(path, "ppo", "Acrobot-v1")
    TD3("MlpPolicy", "Pendulum-v1", buffer_size=10).save(tmp_path / "td3.zip")
    with pytest.raises(QuarlError, match="is a td3 agent, not ddpg"):
        session(tmp_path / "td3.zip", "ddpg", "Pendulum-v1")


def test_a_folder_whose_agent_needs_statistics_that_are_gone_is_refused(tmp_path):
    train(tmp_path, "ppo", "CartPole-v1", 256, "normalize:True")
    run = tmp_path / "logs/ppo/CartPole-v1_1"
    (run / "CartPole-v1/vecnormalize.pkl").unlink()
    with pytest.raises(QuarlError, match=r"vecnormalize\.pkl"):
        session(run, "ppo", "CartPole-v1")
