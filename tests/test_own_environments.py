"""Every verb and method plays in an environment that is named, described or handed over, or names the fix it has."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import fields, replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import registry
from sb3_contrib import MaskablePPO
from sb3_contrib.common.wrappers import ActionMasker

import networks
import quarl
from quarl import engines
from quarl.calibration import quantize
from quarl.cli import main
from quarl.config import VERBS
from quarl.errors import QuarlError, note_once
from quarl.policy import artifact
from quarl.quant.spec import EXACT


class Seven(gymnasium.Env):
    """Seven steps, each worth 1."""

    observation_space, action_space = gymnasium.spaces.Box(-9, 9, (4,), np.float32), gymnasium.spaces.Discrete(3)
    resets = closed = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.resets = 0, self.resets + 1
        return self._observe(), {}

    def _observe(self):
        self.allowed = np.array([True, self.np_random.random() < 0.5, False])
        return self.np_random.normal(size=4).astype(np.float32)

    def step(self, action):
        self.t += 1
        return self._observe(), 1.0, self.t >= 7, False, {}

    def close(self):
        self.closed += 1


class Strict(Seven):
    """It refuses action 2, as its masks would say."""

    def step(self, action):
        assert action < 2, "action 2 is not allowed"
        return super().step(action)


def masked() -> gymnasium.Env:
    return ActionMasker(Strict(), lambda env: env.unwrapped.allowed)


@pytest.fixture(autouse=True)
def registered():
    made = {"Seven-v0": Seven, "Strict-v0": Strict, "MaskedSeven-v0": masked}
    for name, entry in made.items():
        gymnasium.register(name, entry)
    yield
    for name in made:
        registry.pop(name)


@pytest.fixture(scope="module")
def agent() -> quarl.Agent:
    """An agent that names no environment."""
    return quarl.Agent(networks.dense([4, 8, 3]))


SHORT: dict[str, Any] = {"rounds": 1, "updates": 2, "states": 20, "validation": 3}
METHODS = {
    "evaluate": lambda agent, folder, **home: agent.evaluate(episodes=3, **home).returns,
    "evaluate-in-processes": lambda agent, folder, **home: agent.evaluate(episodes=3, num_workers=2, **home).returns,
    "quantize": lambda agent, folder, **home: agent.quantize("int4", **home),
    "distill": lambda agent, folder, **home: agent.distill(4, **SHORT, **home).agent,
    "export": lambda agent, folder, **home: agent.export("tflite", folder / "out", **home),
    "ptq": lambda agent, folder, **home: [row.mean for row in quarl.ptq(agent, [4], episodes=3, **home)],
}
CALLED = {"evaluate-in-processes": quarl.evaluate, "ptq": quarl.ptq}


def plain(result: Any) -> Any:
    """What two results have to share."""
    if isinstance(result, quarl.Agent):
        return [(op.weight.codes.tolist(), op.bias.tolist()) for op in result.policy.linear]
    if isinstance(result, dict):
        return result["sha256"], result["observation"]
    return np.asarray(result).tolist()


@pytest.mark.parametrize("name", [name for name in METHODS if name != "evaluate-in-processes"])
def test_a_method_plays_in_an_environment_object_as_in_the_same_by_id(name, agent, tmp_path):
    env = Seven()
    given = plain(METHODS[name](agent, tmp_path / "given", env=env))
    assert env.resets >= 3
    assert not env.closed
    assert given == plain(METHODS[name](agent, tmp_path / "named", env_id="Seven-v0"))
    if name in ("evaluate", "ptq"):
        assert set(given) == {7.0}


@pytest.mark.slow
@pytest.mark.parametrize("source", ["zip", "live"])
def test_an_agent_of_an_unregistered_environment_plays_in_the_object(source, tmp_path):
    model = MaskablePPO("MlpPolicy", masked(), n_steps=64, seed=0, device="cpu")
    model.save(tmp_path / "mine.zip")
    agent = quarl.load(tmp_path / "mine.zip") if source == "zip" else quarl.from_sb3(model)
    small = agent.quantize("int8", env=masked())
    assert small.evaluate(env=masked(), episodes=3, num_workers=2).returns.tolist() == [7.0] * 3
    assert agent.export("tflite", tmp_path / "out", env=masked(), env_id="MaskedSeven-v0")["environment"]["id"] == (
        "MaskedSeven-v0"
    )
    assert agent.evaluate(env_id="MaskedSeven-v0", episodes=3).returns.tolist() == [7.0] * 3


def test_missing_masks_are_named_and_not_the_environment_blamed(tmp_path, capsys):
    model = MaskablePPO("MlpPolicy", masked(), n_steps=64, seed=0, device="cpu")
    model.policy.action_net.bias.data[2] = 99.0
    agent = quarl.from_sb3(model)
    for home in ({"env": Strict()}, {"env_id": "Strict-v0"}):
        with pytest.raises(QuarlError, match=r"action 2 is not allowed.*no action_masks\(\).*--env module:ID.*env="):
            agent.quantize("int8", **home)
    model.save(tmp_path / "mine.zip")
    assert main(["eval", str(tmp_path / "mine.zip"), "--env", "Strict-v0", "--episodes", "2"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "raised" in line]
    assert "it has no action_masks(), which the policy was trained with" in line
    assert main(["eval", str(tmp_path / "mine.zip"), "--env", "MaskedSeven-v0", "--episodes", "2"]) == 0


def test_a_limit_shortens_the_episodes_of_an_object_and_a_batch_shares_none(agent):
    assert agent.evaluate(env=Seven(), episodes=2, max_episode_steps=3).lengths.tolist() == [3, 3]
    env, policy = Seven(), quantize(agent.policy, EXACT)
    played = quarl.Agent(policy).evaluate(env=env, episodes=5, engine=engines.load(policy, "litert", batch=4))
    assert (played.lengths.tolist(), env.resets) == ([7] * 5, 5)


@pytest.mark.parametrize("options", [{"frame_stack": 2}, {"wrappers": ["ClipAction"]}, {"env_kwargs": {"a": 1}}])
@pytest.mark.parametrize("name", METHODS)
def test_an_object_and_options_of_new_environments_exclude_each_other(name, options, agent, tmp_path):
    with pytest.raises(QuarlError, match="env already exists: drop env_kwargs, wrappers and frame_stack"):
        METHODS[name](agent, tmp_path, env=Seven(), **options)
    with pytest.raises(QuarlError, match=r"env is a str, not a gymnasium\.Env; an id is given as env_id"):
        METHODS[name](agent, tmp_path, env="Seven-v0")


@pytest.fixture
def without_panda(monkeypatch):
    """A machine without the package of PandaReach-v3."""
    monkeypatch.setitem(sys.modules, "panda_gym", None)
    for name in [name for name in registry if name.startswith("Panda")]:
        monkeypatch.delitem(registry, name)


MISSING = ("", "PandaReach-v3", "Nowhere-v0", "nowhere:Nowhere-v0")


def advised(line: str, options: set[str], keywords: set[str]) -> None:
    """Asserts that the line is one, and that options and keywords which it names are among those of the caller."""
    assert line
    assert "\n" not in line
    assert set(re.findall(r"--([a-z][a-z-]+)", line)) <= options
    for names in re.findall(r"\(([^()]*) in Python\)", line):
        assert set(re.split(r"=\S+|, | or ", names)) - {""} <= keywords
    assert re.search(r"--env|pip install|did you mean|cannot import|env_id", line)


@pytest.mark.parametrize("env_id", MISSING)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_without_its_environment_names_a_fix_that_it_has(name, env_id, agent, tmp_path, without_panda):
    function = CALLED.get(name) or getattr(quarl.Agent, name)
    keywords = {*inspect.signature(function).parameters}
    verb = name.partition("-")[0].replace("evaluate", "eval").replace("quantize", "ptq")
    with pytest.raises(QuarlError) as caught:
        METHODS[name](agent, tmp_path, **({"env_id": env_id} if env_id else {}))
    advised(str(caught.value), OPTIONS[verb], keywords)
    assert not (tmp_path / "out").exists()


OPTIONS = {
    kind.verb: {field.name.replace("_", "-") for field in fields(kind)}
    for kind in VERBS
    if hasattr(kind, "verb") and hasattr(kind, "json")
}
WORDS = {
    "eval": "eval {model}",
    "play": "play {model} --record {folder}/play.gif",
    "ptq": "ptq {model} -o {folder}/out",
    "distill": "distill {model} -o {folder}/out",
    "export": "export {model} -o {folder}/out",
    "inspect": "inspect {model} -o {folder}/out --bits 8 --scheme default",
}


@pytest.mark.parametrize("env_id", MISSING)
@pytest.mark.parametrize("verb", WORDS)
def test_a_verb_without_its_environment_names_a_fix_that_it_has(
    verb, env_id, agent, tmp_path, without_panda, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    artifact.write(agent.policy, tmp_path / "mine.quarl")
    words = WORDS[verb].format(model=tmp_path / "mine.quarl", folder=tmp_path).split()
    code = main([*words, *(["--env", env_id] if env_id else [])])
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("quarl: ")][-1:] or [""]
    if verb == "inspect" and not env_id:  # weights alone need no environment
        assert code == 0
        return
    assert code == 2
    advised(line, OPTIONS[verb], {"env_id", "env", "observations"})
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("env_id", MISSING[1:3])
@pytest.mark.parametrize("words", ["export -o out", "distill -o out --bits 4 --rounds 1 --updates 1"])
def test_recorded_observations_do_in_place_of_a_missing_environment(
    words, env_id, agent, tmp_path, without_panda, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    policy = replace(agent.policy, provenance=replace(agent.policy.provenance, env_id=env_id))
    artifact.write(policy, tmp_path / "mine.quarl")
    np.save("x.npy", networks.observations(policy, 40))
    verb, *others = words.split()
    assert main([verb, "mine.quarl", *others, "--observations", "x.npy"]) == 0
    said = capsys.readouterr()
    if verb == "export":
        assert re.search(rf"environment '{env_id}'.*contract does not describe the numbers", said.err)
        assert "its return is not measured: " in said.out
        exported = quarl.load(tmp_path / "mine.quarl").export("c", "again", observations=np.load("x.npy"))
        assert exported["environment"]["id"] == env_id


def test_few_or_constant_rows_do_not_calibrate_in_silence(agent, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    artifact.write(agent.policy, tmp_path / "mine.quarl")
    x = networks.observations(agent.policy, 40)
    x[:, [1, 3]] = 0.5
    for name, rows in (("few", x[:9]), ("constant", x)):
        np.save(f"{name}.npy", rows)
    for verb in ("export", "distill"):
        assert main([verb, "mine.quarl", "--observations", "few.npy", "-o", "out"]) == 2
        assert "observations of 9 states are too few: give 10 or more" in capsys.readouterr().err
    for call in (agent.quantize, lambda *_, **rows: agent.export("tflite", "out", **rows)):
        with pytest.raises(QuarlError, match="observations of 9 states are too few: give 10 or more"):
            call("int8", observations=x[:9])
        note_once.cache_clear()
        assert call("int8", observations=x)
        said = "2 of 4 numbers of an observation (from 0: 1, 3) do not vary in the 40 recorded"
        assert capsys.readouterr().err.count(said) == 1
    note_once.cache_clear()
    words = "export mine.quarl --observations constant.npy --env Seven-v0 --episodes 12 -o files"
    assert main(words.split()) == 0
    said = capsys.readouterr()
    assert "(from 0: 1, 3) do not vary" in said.err
    assert "return int8 static, 12 episodes: non-inferior (7.0, fp32 7.0; " in said.out
