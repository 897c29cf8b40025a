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

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--python", default=sys.executable)
parser.add_argument("--extras", nargs="*", default=EXTRAS, choices=EXTRAS, help="with none after it: QuaRL alone")
options = parser.parse_args()
rows: list[dict[str, object]] = []
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([options.python, "-m", "venv", folder], check=True)
    pip, before = [f"{folder}/bin/python", "-m", "pip", "--disable-pip-version-check"], [0.0, set()]
    for extra in [None, "", *options.extras]:
        if extra is not None:
            what = f"{ROOT}[{extra}]" if extra else ROOT
            subprocess.run(
                [*pip, "install", "--quiet", "--no-compile", "-c", ROOT / "constraints.txt", what], check=True
            )
        versions = {
            row["name"]: row["version"] for row in json.loads(subprocess.check_output([*pip, "list", "--format=json"]))
        }
        mb = sum(path.lstat().st_size for path in Path(folder).rglob("*") if not path.is_dir()) / 1e6
        new = sorted(versions.keys() - before[1])
        if extra is not None:
            row = {"name": f"{extra or 'base'}, torch {versions['torch']}", "extra": extra, "mb": round(mb - before[0])}
            rows.append(
                {**row, "packages": len(new), "torch": versions["torch"], "python": Path(options.python).resolve().name}
            )
            print(rows[-1])
        if extra:
            subprocess.run([*pip, "uninstall", "--quiet", "--yes", *new], check=True)
        else:
            before = [mb, versions.keys()]
write("install-size", "make bench-install-size", sizes=rows)
