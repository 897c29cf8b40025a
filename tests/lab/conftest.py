"""A folder of small agents, and studies of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from stable_baselines3 import A2C, DQN

import require


@pytest.fixture(scope="session")
def small_agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """zoo/dqn/CartPole-v1_1 and zoo/a2c/CartPole-v1_1: untrained, so that episodes are short."""
    folder = tmp_path_factory.mktemp("agents")
    made = {
        "dqn": DQN("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [8]}, buffer_size=1, device="cpu", seed=0),
        "a2c": A2C("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [8]}, device="cpu", seed=0),
    }
    for algo, model in made.items():
        run = folder / "zoo" / algo / "CartPole-v1_1"
        run.mkdir(parents=True)
        model.save(run / "CartPole-v1.zip")
    return folder


@pytest.fixture
def study_file(tmp_path: Path, small_agents: Path) -> Callable[..., Path]:
    """Writes a study of `small_agents`: policies and methods as YAML lines, and what stands before them."""

    def write(policies: str, methods: str, head: str = "", name: str = "study.yml") -> Path:
        path = tmp_path / name
        text = f"name: small\nagents: {small_agents}\nepisodes: 6\n{head}\npolicies:\n"
        text += "".join(f"  - {line}\n" for line in policies.strip().splitlines())
        text += "methods:\n" + "".join(f"  - {line}\n" for line in methods.strip().splitlines())
        path.write_text(text)
        return path

    return write


@pytest.fixture
def committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], None]:
    """Makes a commit the newest one of the agent org/dqn-CartPole-v1 in the cache of a hub that is out of reach."""
    require.module("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    storage = tmp_path / "cache/models--org--dqn-CartPole-v1"

    def commit(name: str, agent: bytes) -> None:
        (storage / "snapshots" / name).mkdir(parents=True)
        (storage / "snapshots" / name / "dqn-CartPole-v1.zip").write_bytes(agent)
        (storage / "refs").mkdir(exist_ok=True)
        (storage / "refs/main").write_text(name)

    return commit
