"""Agents as integer-only C on this machine, as 64-bit Arm code and on bare Cortex-M boards: bits, bytes, instructions.

    python -m stress.boards AGENTS [AGENTS ...] [--runtimes c c-m4] [--observations 10000] [--only WORD] [--keep]

AGENTS holds agents in the zoo's layout. Of each, in int8 and int4 on static grids, raw outputs are compared bit for bit
with the reference, actions too; a Cortex-M counts the instructions of an action and the bytes of its stack. On this
machine an action is timed, and LiteRT's invoke() alone beside it. Networks of tests/networks.py have every operator
that C has kernels for. Ends with 1 where a bit differs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import networks
from quarl.arrays import Array
from quarl.calibration import quantize
from quarl.engines import litert, load, run_all
from quarl.errors import QuarlError, UnsupportedError
from quarl.evaluation import record
from quarl.export import c, golden
from quarl.export.c import boards
from quarl.policy.graph import Policy, QuantizedPolicy, macs
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read
from results import write

PRECISIONS = ("int8", "int4")
NETWORKS = "networks/"
"""What the names of those of tests/networks.py begin with."""
FEWER = 1000
"""Observations in qemu."""
REPEATS = 20_000
TIMER = """#include "policy.h"
#include <stdio.h>
#include <time.h>
static POLICY_NUMBER x[POLICY_OBSERVATION];
static POLICY_RESULT action[POLICY_ACTION];
int main(void) {
    int i, done = 0;
    FILE *in = fopen("row", "rb");
    clock_t start;
    if (fread(x, sizeof x, 1, in) != 1)
        return 1;
    for (i = 0, start = clock(); i < REPEATS; i++)
        done |= policy_act(x, action);
    printf("%g\\n", 1e6 * (double)(clock() - start) / CLOCKS_PER_SEC / REPEATS);
    return done;
}
"""


def agents(folders: list[Path]) -> Iterator[tuple[str, Policy]]:
    """Those that can be read, by the path below their folder."""
    for folder in folders:
        runs = sorted((folder / "sb3").glob("*/*_*")), sorted((folder / "sb2").glob("*/*.pkl"))
        for path in (*runs[0], *runs[1]):
            try:
                yield str(path.relative_to(folder)), read(path)
            except QuarlError as error:
                print(f"{path.name}: {error}", file=sys.stderr)


def many(policy: Policy, x: Array, count: int) -> Array:
    """So many observations: those that were met, and others near them, between them and beyond."""
    rng = np.random.default_rng(0)
    if policy.observation_dtype == "uint8":
        return x[rng.integers(0, len(x), count)]
    rows, others = x[rng.integers(0, len(x), (2, count))]
    share = rng.uniform(-0.5, 1.5, (count, *(1,) * (x.ndim - 1)))
    share[: count // 2] = 0
    mixed: Array = (rows + share * (others - rows)).astype(np.float32)
    return mixed


def timed(policy: QuantizedPolicy, compiled: boards.Compiled, x: Array) -> dict[str, float]:
    """Microseconds of an action in C, and of LiteRT's invoke() alone: the least of five rounds each."""
    where, program, board = compiled.folder, compiled.program, boards.BOARDS["c"]
    (where / "timer.c").write_text(TIMER)
    (where / "row").write_bytes(x[:1].tobytes())
    types = [
        f"-DPOLICY_NUMBER={program.x}",
        f"-DPOLICY_RESULT={program.a}",
        f"-DREPEATS={REPEATS}",
    ]
    subprocess.run(
        [board.compiler, *board.flags.split(), *types, "timer.c", "policy.o", "-o", "timer"], cwd=where, check=True
    )
    in_c = min(float(subprocess.check_output(["./timer"], cwd=where)) for _ in range(5))
    engine = litert.load(policy, 1)
    engine.run(x[:1])
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(REPEATS):
            engine._invoke()
        best = min(best, time.perf_counter() - start)
    return {"us": round(in_c, 3), "litert_us": round(1e6 * best / REPEATS, 3)}


def measured(name: str, policy: QuantizedPolicy, x: Array, runtime: str) -> dict[str, Any]:
    """The row of a policy in a runtime."""
    with tempfile.TemporaryDirectory() as folder:
        files = c.write(policy, "{}", golden.record(policy, x[:64]))
        for file, content in files.items():
            (Path(folder) / file).write_bytes(content)
        compiled = boards.load(runtime, Path(folder) / "policy.c")
    expected = run_all(load(policy, "reference", batch=64), x)
    raw, action = compiled.both(x)
    away = np.abs(action - policy.head(expected).reshape(len(x), -1))
    span = 1.0 if policy.head.is_discrete else policy.head.high - policy.head.low
    row = {
        "name": f"{name} {policy.spec.precision} {runtime}",
        "agent": name,
        "precision": policy.spec.precision,
        "runtime": runtime,
        "compiler": compiled.version,
        "observations": len(x),
        "rows_that_differ": int((raw.view(np.uint32) != expected.view(np.uint32)).any(axis=1).sum()),
        "largest_error_of_an_action": float((away / np.where(np.isfinite(span), span, 1)).max()),
        "macs": sum(macs(policy).values()),
        "flash": compiled.flash(),
        "stack": compiled.stack,
        "instructions": compiled.instructions,
    }
    return row | (timed(policy, compiled, x) if runtime == "c" and x.dtype == np.float32 else {})


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Of every agent and network in every precision and runtime."""
    cases = [(name, policy, None) for name, policy in agents(options.agents)]
    made = [(f"{NETWORKS}{name}", make()) for name, make in networks.EVERY.items()]
    cases += [(name, policy, networks.observations(policy, 512)) for name, policy in made]
    for name, policy, x in cases:
        if options.only not in name:
            continue
        try:
            if x is None:
                exact = load(quantize(policy, QuantSpec.parse("fp32")), batch=2)
                x = record(policy, "calibration", engine=exact, num=1024, min_episodes=2)
            for precision in options.precisions:
                quantized = quantize(policy, QuantSpec.parse(precision, mode="static"), x)
                for runtime in options.runtimes:
                    count = options.observations if runtime == "c" else min(FEWER, options.observations)
                    yield measured(name, quantized, many(policy, x, count), runtime)
        except UnsupportedError as error:
            print(f"{name}: {error}", file=sys.stderr)
        except QuarlError as error:  # an environment that is not installed, too
            print(f"{name}: not measured: {error}", file=sys.stderr)


def main() -> int:
    """1 where a raw output differs in a bit, or an action by more than 1e-6 of its range."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agents", type=Path, nargs="+")
    parser.add_argument("--runtimes", nargs="+", choices=list(boards.BOARDS), default=list(boards.BOARDS))
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS))
    parser.add_argument("--observations", type=int, default=10_000)
    parser.add_argument("--only", default="", help="a word in the names of those that are measured")
    parser.add_argument("--keep", action="store_true", help="write the rows to results/boards")
    options = parser.parse_args()
    table = []
    for row in rows(options):
        table.append(row)
        print(*(f"{key} {value}" for key, value in row.items() if key != "name"), sep=", ", flush=True)
    wrong = [row["name"] for row in table if row["rows_that_differ"] or row["largest_error_of_an_action"] > 1e-6]
    print(f"{len(table)} rows, {len(wrong)} with a difference", *wrong)
    if options.keep:
        of_networks = [row for row in table if row["agent"].startswith(NETWORKS)]
        others = [row for row in table if row not in of_networks]
        write("boards", "python -m stress.boards AGENTS --keep", agents=others, networks=of_networks)
    return 1 if wrong or not table else 0


if __name__ == "__main__":
    sys.exit(main())
