"""Choice of the VecNormalize statistics that an agent observed with, recognized by contents, not by file name."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from quarl.errors import QuarlError
from quarl.inert.pickle import read_pickle
from quarl.inert.reading_budget import read_json
from quarl.inert.zip import Opened
from quarl.readers.normalizer import read_vecnormalize
from quarl.readers.plain_spaces import Box, Dict, from_blob, from_inert

NAMES = ("vec_normalize.pkl", "vecnormalize.pkl")
"""The zoo's names of the file, on the hub and in the folder of a run."""
RUNNING = "obs_rms.pkl"
"""Plain statistics, as saved by the zoo of Stable-Baselines 2."""
WORDS = {"vec", "normalize", "vecnormalize", "norm", "vecnorm", "env", "venv", "obs", "rms", "stats", "model"}
"""Parts of file names that do not identify the agent of the statistics."""
PICKLE_START = 2**8
"""Number of bytes within which a pickle names its VecNormalize."""
_CALLED = re.compile(r"vec_?norm.*\.pkl", re.IGNORECASE)
"""Files with such names are read or refused whatever they contain, even the pointer of a file that was not fetched."""
_PICKLED = re.compile(
    rb"(?s)(\x80.)?(\x95.{8})?(ccopy_reg\n_reconstructor\n.{1,4}?\()?(c|\x8c.)[\w.]+(\n|\x94?\x8c.)\w*VecNormalize"
)
"""Start of a pickled VecNormalize in protocols 0 to 5: the module and the name of the class."""


def own_statistics(model: Path) -> Path:
    """Return the path of statistics that belong to the agent `model` and to no other agent of its run."""
    return model.with_name(f"{model.stem}_vecnormalize.pkl")


def choose(model: Path, settings: Sequence[Path]) -> Path | None:
    """Return the file of statistics that the agent `model` observed with; None if no file there may be its own.

    Folders in `settings` belong to its run and hold the newest statistics of the run. Files named after the agent take
    precedence. Elsewhere, a lone agent has the one file beside it, or in the folder above if neither folder has another
    agent. If there are several, names pair them, as Stable-Baselines3's callbacks name them: PREFIX_N_steps.zip with
    PREFIX_vecnormalize_N_steps.pkl.

    Raises QuarlError if several files remain, because the statistics of another agent would change the actions.
    """
    if own_statistics(model).exists():
        return own_statistics(model)
    if called := [file for file in _statistics(model.parent) if _subject(file) == _subject(model) != ()]:
        return _one(model, called, [])
    for folder in settings:
        standard = [folder / name for name in NAMES if (folder / name).exists()]
        if candidates := standard or ([] if folder == model.parent else _statistics(folder)):
            return _one(model, candidates, [])
    for folder in (model.parent, Path(os.path.normpath(model.parent / ".."))):
        if files := _statistics(folder):
            lying = [path for place in {model.parent, folder} for path in _files(place) if path != model]
            return _of_several(model, files, [path for path in lying if _is_agent(path)])
    return None


def _of_several(model: Path, files: list[Path], agents: list[Path]) -> Path | None:
    """Return the one of `files` that is not named after another agent, unless another agent may have used it too."""
    subjects, paired = {_subject(agent) for agent in agents} - {()}, {_subject(file) for file in files} - {()}
    left = [file for file in files if _subject(file) not in subjects]
    if model.stem == "best_model" and not left:  # EvalCallback saves none: the run's are from other moments
        left, paired = files, set()
    return _one(model, left, [agent for agent in agents if _subject(agent) not in paired])


def _one(model: Path, files: list[Path], others: list[Path]) -> Path | None:
    """Return the only file whose shape fits the model and no other agent; None if there is none."""
    if len(files) + len(others) > 1:
        files = [file for file in files if _may_fit(model, file)]
        others = [agent for agent in others if any(_may_fit(agent, file) for file in files)]
    if not files or (len(files) == 1 and not others):
        return files[0] if files else None
    names, beside = ", ".join(map(str, files[:4])), ", ".join(path.name for path in others[:4])
    cause = (
        f"the statistics {names} may also belong to {beside}"
        if others
        else f"several files may be the statistics of {model.name}: {names}"
    )
    raise QuarlError(
        f"{cause}; choose with --normalize FILE or --normalize none, or rename one to {own_statistics(model).name}"
    )


def _may_fit(agent: Path, file: Path) -> bool:
    """Return whether the statistics have the shape of the agent's observations, or of one of several stacked.

    True if either cannot be read here: its reader raises the error later.
    """
    with contextlib.suppress(QuarlError, LookupError, TypeError):
        running, where = read_vecnormalize(file), str(agent)
        if (opened := Opened(agent)).is_zip:
            data = read_json(opened.unpacked("data")["data"], where)
            space = from_blob(data["observation_space"], where)
        else:
            space = from_inert(read_pickle(opened.contents(), where)[0]["observation_space"], where)
        parts = space.spaces if isinstance(space, Dict) else {"": space}
        return all(
            isinstance(part := parts.get(key), Box)
            and (
                part.low.shape == each.mean.shape
                or (part.low.ndim == each.mean.ndim == 1 and not part.low.size % each.mean.size)
            )
            for key, each in (running if isinstance(running, Mapping) else {"": running}).items()
            if each is not None
        )
    return True


def _subject(path: Path) -> tuple[str, ...]:
    """Return the words of a name that identify it: rl, 500, steps for rl_model_vecnormalize_500_steps."""
    return tuple(word for word in re.split(r"[_. -]+", path.stem.lower()) if word not in WORDS)


def _statistics(folder: Path) -> list[Path]:
    """Return the files of VecNormalize's statistics in the folder."""
    files = _files(folder)
    pickled = [path for path in files if _CALLED.search(path.name) or _PICKLED.match(Opened(path).start[:PICKLE_START])]
    return pickled or [path for path in files if path.name == RUNNING]


def _is_agent(path: Path) -> bool:
    file = Opened(path)
    start = file.start
    if file.is_zip:
        return "data" in file.names and bool(file.names & {"policy.pth", "parameters"})
    return start.startswith(b"\x80") and b"observation_space" in start and b"}" in (start[2:3], start[11:12])  # a dict


def _files(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):  # a folder that cannot be listed holds nothing that could be read
        return sorted(path for path in folder.iterdir() if not path.is_dir())
    return []
