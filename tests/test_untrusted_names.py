"""Names out of files: no module of the working directory is imported because a file says so, whoever made the file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from networks import dense
from quarl.cli import main
from quarl.config import ActorQConfig, TrainConfig
from quarl.config.learner_options import options_of
from quarl.policy import artifact
from quarl.policy.graph import Provenance
from refusals import refused
from stress.fuzz import seeds

ENV, EVIL = "CartPole-v1", "evil:CartPole-v1"


@pytest.fixture(autouse=True)
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bool]]:
    """Whether the module evil of the working directory was imported."""
    canary = tmp_path / "canary"
    (tmp_path / "evil.py").write_text(f"open({str(canary)!r}, 'w').close()\nX = int\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # as `python -m quarl` has it
    yield canary.exists
    sys.modules.pop("evil", None)


def put(path: str, content: bytes | dict[str, object]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content if isinstance(content, bytes) else yaml.safe_dump(content).encode())


def actorq_run(**options: object) -> list[str]:
    put("run/args.yml", options_of(ActorQConfig()) | {"output": "run"} | options)
    return ["actorq", "--resume", "-o", "run"]


def train_run(args: dict[str, object], config: dict[str, object]) -> list[str]:
    run = f"logs/ppo/{ENV}_1"
    put(f"{run}/{ENV}/args.yml", options_of(TrainConfig()) | {"n_timesteps": 64, "folder": "logs"} | args)
    put(f"{run}/{ENV}/config.yml", {"n_timesteps": 64, "n_steps": 32, "batch_size": 32} | config)
    put(f"{run}/checkpoint-0000000032.safetensors", seeds.artefact(quantized=False))
    return ["train", "--resume", "--algo", "ppo", "--env", ENV]


def zoo_agent(args: dict[str, object], config: dict[str, object], *words: str) -> list[str]:
    """An agent that observes three numbers and plays Pendulum-v1."""
    put("logs/ppo/Pendulum-v1_1/Pendulum-v1.zip", seeds.sb3_zip(continuous=True))
    put("logs/ppo/Pendulum-v1_1/Pendulum-v1/args.yml", args)
    put("logs/ppo/Pendulum-v1_1/Pendulum-v1/config.yml", config)
    return [*words, "logs/ppo/Pendulum-v1_1", "--episodes", "1"]


def saved_policy(provenance: Provenance, *words: str) -> list[str]:
    artifact.write(replace(dense([4, 8, 2]), provenance=provenance), "policy.quarl")
    return [*words, "policy.quarl", "--episodes", "1"]


def a_study(text: str) -> list[str]:
    put("study.yml", text.encode())
    return ["study", "run", "study.yml", "-o", "study", "--dry-run"]


def zip_data(**changed: object) -> list[str]:
    agent = seeds.sb3_agent(json.dumps({**seeds.sb3_data(), **changed}).encode())
    put("agent.zip", agent)
    return ["train", "-i", "agent.zip", "--algo", "ppo", "--env", ENV, "-n", "32"]


STUDY = "name: s\nagents: logs\nepisodes: 1\npolicies:\n- algo: ppo\n  env: {env}\n  source: train\n{more}methods:\n"
WRAPPERS = (("evil.X", {}),)
CASES: dict[str, Callable[[], list[str]]] = {
    "actorq-env": lambda: actorq_run(env=EVIL),
    "actorq-env-beside-a-typed-one": lambda: [*actorq_run(env=EVIL), "--env", "Acrobot-v1"],
    "actorq-env-beside-the-default": lambda: [*actorq_run(env=EVIL), "--env", ENV],
    "actorq-algo": lambda: actorq_run(algo="evil.X"),
    "actorq-engine": lambda: actorq_run(engine="evil.X"),
    "actorq-env-of-another-kind": lambda: actorq_run(env=[EVIL]),
    "actorq-params": lambda: actorq_run(params=["policy_kwargs:dict(activation_fn=evil.X)"]),
    "train-wrapper": lambda: train_run({}, {"env_wrapper": ["evil.X"]}),
    "train-activation": lambda: train_run({}, {"policy_kwargs": "dict(activation_fn=evil.X)"}),
    "train-policy": lambda: train_run({}, {"policy": "evil.X"}),
    "train-replay": lambda: train_run({}, {"replay_buffer_class": "evil.X"}),
    "train-callback": lambda: train_run({}, {"callback": "evil.X"}),
    "train-qat-layers": lambda: train_run({"qat": "8", "qat_skip": [["evil.X"]]}, {}),
    "train-agent": lambda: train_run({"trained_agent": "evil:X", "env": EVIL}, {}),
    "zoo-env": lambda: zoo_agent({"env": EVIL}, {}, "eval"),
    "zoo-wrapper": lambda: zoo_agent({}, {"env_wrapper": "evil.X"}, "ptq"),
    "zoo-tag": lambda: zoo_agent({}, {"env_wrapper": "evil.X"}, "eval"),
    "artefact-env": lambda: saved_policy(Provenance(algo="dqn", env_id=EVIL), "eval"),
    "artefact-env-in-ptq": lambda: saved_policy(Provenance(algo="dqn", env_id=EVIL), "ptq"),
    "artefact-wrapper": lambda: saved_policy(Provenance(algo="dqn", env_id=ENV, wrappers=WRAPPERS), "eval"),
    "study-env": lambda: a_study(STUDY.format(env=EVIL, more="") + "- method: fp32\n"),
    "study-params": lambda: a_study(
        STUDY.format(env=ENV, more="  params: {policy_kwargs: dict(activation_fn=evil.X)}\n") + "- method: fp32\n"
    ),
    "zip-policy-class": lambda: [*zip_data(policy_kwargs={"activation_fn": "<class 'evil.X'>"})],
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_file_names_is_refused_in_one_line_and_never_imported(name, evil, capsys):
    assert main(CASES[name]()) == 2
    captured = capsys.readouterr()
    assert not evil()
    assert "evil" not in sys.modules
    # before the file's are looked at
    said = ("the run starts from the beginning", "quarl: hyper-parameters: ", "quarl: for actors, ")
    refusals = [line for line in captured.err.splitlines() if not any(note in line for note in said)]
    assert len(refusals) == 1
    assert refusals[0].startswith("quarl: ")


def test_the_line_says_how_to_go_on_with_an_environment_of_one_s_own(capsys):
    said = f"quarl: run/args.yml names a module to import, which needs your consent: add --env {EVIL}"
    assert refused(capsys, *actorq_run(env=EVIL)) == said


def test_what_is_typed_is_imported(evil, capsys):
    """Otherwise the tests above would prove nothing."""
    assert main([*actorq_run(env="evil:Nowhere-v0"), "--env", "evil:Nowhere-v0"]) == 2
    assert "module 'evil' registers no environment 'Nowhere-v0'" in capsys.readouterr().err
    assert evil()
