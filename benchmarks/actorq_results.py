"""What the ActorQ benchmarks share: `quarl bench actorq`, run in place, and its rows with machine and verdicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quarl.cli import main, parse
from quarl.experiments.methods.actorq_speedup import MARGIN_PCT, loss_of_return
from quarl.machine import machine, multiplies

RESULTS = Path(__file__).resolve().parent / "results"
Rows = list[dict[str, Any]]


def learner_dtype() -> str:
    """bf16 where the processor multiplies it, else fp32."""
    return "bf16" if multiplies("bf16") else "fp32"


def measure(words: Sequence[str], folder: Path) -> Rows:
    """Rows of `quarl bench actorq WORDS -o folder`, which goes on where it was stopped; SystemExit where it fails."""
    command = ["bench", "actorq", *words, "-o", str(folder)]
    if code := main(command):
        raise SystemExit(code)
    what: str = parse(command).what  # type: ignore[attr-defined]  # these words name the verb that has it
    return rows_of(folder, what)


def rows_of(folder: Path, name: str) -> Rows:
    """The rows in a folder's NAME.json."""
    rows: Rows = json.loads((folder / f"{name}.json").read_text())["rows"]
    return rows


def write(name: str, command: str, **found: Any) -> None:
    """benchmarks/results/NAME.json, and the verdicts on the terminal."""
    result = {"benchmark": name, "command": command, "machine": machine(), **found}
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    for verdict in found.get("bars", ()):
        print(verdict)


def verdict(what: str, found: float | None, bar: float, *, at_least: bool = False) -> dict[str, Any]:
    """What was asked for, what was measured, and whether that is enough; null where it was not measured."""
    met = found is not None and (found >= bar if at_least else found <= bar)
    return {"what": what, "found": None if found is None else round(found, 3), "bar": bar, "met": met}


def noninferior(what: str, before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    """The verdict on a loss of return: whether its interval over paired runs ends within the margin of 5 %."""
    loss = loss_of_return(before, after)
    bar = verdict(f"{what} in {len(before)} runs, %, upper end of its interval", loss.high, MARGIN_PCT)
    return bar | {"point": round(loss.point, 3), "low": round(loss.low, 3)}
