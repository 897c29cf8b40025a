"""What type checkers, editors and `help` see of the package, as processes of their own see it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

RIGHT = """
import gymnasium
import numpy as np
import quarl
import torch
from quarl import qat
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

agent: quarl.Agent = quarl.load("model.zip", normalize="none")
small = agent.quantize("int8", mode="static", observations=np.zeros((16, 4), np.float32))
action, _ = small.predict([0.0, 0.1, 0.02, -0.1])
mean = float(small.evaluate(episodes=5, max_episode_steps=100).returns.mean())
microseconds: float = quarl.evaluate("model.zip", episodes=5, seed=1).us_per_step
table = quarl.ptq(agent, [8, "w4a8"], episodes=5, margin=10)
for row in table:
    print(row.precision, row.agreement, row.mean, mean, len(table), table[0].verdict, table.verdicts)
table.agents["int8"].save("policy.tflite")
trained: quarl.Agent = quarl.actorq("CartPole-v1", algo="dqn", params={"batch_size": 64}, net_arch=[64], actors=4).agent
print(table.to_pandas())
model = PPO("MlpPolicy", gymnasium.make("CartPole-v1"))
qat.prepare(model, "w4a8")
model.learn(100_000, callback=qat.QuantDelay(50_000))
qat.convert(model).save("policy.quarl")
evaluate_policy(quarl.from_sb3(model), gymnasium.make("CartPole-v1"))
network: quarl.Agent = quarl.from_module(torch.nn.Linear(4, 2), observation=(4,), head=gymnasium.spaces.Discrete(2))
try:
    quarl.load("nowhere.zip")
except quarl.QuarlError as error:
    print(error)
"""
MISTAKES = {
    'quarl.load("model.zip", normalise="none")': 'did you mean "normalize"?',
    'agent.quantize(precison="int8")': 'did you mean "precision"?',
    'agent.quantize(mode="statik")': "expected \"Literal['dynamic', 'static']\"",
    "agent.evaluate(episods=5)": 'did you mean "episodes"?',
    'agent.predict([0.0], engin="onnx")': 'did you mean "engine"?',
    'agent.save("policy.tflite", mode="static")': 'Unexpected keyword argument "mode"',
    "quarl.evaluate(agent, episods=5)": 'did you mean "episodes"?',
    "quarl.ptq(agent, episods=5)": 'did you mean "episodes"?',
    'quarl.actorq("CartPole-v1", actr=4)': 'did you mean "actors"?',
    "quarl.from_module(model.policy, observation=(4,), had=model.action_space)": 'keyword argument "had"',
    'quarl.lode("model.zip")': "Module has no attribute",
    'qat.prepare(model, spek="w4a8")': 'Unexpected keyword argument "spek"',
}
"""Lines of a script, each with what mypy says of it."""


def test_mypy_passes_a_right_script_and_finds_each_mistake_of_a_wrong_one(tmp_path, pytestconfig):
    head = ["from stable_baselines3 import PPO", "import quarl", "from quarl import qat"]
    head += ['agent, model = quarl.load("model.zip"), PPO("MlpPolicy", "CartPole-v1")']
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text("\n".join([*head, *MISTAKES]) + "\n")
    # reading torch and Stable-Baselines3 for the first time takes it a minute; without pytest's cache, every time
    cache = pytestconfig.cache.mkdir("mypy") if hasattr(pytestconfig, "cache") else tmp_path / "mypy"
    words = ["--strict", "--no-error-summary", "--cache-dir", str(cache), "right.py", "wrong.py"]
    said = _python("-m", "mypy", *words, cwd=tmp_path)
    errors = dict(re.findall(r"^wrong\.py:(\d+): error: (.*)$", said, re.MULTILINE))
    assert "right.py" not in said
    assert list(map(int, errors)) == [len(head) + 1 + number for number in range(len(MISTAKES))], said
    for line, (mistake, expected) in zip(errors.values(), MISTAKES.items(), strict=True):
        assert expected in line, mistake


def test_help_shows_what_the_package_offers_with_its_types(tmp_path):
    said = _python("-c", "import quarl; help(quarl)", cwd=tmp_path)
    agent = "'Agent | str | os.PathLike[str]'"
    assert "class Agent(" in said
    assert "class QuarlError(" in said
    normalize = r"normalize: 'str \| os\.PathLike\[str\] \| None' = None"
    assert re.search(rf"load\(\s*path: '[^']+',\s*\*,\s*{normalize},\s*frame_stack: 'int \| None' = None", said)
    assert re.search(rf"ptq\(\s*agent: {re.escape(agent)},\s*precisions: 'Sequence\[str \| int\]' =", said)
    assert re.search(rf"evaluate\(\s*agent: {re.escape(agent)},\s*/,\s*\*,\s*episodes: 'int' = 100", said)
    assert re.search(rf"distill\(\s*agent: {re.escape(agent)},\s*precision: 'str \| int' = 4", said)
    assert re.search(r"quantize\(\s*self,\s*precision: 'str \| int' = 'int8'", said)


def test_the_package_lists_what_it_offers_and_imports_none_of_it_before_it_is_used(tmp_path):
    code = "import quarl, sys; print({*quarl.__all__} <= {*dir(quarl)}, 'numpy' in sys.modules, *quarl.__all__)"
    said = "True False Agent QuarlError actorq compare distill evaluate from_module from_sb3 load ptq scheme"
    assert _python("-c", code, cwd=tmp_path).split() == said.split()


def test_functions_stay_functions_when_modules_of_the_package_are_imported(tmp_path):
    code = "import quarl.commands.ptq, quarl.evaluation, quarl.cli, quarl.actorq.actor; print(*map(callable, "
    code += "(quarl.ptq, quarl.evaluate, quarl.actorq)))"
    assert _python("-c", code, cwd=tmp_path).split() == ["True"] * 3


def _python(*words, cwd):
    """What the process says on stdout."""
    environment = os.environ | {"COLUMNS": "120", "PAGER": "cat", "TERM": "dumb"}
    ran = subprocess.run([sys.executable, *map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True)
    return ran.stdout
