"""Megabytes that an install of QuaRL takes, and each extra beside it: python benchmarks/install_size.py --help"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from results import write

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def megabytes(folder: str | Path, pattern: str = "*") -> float:
    """Return the size of the files below it with that name."""
    return sum(path.lstat().st_size for path in Path(folder).rglob(pattern) if not path.is_dir()) / 1e6


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--python", default=sys.executable)
parser.add_argument("--extras", nargs="*", default=EXTRAS, choices=EXTRAS, help="with none after it: QuaRL alone")
options = parser.parse_args()
rows: list[dict[str, object]] = []
with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as wheels:
    subprocess.run([options.python, "-m", "venv", folder], check=True)
    pip, before = [f"{folder}/bin/python", "-m", "pip", "--disable-pip-version-check"], [0.0, set()]
    pinned = ["--quiet", "-c", ROOT / "constraints.txt"]
    for extra in [None, "", *options.extras]:
        if extra is not None:
            what = f"{ROOT}[{extra}]" if extra else ROOT
            subprocess.run([*pip, "install", "--no-compile", *pinned, what], check=True)
        versions = {
            row["name"]: row["version"] for row in json.loads(subprocess.check_output([*pip, "list", "--format=json"]))
        }
        mb, new = megabytes(folder), sorted(versions.keys() - before[1])
        if extra is not None:
            torch, name = versions.get("torch"), extra or "base"
            row = {"name": f"{name}, torch {torch}" if torch else name, "extra": extra, "torch": torch}
            row |= {"mb": round(mb - before[0]), "packages": len(new)}
            if not extra:
                subprocess.run([*pip, "download", *pinned, "-d", wheels, ROOT], check=True)
                row["wheels_mb"] = round(megabytes(wheels, "*.whl"))
            rows.append({**row, "python": Path(options.python).resolve().name})
            print(rows[-1], flush=True)
        if extra:
            subprocess.run([*pip, "uninstall", "--quiet", "--yes", *new], check=True)
        else:
            before = [mb, versions.keys()]
write("install-size", "make bench-install-size", sizes=rows)
