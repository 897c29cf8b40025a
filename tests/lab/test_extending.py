"""The patches of the developers' page: small, of this tree, and they do what the page says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "docs" / "dev" / "patches"
MAX_LINES, MAX_FILES = 80, 3
ACTIVATION = """
import numpy as np, quarl, torch
from stable_baselines3 import PPO
from quarl import engines
model = PPO("MlpPolicy", "Pendulum-v1", policy_kwargs={"activation_fn": torch.nn.Softsign}, seed=0, device="cpu")
model.save("agent")
agent, x = quarl.load("agent.zip"), np.random.default_rng(0).normal(size=(256, 3)).astype(np.float32)
assert np.abs(agent.predict(x)[0] - model.predict(x, deterministic=True)[0]).max() < 1e-6
for mode in ("dynamic", "static"):
    policy = agent.quantize(8, mode=mode, observations=x).policy
    wanted = engines.run_all(engines.load(policy, "reference"), x)
    for name in ("litert", "onnx"):
        assert np.array_equal(engines.run_all(engines.load(policy, name), x), wanted)
"""
READER = """
import numpy as np, quarl
rng = np.random.default_rng(0)
w0, b0, w1, b1, x = (rng.normal(size=size).astype(np.float32) for size in ((8, 4), 8, (2, 8), 2, (64, 4)))
np.savez("policy.npz", w0=w0, b0=b0, w1=w1, b1=b1)
wanted = np.argmax(np.tanh(x @ w0.T + b0) @ w1.T + b1, axis=1)
assert np.array_equal(quarl.load("policy.npz").predict(x)[0], wanted)
"""
SCHEME = """
import numpy as np, quarl
from quarl import engines
agent = quarl.load("src/quarl/commands/CartPole-v1.quarl")
x = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)
for bits in (8, "int4"):
    policy = agent.quantize(bits, scheme="power-of-two").policy
    scales = np.concatenate([np.ravel(op.weight.scale) for op in policy.linear])
    assert np.array_equal(scales, np.exp2(np.rint(np.log2(scales))))
    least = [np.abs(op.weight.codes).max() for op in policy.linear]
    assert min(least) > 2 ** (policy.spec.weight_bits - 2) - 1
    policy = agent.quantize(bits, scheme="power-of-two", mode="static", observations=x).policy
    engine = engines.load(policy, "litert")
    assert engine.measured
    assert np.array_equal(engines.run_all(engine, x), engines.run_all(engines.load(policy, "reference"), x))
"""


def quarl(tree: Path, *words: object) -> str:
    """Return the output of `quarl WORDS` run on the tree."""
    return python(tree, "-m", "quarl", *words)


def python(tree: Path, *words: object) -> str:
    """Return the output of `python WORDS` run on the tree."""
    path = os.pathsep.join([str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def tree(request: Any, tmp_path: Path) -> Path:
    """A copy of the package with the patch in it."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "apply", str(PATCHES / f"{request.param}.patch")], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize("patch", sorted(PATCHES.glob("*.patch")), ids=lambda patch: patch.stem)
def test_patches_are_small(patch: Path):
    lines = patch.read_text().splitlines()
    assert len(lines) <= MAX_LINES
    assert sum(line.startswith("diff --git ") for line in lines) <= MAX_FILES


@pytest.mark.parametrize(("tree", "script"), [("activation", ACTIVATION), ("reader", READER)], indirect=["tree"])
def test_new_activations_and_readers_give_the_right_numbers(tree: Path, script: str):
    python(tree, "-c", script)


@pytest.mark.parametrize("tree", ["scheme"], indirect=True)
def test_a_new_scheme_runs_on_the_kernels_of_its_width(tree: Path):
    python(tree, "-c", SCHEME)
    shown = quarl(tree, "ptq", "src/quarl/commands/CartPole-v1.quarl", "--scheme", "power-of-two", "--episodes", 2)
    assert "scheme power-of-two" in shown


@pytest.mark.parametrize("tree", ["runtime"], indirect=True)
def test_a_new_runtime_equals_the_reference_on_every_machine(tree: Path):
    (line,) = [line for line in quarl(tree, "doctor").splitlines() if line.split()[:2] == ["engine", "torch_int8"]]
    assert "runs int8, 0 from the integer reference at most" in line


@pytest.mark.parametrize("tree", ["column"], indirect=True)
def test_a_new_column_is_in_table_csv_and_json(tree: Path, small_agents: Path):
    agent = small_agents / "zoo" / "dqn" / "CartPole-v1_1"
    shown = quarl(tree, "ptq", agent, "--bits", 8, "--episodes", 2, "-o", tree / "out")
    assert any("worst" in line.split() for line in shown.splitlines())
    for row in json.loads((tree / "out" / "rows.json").read_text())["rows"]:
        assert row["worst"] == min(row["returns"])
    assert "worst" in (tree / "out" / "rows.csv").read_text().splitlines()[0].split(",")


@pytest.mark.parametrize("tree", ["method"], indirect=True)
def test_a_new_method_is_measured_and_reported(tree: Path, small_agents: Path):
    (tree / "noise.yml").write_text(
        "episodes: 2\n"
        "policies:\n"
        f"  - {{algo: dqn, env: CartPole-v1, source: 'zoo:{small_agents / 'zoo'}'}}\n"
        "methods:\n"
        "  - {method: fp32}\n"
        "  - {method: noise, precision: [8, 2]}\n"
    )
    quarl(tree, "study", "run", "noise.yml", "-o", tree / "study", "--json", tree / "rows.json")
    rows = json.loads((tree / "rows.json").read_text())["rows"]
    assert [(row["method"], row["precision"]) for row in rows] == [
        ("fp32", "fp32"),
        ("noise", "int8"),
        ("noise", "int2e8"),
    ]
    assert rows[0]["weight_std"] < rows[2]["weight_std"]
    quarl(tree, "study", "report", tree / "study")
    reported = json.loads((tree / "study" / "rows.json").read_text())["rows"]
    assert [row["mean"] for row in reported] == [row["mean"] for row in rows]
