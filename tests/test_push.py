"""What is published: a card that the hub can read, the folder's files, and sums that hold."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

import quarl
import require
from networks import cartpole
from quarl.cli import main
from quarl.policy import artifact
from refusals import refused

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder with those of `quarl ptq` (ptq), of `quarl export` (small), and rows of `quarl eval` (eval.json)."""
    folder = tmp_path_factory.mktemp("published")
    artifact.write(cartpole(hidden=8), folder / "policy.quarl")
    assert main(["ptq", str(folder / "policy.quarl"), "--bits", "8", "--episodes", "3", "-o", str(folder / "ptq")]) == 0
    quarl.load(folder / "policy.quarl").export("tflite", folder / "small")
    words = ["--episodes", "3", "--json", str(folder / "eval.json")]
    assert main(["eval", str(folder / "small" / "policy.tflite"), *words]) == 0
    return folder


def card_of(folder):
    """(what the hub reads, the page) of a card."""
    text = (folder / "README.md").read_text()
    assert text.startswith("---\n")
    _, head, page = text.split("---\n", 2)
    return yaml.safe_load(head), page


def test_a_card_says_the_measured_return_of_each_precision(folders, tmp_path, capsys):
    assert main(["push", str(folders / "ptq"), "--to", str(tmp_path / "out")]) == 0
    rows = json.loads((folders / "ptq" / "rows.json").read_text())["rows"]
    head, page = card_of(tmp_path / "out")
    assert head["library_name"] == "quarl"
    assert {"reinforcement-learning", "dqn", "CartPole-v1"} <= set(head["tags"])
    (model,) = head["model-index"]
    metrics = [result["metrics"][0] for result in model["results"]]
    assert [metric["name"] for metric in metrics] == ["mean_reward, fp32", "mean_reward, int8"]
    assert metrics[1]["value"] == f"{rows[1]['mean']:.2f} +/- {rows[1]['std']:.2f}"
    assert "| int8 |" in page
    assert "No verdict: 3 episodes are too few" in page
    assert "![choice.png](choice.png)" in page
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"README.md", "rows.json", "int8.safetensors", "choice.png"} <= names
    assert str(tmp_path / "out" / "README.md") in capsys.readouterr().out


def test_a_published_export_can_be_verified(folders, tmp_path):
    out = tmp_path / "out"
    assert main(["push", str(folders / "small"), "--rows", str(folders / "eval.json"), "--to", str(out)]) == 0
    head, page = card_of(out)
    (result,) = head["model-index"][0]["results"]
    assert result["metrics"][0]["name"] == "mean_reward, int8"
    assert "policy.set_tensor" in page
    assert {path.name for path in out.iterdir()} == {path.name for path in (folders / "small").iterdir()}
    assert main(["verify", str(out), "--episodes", "0", "--runtime", "litert"]) == 0


def test_what_is_damaged_is_not_published(folders, tmp_path, capsys):
    assert main(["push", str(folders / "small"), "--to", str(tmp_path / "copy")]) == 0
    (tmp_path / "copy" / "golden.npz").write_bytes(b"PK")
    capsys.readouterr()
    assert "golden.npz" in refused(capsys, "push", tmp_path / "copy", "--to", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_hub_that_is_not_reached_is_one_line(folders):
    require.module("huggingface_hub")
    code = (
        "import os; os.environ['HF_ENDPOINT'] = 'http://127.0.0.1:9'; os.environ['HF_TOKEN'] = 'hf_none'\n"
        f"from quarl.cli import main; raise SystemExit(main(['push', {str(folders / 'ptq')!r}, '--repo', 'me/x']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "cannot push to me/x" in done.stderr.splitlines()[-1]
