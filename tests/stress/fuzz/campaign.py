"""Feeds every reader of files with broken ones: a clean load or one typed line, never a crash, a hang or a traceback.

    python -m stress.fuzz.campaign --inputs 100000 --costly 500 [--out results]

Files of costly kinds ask for much work or memory; they get 20 seconds and 1 GiB above what was there before. Of the
other inputs of each parser 60 % are valid files changed inside their container with every length and checksum made
right again, 30 % valid files with any bytes changed, 10 % noise. Input k of a parser depends on (seed, parser, k) only:
`--replay sb3-zip:1234` reads that one again and shows the traceback. Each parser runs in a process of its own, so that
a crash is a result like any other.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import queue as queues
import random
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import rich.progress
import torch

from quarl.errors import LOUDNESS, QuarlError
from results import RESULTS, write
from stress.fuzz import mutate
from stress.fuzz.costly import KINDS
from stress.fuzz.parsers import Parser, parsers, read_any, use

HANG_S, COSTLY_S = 2.0, 20.0
"""Seconds of processor time for an input and for a costly one, or five times as many of the clock's, which other work
may slow down."""
MEMORY = 2**32
"""Bytes of address space that a parser's process may have beyond what it starts with."""
COSTLY_MB = 1024
"""Resident memory above the start that a costly input may take."""
MAX_LINE = 1000
"""Characters of an error: a line, not a page."""
REBUILT, CHANGED = 0.6, 0.3


def make_input(parser: Parser, seed: int, number: int) -> tuple[str, bytes]:
    """(kind, bytes) of input `number`: rebuilt, changed or noise."""
    rng = random.Random(f"{seed}/{parser.name}/{number}")
    share = rng.random()
    data = rng.choice(parser.files)
    if share < REBUILT:
        return "rebuilt", parser.inside(rng, data)
    if share < REBUILT + CHANGED:
        return "changed", mutate.any_bytes(rng, data)
    start = data[: rng.randrange(20)]  # with the right magic bytes a reader gets further
    return "noise", start + rng.randbytes(rng.randrange(300))


def outcome(read: Callable[[], Any], seconds: float = HANG_S) -> str:
    """clean, refused, or what went wrong."""
    try:
        with _alarm(seconds):
            read()
    except QuarlError as error:
        line = str(error)
        return "refused" if len(line) <= MAX_LINE and line.isprintable() else f"error is not one line: {line[:200]!r}"
    except _HangError:
        return f"hang: longer than {seconds:g} s"
    except BaseException as error:  # whatever it is, a user would see it
        return f"{type(error).__module__}.{type(error).__name__}: {str(error)[:200]!r}"
    return "clean"


def run_parser(parser: Parser, inputs: int, seed: int, folder: Path, at: Any = None) -> dict[str, Any]:
    """Counts of one parser's outcomes; `at` is told the number of each input before it is read."""
    kinds: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    opened, slowest, began = 0, 0.0, time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning on a user's screen is a second line
        for number in range(inputs):
            if at is not None:
                at.value = number
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kind, data = make_input(parser, seed, number)
            start = time.process_time()
            end = outcome(lambda data=data: use(parser.read(data, folder)))
            slowest = max(slowest, time.process_time() - start)
            kinds[kind] += 1
            opened += _opens(parser, data)
            ends[end if end in ("clean", "refused") else "failed"] += 1
            if end not in ("clean", "refused"):
                failures.append({"input": number, "kind": kind, "what": end})
    return {
        "parser": parser.name,
        "inputs": inputs,
        "seed": seed,
        **{kind: kinds[kind] for kind in ("rebuilt", "changed", "noise")},
        "passed_container": opened,
        "share_passed_container": round(opened / max(inputs, 1), 4),
        **{end: ends[end] for end in ("clean", "refused", "failed")},
        "failures": failures[:20],
        "slowest_s": round(slowest, 4),
        "seconds": round(time.perf_counter() - began, 1),
    }


def run_costly(kind: str, inputs: int, seed: int, folder: Path, at: Any = None) -> dict[str, Any]:
    """The same of a costly kind, each file read and used as the verb would that does most with it."""
    ends: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    slowest, most_mb, began = 0.0, 0, time.perf_counter()
    for number in range(inputs):
        if at is not None:
            at.value = number
        with tempfile.TemporaryDirectory(dir=folder) as own, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = KINDS[kind](random.Random(f"{seed}/{kind}/{number}"), Path(own))
            gc.collect()
            before = resident_mb("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
            start = time.process_time()
            warnings.simplefilter("error")
            end = outcome(lambda path=path: use(read_any(path), path.name), COSTLY_S)
        slowest, taken_mb = max(slowest, time.process_time() - start), resident_mb("VmHWM") - before
        most_mb = max(most_mb, taken_mb)
        if taken_mb > COSTLY_MB:
            end = f"{taken_mb} MB above the start ({end})"
        ends[end if end in ("clean", "refused") else "failed"] += 1
        if end not in ("clean", "refused"):
            failures.append({"input": number, "what": end})
    return {
        "kind": kind,
        "inputs": inputs,
        "seed": seed,
        **{end: ends[end] for end in ("clean", "refused", "failed")},
        "failures": failures[:20],
        "slowest_s": round(slowest, 4),
        "most_mb": most_mb,
        "seconds": round(time.perf_counter() - began, 1),
    }


def resident_mb(name: str) -> int:
    """VmRSS, resident memory now, or VmHWM, its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) // 1024


def _opens(parser: Parser, data: bytes) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parser.opens(data)
    except Exception:
        return False
    return True


class _HangError(BaseException):
    """The alarm; no reader's `except Exception` swallows it."""


class _alarm:  # a context manager class costs a tenth of a generator's
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        def ring(*_: Any) -> None:
            raise _HangError

        signal.signal(signal.SIGPROF, ring)
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_PROF, self.seconds)
        signal.setitimer(signal.ITIMER_REAL, 5 * self.seconds)

    def __exit__(self, *_: Any) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _child(name: str, inputs: int, seed: int, at: Any, queue: Any) -> None:
    torch.set_num_threads(1)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    shared = Path("/dev/shm")  # files that need no disk
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        known = parsers()
        run = partial(run_parser, known[name]) if name in known else partial(run_costly, name)
        queue.put(run(inputs, seed, Path(folder), at))


def _run_apart(name: str, inputs: int, seed: int, tell: Callable[[int], None]) -> dict[str, Any]:
    """The row of one parser, run in a process of its own."""
    context = multiprocessing.get_context("spawn")
    at, queue = context.Value("q", 0, lock=False), context.Queue()
    process = context.Process(target=_child, args=(name, inputs, seed, at, queue))
    process.start()
    row = None
    while row is None:
        try:
            row = queue.get(timeout=0.5)
        except queues.Empty:
            tell(at.value)
            if not process.is_alive() and queue.empty():
                what = f"the process ended with code {process.exitcode} at input {at.value}"
                row = {
                    "parser" if name in parsers() else "kind": name,
                    "inputs": at.value,
                    "seed": seed,
                    "failed": 1,
                    "failures": [{"what": what}],
                }
    process.join()
    tell(inputs)
    return row


def _replay(parser: Parser | str, seed: int, number: int) -> None:
    if isinstance(parser, str):
        with tempfile.TemporaryDirectory() as folder:
            path = KINDS[parser](random.Random(f"{seed}/{parser}/{number}"), Path(folder))
            print(f"{parser} input {number}: {path.name}, {path.stat().st_size} bytes")
            print(use(read_any(path), path.name))
        return
    kind, data = make_input(parser, seed, number)
    print(f"{parser.name} input {number} ({kind}, {len(data)} bytes): {data[:400]!r}")
    with tempfile.TemporaryDirectory() as folder:
        print(parser.read(data, Path(folder)))


def main() -> int:
    """0 where no parser failed."""
    known = parsers()
    cli = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    cli.add_argument("--inputs", type=int, default=100_000, help="inputs of each parser")
    cli.add_argument("--costly", type=int, default=500, help="files of each costly kind")
    cli.add_argument("--seed", type=int, default=0)
    every = [*(name for name, parser in known.items() if parser.files), *KINDS]
    cli.add_argument("--only", nargs="+", choices=every, default=every, metavar="PARSER")
    cli.add_argument("--replay", metavar="PARSER:NUMBER", help="read one input again, without catching anything")
    cli.add_argument("--out", type=Path, default=RESULTS, help="where the rows are written")
    args = cli.parse_args()
    if args.replay:
        name, _, number = args.replay.partition(":")
        _replay(known.get(name, name), args.seed, int(number))
        return 0
    os.environ[LOUDNESS] = "quiet"  # readers note what they inferred, for each of so many files
    rows = []
    with rich.progress.Progress() as progress:
        for name in args.only:
            inputs = args.inputs if name in known else args.costly
            task = progress.add_task(f"{name:12}", total=inputs)
            row = _run_apart(name, inputs, args.seed, lambda n, task=task: progress.update(task, completed=n))
            rows.append(row)
            shown = {key: value for key, value in row.items() if key not in ("failures", "seed")}
            progress.console.print(
                "  ".join(f"{key} {value}" for key, value in shown.items()), markup=False, soft_wrap=True
            )
            for failure in row["failures"]:
                progress.console.print(f"    {failure}", markup=False, soft_wrap=True)
    command = f"python -m stress.fuzz.campaign --inputs {args.inputs} --costly {args.costly} --seed {args.seed}"
    bounds = {"hang_s": HANG_S, "costly_s": COSTLY_S, "costly_mb": COSTLY_MB}
    write("fuzz", command, root=args.out, summary=[bounds], rows=rows)
    return int(any(row["failed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
