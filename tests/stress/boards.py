"""Agents as integer-only C on this machine, as 64-bit Arm code and on bare Cortex-M boards: bits, bytes, instructions.

    python -m stress.boards [AGENTS ...] [--runtimes c c-m4] [--observations 10000] [--only WORD] [--times] [--keep]

AGENTS holds agents in the zoo's layout, or other policies as ONNX or TorchScript. Each is quantized to 8, 4, 3 and 2
bits on static grids, and its raw outputs and actions are compared bit for bit with the reference. A Cortex-M counts the
instructions of an action and the bytes of its stack. With --times an action on this machine is timed beside LiteRT's
invoke(). Networks of tests/networks.py have every operator that C has kernels for, and two pairs that differ by four
layers give the instructions of one layer. --keep writes the rows of each agent once it is measured and skips those
already measured at this commit. The exit code is 1 if a bit differs.
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
import results
from quarl.arrays import Array
from quarl.calibration import quantize
from quarl.engines import litert, load, run_all
from quarl.errors import QuarlError, UnsupportedError
from quarl.evaluation import record
from quarl.export import c, golden
from quarl.export.c import boards
from quarl.machine import commit
from quarl.policy.graph import Policy, QuantizedPolicy, macs
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read

M4 = boards.BOARDS["c-m4"]
boards.BOARDS = RUNTIMES = {**boards.BOARDS, "c-m3": M4._replace(flags=M4.flags.replace("cortex-m4", "cortex-m3"))}
"""Those of the package, and code without DSP instructions, which runs on the emulated Cortex-M4 as well."""
PRECISIONS = ("int8", "int4", "int3", "int2")
WIDTHS, DEPTHS = (256, 64), (2, 6)
"""Of dense networks: a quarter of the difference between the two depths is one layer."""
MEMORIES = ("gru", "gru-after", "lstm")
"""Of the size of a GRU that flies quadrotors: 2,084 parameters with its first state."""
HEADS = dict.fromkeys(("godot-flyby", "godot-player"), "clip:-1,1")
"""Meaning of the outputs of files that do not tell."""
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
        done |= policy_act(x, action) < 0;
    printf("%g\\n", 1e6 * (double)(clock() - start) / CLOCKS_PER_SEC / REPEATS);
    return done;
}
"""


def others(folder: Path) -> Iterator[tuple[str, Policy]]:
    """Return the policies in ONNX and TorchScript files, by their path, without those that C has no kernels for."""
    for path in sorted((*folder.rglob("*.onnx"), *folder.rglob("*.pt"))):
        try:
            yield f"wild/{path.relative_to(folder).with_suffix('')}", read(path, head=HEADS.get(path.stem, ""))
        except QuarlError as error:
            print(f"{path.name}: {error}", file=sys.stderr)


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


def measured(name: str, policy: QuantizedPolicy, x: Array, runtime: str, times: bool) -> dict[str, Any]:
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
    return row | (
        timed(policy, compiled, x)
        if times and runtime == "c" and x.dtype == np.float32 and not policy.state.size
        else {}
    )


def cases(options: argparse.Namespace) -> Iterator[tuple[str, Policy, Array | None]]:
    """Return names, policies and observations; None if the policy's environment gives them."""
    for name, policy in agents(options.agents):
        yield name, policy, None
    without = [(f"networks/{name}", make()) for name, make in networks.EVERY.items()]
    without += [(f"layers/{k}-{n}", networks.dense([k] * (n + 1) + [4])) for k in WIDTHS for n in DEPTHS]
    without += [(f"recurrent/{kind}-22-16-4", networks.recurrent(kind, 22, 16, 4, first=True)) for kind in MEMORIES]
    for name, policy in (*(case for folder in options.agents for case in others(folder)), *without):
        yield name, policy, networks.observations(policy, 512)


def rows(name: str, policy: Policy, x: Array | None, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Return the rows of a policy in every precision and runtime."""
    try:
        if x is None:
            exact = load(quantize(policy, QuantSpec.parse("fp32")), batch=2)
            x = record(policy, "calibration", engine=exact, num=1024, min_episodes=2)
        for precision in options.precisions:
            quantized = quantize(policy, QuantSpec.parse(precision, mode="static"), x)
            for runtime in options.runtimes:
                count = options.observations if runtime == "c" else min(FEWER, options.observations)
                yield measured(name, quantized, many(policy, x, count), runtime, options.times)
    except UnsupportedError as error:
        print(f"{name}: {error}", file=sys.stderr)
    except QuarlError as error:  # an environment that is not installed, too
        print(f"{name}: not measured: {error}", file=sys.stderr)


def finished() -> set[str]:
    """Return the agents whose rows on this machine are of this commit."""
    folder = results.RESULTS / "boards" / results.here()
    before, now = results.about(folder).get("commit"), commit()
    kept = [row for row in results.read("boards") if row["machine"] == folder.name and "agent" in row]
    of_now = {row["agent"] for row in kept if row.get("about", {}).get("commit", before) == now}
    return set() if now is None or now.endswith("+") else of_now


def main() -> int:
    """1 where a raw output differs in a bit, or an action by more than 1e-6 of its range."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agents", type=Path, nargs="*")
    parser.add_argument("--runtimes", nargs="+", choices=list(RUNTIMES), default=list(RUNTIMES))
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS))
    parser.add_argument("--observations", type=int, default=10_000)
    parser.add_argument("--only", default="", help="a word in the names of those that are measured")
    parser.add_argument("--times", action="store_true", help="time actions on this machine")
    parser.add_argument("--keep", action="store_true", help="write the rows to results/boards")
    options = parser.parse_args()
    table: list[dict[str, Any]] = []
    done = finished() if options.keep else set()
    for name, policy, x in cases(options):
        if options.only not in name or name in done:
            continue
        made = []
        for row in rows(name, policy, x, options):
            made.append(row)
            print(*(f"{key} {value}" for key, value in row.items() if key != "name"), sep=", ", flush=True)
        table += made
        if options.keep and made:
            kind = "agents" if x is None else name.partition("/")[0]
            results.write("boards", "python -m stress.boards AGENTS --keep", **{kind: made})
    wrong = [row["name"] for row in table if row["rows_that_differ"] or row["largest_error_of_an_action"] > 1e-6]
    print(f"{len(table)} rows, {len(wrong)} with a difference", *wrong)
    return 1 if wrong or not (table or done) else 0


if __name__ == "__main__":
    sys.exit(main())
