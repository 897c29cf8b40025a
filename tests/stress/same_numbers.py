"""The same commands on the code of before and on that of after, one after the other on one machine: do numbers differ?

    PYTHONPATH=tests python -m stress.same_numbers BEFORE AFTER --agents AGENTS [-o FOLDER] [--only NAME ...]

BEFORE and AFTER are checkouts; AGENTS holds Stable-Baselines agents in the zoo's layout. Rows, weights, returns and
written policies have to be equal but for time, energy and machine; after may add fields. Where processes race (ActorQ),
fields alone are compared. Commands of BEFORE are run once: their results stay in FOLDER.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

OF_THE_MACHINE = re.compile(
    r"(^|_)(us|ms|s|seconds|minutes|joules|co2|watts|cpu|machine|date|versions?|quarl|schema|latency|commit|p50|p99|wall)(_|$)"
)
"""Fields of time, energy and machine."""
FILES = (".quarl", ".safetensors", ".tflite", ".onnx")
"""What is compared byte for byte, checkpoints apart: they hold clocks."""
STUDY = """
name: same
episodes: 5
policies:
  - {algo: dqn, env: CartPole-v1, source: "zoo:sb3"}
  - {algo: ppo, env: CartPole-v1, source: train, n_timesteps: 600}
methods:
  - {method: fp32}
  - {method: ptq, precision: [8, 4], scheme: [default, naive]}
"""


@dataclass(frozen=True)
class Case:
    """One command and what of it has to be the same."""

    name: str
    words: tuple[str, ...]
    """{agents} is AGENTS; the command runs in a folder of its own."""
    numbers: bool = True
    """False: processes race, and fields alone are the same."""


def agent(name: str) -> str:
    return "{agents}/sb3/" + name


CASES = (
    Case("envs", ("envs",)),
    Case("envs-id", ("envs", "Pendulum-v1")),
    Case("eval-discrete", ("eval", agent("dqn/CartPole-v1_1"), "--episodes", "20")),
    Case("eval-engines", ("eval", agent("dqn/CartPole-v1_1"), "--episodes", "5", "--engine", "onnx")),
    Case("eval-continuous", ("eval", agent("ppo/BipedalWalker-v3_1"), "--episodes", "3")),
    Case("ptq-discrete", ("ptq", agent("dqn/CartPole-v1_1"), "--episodes", "20", "-o", "out")),
    Case("ptq-static", ("ptq", agent("a2c/CartPole-v1_1"), "--episodes", "10", "--mode", "static", "-o", "out")),
    Case(
        "ptq-continuous",
        ("ptq", agent("ppo/MountainCarContinuous-v0_1"), "--bits", "fp32", "8", "4", "--episodes", "10", "-o", "out"),
    ),
    Case("inspect", ("inspect", agent("dqn/CartPole-v1_1"))),
    Case("inspect-many", ("inspect", agent("dqn/CartPole-v1_1"), agent("a2c/CartPole-v1_1"))),
    Case(
        "sweep",
        (
            *("sweep", "--algo", "dqn", "--env", "CartPole-v1", "--bits", "8", "4", "--seeds", "2", "-n", "2000"),
            *("--episodes", "5", "-o", "out"),
        ),
    ),
    Case("study", ("study", "run", "same.yml", "--agents", "{agents}", "-o", "out")),
    Case("train", ("train", "--algo", "ppo", "--env", "CartPole-v1", "-n", "3000", "--n-envs", "1", "-f", "out")),
    Case(
        "train-qat",
        ("train", "--algo", "dqn", "--env", "CartPole-v1", "-n", "3000", "--qat", "w4a8", "--n-envs", "1", "-f", "out"),
    ),
    Case(
        "train-d4pg",
        ("train", "--algo", "d4pg", "--env", "Pendulum-v1", "-n", "1500", "--n-envs", "1", "-f", "out"),
    ),
    Case(
        "actorq",
        (
            *("actorq", "--algo", "dqn", "--env", "CartPole-v1", "-n", "4000", "--actors", "1", "--eval-episodes", "2"),
            *("-o", "out"),
        ),
        numbers=False,
    ),
    Case("demo", ("demo",)),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--agents", type=Path, required=True)
    parser.add_argument("-o", type=Path, default=Path("same-numbers"))
    parser.add_argument("--only", nargs="+", default=[case.name for case in CASES])
    options = parser.parse_args()
    differences = 0
    for case in (case for case in CASES if case.name in options.only):
        folders = [options.o / side / case.name for side in ("before", "after")]
        for folder, checkout in zip(folders, (options.before, options.after), strict=True):
            if not ((folder / "done").exists() and checkout == options.before):
                run(case, checkout.resolve(), folder, options.agents.resolve())
        lines = list(compare(*map(contents, folders), numbers=case.numbers))
        print(
            f"{case.name}: {'equal' if not lines else f'{len(lines)} differences'}", *lines[:8], sep="\n  ", flush=True
        )
        differences += len(lines)
    return 1 if differences else 0


def run(case: Case, checkout: Path, folder: Path, agents: Path) -> None:
    """Runs the command anew in an empty folder."""
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    folder.mkdir(parents=True)
    (folder / "same.yml").write_text(STUDY)
    words = [word.format(agents=agents) for word in case.words]
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "COLUMNS": "160", "PYTHONHASHSEED": "0"}
    # the demo has no --json: its table is what it prints
    command = [sys.executable, "-m", "quarl", *words, *(() if case.name == "demo" else ("--json", "rows.json"))]
    ended = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, check=False)
    (folder / "printed.txt").write_text(ended.stdout)
    (folder / "done").write_text(f"exit code {ended.returncode}\n")
    if ended.returncode:
        print(f"{case.name} in {folder.parent.name}: exit code {ended.returncode}: {ended.stderr.strip()[-300:]}")


def contents(folder: Path) -> dict[str, Any]:
    """All that a command left, by name: documents, weights, evaluations, digests of policies."""
    left: dict[str, Any] = {"exit": (folder / "done").read_text()}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if "/runs/" in name and path.name != "rows.json":
            # folders of trainings are called by a hash of what determines them, which grows with what can be said
            name = re.sub(r"/runs/[^/]+/", "/runs/*/", name)
            left[name] = sorted([*left.get(name, ()), *map(json.dumps, content(path))])
        elif values := list(content(path)):
            [left[name]] = values
    if folder.name == "demo":
        left["printed"] = [without_microseconds(line) for line in (folder / "printed.txt").read_text().splitlines()]
    return left


def content(path: Path) -> Iterator[Any]:
    """What of a file has to be the same; nothing of most."""
    if path.suffix in FILES and not path.name.startswith((".", "checkpoint-")):
        yield hashlib.sha256(path.read_bytes()).hexdigest()
    elif path.name == "evaluations.npz":
        yield {key: values.tolist() for key, values in np.load(path).items()}
    elif path.name == "rows.json":
        yield json.loads(path.read_text())
    elif path.suffix == ".zip" and zipfile.is_zipfile(path):
        yield weights(path)


def weights(path: Path) -> dict[str, list[Any]]:
    """Parameters of a Stable-Baselines3 zip."""
    with zipfile.ZipFile(path) as archive, archive.open("policy.pth") as file:
        return {name: values.tolist() for name, values in torch.load(file, weights_only=True).items()}


def without_microseconds(line: str) -> str:
    """A line of the demo's table without its last columns, which are times, and lines that name time or machine."""
    if re.search(r"seconds|core|µs|training|/s\b|in \d+ s,", line):
        return ""
    return re.sub(r"(\s+[\d.]+){2}\s*$", "", line)


def compare(before: Any, after: Any, where: str = "", *, numbers: bool) -> Iterator[str]:
    """A line for each difference."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if OF_THE_MACHINE.search(key):
                continue
            if key not in after:
                yield f"{where}/{key}: gone"
            else:
                yield from compare(value, after[key], f"{where}/{key}", numbers=numbers)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from compare(*pair, f"{where}[{index}]", numbers=numbers)
    elif numbers and before != after:
        yield f"{where}: {str(before)[:80]} != {str(after)[:80]}"


if __name__ == "__main__":
    sys.exit(main())
