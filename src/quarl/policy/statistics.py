"""Which file of VecNormalize's statistics an agent observed with: found by contents, whatever the file is called."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from quarl.errors import QuarlError
from quarl.policy.container import member_names
from quarl.policy.normalizer import saved_class

NAMES = ("vec_normalize.pkl", "vecnormalize.pkl")
"""As the zoo calls the file, on the hub and in a run's folder; what is called so is read or refused."""
RUNNING = "obs_rms.pkl"
"""The zoo of Stable-Baselines 2 saved the statistics alone."""
WORDS = {"vec", "normalize", "vecnormalize", "norm", "vecnorm", "env", "venv", "obs", "rms", "stats", "model"}
"""Parts of file names that do not say whose the statistics are."""
SB2_START = 2**14
"""Bytes of a pickle in which an agent of Stable-Baselines 2 has named its observation_space."""


def own_statistics(model: Path) -> Path:
    """Where statistics lie that belong to the agent `model` and to no other of its run."""
    return model.with_name(f"{model.stem}_vecnormalize.pkl")


def choose(model: Path, settings: Iterable[Path]) -> Path | None:
    """The file of statistics that the agent `model` observed with; None where none lies there that may be its.

    settings: folders that belong to its run, whose statistics are the run's newest: those called after the agent come
    first. Elsewhere an agent alone has the one file beside it, or in the folder above where no other agent lies in
    either. Among several, names pair them, as Stable-Baselines3's callbacks make them: PREFIX_N_steps.zip with
    PREFIX_vecnormalize_N_steps.pkl. QuarlError where that leaves a choice: another's statistics change actions.
    """
    own = model.parent
    above = Path(os.path.normpath(own / ".."))
    if own_statistics(model).is_file():
        return own_statistics(model)
    lying = _statistics(own)
    if called := [file for file in lying if _subject(file) == _subject(model) != ()]:
        return _one(model, called, [])
    for folder in settings:
        standard = [folder / name for name in NAMES if (folder / name).is_file()]
        if found := standard or ([] if folder == own else _statistics(folder)):
            return _one(model, found, [])
    agents = [path for path in _agents(own) if path.name != model.name]
    if lying:
        return _of_several(model, lying, agents)
    return _of_several(model, _statistics(above), [*agents, *_agents(above)])


def _of_several(model: Path, files: list[Path], agents: list[Path]) -> Path | None:
    """The one of `files` that is called after no other agent, where no other agent may have observed with it too."""
    subjects = {_subject(agent) for agent in agents}
    left = [file for file in files if _subject(file) == () or _subject(file) not in subjects]
    paired = {_subject(file) for file in files}
    if model.stem == "best_model" and not left:  # EvalCallback saves none: those of the run are of other moments
        left, paired = files, set()
    return _one(model, left, [agent for agent in agents if _subject(agent) == () or _subject(agent) not in paired])


def _one(model: Path, files: list[Path], others: list[Path]) -> Path | None:
    """The only file, where there are no other agents that may be meant; None of no files."""
    if not files or (len(files) == 1 and not others):
        return files[0] if files else None
    names = _listed(files)
    cause = f"{names} lies beside {_listed(others, 1)} too, so whose it is" if others else f"{names}: which of them"
    raise QuarlError(
        f"{cause} is not known, for {model.name}: say --normalize FILE or --normalize none, or call it "
        f"{own_statistics(model).name}"
    )


def _subject(path: Path) -> tuple[str, ...]:
    """What a name says besides that it is an agent or statistics: rl, 500, steps of rl_model_vecnormalize_500_steps."""
    return tuple(word for word in re.split(r"[_. -]+", path.stem.lower()) if word not in WORDS)


def _statistics(folder: Path) -> list[Path]:
    """Files of VecNormalize's statistics in the folder."""
    files = _files(folder)
    found = [path for path in files if path.name in NAMES or "VecNormalize" in saved_class(path)]
    return found or [path for path in files if path.name == RUNNING]


def _agents(folder: Path) -> list[Path]:
    """Files of Stable-Baselines agents in the folder."""
    return [path for path in _files(folder) if _is_agent(path)]


def _is_agent(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(SB2_START)
    except OSError:
        return False
    if start.startswith(b"PK"):
        return {"data", "policy.pth"} <= (names := member_names(path)) or {"data", "parameters"} <= names
    return start.startswith(b"\x80") and b"observation_space" in start and not saved_class(path)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())
    except OSError:  # a folder that cannot be listed holds nothing that could be read
        return []


def _listed(files: list[Path], parts: int = 0) -> str:
    names = [path.name if parts else str(path) for path in files[:4]]
    return ", ".join(names) + (", ..." if len(files) > 4 else "")
