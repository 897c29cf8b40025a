"""RL Zoo's files beside an agent: its environment, wrappers and observation statistics."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from quarl import literals
from quarl.errors import QuarlError, printable
from quarl.inert.yaml import read_yaml
from quarl.policy.graph import Provenance
from quarl.policy.operators import Normalize
from quarl.readers import find, statistics
from quarl.readers.normalizer import Statistics, read_vecnormalize
from quarl.readers.sb3_network import LAYOUTS, ON_POLICY

NONE = "none"
"""Word that selects no statistics in place of a file."""
Wrappers = tuple[tuple[str, Mapping[str, Any]], ...]
"""(dotted class name, arguments) of each wrapper, the outermost last."""
MAX_FRAMES = 1_000
"""Largest number of stacked frames: numbers from a file are bounded."""
_SAMPLED = re.compile(r"NoFrameskip-|^ALE[/-]|^(MiniGrid|BabyAI)-")
VEC_FRAME_STACK = "stable_baselines3.common.vec_env.VecFrameStack"
PREPROCESSING: dict[str, Any] = {
    "env_wrapper": ["stable_baselines3.common.atari_wrappers.AtariWrapper"],
    "frame_stack": 4,
}
"""Settings of all Atari games, whatever was tuned for them."""


def read_settings(
    model: Path, normalize: str | Path | None = None, frame_stack: int | None = None
) -> tuple[Provenance, Statistics | None]:
    """Return the training environment of the agent `model`, as far as files beside it describe it, and its statistics.

    The statistics are those of the wrapped environment's raw observation before frame stacking.

    Args:
        model: The agent's file.
        normalize: As in `load.read`.
        frame_stack: As in `load.read`.

    Raises:
        QuarlError: A file beside the agent is damaged, or the statistics are missing or ambiguous.
    """
    beside = find.settings_folder(model)
    file, reason = find_statistics(model, beside, normalize)
    operator = read_vecnormalize(file) if file else None
    reason = str(file) if operator else f"{file} normalizes rewards only" if file else reason
    reason = printable(reason)
    if beside is None:
        named = _environment(model.stem)
        return Provenance(
            env_id=named if re.search(r"-v[0-9]+$", named) else "",
            wrappers=stacked((), frame_stack),
            statistics=reason,
        ), operator
    config, args = _document(beside / "config.yml"), _document(beside / "args.yml")
    named = _environment(beside.name) if beside != model.parent else ""
    wrappers = wrappers_of(config, beside / "config.yml")
    if any(name.endswith(".NormalizeObservation") for name, _ in wrappers):
        raise QuarlError(f"{beside / 'config.yml'} names NormalizeObservation, whose statistics are not in any file")
    environment = Provenance(
        env_id=_text(args.get("env") or named, beside / "args.yml", "env"),
        env_kwargs=_mapping(args.get("env_kwargs") or config.get("env_kwargs"), beside / "args.yml", "env_kwargs"),
        wrappers=stacked(wrappers, frame_stack),
        statistics=reason,
    )
    return environment, operator


def of_observation(
    normalize: Statistics, shape: tuple[int, ...], environment: Provenance
) -> tuple[Normalize, Provenance]:
    """Return the statistics of an observation of `shape`, and the environment for which they hold.

    RL Zoo stacks frames that are already normalized. A vector of frames therefore has the statistics of one frame
    repeated, and the padding before an episode, 0 there, is the mean here.

    Args:
        normalize: Statistics of one frame or of the whole observation.
        shape: Shape of the observation.
        environment: The training environment.

    Raises:
        QuarlError: The statistics belong to another observation.
    """
    if not isinstance(normalize, Normalize):
        raise QuarlError(
            f"the statistics of {environment.statistics or 'VecNormalize'} belong to a Dict, not to one array"
        )
    mean, (*inside, (last, options)) = normalize.mean, environment.wrappers or (("", {}),)
    if mean.shape == shape:
        return normalize, environment
    frames = options.get("n_stack") if last == VEC_FRAME_STACK else None
    if type(frames) is not int or mean.ndim != 1 or shape != (frames * mean.size,):
        raise QuarlError(
            f"the statistics of {environment.statistics or 'VecNormalize'} have shape {mean.shape}, but the policy "
            f"observes {shape}: they belong to another agent, or frames are "
            "stacked: add --frame-stack N (frame_stack=N in Python)"
        )
    stack = (VEC_FRAME_STACK, {**options, "before": mean.tolist()})
    tiled = replace(normalize, mean=np.tile(mean, frames), variance=np.tile(normalize.variance, frames))
    return tiled, replace(environment, wrappers=(*inside, stack))


def find_statistics(model: Path, folder: Path | None, normalize: str | Path | None = None) -> tuple[Path | None, str]:
    """Find the statistics that an agent observed with; return their file or None, and a reason if there is none.

    `normalize` decides first, then the run's own config.yml and args.yml, then the files beside the agent.

    Args:
        model: The agent's file.
        folder: The folder of settings beside it, from `find.settings_folder`.
        normalize: As in `load.read`.

    Raises:
        QuarlError: The statistics are missing, or several files may be the agent's.
    """
    if normalize is not None:
        return (None, "as asked") if str(normalize) == NONE else (Path(normalize), "")
    wanted, document = _wanted(model, folder)
    if wanted is not None and not wanted:
        return None, f"{document} says normalize: false"
    chosen = statistics.choose(model, [path for path in (folder, *find.called_after(model)) if path is not None])
    if chosen is None and wanted and vecnormalize_options(wanted, document).get("norm_obs", True):
        missing = (folder or model.parent) / "vecnormalize.pkl"
        raise QuarlError(
            f"no file {missing}, but according to {document.name} observations were normalized; copy it there, or add "
            "--normalize FILE"
        )
    # The zoo of Stable-Baselines 2 always saved them, and applies them if its document asks for it or is missing.
    if chosen and chosen.name == statistics.RUNNING and wanted is None and (chosen.parent / "config.yml").is_file():
        return None, f"{chosen.parent / 'config.yml'} does not say normalize, so {chosen.name} beside it is not applied"
    return chosen, ""


def _wanted(model: Path, folder: Path | None) -> tuple[Any, Path]:
    """Return the `normalize` entry of the run's documents, None if there is none, and the document that has it."""
    places = dict.fromkeys((folder or model.parent, model.parent))
    for path in (place / name for place in places for name in ("config.yml", "args.yml")):
        # Alone beside the agent, it may be anything's.
        with contextlib.nullcontext() if path.parent == folder else contextlib.suppress(QuarlError):
            said = _document(path)
            given = _mapping(said.get("hyperparams"), path, "hyperparams")  # to the zoo's scripts
            value = said.get("normalize", given.get("normalize"))
            if isinstance(value, bool | Mapping) or (value is not None and path.name == "config.yml"):
                return value, path
    return None, model


def samples_actions(algo: str, env_id: str) -> bool:
    """Return True if the zoo evaluates with sampled actions (`enjoy.py`): Atari and MiniGrid.

    False for value-based agents: there it means epsilon-greedy, which is not a property of the network.
    """
    return LAYOUTS[algo] is ON_POLICY and bool(_SAMPLED.search(env_id))


def _environment(name: str) -> str:
    """Return the environment that a file or folder is named after, as ENV or, on the hub, ALGO-ENV."""
    return re.sub(rf"^({'|'.join(LAYOUTS)})-", "", name)


def vecnormalize_options(normalize: Any, path: Path) -> Mapping[str, Any]:
    """Return VecNormalize's arguments from true, {...}, or either of the zoo's two spellings of a dict as text."""
    if isinstance(normalize, bool | Mapping):
        return normalize if isinstance(normalize, Mapping) else {}
    with contextlib.suppress(ValueError):
        options = literals.read(str(normalize))
        if isinstance(options, dict):
            return options
    raise QuarlError(f"{path}: normalize is {str(normalize)[:60]!r}; write true, false or a dict of literals")


def wrappers_of(config: Mapping[str, Any], path: Path) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Return env_wrapper, then vec_env_wrapper, then frame stacking: the order in which the zoo applies them."""
    wrappers: list[tuple[str, Mapping[str, Any]]] = []
    for key in ("env_wrapper", "vec_env_wrapper"):
        entries = config.get(key) or []
        for entry in entries if isinstance(entries, list) else [entries]:
            if isinstance(entry, Mapping) and len(entry) == 1:
                name, kwargs = next(iter(entry.items()))
            else:
                name, kwargs = entry, None
            wrappers.append((_text(name, path, key), _mapping(kwargs, path, key)))
    stack = config.get("frame_stack") or 0
    if type(stack) is not int or not 0 <= stack <= MAX_FRAMES:
        raise QuarlError(f"{path}: frame_stack is {str(stack)[:60]!r}, not a number of frames")
    if stack:
        wrappers.append((VEC_FRAME_STACK, {"n_stack": stack}))
    return tuple(wrappers)


def stacked(wrappers: Wrappers, frame_stack: int | None) -> Wrappers:
    """Return the wrappers with `frame_stack` frames in place of their own number; 1 stacks none, None keeps them.

    Raises QuarlError for a number outside 1 to MAX_FRAMES.
    """
    if frame_stack is None:
        return wrappers
    if type(frame_stack) is not int or not 1 <= frame_stack <= MAX_FRAMES:
        raise QuarlError(f"frame_stack is {str(frame_stack)[:60]!r}, not a number from 1 to {MAX_FRAMES:,}")
    options = next((arguments for name, arguments in reversed(wrappers) if name == VEC_FRAME_STACK), {})
    stack = (VEC_FRAME_STACK, {**options, "n_stack": frame_stack})
    return (*(entry for entry in wrappers if entry[0] != VEC_FRAME_STACK), *(stack,)[: frame_stack > 1])


def _text(value: Any, path: Path, key: str) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > 200:
        raise QuarlError(f"{path}: {key} is {str(value)[:60]!r}, not a name")
    return value


def _mapping(value: Any, path: Path, key: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise QuarlError(f"{path}: {key} is {str(value)[:60]!r}, not a mapping of names to values")
    return value


def _document(path: Path) -> dict[str, Any]:
    return read_yaml(path) if path.exists() else {}
