"""Folders of results that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quarl.errors import QuarlError


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """An empty folder to fill, whose files move to `target` at the end; after an error `target` is as it was.

    Raises QuarlError at once where `target` cannot be written, not after the work is done.
    """
    if target.exists() and not target.is_dir():
        raise QuarlError(f"cannot write into {target}: it is a file; choose another folder with -o")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        inside = target if target.is_dir() else target.parent
        folder = Path(tempfile.mkdtemp(dir=inside, prefix=f".{target.name or 'results'}."))
    except OSError as error:
        raise QuarlError(f"cannot write into {target}: {error.strerror}; choose another folder with -o") from None
    try:
        yield folder
        _move(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(folder: Path, target: Path) -> None:
    if not target.exists():
        folder.chmod(0o755)  # mkdtemp makes folders that only their owner may enter
        os.rename(folder, target)
        return
    for path in sorted(folder.iterdir()):
        os.replace(path, target / path.name)
