"""A progress bar on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from quarl.errors import is_quiet, short


@contextmanager
def progress(total: int | None) -> Iterator[Callable[[str, int], None]]:
    """Yield a function that advances a bar of `total` steps, called with a label and the number of finished steps.

    Without a terminal nothing is shown. None as `total` means that the number is unknown.
    """
    console = Console(stderr=True, quiet=is_quiet())
    if not console.is_terminal:
        yield lambda label, done: None
        return
    from rich import progress as bars  # imported here, because it is slow to import

    times = (bars.TimeElapsedColumn(), bars.TimeRemainingColumn())
    columns = (bars.TextColumn("{task.description}", markup=False), bars.BarColumn(), bars.MofNCompleteColumn(), *times)
    with bars.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda label, done: bar.update(task, description=short(label), advance=done)
