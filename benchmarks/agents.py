"""The trained agents that the benchmarks share: their folders and published results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "shared" / "agents"


@dataclass(frozen=True)
class Trained:
    """One agent of the two zoos."""

    kind: str
    """The zoo, sb3 or sb2."""
    algo: str
    env_id: str
    path: Path
    published: tuple[float, float] | None
    """Mean and standard deviation of the return in the zoo's own benchmark."""

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.algo}-{self.env_id}"


def find(folder: Path) -> list[Trained]:
    """Return every agent below `folder` in a fixed order, those of Stable-Baselines3 first."""
    reference = folder / "reference.json"
    if not reference.is_file():
        raise SystemExit(f"no trained agents: {reference} is missing, which says what is published about them")
    published = json.loads(reference.read_text())
    runs = sorted((folder / "sb3").glob("*/*_1"))
    files = sorted((folder / "sb2").glob("*/*.pkl"))
    found = [("sb3", path.parent.name, path.name.removesuffix("_1"), path) for path in runs]
    found += [("sb2", path.parent.name, path.stem, path) for path in files]
    agents = []
    for kind, algo, env_id, path in found:
        reference = published[kind].get(f"{algo}/{env_id}")
        agents.append(Trained(kind, algo, env_id, path, tuple(reference) if reference else None))
    return agents
