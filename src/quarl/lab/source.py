"""Where an agent comes from: a zoo folder, the Hugging Face hub, a file, or a training that the study does itself."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl.algorithms import tuned
from quarl.envs.names import is_atari
from quarl.errors import QuarlError
from quarl.inert.yaml import read_yaml
from quarl.inert.zip import read_bytes
from quarl.lab.file import PolicyEntry, Study
from quarl.literals import NONE
from quarl.readers import find, hub, zoo

TRAIN, ZOO, HUB, FILE = "train", "zoo", "hub", "file"
CALLED: Mapping[str, tuple[str, ...]] = {"ppo": ("ppo", "ppo2")}
"""Other names that a zoo has for an algorithm's folder: Stable-Baselines 2 called its PPO so."""
STRETCHES, EVALUATIONS = 10, 20
"""Of a training, at most."""
FEWEST_STEPS = 2000
"""Of a stretch: to begin one takes about a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent, before anything of it is read."""

    source: str
    """train, zoo:FOLDER, hub:ORG/NAME or file:PATH."""
    identity: Mapping[str, Any]
    """What determines it, in plain values: the hash of its files, or its training."""
    path: Path | None = None
    """None where it is yet to be trained."""
    algo: str
    """What its folder calls the algorithm."""
    n_timesteps: int | None
    """Environment steps that it was trained for, where that is known."""
    normalize: str | None = None
    """The statistics with which it observed, or none; None: what lies beside it."""

    @property
    def kind(self) -> str:
        return self.source.partition(":")[0]


def locate(study: Study, entry: PolicyEntry, env_id: str, seed: int) -> Agent | None:
    """The agent from the first source that has one; None where none has and the entry says what that means.

    A repository of the hub is fetched here, so that all cells read one commit of it, wherever `main` moves. A hub that
    is out of reach is a mistake and not a source less: no network decides which agent is measured.
    """
    missing: QuarlError | None = None
    for source in entry.source:
        kind, _, rest = source.partition(":")
        if kind == TRAIN:
            recipe = training(entry, env_id, seed)
            return Agent(source=source, identity=recipe, algo=entry.algo, n_timesteps=recipe["n_timesteps"])
        for algo in (entry.algo,) if kind == HUB else CALLED.get(entry.algo, (entry.algo,)):
            try:
                if kind == ZOO:
                    path = find.in_zoo(study.agents / rest, algo, entry.env)
                else:
                    path = hub.fetch(rest) if kind == HUB else find.opened(study.agents / rest).path
                return _read(study, entry, source, path, algo)
            except QuarlError as error:
                if kind == HUB:
                    raise entry.at.wrong(str(error)) from None
                missing = missing or error
    if entry.na:
        return None
    raise entry.at.wrong(f"{missing}; say where agents are with --agents")


def training(entry: PolicyEntry, env_id: str, seed: int) -> dict[str, Any]:
    """Everything on which a training's result depends, RL Zoo's tuned hyper-parameters included."""
    written = tuned.read(entry.algo, env_id, atari=is_atari(env_id)).written
    n_timesteps = entry.n_timesteps or int(written["n_timesteps"])
    return {
        "algo": entry.algo,
        "env_id": env_id,
        "tuned": written,
        "params": dict(entry.params),
        "seed": seed,
        **({"train": dict(entry.train)} if entry.train else {}),
        **entry.identity,
        **lengths(n_timesteps),
    }


def lengths(n_timesteps: int) -> dict[str, int]:
    """Environment steps of a training, of its stretches from one checkpoint to the next, and between evaluations."""
    return {
        "n_timesteps": n_timesteps,
        "save_freq": max(n_timesteps // STRETCHES, FEWEST_STEPS),
        "eval_freq": max(n_timesteps // EVALUATIONS, min(n_timesteps // 2, FEWEST_STEPS), 1),
    }


def _read(study: Study, entry: PolicyEntry, source: str, path: Path, algo: str) -> Agent:
    """The agent in the file; algo: what its folder calls the algorithm."""
    normalize = entry.normalize
    if normalize not in (None, NONE):
        normalize = str(study.agents / normalize)
    unnormalised = {"normalize": NONE} if normalize == NONE else {}
    return Agent(
        source=source,
        identity={"sha256": digest(path, normalize), "format": path.suffix, **unnormalised},
        path=path,
        algo=algo,
        n_timesteps=_steps(entry, path),
        normalize=normalize,
    )


def check_file(path: Path, identity: Mapping[str, Any], normalize: str | None) -> None:
    """QuarlError where the agent's file is not the one that the study was planned with."""
    if identity.get("sha256") not in (None, digest(path, normalize)):
        raise QuarlError(f"{path} is another file than when the study was planned: repeat the command")


def digest(path: Path, normalize: str | Path | None = None) -> str:
    """Of the agent's file and what lies beside it."""
    total = hashlib.sha256(read_bytes(path))
    settings = find.settings_folder(path)
    beside = [] if settings is None else [settings / name for name in find.BESIDE]
    chosen, _ = zoo.find_statistics(path, settings, normalize)
    for file in dict.fromkeys([*beside, *([chosen] if chosen else [])]):
        if file.is_file():
            total.update(file.name.encode() + hashlib.sha256(read_bytes(file)).digest())
    return total.hexdigest()


def _steps(entry: PolicyEntry, path: Path) -> int | None:
    """Environment steps of its training, as the study or its config.yml says."""
    if entry.n_timesteps is not None:
        return entry.n_timesteps
    beside = find.settings_folder(path)
    if beside is None or not (beside / "config.yml").is_file():
        return None
    steps = read_yaml(beside / "config.yml").get("n_timesteps")
    return int(steps) if isinstance(steps, int | float) and not isinstance(steps, bool) and 1 <= steps < 2**53 else None
