"""Output folders and the files in them: folders of one run at a time, files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from filelock import lock_descriptor

from quarl.errors import QuarlError

NAME_BYTES = 200
"""Of a file's name, that its temporary one keeps: file systems take 255."""


def make_folder(folder: Path) -> None:
    """Makes an output folder where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise QuarlError(f"cannot write to {folder}: {error.strerror}; choose another folder with -o") from None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder, made where it is missing, with no second run in it; the system takes the lock from whoever is
    killed."""
    make_folder(folder)
    with (folder / "quarl.lock").open("a") as file:
        if not hold(file.fileno()):
            raise QuarlError(f"another quarl run is at work in {folder}: wait for it, or choose another folder with -o")
        yield


def hold(descriptor: int) -> bool:
    """Whether the open file is locked, until it is closed or its process ends; others may have it, or it cannot be."""
    with contextlib.suppress(OSError):  # not every network filesystem has locks
        return lock_descriptor(descriptor, blocking=False)
    return False


@contextlib.contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """The folder, which is there, once nobody else holds it so: for moments, as to move files. It gets no lock file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # NFS does not lock folders
            lock_descriptor(descriptor)
        yield
    finally:
        os.close(descriptor)


def write_bytes(data: bytes, path: Path) -> None:
    """Replaces the file at `path` by `data` in one step."""
    write_parts([data], path)


def write_parts(parts: Iterable[bytes | memoryview], path: Path) -> None:
    """Writes a temporary file, then puts it at `path`: fsync, rename, fsync of the folder."""
    temporary = beside(path)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except OSError as error:
        raise QuarlError(
            f"cannot write {path}: {error.strerror}; choose a folder that exists and is writable"
        ) from None
    try:
        with open(descriptor, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:  # Ctrl-C too
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise QuarlError(f"cannot write {path}: {error}; nothing was changed") from None
        raise
    _sync(path.parent)


def beside(path: Path) -> Path:
    """A name in the same folder that nothing has, hidden, for what becomes `path` once it is whole.

    Files and folders are made there by plain calls, not by those of tempfile: their permissions are the umask's.
    """
    name = os.fsencode(path.name)[:NAME_BYTES].decode(errors="ignore")
    return path.with_name(f".{name}.{secrets.token_hex(8)}")


class Dispensable:
    """Files of one kind that a run can do without: a full disk costs the file and not the run, and is said once until
    one is written again."""

    def __init__(self, say: Callable[[str], None], error: type[QuarlError] = QuarlError) -> None:
        """error: what is raised where a file cannot be written; any other is the caller's."""
        self._say, self._error = say, error
        self._is_full = False

    def write(self, write: Callable[[], object]) -> bool:
        """Whether `write` could."""
        try:
            write()
        except self._error as error:
            if not self._is_full:
                self._say(f"{error}; training goes on")
            self._is_full = True
        else:
            self._is_full = False
        return not self._is_full


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
