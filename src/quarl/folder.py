"""Output folders: made where they are missing, and of one run at a time."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from quarl.errors import QuarlError


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
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise QuarlError(
                f"another quarl run is at work in {folder}: wait for it, or choose another folder with -o"
            ) from None
        yield
