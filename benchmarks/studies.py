"""Studies over all agents at hand, and what they show: the paper's tables, and spread of weights against error.

    python benchmarks/studies.py [--only spread] [--agents ../shared/agents] [--minutes 90]

A study goes on where it was stopped. It lies in FOLDER, and its tables, rows and figures in benchmarks/results/NAME.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from actorq_results import RESULTS
from quarl.cli import main as quarl
from quarl.machine import machine

HERE = Path(__file__).resolve().parent
STUDIES = {"spread": str(HERE / "spread.yml"), "paper-ptq": "paper-ptq"}
KEPT = ("*.json", "*.md", "*.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=tuple(STUDIES), default=list(STUDIES))
    parser.add_argument("--agents", type=Path, default=HERE.parents[1] / "shared/agents")
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--minutes", default="inf", help="after which no cell begins")
    options = parser.parse_args()
    for name in options.only:
        folder, kept = options.folder / name, RESULTS / name
        words = [STUDIES[name], "--agents", str(options.agents), "--jobs", options.jobs, "--minutes", options.minutes]
        for command in (["run", *words, "-o", str(folder)], ["report", str(folder)]):
            if code := quarl(["study", *command]):
                raise SystemExit(code)
        states = {row["state"] for row in json.loads((folder / "rows.json").read_text())["rows"]}
        if "todo" in states:
            raise SystemExit(f"{name} is not whole yet: {kept} stays as it was, the same command goes on")
        kept.mkdir(parents=True, exist_ok=True)
        for pattern in KEPT:
            for path in folder.glob(pattern):
                shutil.copy(path, kept)
        about = {"benchmark": name, "command": f"python benchmarks/studies.py --only {name}", "machine": machine()}
        (kept / "about.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
