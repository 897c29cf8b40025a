"""Output folders and their files: folders of one run at a time, atomic writes, and rows as lines of JSON."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from filelock import lock_descriptor

from quarl.errors import QuarlError

NAME_BYTES = 200
"""Bytes of a file's name that its temporary file keeps: file systems allow 255."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TEMPORARY = "quarl-tmp-"
"""Prefix of the names of temporary folders."""
STALE_S = 3600.0
"""Age in seconds after which a temporary folder without an owner is removed."""


class FullError(QuarlError):
    """A file that does not fit on the disk or into the user's quota, or is larger than the system allows."""


def advice(error: OSError) -> str:
    """Return how to fix the error of a file that cannot be written."""
    return "make room" if error.errno in FULL else "choose a folder that exists and is writable"


def make_folder(folder: Path) -> None:
    """Create an output folder if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise QuarlError(f"cannot write to {folder}: {error.strerror}; choose another folder with -o") from None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second run out of the folder, which is created if it is missing. The lock ends with its process.

    Raises:
        QuarlError: Another run holds the lock, or its file cannot be written.
    """
    make_folder(folder)
    path = folder / "quarl.lock"
    try:
        file = path.open("ab+", buffering=0)  # opening a FIFO only for writing would wait for its reader
    except OSError as error:
        raise QuarlError(f"cannot write to {path}: {error.strerror}; {advice(error)}") from None
    with file:
        if not hold(file.fileno()):
            raise QuarlError(f"another quarl run is using {folder}: wait for it, or choose another folder with -o")
        yield


def hold(descriptor: int) -> bool:
    """Lock the open file until it is closed or its process ends.

    Returns False if another process has the lock, or the file cannot be locked.
    """
    with contextlib.suppress(OSError):  # not every network filesystem has locks
        return lock_descriptor(descriptor, blocking=False)
    return False


@contextlib.contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """Wait until no other process holds the existing folder this way, and hold it.

    This is meant for short work, such as moving files.

    The folder gets no lock file.
    """
    with _opened(folder) as descriptor:
        with contextlib.suppress(OSError):  # NFS does not lock folders
            lock_descriptor(descriptor)
        yield


@contextlib.contextmanager
def _opened(folder: Path, flags: int = 0) -> Iterator[int]:
    """Open a folder; on Windows, which cannot open folders, open nothing."""
    descriptor = os.open(os.devnull if sys.platform == "win32" else folder, os.O_RDONLY | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_bytes(data: bytes, path: Path) -> None:
    """Replace the file at `path` by `data` in one step."""
    write_parts([data], path)


def write_parts(parts: Iterable[bytes | memoryview], path: Path) -> None:
    """Replace the file at `path` by the parts, one after the other, in one step.

    Raises FullError if the disk is full.
    """
    try:
        with replacing(path) as file:
            for part in parts:
                put(file, part)
    except OSError as error:
        raise (FullError if error.errno in FULL else QuarlError)(
            f"cannot write {path}: {error.strerror or error}; {advice(error)}"
        ) from None


@contextlib.contextmanager
def replacing(path: Path, temporary: Path | None = None) -> Iterator[BinaryIO]:
    """Yield a file to write to, which replaces `path` in one step if the block ends without an error.

    After a crash at any moment, `path` is the old file or the new one, complete. temporary: path of the file until
    then.
    """
    temporary = temporary or beside(path)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            sync(file.fileno())
        rename(temporary, path)
    except BaseException:  # Ctrl-C too
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def put(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write all of `data`.

    Complete files reach the disk only through this function and the next three.
    """
    file.write(data)


def sync(descriptor: int) -> None:
    """Wait until the disk has the file."""
    os.fsync(descriptor)


def rename(old: Path, new: Path) -> None:
    """Move the file to its final name."""
    old.replace(new)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the folder's names, on systems that support it."""
    if sys.platform == "win32":
        return
    with _opened(folder) as descriptor:
        sync(descriptor)


def beside(path: Path) -> Path:
    """Return an unused, hidden name in the same folder, for a file that becomes `path` once it is complete.

    Files and folders are created there by plain calls, not by those of tempfile, so their permissions are the umask's.
    """
    name = os.fsencode(path.name)[:NAME_BYTES].decode(errors="ignore")
    return path.with_name(f".{name}.{secrets.token_hex(8)}")


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Append one line, completely or not at all; raise QuarlError if it cannot be written."""
    size = path.stat().st_size if path.exists() else 0
    try:
        with path.open("a") as file:
            print(json.dumps(row), file=file)
    except OSError as error:
        with contextlib.suppress(OSError):  # remove half of a row, which the next one would continue
            os.truncate(path, size)
        raise QuarlError(f"cannot write {path}: {error.strerror}") from None


def read_rows(path: Path, timesteps: float = math.inf, numbers: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Return the rows up to a step; later ones were not saved with the run, and incomplete lines are dropped.

    Args:
        path: The file; without it there are no rows.
        timesteps: Last step to include.
        numbers: Names of fields that must be numbers in each row.
    """
    rows: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines(keepends=True) if path.is_file() else ():
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            row = json.loads(line)
            typed = all(isinstance(row[name], int | float) for name in numbers)
            if typed and line.endswith(b"\n") and row["timesteps"] <= timesteps:
                rows.append(row)
    return rows


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write a file of these rows in one step."""
    write_bytes("".join(json.dumps(row) + "\n" for row in rows).encode(), path)


class Dispensable:
    """Files of one kind that a run can do without.

    A full disk costs the file but not the run, and is reported once until a file is written again.
    """

    def __init__(self, say: Callable[[str], None], error: type[QuarlError] = QuarlError) -> None:
        """Report with `say`; `error` is raised if a file cannot be written, and any other error is passed on."""
        self._say, self._error = say, error
        self._is_full = False

    def write(self, write: Callable[[], object], *, last: bool = False) -> bool:
        """Call `write`; return whether the disk took it. An error of the last file of its kind is raised."""
        try:
            write()
        except self._error as error:
            if last:
                raise
            if not self._is_full:
                self._say(f"{error}; training continues")
            self._is_full = True
        else:
            self._is_full = False
        return not self._is_full


@contextlib.contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Create a folder for this user alone, and remove it at the end of the block.

    Folders that killed processes left are removed first. A lock on each folder shows that its owner is alive.

    Args:
        parent: Folder in which it is created; None is the system's folder for temporary files.
    """
    parent = parent or Path(tempfile.gettempdir())
    for path in parent.glob(f"{TEMPORARY}*") if sys.platform != "win32" else ():
        _sweep(path)
    folder = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=parent))
    with _opened(folder) as descriptor:
        hold(descriptor)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _sweep(path: Path) -> None:
    """Remove a temporary folder of this user whose owner is dead and that is older than STALE_S."""
    # A link, a file or another user's folder raises, and a folder that its owner has just removed.
    with contextlib.suppress(OSError), _opened(path, os.O_DIRECTORY | os.O_NOFOLLOW) as descriptor:
        about = os.fstat(descriptor)
        if about.st_uid == os.getuid() and time.time() - about.st_mtime > STALE_S and hold(descriptor):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def staged(target: Path, before: Callable[[Path], None] = lambda folder: None) -> Iterator[Path]:
    """Yield an empty folder to fill, whose files move to `target` at the end; an error leaves `target` unchanged.

    If two end at once, one moves all its files before the other.

    Args:
        target: Folder of the results.
        before: Called with the filled folder if `target` exists, just before the files move; it may refuse.

    Raises:
        QuarlError: `target` cannot be written. This is checked before the work starts. If it fails later, the filled
            folder stays.
    """
    if not target.is_dir() and (target.exists() or target.is_symlink()):
        what = "a file" if target.exists() else "a link to nothing"
        raise QuarlError(f"cannot write into {target}: it is {what}; choose another folder with -o")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        inside = target if target.is_dir() else target.parent
        folder = beside(inside / (target.name or "results"))
        folder.mkdir()
    except OSError as error:
        raise QuarlError(f"cannot write into {target}: {error.strerror}; choose another folder with -o") from None
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    try:
        _move(folder, target, before)
    except QuarlError as error:
        raise QuarlError(f"{error}; the results are in {folder}") from None
    except OSError as error:
        raise QuarlError(f"cannot write into {target}: {error.strerror}; the results are in {folder}") from None


def _move(folder: Path, target: Path, before: Callable[[Path], None]) -> None:
    try:
        os.rename(folder, target)
        return
    except OSError:
        if not target.is_dir():
            raise
    with in_turn(target):
        before(folder)
        for path in sorted(folder.iterdir()):
            os.replace(path, target / path.name)
    folder.rmdir()
