"""Fixtures that several test folders share."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Generator
from pathlib import Path

# Workers share the cores: threads of one that spin while they wait for the next product take time from the others, a
# quarter of the whole suite's. Set before torch is imported, and handed on to every process that a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
from gymnasium.envs.registration import registry

import require
import tiers
from quarl import machine

hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")
GUARD = pytest.StashKey[tiers.Guard]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[GUARD] = tiers.Guard()
    machine.commit = functools.cache(machine.commit)  # asks git, a process: once, before the first test
    machine.commit()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if name in tiers.SMOKE:
            item.add_marker(pytest.mark.smoke)
        elif tiers.is_left_out(name):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    guard = item.config.stash[GUARD]
    guard.start(allowed=item.get_closest_marker("slow") is not None)
    try:
        return (yield)
    finally:
        guard.stop()


@pytest.fixture(scope="session")
def agents() -> Path:
    """Folder of trained agents in the zoo's layout, which lies beside the checkout where it is at hand."""
    return require.folder("agents")


@pytest.fixture(scope="session")
def more_agents() -> Path:
    """Folder of one trained agent of each further kind, beside that of `agents`."""
    return require.folder("agents-more")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test in an empty working directory of its own."""
    monkeypatch.chdir(tmp_path)


NEEDS = """
import gymnasium, numpy as np

class Needs(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, target, render_mode=None):
        self.target = target

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return self.observation_space.sample(), self.target, False, False, {}

gymnasium.register("Needs-v0", Needs)
"""


@pytest.fixture
def needs(tmp_path, monkeypatch):
    """An environment of a user's module in the working directory: it has to be told `target`, which every step pays,
    and has no end."""
    (tmp_path / "users_needs.py").write_text(NEEDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "users_needs:Needs-v0"
    sys.modules.pop("users_needs", None)
    registry.pop("Needs-v0", None)
