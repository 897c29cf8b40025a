"""Study files: what they say is read as data, and every mistake is one line that names its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quarl.errors import QuarlError
from quarl.inert.yaml import key_lines
from quarl.lab import file

SOUND = """\
name: two
episodes: 7
margin: 10
seeds: [0, 3]
limits: {minutes: 2, memory_gb: 1.5}
agents: agents
policies:
  - {algo: dqn, env: CartPole-v1, source: "zoo:sb3"}
  - algo: ppo
    env: Acrobot-v1
    source: ["zoo:sb3", train]
    n_timesteps: 1e5
    params: {learning_rate: lin_1e-3}
    na: nobody has it
methods:
  - {method: fp32}
  - {method: ptq, precision: [fp16, 8], scheme: [default, naive], mode: static}
  - {method: qat, precision: w4a8, fine_tune: 0.1}
"""


def read(tmp_path: Path, text: str) -> file.Study:
    path = tmp_path / "study.yml"
    path.write_text(text)
    return file.read(str(path))


def test_everything_that_a_file_says_is_in_the_study(tmp_path: Path):
    study = read(tmp_path, SOUND)
    assert (study.name, study.episodes, study.margin, study.seeds) == ("two", 7, 10, (0, 3))
    assert (study.limits.minutes, study.limits.memory_gb, study.agents) == (2, 1.5, tmp_path / "agents")
    dqn, ppo = study.policies
    assert (dqn.algo, dqn.env, dqn.source, dqn.at.line) == ("dqn", "CartPole-v1", ("zoo:sb3",), 8)
    assert (ppo.source, ppo.n_timesteps, ppo.na) == (("zoo:sb3", "train"), 100_000, "nobody has it")
    assert ppo.params == {"learning_rate": "lin_1e-3"}
    fp32, ptq, qat = study.methods
    assert (fp32.method, fp32.precision) == ("fp32", ("fp32",))
    assert (ptq.precision, ptq.scheme, ptq.mode) == (("fp16", "8"), ("default", "naive"), ("static",))
    assert (qat.precision, qat.fine_tune) == (("w4a8",), 0.1)


def test_a_folder_of_agents_on_the_command_line_takes_the_place_of_the_file_s(tmp_path: Path):
    (tmp_path / "study.yml").write_text(SOUND)
    assert file.read(str(tmp_path / "study.yml"), Path("there")).agents == Path("there")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("margin: 10", "margn: 10", r"study\.yml, line 3: unknown key 'margn' of a study; did you mean 'margin'\?"),
        ("n_timesteps: 1e5", "n_timesteps: 1.5", "line 12: n_timesteps must be a whole number from 1 on, got 1.5"),
        ("mode: static", "modes: static", r"line 17: unknown key 'modes' of ptq; did you mean 'mode'\?"),
        ("mode: static", "mode: slow", "line 17: mode must be dynamic or static, got 'slow'"),
        ("precision: [fp16, 8]", "precision: [fp16, 1]", r"line 17: .*2\.\.32"),
        ("precision: [fp16, 8]", "precision: eight", "line 17: unknown precision 'eight'"),
        ("precision: [fp16, 8], ", "", "line 17: ptq needs precision"),
        ("precision: [fp16, 8]", "precison: 8", r"unknown key 'precison' of ptq; did you mean 'precision'\?"),
        ("scheme: [default, naive]", "scheme: best", "line 17: unknown scheme 'best'"),
        ("precision: w4a8", "precision: w4a20", r"line 18: .*2\.\.16"),
        ("fine_tune: 0.1", "fine_tune: 5000", "line 18: fine_tune is a share .* as in 0.1, got 5000"),
        ("method: qat", "method: awq", "line 18: unknown method 'awq'; use fp32, ptq, distill, qat, actorq"),
        ("algo: dqn", "algo: dqm", r"line 8: unknown algorithm 'dqm'; did you mean 'dqn'\?"),
        ("algo: dqn, ", "", "line 8: algo must be a word"),
        ('source: "zoo:sb3"}', "source: zoo}", "line 8: source 'zoo' is none of train, zoo:FOLDER, hub:"),
        (', source: "zoo:sb3"}', "}", "line 8: source is missing"),
        ("seeds: [0, 3]", "seeds: 3", "line 4: seeds must be a list"),
        ("seeds: [0, 3]", "seeds: [4294967296]", r"line 4: seeds must be a list of numbers from 0 to 2\*\*32 - 1"),
        ("episodes: 7", "episodes: 0", "line 2: episodes must be a number above 0, got '0'"),
        ("margin: 10", "margin: 100", "line 3: margin is a percentage between 0 and 100"),
        ("margin: 10", "margin: 10\nmargin: 5", "line 4: 'margin' repeats line 3; keep one"),
        ("  - {method: fp32}\n", "", "line 16: ptq is compared with fp32; add {method: fp32}"),
        ("n_timesteps: 1e5", "frame_stack: 0", "line 12: frame_stack must be a number above 0"),
        (
            "n_timesteps: 1e5",
            "wrapper: Nothing",
            "line 9: environment wrapper 'Nothing' is not supported; known",
        ),
        ("n_timesteps: 1e5", "max_episode_steps: 1e12", "line 9: max_episode_steps is 1,000,000,000,000: episodes of"),
        ("n_timesteps: 1e5", "env_kwargs: {max_episode_steps: -1}", "line 9: max_episode_steps is '-1', not a whole"),
        ("params: {learning_rate: lin_1e-3}", "params: 3", "line 13: params must be values by name"),
        ("name: two", "name: !!python/object:os.system {}", "only literals are read"),
        ("lin_1e-3", "[1, -.inf]", "line 13: learning_rate is '-inf'; write"),
        ("learning_rate: lin_1e-3", "policy_kwargs: {1: a, b: c}", "line 13: policy_kwargs has the key 1; write"),
        ("scheme: [default, naive]", "scheme: []", "line 17: scheme is an empty list"),
    ],
)
def test_mistakes_name_their_line(old: str, new: str, said: str, tmp_path: Path):
    assert old in SOUND
    with pytest.raises(QuarlError, match=said):
        read(tmp_path, SOUND.replace(old, new, 1))


@pytest.mark.parametrize("text", ["policies: []\n", "name: x\nmethods: [{method: fp32}]\n", "[]\n", "policies: {}\n"])
def test_a_study_has_policies_and_methods(text: str, tmp_path: Path):
    with pytest.raises(QuarlError):
        read(tmp_path, text)


def test_unknown_studies_name_those_that_come_with_quarl():
    with pytest.raises(
        QuarlError, match=r"no study file smok; did you mean 'smoke'\? .*paper-actorq.*paper-ptq.*smoke"
    ):
        file.read("smok")


@pytest.mark.parametrize("name", file.shipped())
def test_shipped_studies_are_sound(name: str):
    study = file.read(name)
    assert study.name == name
    assert study.about


def test_lines_of_keys_are_those_of_the_file(tmp_path: Path):
    (tmp_path / "a.yml").write_text("a: 1\nb:\n  - c: 2\n  - d\n")
    lines = key_lines(tmp_path / "a.yml")
    assert lines == {("a",): 1, ("b",): 2, ("b", 0): 3, ("b", 0, "c"): 3, ("b", 1): 4}
    assert all(re.match(r"\w", str(key[-1])) for key in lines)
