"""RL Zoo's tuned hyper-parameters, from the YAML files in its installed package, which is not imported.

QuaRL has its own copy of those of the classic tasks, in tuned.yml, for installations without RL Zoo.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl.errors import QuarlError
from quarl.inert.yaml import read_yaml
from quarl.machine import package_folder
from quarl.readers.zoo import PREPROCESSING

PACKAGE = "rl_zoo3"
FALLBACK: dict[str, Any] = {"n_timesteps": 100_000}
"""Values for tasks without tuned ones; everything else is Stable-Baselines3's default."""
NOISE: dict[str, Any] = {"noise_type": "normal", "noise_std": 0.1}
"""Noise without which a deterministic policy explores nothing; the zoo's default, too. D4PG has its own."""
PACKAGED = Path(__file__).with_name("tuned.yml")
"""Copies of the zoo's entries, by algorithm; the zoo's own files take precedence."""
GENERAL = ("default", "atari")
"""Keys that do not name an environment."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """Hyper-parameters in the notation of a config.yml."""

    written: dict[str, Any]
    origin: str
    """Origin of the values, for display."""
    is_tuned: bool = True
    """True if the values were tuned for this task."""


def read(algo: str, env_id: str, *, atari: bool = False) -> Tuned:
    """Return the zoo's values for the algorithm and environment, else Stable-Baselines3's defaults.

    Other versions of the environment match, too: values tuned on BipedalWalker-v3 are used for v4.

    Args:
        algo: Name of the algorithm.
        env_id: Id of the environment.
        atari: The environment is an Atari game, which its id may not show; it is preprocessed as in the zoo.
    """
    preprocessing = PREPROCESSING if atari else {}
    fallback = preprocessing | FALLBACK | (NOISE if algo in ("ddpg", "td3") else {})
    path = file_of(algo)
    packaged = read_yaml(PACKAGED, merging=True).get(algo, {})
    entries = packaged if path is None else read_yaml(path, merging=True)
    key = _key(entries, env_id, atari)
    if key is not None:
        if not isinstance(entries[key], dict):
            raise QuarlError(f"{path}: {key} holds a {type(entries[key]).__name__}, not hyper-parameters by name")
        return Tuned(
            preprocessing | entries[key], f"RL Zoo's for {key}" + (", from QuaRL's copy" if path is None else "")
        )
    if path is not None:
        return Tuned(fallback, f"Stable-Baselines3's defaults, as RL Zoo has none for {algo} on {env_id}", False)
    missing = "" if package_folder(PACKAGE) is not None else " (pip install 'quarl[zoo]' brings RL Zoo's)"
    return Tuned(fallback, f"Stable-Baselines3's defaults{missing}" if algo != "d4pg" else "D4PG's defaults", False)


def for_last_policy(algo: str, env_id: str) -> dict[str, Any]:
    """Return replacements of the zoo's values for actorq, which keeps a run's last policy and not its best."""
    return dict(read_yaml(PACKAGED, merging=True)["last policy"].get(algo, {}).get(env_id, {}))


def file_of(algo: str) -> Path | None:
    """Return the zoo's file for the algorithm; None if there is none."""
    folder = package_folder(PACKAGE)
    path = folder / "hyperparams" / f"{algo}.yml" if folder is not None else None
    return path if path is not None and path.is_file() else None


def _key(entries: dict[str, Any], env_id: str, atari: bool) -> str | None:
    """Return the key of the environment, in this version or else in the newest other one."""
    if env_id in entries:
        return env_id
    if atari and "atari" in entries:
        return "atari"
    others = [key for key in entries if key not in GENERAL and _version(key)[0] == _version(env_id)[0]]
    return max(others, key=lambda other: _version(other)[1], default=None)


def _version(env_id: str) -> tuple[str, int]:
    """Return name and version; -1 if there is no version."""
    match = re.search(r"-v([0-9]{1,9})$", env_id)
    return (env_id[: match.start()], int(match[1])) if match else (env_id, -1)
