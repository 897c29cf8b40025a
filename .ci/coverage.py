"""Prints the line coverage of each package, and of the lines that raise QuarlError, from coverage's JSON report.

    make coverage

Exit code 1 if a package is below its bound.
"""

from __future__ import annotations

import ast
import collections
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BOUNDS = dict.fromkeys(("quant", "policy", "engines", "inert", "stats", "sequential", "export"), 97.0)
BOUNDS |= dict.fromkeys(("readers", "qat.convert", "evaluation", "envs"), 92.0)
BOUNDS["raise QuarlError"] = 90.0


def refusals(path: Path) -> set[int]:
    """Return the first lines of all `raise QuarlError(...)` in a file."""
    raises = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise) and node.exc]
    return {node.lineno for node in raises if "QuarlError" in ast.unparse(node.exc)}


def main() -> int:
    counts: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for name, file in json.loads(Path(sys.argv[1]).read_text())["files"].items():
        covered, missing = set(file["executed_lines"]), set(file["missing_lines"])
        parts = Path(name).with_suffix("").parts[2:]
        lines = refusals(ROOT / name)
        groups = {parts[0], ".".join(parts[:2]), "all"}
        for group, kept in [*((group, covered | missing) for group in groups), ("raise QuarlError", lines)]:
            counts[group][0] += len(covered & kept)
            counts[group][1] += len((covered | missing) & kept)
    below = False
    for group, (hit, lines) in sorted(counts.items()):
        if "." in group and group not in BOUNDS:
            continue
        share, bound = 100 * hit / max(lines, 1), BOUNDS.get(group)
        below |= bound is not None and share < bound
        print(f"{group:20} {hit:6} of {lines:6} lines  {share:5.1f} %{f'  (bound {bound:g} %)' if bound else ''}")
    return int(below)


if __name__ == "__main__":
    sys.exit(main())
