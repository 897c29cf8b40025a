"""What the README shows of the Python API, on a real agent."""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from stable_baselines3.common.evaluation import evaluate_policy

import networks
import quarl
from quarl.errors import QuarlError

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.fixture(scope="module")
def agent(agents):
    return quarl.load(agents / "sb3" / "ppo" / "CartPole-v1_1")


def test_the_readmes_python_runs(agents, tmp_path, monkeypatch, capsys):
    _, code = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert len(code.splitlines()) <= 12
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs" / "dqn").mkdir(parents=True)
    (tmp_path / "logs" / "dqn" / "CartPole-v1_1").symlink_to(agents / "sb3" / "dqn" / "CartPole-v1_1")
    names: dict[str, object] = {}
    exec(compile(code.replace("episodes=100", "episodes=2"), "README.md", "exec"), names)
    assert capsys.readouterr().out.split() == ["500.0", "500.0"]
    assert isinstance(names["again"], quarl.Agent)
    assert (tmp_path / "policy.tflite").read_bytes()[4:8] == b"TFL3"


def test_the_readmes_training_runs(tmp_path, monkeypatch):
    code, _ = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code.replace("100_000", "4_096").replace("50_000", "2_048"), "README.md", "exec"), names)
    assert names["policy"].spec.precision == "int4"
    assert (tmp_path / "cartpole.zip").is_file()


def test_stable_baselines3_can_evaluate_an_agent(agent):
    small = agent.quantize("int8")
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    mean, _ = evaluate_policy(small, env, n_eval_episodes=2, warn=False)
    assert mean == 500


def test_one_observation_and_a_batch_get_the_same_actions(agent):
    x = networks.observations(agent.policy, 9)
    together, state = agent.predict(x)
    assert state is None
    assert together.tolist() == [int(agent.predict(row)[0]) for row in x]


def test_saved_files_hold_the_same_policy(agent, tmp_path):
    x = networks.observations(agent.policy, 64)
    small = agent.quantize("int4", observations=x)
    for name in ("p.quarl", "p.tflite", "p.onnx"):
        small.save(tmp_path / name)
    assert np.array_equal(quarl.load(tmp_path / "p.quarl").predict(x)[0], small.predict(x)[0])
    assert np.array_equal(small.predict(x, engine="onnx")[0], small.predict(x)[0])


def test_images_are_bytes():
    """Runtimes would cut the fractions off without a word."""
    policy = networks.convolutional()
    x = networks.observations(policy, 2)
    agent = quarl.api.Agent(policy)
    assert len(agent.predict(x)[0]) == 2
    with pytest.raises(QuarlError, match=r"observation is float32, the policy expects bytes 0\.\.255"):
        agent.predict(x.astype(np.float32) / 255)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda agent: agent.predict(np.zeros(7, np.float32)), r"observation is \(7,\), the policy expects \(4,\)"),
        (lambda agent: agent.predict(np.zeros(4, np.float32), deterministic=False), "deterministic"),
        (lambda agent: agent.quantize("fp16").quantize("int8"), "is fp16 already"),
        (lambda agent: agent.quantize("int99"), "weight bits must be"),
    ],
)
def test_mistakes_are_one_line(agent, call, message):
    with pytest.raises(QuarlError, match=message):
        call(agent)
