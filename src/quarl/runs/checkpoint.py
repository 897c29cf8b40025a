"""Checkpoints of a learner: its complete state, restored bit for bit, in one file per checkpoint.

    checkpoint-0000012000.safetensors      networks, targets, optimizers, clocks, generators, replay; named by updates

Nothing in a checkpoint is executed: it holds arrays and JSON values, each checked against the model that receives it.
After a kill, a full disk or flipped bits, the newest intact checkpoint loads.
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
KEPT = 2
"""Number of checkpoints that remain in a folder."""
REPLAY, RANDOM = "replay/", "random/"


class Replay(Protocol):
    """A buffer whose contents, including its random generator, can be saved."""

    def state(self) -> dict[str, Array]:
        """Return the complete contents as arrays."""

    def load_state(self, state: dict[str, Array]) -> None:
        """Restore contents returned by `state`, as copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A verified checkpoint that no model has loaded yet; `load_latest` returns it."""

    path: Path
    updates: int
    state: dict[str, Any]
    """JSON values that the caller passed to `save`."""
    has_replay: bool
    warnings: tuple[str, ...]
    """One line for each newer checkpoint that is damaged."""
    facts: dict[str, Any]
    arrays: dict[str, Array]

    @property
    def timesteps(self) -> int:
        """Return the number of environment steps of its learner."""
        return int(self.facts["counters"]["num_timesteps"])


def save(folder: Path, model: BaseAlgorithm, state: Mapping[str, Any], *, replay: Replay | None = None) -> Path:
    """Write a checkpoint with model, random generators, the caller's JSON values and, if given, the replay's contents.

    Afterwards checkpoints beyond the KEPT newest are removed. So are those with more updates than this one, because
    the run went back to a state before them. If it fails, the folder's checkpoints do not change.

    Args:
        folder: Folder of the run's checkpoints.
        model: Learner to save.
        state: JSON values to save with it.
        replay: Buffer whose contents are saved; None saves no replay.

    Returns:
        The path of the new checkpoint.

    Raises:
        CheckpointError: The file cannot be written.
        QuarlError: A weight is NaN or infinite.
    """
    facts, arrays = checkpoint_model.take(model)
    facts["random"], generators = take_random(model)
    contents = {f"{REPLAY}{name}": array for name, array in replay.state().items()} if replay is not None else {}
    updates = model._n_updates
    path = folder / f"checkpoint-{updates:010}.safetensors"
    everything = {"updates": updates, "replay": replay is not None, "model": facts, "state": state}
    checkpoint_file.write(path, everything, {**arrays, **generators, **contents})
    for number, (count, old) in enumerate(_checkpoints(folder, up_to=updates)):
        if number >= KEPT or count > updates:
            with contextlib.suppress(OSError):  # the new checkpoint is on disk; the next save tries again
                old.unlink()
    return path


def load_latest(folder: Path) -> Checkpoint:
    """Return the newest intact checkpoint.

    Args:
        folder: Folder of the run's checkpoints.

    Returns:
        The checkpoint, with one warning for each newer one that is damaged.

    Raises:
        NothingSavedError: The folder has no intact checkpoint.
        QuarlError: The newest one was written by a newer QuaRL.
    """
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
            warnings.append(f"{path} is not a QuaRL checkpoint; going back to the one before it")
    if warnings:
        raise NothingSavedError(
            f"all {len(warnings)} checkpoints in {folder} are damaged; start again in another folder, or without these"
        )
    raise NothingSavedError(
        f"no checkpoint in {folder}; start without --resume, or name the folder of the run to resume"
    )


@contextlib.contextmanager
def sound() -> Iterator[None]:
    """Raise one-line errors for a checkpoint with valid checksums and malformed contents.

    Also usable as a decorator.
    """
    try:
        yield
    except checkpoint_model.MALFORMED as error:
        raise QuarlError(
            f"the checkpoint's contents are malformed ({in_one_line(error)[:100]}); start again in another folder, or "
            "without this checkpoint"
        ) from None


def restore(checkpoint: Checkpoint, model: BaseAlgorithm, replay: Replay | None = None) -> None:
    """Restore the checkpoint into the model, the process's random generators and, if both exist, the replay.

    Args:
        checkpoint: Checkpoint to restore.
        model: Model that receives it; unchanged if this fails.
        replay: Buffer that receives the saved replay; None leaves the replay out.

    Raises:
        QuarlError: Algorithm, environment or networks differ.
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
    """Return the states of all random generators, as JSON values and arrays.

    They are the global generators of Python, numpy and torch, and the action space's.
    """
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
    """Restore every generator to the state that `take_random` saved.

    Args:
        model: The model, whose action space and device have generators of their own.
        facts: States that JSON holds.
        arrays: States of PyTorch's generators, by name.
    """
    version, words, gauss = facts["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(_numpy_state(facts["numpy"]))
    model.action_space.np_random.bit_generator.state = _numpy_state(facts["action_space"])
    torch.set_rng_state(torch.from_numpy(arrays[f"{RANDOM}torch"].copy()))
    if model.device.type == "cuda" and f"{RANDOM}cuda" in arrays:
        torch.cuda.set_rng_state(torch.from_numpy(arrays[f"{RANDOM}cuda"].copy()), model.device)


def _numpy_state(value: Any) -> Any:
    """Return a bit generator's state in numpy's form; JSON turned its arrays into lists."""
    if isinstance(value, dict):
        return {key: _numpy_state(entry) for key, entry in value.items()}
    return np.array(value, np.uint64) if isinstance(value, list) else value


def export(folder: Path, model: BaseAlgorithm, name: str = "model.zip", *, exclude: Iterable[str] = ()) -> Path:
    """Write the model's zip in Stable-Baselines3's own format, which `type(model).load` reads.

    Args:
        folder: Folder that receives the zip.
        model: Model to export.
        name: File name of the zip.
        exclude: Attributes that training added to the model.

    Returns:
        The path of the zip.

    Raises:
        CheckpointError: The file cannot be written.
        QuarlError: A weight is NaN or infinite.
    """
    checkpoint_model.take(model)  # raises on NaN and infinity
    buffer = io.BytesIO()  # written to memory first: a full disk must not leave half a zip
    model.save(buffer, exclude=exclude)
    path = folder / name
    with checkpoint_file.replacing(path) as file:
        files.put(file, buffer.getbuffer())
    return path


def export_statistics(path: Path, model: BaseAlgorithm) -> None:
    """Pickle the model's VecNormalize as its own `save` does; write no file if it has none."""
    if (wrapper := model.get_vec_normalize_env()) is not None:
        with checkpoint_file.replacing(path) as file:
            files.put(file, pickle.dumps(wrapper))


def _checkpoints(folder: Path, up_to: int | None = None) -> list[tuple[int, Path]]:
    """Return (updates, path) of each checkpoint, newest first; those beyond `up_to` come last."""
    matches = (NAME.fullmatch(path.name) for path in folder.glob("checkpoint-*"))
    numbered = [(int(match[1]), folder / match[0]) for match in matches if match]
    return sorted(numbered, key=lambda entry: (up_to is None or entry[0] <= up_to, entry[0]), reverse=True)
