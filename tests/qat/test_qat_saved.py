"""A saved or live model of quantization-aware training is read in the integers that it acts in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learners import ALGORITHMS, Pictures, make
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import quarl
from quarl import qat
from quarl.cli import main
from quarl.errors import QuarlError, note_once
from quarl.export.contract import digests
from quarl.qat.policies import QatPolicy
from quarl.readers import load, sb3
from refusals import refused
from sb3_archives import unzipped, zipped

GOLDEN = Path(__file__).parents[1] / "golden/train/dqn/CartPole-v1_1"


@pytest.fixture(autouse=True)
def _heard() -> None:
    note_once.cache_clear()


def rows(model: Any, num: int = 200) -> np.ndarray:
    """Return random observations of the model's space."""
    rng, space = np.random.default_rng(0), model.observation_space
    shape = (num, *space.shape)
    return rng.integers(0, 256, shape, np.uint8) if space.dtype == np.uint8 else rng.normal(size=shape).astype("f4")


def prepared(algo: str, spec: Any = "w3a8", *, env: Any = None, act: bool = True, **kwargs: Any) -> Any:
    """Return a model whose ranges are those of random observations, without training it."""
    model = make(algo, **kwargs)
    if env is not None:
        cls, _, settings = ALGORITHMS[algo]
        model = cls("CnnPolicy" if len(env.observation_space.shape) == 3 else "MlpPolicy", env, **settings, **kwargs)
    qat.prepare(model, spec)
    policy = model.policy
    assert isinstance(policy, QatPolicy)
    policy.followed = True
    policy.set_training_mode(True)
    network = next((getattr(policy, name) for name in ("q_net", "actor") if hasattr(policy, name)), policy)
    network(policy.obs_to_tensor(rows(model))[0])
    qat.follow(model, active=act)
    policy.set_training_mode(False)
    return model


def errors(model: Any, agent: quarl.Agent) -> np.ndarray:
    """Return how far the agent's actions are from those of the model as Stable-Baselines3 loads it, in its range."""
    x = rows(model)
    right, given = model.predict(x, deterministic=True)[0], agent.predict(x, engine="reference")[0]
    return agent.policy.head.distance(right, given).ravel()


def saved(model: Any, folder: Path) -> tuple[Any, Path]:
    """Return the model as Stable-Baselines3 loads it, and its zip."""
    model.save(folder / "agent.zip")
    return type(model).load(folder / "agent.zip"), folder / "agent.zip"


CASES: dict[str, Any] = {
    **{algo: lambda algo=algo: prepared(algo) for algo in ALGORITHMS},
    "classes among the arguments": lambda: prepared("ppo", policy_kwargs={"activation_fn": torch.nn.ReLU}),
    "gSDE": lambda: prepared("sac", policy_kwargs={"net_arch": [8]}, use_sde=True),
    "float activations": lambda: prepared("ppo", "w4"),
    "edges and a skipped layer": lambda: prepared(
        "dqn", qat.QatSpec.parse("w2a6e8", output_bits=7, skip=("q_net.q_net.2",))
    ),
    "a critic": lambda: prepared("td3", qat.QatSpec.parse("w4a8", critic=True)),
    "images": lambda: prepared("dqn", env=Pictures(), policy_kwargs={"net_arch": [8]}),
}


@pytest.mark.parametrize("case", CASES)
def test_reading_a_saved_model_gives_what_it_acts_with(case: str, tmp_path: Path, capsys: Any):
    model = CASES[case]()
    loaded, path = saved(model, tmp_path)
    agent, live = quarl.load(path), quarl.from_sb3(model)
    in_float = quarl.Agent(sb3.read_zip(path, trained=False))
    converted = qat.quantized_policy(model)
    for each in (agent.policy, live.policy):
        assert digests(each) == digests(converted)
        assert each.spec == converted.spec
    # a sum next to a tie may round the other way on another processor
    assert np.quantile(errors(loaded, agent), 0.99) < 1e-5
    assert agent.policy.head.is_discrete or errors(loaded, in_float).max() > 1e-4
    words, asked = converted.spec.in_words, model.policy.spec.precision
    said = capsys.readouterr().err
    for name in (path.name, "the model"):
        assert f"quarl: {name} is trained for {asked}: read in the integers that it acts in, {words}\n" in said


def test_statistics_of_observations_stay_in_front_of_the_integers(tmp_path: Path):
    env = VecNormalize(DummyVecEnv([lambda: make("ppo").get_env().envs[0]]))
    model = prepared("ppo", env=env)
    env.obs_rms.mean, env.obs_rms.var = np.arange(4.0), np.arange(1, 5.0)
    _, path = saved(model, tmp_path)
    env.save(str(tmp_path / "vecnormalize.pkl"))
    x = rows(model)
    right = model.predict(env.normalize_obs(x), deterministic=True)[0]
    for agent in (quarl.load(path, normalize=tmp_path / "vecnormalize.pkl"), quarl.from_sb3(model)):
        assert agent.policy.spec.precision == "int3"
        assert (agent.predict(x)[0] == right).mean() >= 0.99


def test_zips_of_earlier_releases_are_read_as_their_integers():
    in_zip, integers = load.read(GOLDEN / "CartPole-v1.zip"), load.read(GOLDEN / "CartPole-v1.quarl")
    assert digests(in_zip) == digests(integers)
    assert in_zip.spec == integers.spec


@pytest.mark.parametrize("algo", ["ppo", "td3"])
def test_a_model_before_its_delay_is_over_is_float_and_said_to_be(algo: str, tmp_path: Path, capsys: Any):
    model = prepared(algo, act=False)
    loaded, path = saved(model, tmp_path)
    for read, name in (lambda: quarl.load(path), "agent.zip"), (lambda: quarl.from_sb3(model), "the model"):
        agent = read()
        assert repr(agent).count("fp32") == 1
        assert np.quantile(errors(loaded, agent), 0.99) < 1e-5
        line = f"quarl: {name} is prepared for w3a8, but its delay is not over: it acts in float32\n"
        assert line in capsys.readouterr().err


@pytest.mark.slow
def test_verbs_tell_what_they_do_with_a_saved_model(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    model = prepared("ppo")
    saved(model, tmp_path)
    agent = quarl.load("agent.zip")
    assert agent.quantize("w3a8") is agent.quantize("int3", mode="static") is agent
    assert "the policy is int3 static already: its codes and grids are kept" in capsys.readouterr().err
    for other in ({"precision": "int8"}, {"precision": 3, "scheme": "plain-2020"}):
        with pytest.raises(QuarlError, match=r"int3 static already|unknown scheme"):
            agent.quantize(**other)
    np.save("seen.npy", rows(model))
    words = ["--observations", "seen.npy", "-o", "out"]
    assert main(["export", "agent.zip", "--to", "c", *words]) == 0
    assert "int3 static" in capsys.readouterr().out
    assert json.loads(Path("out/contract.json").read_text())["sha256"] == digests(qat.quantized_policy(model))
    assert main(["eval", "agent.zip", "--env", "CartPole-v1", "--episodes", "2"]) == 0
    assert "int3" in capsys.readouterr().out
    for verb in ("ptq", "distill"):
        assert main([verb, "agent.zip", "--env", "CartPole-v1", "-o", "none"]) == 2
        assert "agent.zip is already quantized (int3)" in capsys.readouterr().err
    found = Path("logs/ppo/CartPole-v1_1/CartPole-v1.zip")
    found.parent.mkdir(parents=True)
    found.write_bytes(Path("agent.zip").read_bytes())
    assert main(["distill", "ppo", "CartPole-v1", "-f", "logs", "-o", "none"]) == 2
    assert f"{found} is already quantized (int3)" in capsys.readouterr().err
    assert not Path("none").exists()


def test_modules_of_a_model_that_acts_in_integers_are_refused():
    model = prepared("dqn")
    with pytest.raises(QuarlError, match=r"give the model to quarl\.from_sb3"):
        quarl.from_module(model.policy.q_net.q_net, (4,), model.action_space)


def test_integers_without_a_range_are_refused(tmp_path: Path):
    model = make("dqn")
    qat.prepare(model, "w4a8")
    qat.follow(model, active=True)
    _, path = saved(model, tmp_path)
    with pytest.raises(QuarlError, match=r"agent\.zip: training has seen no values of 'observation'; train longer"):
        quarl.load(path)


Plan = Callable[[dict[str, Any]], Any]
LAYER: Any = lambda qat: qat["networks"][""]["layers"][0]  # noqa: E731
BROKEN: dict[str, tuple[Plan, str]] = {
    "no plan": (lambda qat: qat.clear(), "plan is missing or malformed"),
    "a layer too few": (lambda qat: qat["networks"][""]["layers"].pop(), "plan is missing or malformed"),
    "another layer": (lambda qat: LAYER(qat).update(path="x"), "plan is missing or malformed"),
    "rows": (lambda qat: qat["networks"][""].update(rows=99), "plan is missing or malformed"),
    "bits of a grid": (lambda qat: LAYER(qat)["before"].update(bits=10**12), "malformed"),
    "text": (lambda qat: LAYER(qat)["behind"].update(bits="8"), "malformed"),
    "a row": (lambda qat: LAYER(qat)["source"].update(row=77), "training has seen no values"),
    "bits of a layer": (lambda qat: LAYER(qat).update(bits=99), "bits must be"),
    "bits of the spec": (lambda qat: qat["spec"].update(weight_bits="4"), "malformed"),
    "an option that was removed": (lambda qat: qat["spec"].update(ranges="lsq"), "this option was removed"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_plan_that_is_missing_or_malformed_is_refused_in_a_line(what: str, tmp_path: Path, capsys: Any):
    _, path = saved(prepared("ppo"), tmp_path)
    members = unzipped(path.read_bytes())
    data = json.loads(members["data"])
    change, words = BROKEN[what]
    change(data["policy_kwargs"]["qat"])
    path.write_bytes(zipped(members | {"data": json.dumps(data).encode()}))
    line = refused(capsys, "eval", path, "--env", "CartPole-v1")
    assert words in line
    assert str(path) in line
