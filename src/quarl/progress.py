"""A progress bar on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from quarl.errors import is_quiet, short


@contextmanager
def progress(total: int | None) -> Iterator[Callable[[str, int], None]]:
    """A bar of `total` steps, if these are known, only on a terminal; call it with what is going on and how many steps
    that was."""
    console = Console(stderr=True, quiet=is_quiet())
    if not console.is_terminal:
        yield lambda label, done: None
        return
    from rich import progress as bars  # here: it takes its time

    times = (bars.TimeElapsedColumn(), bars.TimeRemainingColumn())
    columns = (bars.TextColumn("{task.description}", markup=False), bars.BarColumn(), bars.MofNCompleteColumn(), *times)
    with bars.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda label, done: bar.update(task, description=short(label), advance=done)
