"""quarl distill: what it leaves, what it says, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

import quarl
from quarl import cli
from quarl.quant.spec import QuantSpec

QUICK = ["--rounds", "1", "--updates", "20", "--states", "100", "--validation", "10", "--episodes", "10"]


def test_a_folder_holds_the_policy_its_row_and_how_it_came_about(agents, tmp_path, capsys):
    folder = tmp_path / "small"
    words = ["distill", "dqn", "CartPole-v1", "-f", str(agents / "sb3"), "--bits", "2", "8", *QUICK, "-o", str(folder)]
    assert cli.main(words) == 0
    out = capsys.readouterr()
    rows = json.loads((folder / "rows.json").read_text())["rows"]
    assert [row["precision"] for row in rows] == ["int2e8", "int8"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["curve.png", "int2e8.safetensors", "int8.safetensors", "report.html", "rows.csv", "rows.json"]
    )
    policy = quarl.load(folder / "int2e8.safetensors").policy
    assert policy.spec == QuantSpec.parse("int2e8")
    first, hidden, last = policy.linear
    assert (first.weight.bits, hidden.weight.bits, last.weight.bits) == (8, 2, 8)
    assert set(np.unique(hidden.weight.codes)) == {-3, -1, 1, 3}
    two, eight = rows
    assert two["bits_mean"] == pytest.approx(2 + 6 * (first.weight.size + last.weight.size) / policy.num_weights)
    assert two["bits_of_layers"] == dict(zip([op.name for op in policy.linear], (8, 2, 8), strict=True))
    # 8 bits are good enough as calibration leaves them, and nothing was trained for them
    assert (eight["round"], eight["updates"], eight["states"], eight["verdict"]) == (0, 0, 0, "non-inferior")
    assert eight["mean"] == eight["mean_calibrated"] == eight["mean_fp32"] == 500
    assert "int8, calibrated: return 500.0, non-inferior" in out.err
    assert "int8: calibration's codes are what stays" in out.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--bits", "fp16"], "--bits fp16: distillation is for weights of 2 to 8 bits with integer activations"),
        (["--bits", "w4"], "--bits w4: distillation is for weights of 2 to 8 bits"),
        (["--bits", "4", "--edge-bits", "one"], "--edge-bits is 'one'; use 2..16, or same"),
        (["--updates", "0"], "--updates must be at least 1"),
    ],
)
def test_what_cannot_be_distilled_is_one_line(agents, tmp_path, capsys, words, said):
    model = str(agents / "sb3" / "dqn" / "CartPole-v1_1")
    assert cli.main(["distill", model, *words, "-o", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "out").exists()


def test_a_policy_that_is_quantised_already_is_refused(agents, tmp_path, capsys):
    quarl.load(agents / "sb3" / "dqn" / "CartPole-v1_1").quantize("int8").save(tmp_path / "p.quarl")
    assert cli.main(["distill", str(tmp_path / "p.quarl"), "-o", str(tmp_path / "out")]) == 2
    assert "is quantised already (int8); give the float policy" in capsys.readouterr().err
