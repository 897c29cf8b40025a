"""Memory shared by the processes of one run: named arrays in one file that the supervisor owns.

The module maps a file instead of using multiprocessing's SharedMemory, whose segments vanish when a process that merely
attached to them exits. The supervisor holds a lock on the file from before it has its name. The next run can therefore
remove the file of a killed run, and no other; process ids do not identify runs when containers share the folder.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import lock_descriptor

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError
from quarl.files import hold

PREFIX = "quarl-actorq-"
SHARED = Path("/dev/shm")
LINE = 64
"""Bytes of a cache line: arrays start on one, so that writers of neighbors do not slow each other down."""


@dataclass(frozen=True, slots=True)
class Block:
    """The layout of one named array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def extent(self) -> int:
        """Bytes that the array takes: whole cache lines."""
        return -(-max(self.dtype.itemsize * int(np.prod(self.shape)), 1) // LINE) * LINE


class Memory:
    """The mapped file. All bytes are zero at first; the arrays are views, valid as long as this object."""

    def __init__(self, path: Path, blocks: Mapping[str, Block], *, create: bool = False) -> None:
        """Map the file; `create` makes and locks it first.

        Args:
            path: Path of the file.
            blocks: Layout of each array, by name.
            create: Create the file instead of attaching to it.

        Raises:
            QuarlError: If the memory is not available.
        """
        self.path = path
        self.blocks = dict(blocks)
        *starts, size = itertools.accumulate((block.extent for block in self.blocks.values()), initial=0)
        self._starts = dict(zip(self.blocks, starts, strict=True))
        unnamed = path.with_name(f".{path.name}") if create else path
        descriptor = os.open(unnamed, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
        self._lock: int | None = None
        try:
            if create:
                lock_descriptor(descriptor)
                self._lock = os.dup(descriptor)
                unnamed.rename(path)
                # Reserve the pages now: a full tmpfs must raise here, and not cause a bus error in the middle of a run.
                os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
        except OSError as error:
            if create:
                unnamed.unlink(missing_ok=True)
                self.remove()
            raise QuarlError(
                f"cannot share {size / 2**20:.0f} MB of memory in {path.parent}: {error.strerror}; "
                "use a smaller --net-arch or fewer --actors, or set TMPDIR to a larger filesystem"
            ) from None
        finally:
            os.close(descriptor)

    def __reduce__(self) -> tuple[type[Memory], tuple[Path, dict[str, Block]]]:
        """Pickle the path and layout; another process maps the same bytes."""
        return Memory, (self.path, self.blocks)

    @classmethod
    def create(cls, blocks: Mapping[str, Block], *, named: bool = True) -> Memory:
        """Allocate memory until `remove`; without a name it ends with the process, however that ends."""
        if not hasattr(os, "posix_fallocate"):
            raise UnsupportedError(
                "quarl actorq needs Linux: its processes share memory that other systems do not reserve"
            )
        for path in _all():  # left by killed supervisors, in either folder
            if not _held(path):
                with contextlib.suppress(OSError):
                    path.unlink()
        size = sum(block.extent for block in blocks.values())
        if not named:
            descriptor = os.memfd_create(PREFIX)
            os.posix_fallocate(descriptor, 0, size)
            memory = cls(Path(f"/proc/{os.getpid()}/fd/{descriptor}"), blocks)
            memory._lock = descriptor
            return memory
        folder = _folder(size)
        name = f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        return cls(folder / name, blocks, create=True)

    def array(self, name: str) -> Array:
        """Return the array with that name."""
        block = self.blocks[name]
        flat = np.frombuffer(self._map, block.dtype, int(np.prod(block.shape)), self._starts[name])
        view: Array = flat.reshape(block.shape)
        return view

    def alone(self) -> bool:
        """Return True if no other run has memory on this machine."""
        return not any(path != self.path and _held(path) for path in _all())

    def remove(self) -> None:
        """Delete the file; processes that have it mapped keep their memory until they end."""
        if self.path.name.startswith(PREFIX):
            self.path.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _folder(size: int) -> Path:
    """Return a memory-backed folder if it has room, so that nothing is written to a disk."""
    if SHARED.is_dir() and os.access(SHARED, os.W_OK):
        stat = os.statvfs(SHARED)
        if stat.f_bavail * stat.f_frsize > size:
            return SHARED
    return Path(tempfile.gettempdir())


def _all() -> list[Path]:
    """Return the memory files of all runs on this machine."""
    folders = {SHARED, Path(tempfile.gettempdir())}
    return [path for folder in folders for path in folder.glob(f"{PREFIX}[0-9]*-*")]


def _held(path: Path) -> bool:
    """Return True if a supervisor holds the file, in whichever container."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return not hold(file.fileno())
    return path.exists()  # locked, or another user's
