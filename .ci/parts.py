"""Prints the test paths that changes since the last fully green commit touch.

    python3 .ci/parts.py

.ci/green holds that commit's hash. Everything is due without it, after ten commits, and after a change of the core.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EVERYTHING = "tests tests/docs"
CORE = r"src/quarl/(quant|policy|engines|inert|processes)/|tests/(?!test_)\w+\.py|constraints\.txt"
CORE += r"|pyproject\.toml|Makefile|\.ci/(?!green|budget)"
MANY = 10
"""Commits after which everything is due again."""
USERS = {"algorithms": "actorq runs", "actorq": "cluster", "envs": "runs", "qat": "runs", "runs": "lab"}
"""Package -> further folders below tests/ whose slow tests use it."""


def git(*words: str) -> list[str]:
    """Return the lines that git prints, or raise CalledProcessError."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def touched(name: str) -> list[str]:
    """Return the test paths that belong to a changed file."""
    if re.match(r"tests/.*test_\w+\.py$", name):
        return [name]
    if name.startswith(("docs/", "examples/", "README")):
        return ["tests/docs", "tests/test_documents.py", "tests/test_repository.py"]
    parts = Path(name).parts
    if name.startswith("tests/"):
        return [f"tests/{parts[1]}"]
    if not name.startswith("src/quarl/"):
        return ["tests/test_repository.py"]
    package = Path(parts[3]).stem if parts[2] in ("commands", "config") else parts[2]
    return [*(f"tests/{folder}" for folder in [package, *USERS.get(package, "").split()]), "tests/test_*.py"]


def parts() -> str:
    """Return the paths, separated by spaces."""
    try:
        green = (ROOT / ".ci" / "green").read_text().strip()
        changed, commits = git("diff", "--name-only", green, "HEAD"), git("rev-list", f"{green}..HEAD")
    except (OSError, subprocess.CalledProcessError):
        return EVERYTHING
    if len(commits) >= MANY or any(re.match(CORE, name) for name in changed):
        return EVERYTHING
    paths = sorted({path for name in changed for path in touched(name)})
    return " ".join(path for path in paths if any(ROOT.glob(path)))


if __name__ == "__main__":
    print(parts())
