"""Members of a zip archive as bytes: bounded in number and size, checked against their CRC, never written to disk."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO

from quarl.errors import QuarlError, first_line
from quarl.inert.reading_budget import MAX_BYTES, current

MAX_MEMBERS = 4096
"""A PyTorch archive has one member per tensor; a Stable-Baselines3 zip has about six."""
MAX_RATIO = 200
"""Unpacked over packed size. JSON of a real agent reaches 30; deflate itself can reach 1032."""
SMALL_BYTES = 2**20
"""Members up to this size may have any ratio: a small array of zeros is not a bomb."""
BULK_BYTES, MAX_GROWTH = 2**24, 8
"""Members above `BULK_BYTES` hold numbers, which barely compress and leave no holes on the disk: their ratio is about
1.2."""
START_BYTES, LIST_BYTES = 2**14, 2**16
"""Bytes read at a file's start to find its kind, and of the list at a zip's end, which holds the names."""

_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError)
_DAMAGE = (*_ZIP, LookupError, ArithmeticError, RuntimeError, ValueError)
"""Errors that zipfile raises for broken archives; it documents only the first."""


def read_bytes(path: Path, *, limit_bytes: int = MAX_BYTES) -> bytes:
    """Return the contents of a regular file of at most `limit_bytes`."""
    with _regular(path, limit_bytes) as (file, size):
        current(str(path)).read(size)
        return file.read()


@contextmanager
def _regular(path: Path, limit_bytes: int) -> Iterator[tuple[IO[bytes], int]]:
    """Yield a regular file and its size in bytes, which the disk really holds."""
    try:
        if path.is_dir():
            raise QuarlError(f"{path} is a folder; name the file in it")
        if not path.exists():
            raise QuarlError(f"no file {path}; check the path")
        if not path.is_file():
            raise QuarlError(f"{path} is not a regular file; copy it to one")
        size = path.stat().st_size
        if size > limit_bytes:
            raise QuarlError(f"{path} has {size:,} bytes, more than the limit of {limit_bytes:,}")
        if size > BULK_BYTES and size > MAX_GROWTH * 512 * path.stat().st_blocks:
            raise QuarlError(f"{path} is a sparse file: the disk holds almost none of its {size:,} bytes")
        with path.open("rb") as file:
            yield file, size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise QuarlError(f"cannot read {str(path)!r}: {reason}") from None


class Opened:
    """A file from outside: its first bytes, and the names of a zip's members, are read only once."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Opened:
        """Return `path` itself if it is an Opened; otherwise a new handle of the file."""
        return path if isinstance(path, Opened) else cls(path)

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__

    @cached_property
    def start(self) -> bytes:
        """Return the first bytes, which identify the kind of file; b"" if it cannot be read."""
        try:
            # opening a pipe would wait for its writer
            with self.path.open("rb") if self.path.is_file() else io.BytesIO() as file:
                return file.read(START_BYTES)
        except OSError:
            return b""

    @cached_property
    def names(self) -> set[str]:
        """Return the names of a zip's members from its last bytes, which list them; empty for other files.

        Nothing is unpacked, however large the file is.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(max(file.seek(0, io.SEEK_END) - LIST_BYTES, 0))
                with zipfile.ZipFile(io.BytesIO(file.read())) as archive:
                    return set(archive.namelist())
        except _DAMAGE:
            return set()

    @property
    def is_zip(self) -> bool:
        """Return whether the file begins like a zip."""
        return self.start.startswith(b"PK")

    def contents(self) -> bytes:
        """Return all bytes of the file; raise QuarlError if it cannot be read."""
        return read_bytes(self.path)

    def unpacked(self, *only: str) -> dict[str, bytes]:
        """Return the contents of these members of a zip, by name; a missing name is left out.

        Raises:
            QuarlError: The file is missing, damaged or encrypted, or not a zip that a program for saving policies
                writes. Such a zip has no repeated name, no name that points outside the archive, and no size past the
                limits.
        """
        with _regular(self.path, MAX_BYTES) as (file, size):
            return _unpack(file, size, str(self.path), only, MAX_BYTES)


def unpack(
    data: bytes, where: str, *, only: Collection[str] | None = None, limit_bytes: int = MAX_BYTES
) -> dict[str, bytes]:
    """Return the members of an archive in memory, like `Opened.unpacked`.

    Args:
        data: The archive.
        where: Name of the archive in errors.
        only: Names of the members to unpack; None unpacks all.
        limit_bytes: Largest size of all members together.
    """
    return _unpack(io.BytesIO(data), len(data), where, only, limit_bytes)


def _unpack(
    file: IO[bytes], packed: int, where: str, only: Collection[str] | None, limit_bytes: int
) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(file) as archive:
            wanted = _checked(archive.infolist(), where, limit_bytes, only, packed)
            return {name: archive.read(info) for name, info in wanted.items()}
    except _DAMAGE as error:
        raise QuarlError(f"{where} is not a whole zip file ({first_line(error)[:120]}); fetch it again") from None


def _checked(
    infos: list[zipfile.ZipInfo], where: str, limit_bytes: int, only: Collection[str] | None, packed: int
) -> Mapping[str, zipfile.ZipInfo]:
    """Return the members to unpack, after all checks that need no unpacking."""
    # Limits of the whole archive come before those of its members.
    if len(infos) > MAX_MEMBERS:
        raise QuarlError(f"{where} has {len(infos):,} members, more than the limit of {MAX_MEMBERS:,}")
    if min((info.header_offset for info in infos), default=0):
        # If the outer archive is cut off, the list of an archive stored inside it is found instead.
        raise QuarlError(f"{where} is not a whole zip file (its first member does not come first); fetch it again")
    seen: set[str] = set()
    wanted: dict[str, zipfile.ZipInfo] = {}
    total = 0
    for info in infos:
        name = info.filename
        if name in seen:
            raise QuarlError(f"{where} has two members named {name!r:.80}; it is damaged or forged")
        seen.add(name)
        if escapes(name) or escapes(info.orig_filename):
            raise QuarlError(f"{where} has a member whose name leads outside the archive: {info.orig_filename!r:.80}")
        if info.is_dir() or (only is not None and name not in only):
            continue
        if info.flag_bits & 0x1:
            raise QuarlError(f"{where}: member {name!r:.80} is encrypted; save the model without a password")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise QuarlError(f"{where}: member {name!r:.80} is neither stored nor deflated; zip it in the usual way")
        if info.file_size > max(SMALL_BYTES, MAX_RATIO * info.compress_size):
            raise QuarlError(
                f"{where}: member {name!r:.80} unpacks to {info.file_size:,} bytes from {info.compress_size:,}; "
                "refused as a decompression bomb"
            )
        total += info.file_size
        wanted[name] = info
    if total > limit_bytes:
        raise QuarlError(f"{where} unpacks to {total:,} bytes, more than the limit of {limit_bytes:,}")
    if total > max(BULK_BYTES, MAX_GROWTH * packed):
        raise QuarlError(f"{where} unpacks to {total:,} bytes from {packed:,}; refused as a decompression bomb")
    current(where).read(total)
    return wanted


def escapes(name: str) -> bool:
    """Return True for absolute names, drive letters, backslashes, NUL and "..".

    No program that saves policies uses them.
    """
    path = PurePosixPath(name)
    odd = "\\" in name or "\0" in name or name[1:2] == ":"  # numpy's archives of TensorFlow variables end in ":0.npy"
    return not name or path.is_absolute() or ".." in path.parts or odd
