"""Trained agents of sb3-contrib's algorithms score what was published; damaged ones are refused in one line."""

from __future__ import annotations

import json
import pickle
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import ARS, QRDQN, TQC, TRPO, CrossQ, MaskablePPO

import quarl
from quarl import qat
from quarl.calibration import quantize
from quarl.commands.train import run as train
from quarl.config import TrainConfig
from quarl.engines import greedy
from quarl.errors import QuarlError, UnsupportedError
from quarl.evaluation import record
from quarl.quant.spec import EXACT
from quarl.readers import find, load, sb3
from sb3_archives import Change, Still, blob, data_with, edit, kwargs_with, space, tensors_with

AGENTS = {
    "ars/Acrobot-v1": ARS,
    "ars/MountainCarContinuous-v0": ARS,
    "qrdqn/MountainCar-v0": QRDQN,
    "tqc/MountainCarContinuous-v0": TQC,
    "trpo/Acrobot-v1": TRPO,
    "trpo/HalfCheetahBulletEnv-v0": TRPO,
}
PUBLISHED_STEPS = 150_000


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_of_2021_acts_as_sb3_contrib_has_it(agent: str, more_agents: Path, monkeypatch: pytest.MonkeyPatch):
    algo, env_id = agent.split("/")
    path = find.in_zoo(more_agents / "sb3", algo, env_id)
    policy = sb3.read_zip(path, algo=algo)
    assert (policy.provenance.algo, policy.provenance.env_id) == (algo, env_id)
    for module in ("", ".spaces", ".spaces.box", ".spaces.discrete"):  # the oracle unpickles gym's old names
        monkeypatch.setitem(sys.modules, f"gym{module}", sys.modules[f"gymnasium{module}"])
    constants = {"learning_rate": 0.0, "lr_schedule": lambda _: 0.0, "delta_std_schedule": lambda _: 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AGENTS[agent].load(path, custom_objects=constants, device="cpu")
    raw = record(policy, num=2_000)
    observations = raw
    if (statistics := path.parent / env_id / "vecnormalize.pkl").exists():
        observations = pickle.loads(statistics.read_bytes()).normalize_obs(raw)
    expected, _ = model.predict(observations, deterministic=True)
    away = policy.head.distance(expected, greedy(quantize(policy, EXACT), raw))
    assert away.max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_the_published_return_is_not_told_apart_from_the_one_played(agent: str, more_agents: Path):
    mean, std = json.loads((more_agents / "reference.json").read_text())["sb3"][agent]
    algo, env_id = agent.split("/")
    episodes = 10 if "Bullet" in agent else 100
    played = quarl.evaluate(find.in_zoo(more_agents / "sb3", algo, env_id), episodes=episodes)
    errors = std**2 / (PUBLISHED_STEPS / played.lengths.mean()), played.returns.var(ddof=1) / episodes
    assert abs(played.returns.mean() - mean) < 1.96 * np.sqrt(sum(errors))


BOX, CHOICE = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)
MODELS: dict[str, Any] = {
    "qrdqn": lambda env: QRDQN("MlpPolicy", env(CHOICE), buffer_size=10, policy_kwargs={"n_quantiles": 5}),
    "crossq": lambda env: CrossQ("MlpPolicy", env(BOX), buffer_size=10),
    "tqc": lambda env: TQC("MlpPolicy", env(BOX), buffer_size=10),
    "ars": lambda env: ARS("MlpPolicy", env(BOX)),
    "linear ars": lambda env: ARS("LinearPolicy", env(BOX)),
    "trpo": lambda env: TRPO("MlpPolicy", env(BOX)),
    "maskableppo": lambda env: MaskablePPO("MlpPolicy", env(CHOICE)),
}


def model(name: str) -> Any:
    return MODELS[name](lambda actions: Still(spaces.Box(-1, 1, (4,)), actions))


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("contrib")
    for name in MODELS:
        model(name).save(folder / f"{name}.zip")
    return {name: (folder / f"{name}.zip").read_bytes() for name in MODELS}


def without(name: str) -> Change:
    return tensors_with(lambda state: state.pop(name))


def filled(name: str, value: float) -> Change:
    return tensors_with(lambda state: state[name].fill_(value))


def sized(*shapes: tuple[str, tuple[int, ...]]) -> Change:
    return tensors_with(lambda state: state.update({name: torch.zeros(shape) for name, shape in shapes}))


QUANTILES = "quantile_net.quantile_net.4"
SIXTEEN = (f"{QUANTILES}.weight", (16, 64)), (f"{QUANTILES}.bias", (16,))
NO_CLASS = blob(b"\x80\x04.") | {"__module__": "sb3_contrib.ars.policies"}
NOBODYS = {"__module__": "sb3_contrib.common.nothing.policies"}
FOUR = data_with(n_quantiles=None, action_space=space(spaces.Discrete(4)))
DAMAGE: list[tuple[str, Change, str]] = [
    (
        "qrdqn",
        sized(*SIXTEEN),
        "16 outputs, not 5 quantiles of 3",
    ),
    ("qrdqn", FOUR, "15 outputs, not whole quantiles of 4"),
    ("qrdqn", data_with(action_space=space(BOX)), "action_space is Box, which qrdqn cannot have"),
    ("crossq", filled("actor.latent_pi.0.ra_mean", np.inf), "'actor.latent_pi.0.ra_mean' holds NaN or infinity"),
    ("crossq", filled("actor.latent_pi.0.ra_var", -1), "actor.latent_pi.0.ra_var is negative"),
    ("crossq", sized(("actor.latent_pi.3.bias", (1,))), "has shape (1,), expected (256,)"),
    ("crossq", without("actor.latent_pi.1.weight"), "layers at places [4]"),
    ("crossq", kwargs_with(batch_norm_eps="much"), "batch_norm_eps of the policy is much"),
    ("crossq", kwargs_with(batch_norm_eps=-2.0), "batch_norm_eps of the policy is -2.0"),
    ("tqc", data_with(action_space=space(CHOICE)), "action_space is Discrete, which tqc cannot have"),
    ("ars", without("action_net.2.bias"), "'action_net.2.bias' is missing"),
    ("linear ars", sized(("action_net.0.bias", (2,))), "'action_net.0.bias' does not belong to a known network"),
    ("maskableppo", data_with(action_space=space(spaces.Discrete(4))), "scores 3 actions, action_space has 4"),
    (
        "maskableppo",
        data_with(policy_class=NOBODYS),
        "it is a nothing agent",
    ),
]


@pytest.mark.parametrize(
    ("name", "change", "words"), [pytest.param(*case, id=f"{case[0]}-{case[2]}") for case in DAMAGE]
)
def test_a_damaged_agent_is_refused_in_one_line(
    archives: dict[str, bytes], tmp_path: Path, name: str, change: Change, words: str
):
    path = tmp_path / "Still-v0.zip"
    path.write_bytes(archives[name])
    load.read(path)  # whole, it is read
    edit(tmp_path, change)
    with pytest.raises(QuarlError, match=re.escape(words)):
        load.read(path)


def test_the_first_linear_policies_had_one_layer_of_another_name(archives: dict[str, bytes], tmp_path: Path):
    path = tmp_path / "Still-v0.zip"
    path.write_bytes(archives["linear ars"])
    weight = torch.tensor([[1.0, 2, 3, 4], [0, 0, 0, 0.5]])
    edit(tmp_path, tensors_with(lambda state: (state.clear(), state.update({"action_net.weight": weight}))))
    agent = quarl.load(path)
    assert agent.predict([0.1, 0.1, 0.1, 0.02])[0].tolist() == pytest.approx([0.68, 0.01])
    assert agent.predict([1.0, 0, 0, -1])[0].tolist() == [-1.0, -0.5]  # clipped, not squashed


@pytest.mark.parametrize("name", [name for name in MODELS if name != "linear ars"])
def test_training_for_a_precision_refuses_what_it_cannot_take_by_name(name: str):
    learner = model(name)
    before = {key: tensor.clone() for key, tensor in learner.policy.state_dict().items()}
    with pytest.raises(UnsupportedError, match=f"not {name}: distill the trained agent instead"):
        qat.prepare(learner, "w4a8")
    after = learner.policy.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)


@pytest.mark.parametrize("name", ["qrdqn", "ars"])
def test_scores_that_are_no_distribution_are_not_sampled(name: str):
    env = Still(spaces.Box(-1, 1, (4,)), CHOICE)
    learner = ARS("MlpPolicy", env) if name == "ars" else model(name)
    with pytest.raises(QuarlError, match=f"{name} predicts values of actions, not a distribution"):
        quarl.from_sb3(learner).evaluate(env=env, episodes=1, stochastic=True)


def test_a_trained_agent_of_an_algorithm_that_is_not_trained_here_is_named(
    archives: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "agent.zip"
    path.write_bytes(archives["tqc"])
    config = TrainConfig(algo="sac", env="Pendulum-v1", n_timesteps=100, trained_agent=path)
    with pytest.raises(QuarlError, match="is a tqc agent, not sac; quarl ptq and quarl distill take it"):
        train(config)
    assert not (tmp_path / "logs").exists()
