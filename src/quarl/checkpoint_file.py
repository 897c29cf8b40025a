"""One checkpoint file: safetensors whose metadata is a JSON manifest with a sha256 of every tensor.

It is written past its final name and renamed, so that a crash at any moment leaves the old file or the new one, whole.
The header is a function of the manifest alone and the manifest carries its own sha256: every bit of the file is either
under a checksum or compared with what must stand there. Neither writing nor reading holds a replay buffer in memory
twice: arrays are mapped.
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
"""Bytes; of a long run of many environments it has some hundred thousand."""


class CheckpointError(QuarlError):
    """Nothing could be written: disk full, folder gone. What was saved before is untouched, and training can go on."""


class DamagedError(QuarlError):
    """The file is not, bit for bit, what was saved."""


def write(path: Path, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Saves JSON values and arrays at `path`; raises CheckpointError and changes nothing where that fails."""
    for name, array in arrays.items():
        if array.dtype not in NAMES:
            raise UnsupportedError(f"{name!r} has dtype {array.dtype}, which a checkpoint cannot hold")
    facts = json.loads(json.dumps(facts, default=plain))  # fixed from here on: the header is written twice
    contents = {name: np.asarray(arrays[name], order="C") for name in ordered(arrays)}
    with ThreadPoolExecutor(1) as pool, replacing(path) as file:
        digests = pool.map(digest, contents.values())  # beside the writing: neither holds the interpreter's lock
        files.put(file, first_bytes(_manifest(facts, contents, dict.fromkeys(contents, UNKNOWN))))
        for array in contents.values():
            files.put(file, raw(array))
        final = first_bytes(_manifest(facts, contents, dict(zip(contents, digests, strict=True))))
        file.seek(0)
        files.put(file, final)  # as long as the first one: only the digests differ


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """`files.replacing`, for which what killed writers left makes room; CheckpointError where the disk refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        with files.replacing(path, path.parent / f"{TEMPORARY}{os.getpid()}.tmp") as file:
            hold(file.fileno())
            yield file
    except OSError as error:
        raise CheckpointError(
            f"cannot save {path}: {error.strerror or error}; what was saved before is kept, {files.advice(error)}"
        ) from None


def _sweep(folder: Path) -> None:
    """Removes what killed writers left; a living one holds the lock of its file, whatever its process id is by now."""
    for path in filter(Path.is_file, folder.glob(f"{TEMPORARY}*.tmp")):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if hold(file.fileno()):
                path.unlink()


def read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Manifest and arrays, every checksum verified; the arrays are mapped, so copy what is to be kept or changed."""
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
    """The manifest, once the header is known to be exactly the one that we write for it."""
    size = path.stat().st_size
    if not path.is_file():  # to open a pipe would wait for its writer
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
    """What is refused inside is not what was saved."""
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
    """Length and header of the file that has this manifest; padded, so that the tensors start aligned."""
    table = {name: (entry["dtype"], entry["shape"]) for name, entry in json.loads(manifest)["tensors"].items()}
    return header(table, sealed(manifest), ascii_only=True)
