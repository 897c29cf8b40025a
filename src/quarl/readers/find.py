"""Where an agent's file is, and which files beside it belong to it; what they say is read elsewhere.

Layout of RL Zoo: FOLDER/ALGO/ENV_1/ENV.zip with FOLDER/ALGO/ENV_1/ENV/{config.yml,args.yml,vecnormalize.pkl} beside it.
What was pushed to the hub without the zoo, or saved by hand, is a zip with a vec_normalize.pkl or vecnormalize.pkl.
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
"""Files beside an agent on which its actions may depend; one of them makes a folder one of settings."""


def named(words: Sequence[str], folder: Path | None = None) -> Path:
    """The path that a command's words mean: themselves, ALGO ENV under `folder`, or hub:ORG/NAME as it was fetched.

    The path may lack its .zip, as Stable-Baselines3 has it, and may be a run's folder, whose agent `in_folder` knows.
    """
    if folder is not None:
        return in_zoo(folder, words[0], words[1])
    path = words[0]
    if path.startswith(hub.PREFIX):
        return hub.fetch(path.removeprefix(hub.PREFIX))
    return Path(f"{path}.zip" if os.path.isfile(f"{path}.zip") and not os.path.exists(path) else path)


def opened(path: str | Path) -> Opened:
    """Open the file of the agent that `path` means, by itself or as the folder of its run."""
    path = named([str(path)])
    try:
        return Opened(in_folder(path) if path.is_dir() else path)
    except OSError as error:
        raise QuarlError(f"cannot read {str(path)[:200]!r}: {error.strerror}") from None


def in_zoo(folder: str | Path, algo: str, env_id: str) -> Path:
    """The file of the latest run of `algo` on `env_id` under `folder`, as the zoo's own scripts choose it."""
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
    """The folders ENV_1, ENV_2, ... in `folder`, by number; none where it is no folder."""
    pattern = re.compile(rf"{re.escape(folder_name(env_id))}_([0-9]+)")
    matches = ((pattern.fullmatch(path.name), path) for path in (_entries(folder) if folder.is_dir() else ()))
    return {int(match[1]): path for match, path in matches if match and path.is_dir()}


def folder_name(env_id: str) -> str:
    """What files and folders of an environment are called, as in the zoo: its id without the module that registers
    it, with dashes for slashes."""
    return env_id.rpartition(":")[2].replace("/", "-")


def in_folder(folder: Path) -> Path:
    """The agent of a run's folder ENV_1: ENV, or best_model where training did not reach its end; of the folder ENV of
    statistics, the agent ENV beside it. It is a .zip, or a .pkl of Stable-Baselines 2."""
    name = folder.resolve().name
    env = _unnumbered(name)
    for stem in (folder / env, folder / "best_model", folder.parent / name):
        for path in (stem.parent / f"{stem.name}{suffix}" for suffix in (".zip", ".pkl") if stem.name):
            if path.is_file():
                return path
    zips = [path.name for path in _entries(folder) if path.suffix == ".zip"]
    others = f"name one of its files: {_listed(zips)}" if zips else f"agents in it are named by ALGO ENV -f {folder}"
    raise QuarlError(f"{folder} has neither {env}.zip nor best_model.zip; {others}")


def settings_folder(model: Path) -> Path | None:
    """The folder of config.yml, args.yml and vecnormalize.pkl beside the agent `model`; None where there is none.

    In a repository of the Hugging Face hub they lie in the zip's own folder, and a folder called after the zip holds
    the zip unpacked.
    """
    if (model.parent / "config.yml").exists() and (model.parent / "args.yml").exists():
        return model.parent
    return next((place for place in called_after(model) if any((place / name).exists() for name in BESIDE)), None)


def called_after(model: Path) -> list[Path]:
    """Where a run of the zoo has what lies beside its agent: the folder called after the zip, or after the run."""
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
