"""Measured results, in results/STUDY/MACHINE: rows.jsonl, a row a line, and about.json, which says how they were made.

    python benchmarks/results.py FOLDER [--study NAME]

takes in what a command of QuaRL has left in FOLDER: the rows of its JSON files, its tables and its figures. A row names
its table, and within it what it belongs to (`name`), where a table has more than one such; what about.json says of all
rows of the machine and is different for one, as its commit, stands in the row, under `about`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from quarl import __version__
from quarl.machine import machine

RESULTS = Path(__file__).resolve().parents[1] / "results"
Row = dict[str, Any]
SHOWN = ("*.md", "*.png", "*.pdf")
"""Suffixes of tables and figures, which are kept beside the rows."""


def read(study: str, table: str | None = None, *, root: Path = RESULTS) -> list[Row]:
    """Return the rows of all machines with the name of the machine's folder, of one table or of all."""
    folders = sorted(path.parent for path in (root / study).glob("*/rows.jsonl"))
    every = ({**row, "machine": folder.name} for folder in folders for row in _rows(folder))
    return [row for row in every if table in (None, row["table"])]


def write(study: str, command: str, *, root: Path = RESULTS, **tables: Iterable[Row]) -> Path:
    """Write rows into the machine's folder, in place of those with the same table and name; others stay."""
    folder = root / study / here()
    old = about(folder)
    new = {"command": command, **_measured()}
    named = [{"table": table, **row} for table, rows in tables.items() for row in rows]
    replaced = {(row["table"], row.get("name")) for row in named}
    kept = [row for row in _rows(folder) if (row["table"], row.get("name")) not in replaced]
    for row in kept:
        before = {**old, **row.pop("about", {})}
        if differs := {key: before[key] for key in _measured() if before[key] != new[key]}:
            row["about"] = differs
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in (*kept, *named)]
    (folder / "rows.jsonl").write_text("".join(lines))
    (folder / "about.json").write_text(json.dumps({**old, **new}, indent=1, ensure_ascii=False) + "\n")
    return folder


def here() -> str:
    """Return the name of this machine's folders, from its processor, such as amd-epyc-25-17."""
    words = re.sub(r"\(r\)|processor|family|model", " ", str(machine()["cpu"]).lower())
    return "-".join(re.findall(r"[a-z0-9]+", words))


def _measured() -> dict[str, Any]:
    """Return the machine, versions and time for about.json."""
    found = machine()
    versions = {"quarl": __version__, "python": found.pop("python"), **found.pop("versions")}
    return {"date": found.pop("date"), "commit": found.pop("commit"), "machine": found, "versions": versions}


def about(folder: Path) -> dict[str, Any]:
    """Return the contents of about.json in a machine's folder; an empty mapping if there is none."""
    path = folder / "about.json"
    return json.loads(path.read_text()) if path.exists() else {}  # type: ignore[no-any-return]


def _rows(folder: Path) -> list[Row]:
    path = folder / "rows.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def verdict(what: str, found: float | None, bar: float, *, at_least: bool = False) -> Row:
    """Return the requirement, the measured value and the verdict; null if it was not measured."""
    met = found is not None and (found >= bar if at_least else found <= bar)
    return {"what": what, "found": None if found is None else round(found, 3), "bar": bar, "met": met}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--study", metavar="NAME", help="default: as the folder is called")
    parser.add_argument("--command", help="that measured it; default: quarl study run studies/NAME.yml")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    study = options.study or options.folder.resolve().name
    documents = {path.stem: json.loads(path.read_text()) for path in sorted(options.folder.glob("*.json"))}
    tables = {name: document["rows"] for name, document in documents.items() if "rows" in document}
    if not tables:
        parser.error(f"no rows in {options.folder}: run quarl study report on it first")
    if any(row.get("state") == "todo" for row in tables.get("rows", ())):
        parser.error(f"{options.folder} has cells that are not measured yet: the command that made it goes on")
    folder = write(study, options.command or f"quarl study run studies/{study}.yml", root=options.out, **tables)
    for path in (path for pattern in SHOWN for path in options.folder.glob(pattern)):
        shutil.copy(path, folder)
    print(folder)


if __name__ == "__main__":
    main()
