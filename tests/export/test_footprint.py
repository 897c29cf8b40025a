"""What a board has to have for a policy: bytes counted by hand, estimates near what is counted, and what fits."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import contracts
import require
from networks import dense
from quarl.calibration import quantize
from quarl.cli import main
from quarl.errors import QuarlError, UnsupportedError
from quarl.export.c import boards
from quarl.export.footprint import Footprint, footprint
from quarl.policy import artifact
from quarl.quant.spec import QuantSpec


def static(widths, precision):
    policy = dense(widths)
    observations = np.random.default_rng(0).normal(size=(64, widths[0])).astype(np.float32)
    return quantize(policy, QuantSpec.parse(precision, mode="static"), observations)


@pytest.fixture
def without_tools(monkeypatch):
    """No cross-compiler."""

    def refused(name, file):
        raise QuarlError("runtime c-m4 is not installed: apt install x")

    monkeypatch.setattr(boards, "load", refused)


def test_without_a_compiler_tables_are_counted_and_the_rest_is_said_to_be_estimated(without_tools):
    takes = {bits: footprint(static([8, 64, 64, 4], bits), "c") for bits in ("int8", "int4e8")}
    assert takes["int8"].macs == takes["int4e8"].macs == 8 * 64 + 64 * 64 + 64 * 4
    assert takes["int8"].how == (
        "tables counted, the rest estimated for a Cortex-M4 (runtime c-m4 is not installed: apt install x)"
    )
    saved = takes["int8"].flash - takes["int4e8"].flash
    assert 64 * 64 / 2 - 250 < saved < 64 * 64 / 2  # half the bytes of a layer, and a kernel more
    wider = footprint(static([8, 64, 128, 4], "int8"), "c")
    beside = 64 * (64 + 4) + 64 * 8  # a byte a weight; a bias and a multiplier, four bytes each
    assert wider.flash - takes["int8"].flash == pytest.approx(beside, abs=4)
    assert wider.instructions - takes["int8"].instructions == pytest.approx(1.25 * 64 * 68 + 36 * 64, abs=2)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "int4e8"])
def test_estimates_lie_near_what_is_counted(precision, monkeypatch):
    require.runtime("c-m4")
    policy = static([8, 64, 64, 4], precision)
    counted = footprint(policy, "c")
    assert "counted" in counted.how
    with monkeypatch.context() as patch:
        patch.setattr(boards, "load", lambda name, file: footprint(policy, "onnx"))
        estimated = footprint(policy, "c")
    assert estimated.flash == pytest.approx(counted.flash, rel=0.06)
    assert estimated.instructions == pytest.approx(counted.instructions, rel=0.06)
    assert counted.ram <= estimated.ram <= counted.ram + 200


def test_tflite_micro_takes_8_bits_and_names_the_way_for_fewer():
    require.module("tflite_micro")
    assert footprint(static([4, 16, 2], "int8"), "tflite").instructions is None
    with pytest.raises(UnsupportedError, match=r"^tflm runs fp32 and static int8, not int4 static: .*--to c$"):
        footprint(static([4, 16, 16, 2], "int4"), "tflite")


def budget(folder, *words):
    artifact.write(dense([8, 64, 64, 4]), folder / "policy.quarl")
    code = main(["budget", str(folder / "policy.quarl"), *words, "--json", str(folder / "rows.json")])
    document = json.loads((folder / "rows.json").read_text()) if code != 2 else {}
    if document:
        contracts.check(document)
    return code, document.get("rows", [])


def test_what_fits_is_within_every_bound(without_tools, tmp_path, capsys):
    code, (wide, narrow) = budget(tmp_path, "--target", "c", "--bits", "int8", "int4e8", "--flash", "6K")
    assert code == 0
    assert wide["flash"] > 6 * 1024 >= narrow["flash"]
    assert (wide["fits"], narrow["fits"], wide["cycles"]) == (False, True, None)
    assert "Fits: int4e8 as c." in capsys.readouterr().out
    mhz = 1.001 * wide["instructions"] / 100  # at 10,000 actions a second
    code, (wide, narrow) = budget(
        tmp_path, "--target", "c", "--bits", "int8", "int4", "--hz", "10000", "--mhz", f"{mhz}"
    )
    assert (code, wide["fits"], narrow["fits"]) == (0, True, False)
    assert wide["cycles"] == pytest.approx(1 / 1.001)
    assert narrow["cycles"] > 1


def test_nothing_fits_is_an_exit_code_of_its_own(without_tools, tmp_path, capsys):
    code, rows = budget(tmp_path, "--target", "c", "--ram", "500")
    assert code == 3
    assert {row["fits"] for row in rows} == {False}
    assert "Nothing fits" in capsys.readouterr().out


def test_where_instructions_are_not_known_they_are_not_said_to_fit(monkeypatch, tmp_path):
    takes = Footprint(flash=1, ram=1, macs=1, instructions=None, how="so")
    monkeypatch.setattr("quarl.commands.budget.footprint", lambda policy, target: takes)
    words = ("--target", "tflite", "--bits", "int8", "--hz", "10", "--mhz", "10")
    assert [row["fits"] for row in budget(tmp_path, *words)[1]] == [None]
    monkeypatch.setattr("quarl.commands.budget.footprint", lambda policy, target: replace(takes, flash=3))
    assert [row["fits"] for row in budget(tmp_path, *words, "--flash", "2")[1]] == [False]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--flash 64bits", "--flash is '64bits'; use bytes above 0"),
        ("--ram 0", "--ram is '0'"),
        ("--ram -1", "--ram"),
        ("--hz 1000", "--hz and --mhz require each other"),
        ("--hz 1000 --mhz 0", "--mhz must be above 0"),
        ("--bits fp16 --target c", "c fp16: C computes only in static integers"),
        ("--target onnx", "--target"),
    ],
)
def test_nonsense_is_one_line(words, said, tmp_path, capsys):
    code, _ = budget(tmp_path, *words.split())
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
