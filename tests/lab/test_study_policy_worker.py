"""What workers of a study make before their jobs."""

from __future__ import annotations

from typing import Any

import pytest

from quarl.lab import play


def test_what_an_environment_raises_when_it_is_closed_is_its_cell_s_matter(monkeypatch: pytest.MonkeyPatch):
    class Env:
        def close(self) -> None:
            raise OSError("no")

    made: list[str] = []

    def make(env_id: str) -> Any:
        made.append(env_id)
        return Env()

    monkeypatch.setattr(play, "make", make)
    play.preload(["a", "b"], [])
    assert made == ["a", "b"]
