"""Folders of results that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from quarl.errors import QuarlError
from quarl.folder import beside, in_turn


@contextmanager
def staged(target: Path, before: Callable[[Path], None] = lambda folder: None) -> Iterator[Path]:
    """An empty folder to fill, whose files move to `target` at the end; after an error `target` is as it was.

    Of two that end at once, one moves all its files before the other. before: called with the filled folder where
    `target` is there, in the moment before the files move; it may refuse.
    Raises QuarlError at once where `target` cannot be written, not after the work is done; where it has become so
    meanwhile, the filled folder stays.
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
