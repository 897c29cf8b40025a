"""Fixtures that several test folders share."""

from __future__ import annotations

from pathlib import Path

import pytest

AGENTS = Path(__file__).resolve().parents[2] / "shared" / "agents"


@pytest.fixture(scope="session")
def agents() -> Path:
    """Folder of trained agents in the zoo's layout, which lies beside the checkout where it is at hand."""
    if not AGENTS.is_dir():
        pytest.skip(f"trained agents are not at hand: no folder {AGENTS.name!r} beside the checkout")
    return AGENTS
