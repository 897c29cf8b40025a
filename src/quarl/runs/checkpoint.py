"""Checkpoints of a learner: everything that it needs to go on, bit for bit, in one file per checkpoint.

    checkpoint-0000012000.safetensors      networks, targets, optimizers, clocks, generators, replay; named by updates

Nothing in them is executed: there are arrays and JSON values, and every one is checked against the model that it is to
be put into. Killed at any moment, disk full or bits flipped: the newest sound one loads.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm

from quarl import checkpoint_file, files
from quarl.arrays import Array
from quarl.checkpoint_file import CheckpointError as CheckpointError
from quarl.checkpoint_file import DamagedError
from quarl.errors import NothingSavedError, QuarlError, in_one_line
from quarl.runs import checkpoint_model

NAME = re.compile(r"checkpoint-([0-9]{10,18})\.safetensors")
REPLAY, RANDOM = "replay/", "random/"


class Replay(Protocol):
    """A buffer whose contents, generator included, can be saved."""

    def state(self) -> dict[str, Array]:
        """Everything it holds, as arrays."""

    def load_state(self, state: dict[str, Array]) -> None:
        """The inverse; copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What `load_latest` found; verified, and not yet in any model."""

    path: Path
    updates: int
    state: dict[str, Any]
    """What the caller of `save` gave."""
    has_replay: bool
    warnings: tuple[str, ...]
    """One line for each newer checkpoint that is damaged."""
    facts: dict[str, Any]
    arrays: dict[str, Array]

    @property
    def timesteps(self) -> int:
        """Environment steps that its learner had made."""
        return int(self.facts["counters"]["num_timesteps"])


def save(
    folder: Path, model: BaseAlgorithm, state: Mapping[str, Any], *, replay: Replay | None = None, keep: int = 2
) -> Path:
    """The file that now holds model, generators, the caller's JSON values and, if given, the replay's contents.

    Checkpoints beyond the `keep` newest are removed afterwards, and so are those of more updates than this one: the
    run went back to before them. Raises CheckpointError where the disk refuses, QuarlError where a weight is not
    finite; either way the folder's checkpoints are as before.
    """
    assert keep >= 1
    facts, arrays = checkpoint_model.take(model)
    facts["random"], generators = take_random(model)
    contents = {f"{REPLAY}{name}": array for name, array in replay.state().items()} if replay is not None else {}
    updates = model._n_updates
    path = folder / f"checkpoint-{updates:010}.safetensors"
    everything = {"updates": updates, "replay": replay is not None, "model": facts, "state": state}
    checkpoint_file.write(path, everything, {**arrays, **generators, **contents})
    for number, (count, old) in enumerate(_checkpoints(folder, up_to=updates)):
        if number >= keep or count > updates:
            with contextlib.suppress(OSError):  # the new one is safe; the next save tries again
                old.unlink()
    return path


def load_latest(folder: Path) -> Checkpoint:
    """The newest sound checkpoint; NothingSavedError where there is none, QuarlError where it is of a newer QuaRL."""
    warnings: list[str] = []
    for _, path in _checkpoints(folder):
        try:
            manifest, arrays = checkpoint_file.read(path)
            return Checkpoint(
                path=path,
                updates=int(manifest["updates"]),
                state=dict(manifest["state"]),
                has_replay=bool(manifest["replay"]),
                warnings=tuple(warnings),
                facts=dict(manifest["model"]),
                arrays=arrays,
            )
        except DamagedError as error:
            warnings.append(f"{path} is damaged ({error}); going back to the checkpoint before it")
        except checkpoint_model.MALFORMED:
            warnings.append(f"{path} is no checkpoint of ours; going back to the one before it")
    if warnings:
        raise NothingSavedError(
            f"all {len(warnings)} checkpoints in {folder} are damaged; start again in another folder, or without these"
        )
    raise NothingSavedError(
        f"no checkpoint in {folder}; start without --resume, or name the folder of the run to resume"
    )


@contextlib.contextmanager
def sound() -> Iterator[None]:
    """What a checkpoint with right checksums and wrong contents raises, as one line; it decorates too."""
    try:
        yield
    except checkpoint_model.MALFORMED as error:
        raise QuarlError(
            f"the checkpoint's contents are malformed ({in_one_line(error)[:100]}); start again in another folder, or "
            "without this checkpoint"
        ) from None


def restore(checkpoint: Checkpoint, model: BaseAlgorithm, replay: Replay | None = None) -> None:
    """Puts the checkpoint into the model, the process's random generators and, where both are there, the replay.

    Raises QuarlError, with the model as it was, where algorithm, environment or networks differ.
    """
    facts, arrays = checkpoint.facts, checkpoint.arrays
    contents = {name.removeprefix(REPLAY): array for name, array in arrays.items() if name.startswith(REPLAY)}
    learned = {name: array for name, array in arrays.items() if not name.startswith((REPLAY, RANDOM))}
    try:
        with sound():
            checkpoint_model.check(model, facts, learned)
            if replay is not None and checkpoint.has_replay:
                replay.load_state(contents)
            checkpoint_model.give(model, facts, learned)
            give_random(model, facts["random"], arrays)
    except QuarlError as error:
        raise QuarlError(f"cannot resume from {checkpoint.path}: {error}") from None


def take_random(model: BaseAlgorithm) -> tuple[dict[str, Any], dict[str, Array]]:
    """JSON values and arrays: the global generators of Python, numpy and torch, and the action space's."""
    arrays = {f"{RANDOM}torch": torch.get_rng_state().numpy()}
    if model.device.type == "cuda":
        arrays[f"{RANDOM}cuda"] = torch.cuda.get_rng_state(model.device).numpy()
    facts = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "action_space": model.action_space.np_random.bit_generator.state,
    }
    return facts, arrays


def give_random(model: BaseAlgorithm, facts: dict[str, Any], arrays: Mapping[str, Array]) -> None:
    """Continues every generator's sequence where `take_random` saw it."""
    version, words, gauss = facts["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(_numpy_state(facts["numpy"]))
    model.action_space.np_random.bit_generator.state = _numpy_state(facts["action_space"])
    torch.set_rng_state(torch.from_numpy(arrays[f"{RANDOM}torch"].copy()))
    if model.device.type == "cuda" and f"{RANDOM}cuda" in arrays:
        torch.cuda.set_rng_state(torch.from_numpy(arrays[f"{RANDOM}cuda"].copy()), model.device)


def _numpy_state(value: Any) -> Any:
    """A bit generator's state as numpy wants it; JSON made lists of its arrays."""
    if isinstance(value, dict):
        return {key: _numpy_state(entry) for key, entry in value.items()}
    return np.array(value, np.uint64) if isinstance(value, list) else value


def export(folder: Path, model: BaseAlgorithm, name: str = "model.zip", *, exclude: Iterable[str] = ()) -> Path:
    """The zip in the folder, in Stable-Baselines3's own format: `type(model).load` reads it.

    exclude: attributes of the model that are not its own. Raises as `save` does.
    """
    checkpoint_model.take(model)  # refuses NaN and infinity
    buffer = io.BytesIO()  # zipfile cannot be left half written when the disk is full
    model.save(buffer, exclude=exclude)
    path = folder / name
    with checkpoint_file.replacing(path) as file:
        files.put(file, buffer.getbuffer())
    return path


def export_statistics(path: Path, model: BaseAlgorithm) -> None:
    """The model's VecNormalize, as its own `save` pickles it; no file where it has none."""
    if (wrapper := model.get_vec_normalize_env()) is not None:
        with checkpoint_file.replacing(path) as file:
            files.put(file, pickle.dumps(wrapper))


def _checkpoints(folder: Path, up_to: int | None = None) -> list[tuple[int, Path]]:
    """(updates, path), newest first; with `up_to`, those beyond it come last."""
    matches = (NAME.fullmatch(path.name) for path in folder.glob("checkpoint-*"))
    numbered = [(int(match[1]), folder / match[0]) for match in matches if match]
    return sorted(numbered, key=lambda entry: (up_to is None or entry[0] <= up_to, entry[0]), reverse=True)
