"""Feeds every reader of files with broken ones: a clean load or one typed line, never a crash, a hang or a traceback.

    python benchmarks/fuzz.py --inputs 100000 -o benchmarks/results/fuzz.json

Of the inputs of each parser 60 % are valid files changed inside their container with every length and checksum made
right again, 30 % valid files with any bytes changed, 10 % noise. Input k of a parser depends on (seed, parser, k) only:
`--replay sb3-zip:1234` reads that one again and shows the traceback. Each parser runs in a process of its own, so that
a crash is a result like any other.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
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
from pathlib import Path
from typing import Any

import rich.progress
import torch

import fuzz_mutate as mutate
from fuzz_parsers import Parser, parsers, use
from quarl.errors import QuarlError
from quarl.machine import machine

HANG_S = 2.0
"""Seconds of processor time for one input, or five times as many of the clock's, which other work may slow down."""
MEMORY = 2**32
"""Bytes of address space that a parser's process may have beyond what it starts with."""
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


def outcome(read: Callable[[], Any]) -> str:
    """clean, refused, or what went wrong."""
    try:
        with _alarm():
            read()
    except QuarlError as error:
        line = str(error)
        return "refused" if len(line) <= MAX_LINE and line.isprintable() else f"error is not one line: {line[:200]!r}"
    except _HangError:
        return f"hang: longer than {HANG_S:g} s"
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
    def __enter__(self) -> None:
        def ring(*_: Any) -> None:
            raise _HangError

        signal.signal(signal.SIGPROF, ring)
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_PROF, HANG_S)
        signal.setitimer(signal.ITIMER_REAL, 5 * HANG_S)

    def __exit__(self, *_: Any) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _child(name: str, inputs: int, seed: int, at: Any, queue: Any) -> None:
    torch.set_num_threads(1)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    shared = Path("/dev/shm")  # files that need no disk
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        queue.put(run_parser(parsers()[name], inputs, seed, Path(folder), at))


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
                row = {"parser": name, "inputs": at.value, "seed": seed, "failed": 1, "failures": [{"what": what}]}
    process.join()
    tell(inputs)
    return row


def _replay(parser: Parser, seed: int, number: int) -> None:
    kind, data = make_input(parser, seed, number)
    print(f"{parser.name} input {number} ({kind}, {len(data)} bytes): {data[:400]!r}")
    with tempfile.TemporaryDirectory() as folder:
        print(parser.read(data, Path(folder)))


def main() -> int:
    """0 where no parser failed."""
    known = parsers()
    cli = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    cli.add_argument("--inputs", type=int, default=100_000, help="inputs of each parser")
    cli.add_argument("--seed", type=int, default=0)
    cli.add_argument("--only", nargs="+", choices=list(known), default=list(known), metavar="PARSER")
    cli.add_argument("--replay", metavar="PARSER:NUMBER", help="read one input again, without catching anything")
    results = Path(__file__).parent / "results" / "fuzz.json"
    cli.add_argument("-o", "--json", type=Path, default=results, help="where the rows are written")
    args = cli.parse_args()
    if args.replay:
        name, _, number = args.replay.partition(":")
        _replay(known[name], args.seed, int(number))
        return 0
    rows = []
    with rich.progress.Progress() as progress:
        for name in args.only:
            task = progress.add_task(f"{name:12}", total=args.inputs)
            row = _run_apart(name, args.inputs, args.seed, lambda n, task=task: progress.update(task, completed=n))
            rows.append(row)
    for row in rows:
        shown = {key: value for key, value in row.items() if key not in ("failures", "seed")}
        print("  ".join(f"{key} {value}" for key, value in shown.items()))
        for failure in row["failures"]:
            print(f"    {failure}")
    report = {"command": f"python benchmarks/fuzz.py --inputs {args.inputs} --seed {args.seed}", "machine": machine()}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({**report, "hang_s": HANG_S, "rows": rows}, indent=1) + "\n")
    return int(any(row["failed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
