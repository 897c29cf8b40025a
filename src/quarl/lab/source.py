"""The source of an agent: a zoo folder, the Hugging Face hub, a file, or a training of the study."""

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
"""Other names of an algorithm's folder in a zoo; ppo2 is the name of PPO in Stable-Baselines 2."""
STRETCHES, EVALUATIONS = 10, 20
"""Largest number of stretches and of evaluations in a training."""
FEWEST_STEPS = 2000
"""Fewest steps in a stretch, because starting one takes about a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent, before any of its contents is read."""

    source: str
    """train, zoo:FOLDER, hub:ORG/NAME or file:PATH."""
    identity: Mapping[str, Any]
    """Everything that determines it, in plain values: the hash of its files, or its training."""
    path: Path | None = None
    """Path of its file; None if it is yet to be trained."""
    algo: str
    """Name of the algorithm's folder."""
    n_timesteps: int | None
    """Environment steps of its training, if they are known."""
    normalize: str | None = None
    """The statistics that normalized its observations, or none; None means those beside it."""

    @property
    def kind(self) -> str:
        return self.source.partition(":")[0]


def locate(study: Study, entry: PolicyEntry, env_id: str, seed: int) -> Agent | None:
    """Return the agent from the first source that has one; None if none has and the entry gives a reason.

    A repository of the hub is fetched here, so that all cells read the same commit of it, even if `main` moves. A hub
    that is out of reach is an error, because the network must not decide which agent is measured.

    Args:
        study: The study.
        entry: The policy.
        env_id: Current id of its environment.
        seed: Seed of its training.

    Returns:
        The agent or None.

    Raises:
        QuarlError: No source has the agent; the message names the line.
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
    """Return everything that determines a training's result, including RL Zoo's tuned hyper-parameters.

    Args:
        entry: The policy.
        env_id: Current id of its environment.
        seed: Seed of the training.

    Returns:
        The training's work in plain values.
    """
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
    """Return the environment steps of a training, of its stretches between checkpoints, and between evaluations."""
    return {
        "n_timesteps": n_timesteps,
        "save_freq": max(n_timesteps // STRETCHES, FEWEST_STEPS),
        "eval_freq": max(n_timesteps // EVALUATIONS, min(n_timesteps // 2, FEWEST_STEPS), 1),
    }


def _read(study: Study, entry: PolicyEntry, source: str, path: Path, algo: str) -> Agent:
    """Return the agent in the file; algo: name of its algorithm's folder."""
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
    """Raise QuarlError if the agent's file has changed since the study was planned.

    Args:
        path: File of the agent.
        identity: Its identity in the plan.
        normalize: Its statistics.
    """
    if identity.get("sha256") not in (None, digest(path, normalize)):
        raise QuarlError(f"{path} is another file than when the study was planned: repeat the command")


def digest(path: Path, normalize: str | Path | None = None) -> str:
    """Return the hash of the agent's file and the files beside it."""
    total = hashlib.sha256(read_bytes(path))
    settings = find.settings_folder(path)
    beside = [] if settings is None else [settings / name for name in find.BESIDE]
    chosen, _ = zoo.find_statistics(path, settings, normalize)
    for file in dict.fromkeys([*beside, *([chosen] if chosen else [])]):
        if file.is_file():
            total.update(file.name.encode() + hashlib.sha256(read_bytes(file)).digest())
    return total.hexdigest()


def _steps(entry: PolicyEntry, path: Path) -> int | None:
    """Return the environment steps of its training from the study or its config.yml."""
    if entry.n_timesteps is not None:
        return entry.n_timesteps
    beside = find.settings_folder(path)
    if beside is None or not (beside / "config.yml").is_file():
        return None
    steps = read_yaml(beside / "config.yml").get("n_timesteps")
    return int(steps) if isinstance(steps, int | float) and not isinstance(steps, bool) and 1 <= steps < 2**53 else None
