"""One checkpoint file: safetensors whose metadata is a JSON manifest with a sha256 of every tensor.

It is written under a temporary name and renamed: a crash at any time leaves the complete old file or the new one.
The header is a function of the manifest, and the manifest carries its own sha256. Every bit of the file is therefore
under a checksum or compared with its only valid value. Neither writing nor reading holds a replay buffer in memory
twice: arrays are memory-mapped.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from quarl import files
from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError
from quarl.files import hold
from quarl.inert.reading_budget import read_json
from quarl.machine import version
from quarl.policy.artifact import plain
from quarl.policy.container import NAMES, TYPES, digest, header, ordered, parse, raw, sealed, unsealed

FORMAT = "quarl-checkpoint"
SCHEMA = 1
TEMPORARY = ".quarl-"
UNKNOWN = "0" * 64
MAX_HEADER = 2**26
"""Largest header in bytes; a long run of many environments has some hundred thousand."""


class CheckpointError(QuarlError):
    """The checkpoint could not be written (disk full, folder missing).

    Earlier files are unchanged and training can continue.
    """


class DamagedError(QuarlError):
    """The file differs from the one that was saved."""


def write(path: Path, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Save JSON values and arrays at `path`; nothing changes if that fails.

    Args:
        path: File to write.
        facts: JSON values, which go into the manifest.
        arrays: Arrays by name.

    Raises:
        CheckpointError: The file cannot be written.
        UnsupportedError: An array has a dtype that a checkpoint cannot hold.
    """
    for name, array in arrays.items():
        if array.dtype not in NAMES:
            raise UnsupportedError(f"{name!r} has dtype {array.dtype}, which a checkpoint cannot hold")
    facts = json.loads(json.dumps(facts, default=plain))  # fixed from here on, because the header is written twice
    contents = {name: np.asarray(arrays[name], order="C") for name in ordered(arrays)}
    with ThreadPoolExecutor(1) as pool, replacing(path) as file:
        digests = pool.map(digest, contents.values())  # parallel to writing: neither holds the interpreter's lock
        files.put(file, first_bytes(_manifest(facts, contents, dict.fromkeys(contents, UNKNOWN))))
        for array in contents.values():
            files.put(file, raw(array))
        # now the digests are known: overwrite the first header with the final one
        final = first_bytes(_manifest(facts, contents, dict(zip(contents, digests, strict=True))))
        file.seek(0)
        files.put(file, final)  # the length does not change: only the digests differ


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open the file as `files.replacing` does, after removing leftovers of killed writers.

    Raises:
        CheckpointError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        with files.replacing(path, path.parent / f"{TEMPORARY}{os.getpid()}.tmp") as file:
            hold(file.fileno())
            yield file
    except OSError as error:
        raise CheckpointError(
            f"cannot save {path}: {error.strerror or error}; the files saved before are kept, {files.advice(error)}"
        ) from None


def _sweep(folder: Path) -> None:
    """Remove files of killed writers; a running writer holds a lock on its file, even if its process id was reused."""
    for path in filter(Path.is_file, folder.glob(f"{TEMPORARY}*.tmp")):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if hold(file.fileno()):
                path.unlink()


def read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the manifest and the arrays after verifying every checksum.

    The arrays are memory-mapped: copy those to be changed or kept.
    """
    try:
        manifest = _checked_manifest(path)
        with _damaged():
            table, _ = parse(np.memmap(path, np.uint8, "c").data, TYPES)
        arrays = {name: np.frombuffer(table[name][2], TYPES[table[name][0]]) for name in manifest["tensors"]}
        arrays = {name: array.reshape(table[name][1]) for name, array in arrays.items()}
        with ThreadPoolExecutor() as pool:
            for name, sha256 in zip(arrays, pool.map(digest, arrays.values()), strict=True):
                if sha256 != manifest["tensors"][name]["sha256"]:
                    raise DamagedError(f"tensor {name!r} does not match its sha256")
    except OSError as error:
        raise DamagedError(f"it cannot be read: {error.strerror or error}") from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, RuntimeError) as error:
        raise DamagedError(f"{type(error).__name__} in its header") from None
    return manifest, arrays


def _checked_manifest(path: Path) -> Any:
    """Return the manifest after checking that the header is exactly the one that QuaRL writes for it."""
    size = path.stat().st_size
    if not path.is_file():  # opening a pipe would wait for its writer
        raise DamagedError("it is not a regular file")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(size - 8, MAX_HEADER):
            raise DamagedError("it is cut short")
        start = file.read(length)
    with _damaged():
        metadata = read_json(start, "its header")["__metadata__"]
        manifest = unsealed(metadata, FORMAT)
    if manifest["schema"] < 1:
        raise DamagedError(f"there is no schema {manifest['schema']}")
    if manifest["schema"] > SCHEMA:
        raise QuarlError(
            f"{path} has schema {manifest['schema']} and this QuaRL reads schema {SCHEMA}; "
            f"install QuaRL {manifest['quarl']} or newer"
        )
    if first_bytes(metadata["manifest"]) != length.to_bytes(8, "little") + start:
        raise DamagedError("the header does not match the manifest")
    return manifest


@contextlib.contextmanager
def _damaged() -> Iterator[None]:
    """Re-raise `QuarlError` from the block as `DamagedError`."""
    try:
        yield
    except QuarlError as error:
        raise DamagedError(str(error)) from None


def _manifest(facts: Mapping[str, Any], arrays: Mapping[str, Array], digests: Mapping[str, str]) -> str:
    tensors = {
        name: {"dtype": NAMES[array.dtype], "shape": array.shape, "sha256": digests[name]}
        for name, array in arrays.items()
    }
    manifest = {"format": FORMAT, "schema": SCHEMA, "quarl": version("quarl"), **facts, "tensors": tensors}
    return json.dumps(manifest, separators=(",", ":"))


def first_bytes(manifest: str) -> bytes:
    """Return length and header of the file with this manifest, padded so that the tensors are aligned."""
    table = {name: (entry["dtype"], entry["shape"]) for name, entry in json.loads(manifest)["tensors"].items()}
    return header(table, sealed(manifest), ascii_only=True)
