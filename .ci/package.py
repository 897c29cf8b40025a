"""Builds sdist and wheel and tries each in fresh environments of every Python that is here: `quarl demo` with what it
takes to train, and the light install with the agent that the demo has left.

    make package

Prints a line for each Python and each file: what ran, or that it was not tried. Exit code 1 where something failed.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
COMMANDS = ("--version", "doctor", "demo -o demo")
LEFT = ("CartPole-v1.quarl", "rows.json", "rows.csv", "report.html", "fp32.safetensors", "int8-default.safetensors")
"""What the demo leaves in its folder, among others."""
LIGHT = (
    "doctor",
    "demo -o light-demo",
    "eval demo/CartPole-v1.quarl --episodes 10",
    "inspect demo/CartPole-v1.quarl -o look",
    "export demo/int8-default.safetensors --to tflite -o tflite",
    "export demo/int8-default.safetensors --to c -o c",
    "verify tflite",
)
"""What a plain install does with what the demo has left."""
LEFT_OUT = ("torch", "stable_baselines3", "matplotlib", "onnx", "onnxruntime")
"""What it comes without."""
LAST_LINES = 15
"""Of what failed, shown."""


def find(version: str) -> Path | None:
    """The interpreter of that version, on the path or among pyenv's; None where there is none."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = filter(None, [shutil.which(f"python{version}")])
    for path in (*map(Path, on_path), *sorted(root.glob(f"versions/{version}.*/bin/python"))):
        done = subprocess.run([path, "-c", "import sys; print(*sys.version_info[:2], sep='.')"], capture_output=True)
        if done.stdout.decode().strip() == version:  # pyenv's shims of versions that are not chosen say nothing
            return path
    return None


def run(*command: str | Path, cwd: Path) -> str:
    """What the command prints; CalledProcessError with its last lines where it fails. It sees nothing of this tree."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-LAST_LINES:])
        raise RuntimeError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{last}")
    return done.stdout


def try_out(version: str, archive: Path, folder: Path) -> str:
    """What ran, or that this Python is not here; RuntimeError where something did not run."""
    if (python := find(version)) is None:
        return f"not tried: no python{version} here"
    start = time.monotonic()
    scripts = installed(python, folder / "venv", f"{archive}[train]")
    ready = time.monotonic()
    said = [run(scripts / "quarl", *words.split(), cwd=folder) for words in COMMANDS]
    if missing := [name for name in LEFT if not (folder / "demo" / name).is_file()]:
        raise RuntimeError(f"quarl demo left no {', '.join(missing)}")
    precisions = [row["precision"] for row in json.loads((folder / "demo" / "rows.json").read_text())["rows"]]
    if f"next: . {scripts.relative_to(folder)}/activate" not in said[-1].splitlines() or len(precisions) < 3:
        raise RuntimeError("quarl demo did not come to its end")
    mb, ran = megabytes(folder / "venv"), time.monotonic() - ready
    times = f"installed in {ready - start:.0f} s, {mb:,.0f} MB, ran in {ran:.0f} s"
    light = installed(python, folder / "light", str(archive))
    names = f"import importlib.util as u; print(*filter(u.find_spec, {LEFT_OUT}))"
    if there := run(light / "python", "-c", names, cwd=folder).strip():
        raise RuntimeError(f"a plain install brings {there}")
    for words in LIGHT:
        run(light / "quarl", *words.split(), cwd=folder)
    tried = f"ran {', '.join(f'quarl {words}' for words in COMMANDS)} ({len(precisions)} precisions); {times}"
    return f"{tried}; light: {megabytes(folder / 'light'):,.0f} MB, ran quarl {', '.join(w.split()[0] for w in LIGHT)}"


def installed(python: Path, folder: Path, what: str) -> Path:
    """The scripts of a new environment with QuaRL, which is imported from there; RuntimeError where it is not."""
    run(python, "-m", "venv", folder, cwd=folder.parent)
    scripts = folder / "bin"
    pip = (scripts / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
    run(*pip, "--constraint", ROOT / "constraints.txt", what, cwd=folder.parent)
    place = run(scripts / "python", "-c", "import quarl; print(quarl.__file__)", cwd=folder.parent).strip()
    if not Path(place).is_relative_to(folder):
        raise RuntimeError(f"quarl is imported from {place}, and not from its environment")
    return scripts


def megabytes(folder: Path) -> float:
    """Of all files below it."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()) / 1e6


def main() -> int:
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        dist = Path(folder) / "dist"
        run(sys.executable, "-m", "build", "--outdir", dist, ROOT, cwd=Path(folder))
        for version, archive in itertools.product(PYTHONS, sorted(dist.iterdir())):
            with tempfile.TemporaryDirectory() as place:
                try:
                    what = try_out(version, archive, Path(place))
                except RuntimeError as error:
                    what, failed = f"FAILED: {error}", True
            print(f"Python {version}  {archive.name:28} {what}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
