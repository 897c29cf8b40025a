"""Location of an agent's file and of the files beside it that belong to it; other modules read their contents.

Layout of RL Zoo: FOLDER/ALGO/ENV_1/ENV.zip with FOLDER/ALGO/ENV_1/ENV/{config.yml,args.yml,vecnormalize.pkl} beside it.
An agent that was pushed to the hub without the zoo, or saved by hand, is a zip with a vec_normalize.pkl or
vecnormalize.pkl.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from quarl.errors import QuarlError
from quarl.inert.zip import Opened
from quarl.readers import hub, statistics

BESIDE = (*hub.BESIDE, statistics.RUNNING)
"""Files beside an agent on which its actions may depend; a folder that has one of them is a folder of settings."""


def named(words: Sequence[str], folder: Path | None = None) -> Path:
    """Return the path that the words of a command name.

    They are a path, ALGO ENV under `folder`, or hub:ORG/NAME, which is fetched.

    The path may lack its .zip, as in Stable-Baselines3. It may also be the folder of a run, whose agent `in_folder`
    finds.
    """
    if folder is not None:
        return in_zoo(folder, words[0], words[1])
    path = words[0]
    if path.startswith(hub.PREFIX):
        return hub.fetch(path.removeprefix(hub.PREFIX))
    return Path(f"{path}.zip" if os.path.isfile(f"{path}.zip") and not os.path.exists(path) else path)


def opened(path: str | Path) -> Opened:
    """Open the agent's file at `path`, which may also be the folder of its run."""
    path = named([str(path)])
    try:
        return Opened(in_folder(path) if path.is_dir() else path)
    except OSError as error:
        raise QuarlError(f"cannot read {str(path)[:200]!r}: {error.strerror}") from None


def in_zoo(folder: str | Path, algo: str, env_id: str) -> Path:
    """Return the file of the latest run of `algo` on `env_id` under `folder`, as the zoo's own scripts choose it.

    Args:
        folder: Folder of logs, with one folder for each algorithm.
        algo: Name of the algorithm.
        env_id: Gymnasium id of the environment.

    Raises:
        QuarlError: There is no such folder or agent; the error lists those that exist.
    """
    runs, env = Path(folder) / algo, folder_name(env_id)
    if not runs.is_dir():
        raise QuarlError(f"no folder {runs}; {folder} has {_listed(p.name for p in _entries(folder) if p.is_dir())}")
    if numbered := numbered_runs(runs, env_id):
        return in_folder(numbered[max(numbered)])
    for suffix in (".zip", ".pkl"):  # the zoo of Stable-Baselines 2 has no folders of runs
        if (runs / f"{env}{suffix}").is_file():
            return runs / f"{env}{suffix}"
    names = {_unnumbered(path.name) for path in _entries(runs)}
    raise QuarlError(f"no agent for {env_id} in {runs}; it has {_listed(names)}")


def numbered_runs(folder: Path, env_id: str) -> dict[int, Path]:
    """Return the folders ENV_1, ENV_2, ... in `folder` by number; empty if `folder` is not a folder."""
    pattern = re.compile(rf"{re.escape(folder_name(env_id))}_([0-9]+)")
    matches = ((pattern.fullmatch(path.name), path) for path in (_entries(folder) if folder.is_dir() else ()))
    return {int(match[1]): path for match, path in matches if match and path.is_dir()}


def folder_name(env_id: str) -> str:
    """Return the name of an environment's files and folders in the zoo.

    It is the id without the module that registers it, with dashes for slashes.
    """
    return env_id.rpartition(":")[2].replace("/", "-")


def in_folder(folder: Path) -> Path:
    """Return the agent of a run's folder ENV_1: ENV, or best_model if training did not finish.

    For a folder ENV of statistics, return the agent ENV beside it. The agent is a .zip, or a .pkl of Stable-Baselines
    2.
    """
    name = folder.resolve().name
    env = _unnumbered(name)
    for stem in (folder / env, folder / "best_model", folder.parent / name):
        for path in (stem.parent / f"{stem.name}{suffix}" for suffix in (".zip", ".pkl") if stem.name):
            if path.is_file():
                return path
    zips = [path.name for path in _entries(folder) if path.suffix == ".zip"]
    others = f"name one of its files: {_listed(zips)}" if zips else f"name agents in it as ALGO ENV -f {folder}"
    raise QuarlError(f"{folder} has neither {env}.zip nor best_model.zip; {others}")


def settings_folder(model: Path) -> Path | None:
    """Return the folder of config.yml, args.yml and vecnormalize.pkl beside the agent `model`; None if there is none.

    A repository of the Hugging Face hub has them in the folder of the zip; a folder named after the zip holds its
    unpacked content.
    """
    if (model.parent / "config.yml").exists() and (model.parent / "args.yml").exists():
        return model.parent
    return next((place for place in called_after(model) if any((place / name).exists() for name in BESIDE)), None)


def called_after(model: Path) -> list[Path]:
    """Return the folders in which a zoo run keeps the files beside its agent: named after the zip, or after the run."""
    return [model.parent / name for name in (model.stem, _unnumbered(model.resolve().parent.name))]


def _unnumbered(run: str) -> str:
    return re.sub(r"_[0-9]+$", "", run)


def _entries(folder: str | Path) -> list[Path]:
    try:
        return sorted(Path(folder).iterdir())
    except OSError as error:
        raise QuarlError(f"cannot list {folder}: {error.strerror}") from None


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    return (", ".join(names[:20]) or "nothing") + (", ..." if len(names) > 20 else "")
