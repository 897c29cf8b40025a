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
from quarl.config import PtqConfig
from quarl.errors import QuarlError, UnsupportedError
from quarl.export.c import boards
from quarl.export.footprint import CPI, ESTIMATE, Footprint, footprint
from quarl.policy import artifact
from quarl.quant.spec import QuantSpec


def static(widths, precision):
    policy = dense(widths)
    observations = np.random.default_rng(0).normal(size=(64, widths[0])).astype(np.float32)
    return quantize(policy, QuantSpec.parse(precision, mode="static"), observations)


@pytest.fixture
def without_tools(monkeypatch):
    """No cross-compiler."""

    def refused(name, file, small):
        raise QuarlError("runtime c-m4 is not installed: apt install x")

    monkeypatch.setattr(boards, "load", refused)


def test_without_a_compiler_memory_is_unknown_and_instructions_estimated(without_tools):
    takes = {bits: footprint(static([8, 64, 64, 4], bits), "c") for bits in ("int8", "int4e8")}
    assert takes["int8"].macs == takes["int4e8"].macs == 8 * 64 + 64 * 64 + 64 * 4
    assert takes["int8"].how == (
        "instructions estimated for a Cortex-M4, the rest unknown (runtime c-m4 is not installed: apt install x)"
    )
    assert {(each.flash, each.ram) for each in takes.values()} == {(None, None)}
    wider = footprint(static([8, 64, 128, 4], "int8"), "c")
    assert wider.instructions - takes["int8"].instructions == pytest.approx(1.25 * 64 * 68 + 36 * 64, abs=2)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "int4e8"])
def test_estimates_lie_near_what_is_counted(precision, monkeypatch):
    require.runtime("c-m4")
    policy = static([8, 64, 64, 4], precision)
    counted = footprint(policy, "c", small=True)
    assert "counted" in counted.how
    assert counted.flash_os < counted.flash
    assert counted.instructions_os > counted.instructions
    assert 0 < counted.ram_os < 2 * counted.ram
    with monkeypatch.context() as patch:
        patch.setattr(boards, "load", lambda name, file, small: footprint(policy, "onnx"))
        estimated = footprint(policy, "c")
    assert estimated.instructions == pytest.approx(counted.instructions, rel=ESTIMATE)


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


def test_without_a_compiler_only_a_bound_on_memory_leaves_fits_unknown(without_tools, tmp_path, capsys):
    code, (wide, narrow) = budget(tmp_path, "--target", "c", "--bits", "int8", "int4", "--hz", "1", "--mhz", "9")
    assert (code, wide["flash"], wide["fits"], narrow["fits"]) == (0, None, True, True)
    assert "Fits: int8 as c, int4 as c." in capsys.readouterr().out
    assert wide["cycles_low"] == round(0.94 * CPI[0] * wide["instructions"])
    assert wide["cycles_high"] == round(1.06 * CPI[1] * wide["instructions"])
    code, (row,) = budget(tmp_path, "--target", "c", "--bits", "int8", "--ram", "500")
    said = " ".join(capsys.readouterr().out.split())
    assert (code, row["fits"], row["load_low"]) == (3, None, None)
    assert "Nothing is known to fit." in said
    assert "c int8 unknown unknown" in said
    assert "An exception pushes 32 bytes on a Cortex-M, 104 with the FPU's registers" in said


@pytest.fixture
def counted(monkeypatch):
    """Make every policy take 1,000 bytes of flash, 100 of stack and 10,000 instructions."""
    small = {"flash_os": 900, "ram_os": 120, "instructions_os": 12_000}
    takes = Footprint(flash=1000, ram=100, macs=1, instructions=10_000, how="counted", **small)
    monkeypatch.setattr("quarl.commands.budget.footprint", lambda policy, target, small: takes)


@pytest.mark.parametrize(
    ("words", "load", "fits"),
    [
        ("--flash 1000 --ram 100", None, True),
        ("--flash 999", None, False),
        ("--ram 99", None, False),
        ("--hz 100 --mhz 1.8", (0.556, 1.0), True),
        ("--hz 100 --mhz 1.7", (0.588, 1.059), None),
        ("--hz 100 --mhz 1.7 --ram 99", (0.588, 1.059), False),
        ("--hz 100 --mhz 0.9", (1.111, 2.0), False),
        ("--hz 100 --mhz 1.5 --cpi 1.5", (1.0, 1.0), True),
        ("--hz 100 --mhz 1.4 --cpi 1.5", (1.071, 1.071), False),
    ],
)
def test_fits_is_unknown_only_within_the_range_of_time(words, load, fits, counted, tmp_path):
    code, (row,) = budget(tmp_path, "--target", "c", "--bits", "int8", *words.split())
    assert (row["fits"], code) == (fits, 0 if fits else 3)
    assert (row["load_low"], row["load_high"]) == (pytest.approx(load, abs=1e-3) if load else (None, None))
    wanted = [15_000, 15_000] if "--cpi" in words else [10_000, 18_000]
    assert [row["cycles_low"], row["cycles_high"]] == wanted


def test_table_shows_ranges_and_the_cost_of_wide_edges(counted, tmp_path, capsys):
    budget(tmp_path, "--target", "c", "--bits", "int8", "int4e8", "--hz", "100", "--mhz", "2")
    said = capsys.readouterr().out
    assert "10,000 – 18,000  50.0 – 90.0  yes" in said
    assert "flash -Os  RAM -Os  instructions -Os" in said
    assert "900 B    120 B            12,000" in said
    assert "The columns of -Os are for smaller code by gcc -Os; fits is for -O2." in said
    # 8 x 64 and 64 x 4 of 4,864 weights, each with 4 bits more than the others.
    assert "int4e8: edges of 8 bits hold 15.8 % of the weights: --bits int4 saves 384 B of weights" in said
    assert "quarl ptq {} --env ENV".format(tmp_path / "policy.quarl") in " ".join(said.split())
    ptq = "--bits int8 int4e8 --edge-bits same --mode static"
    assert ptq in " ".join(said.split())
    precisions = [spec.precision for spec in PtqConfig(bits=("int4e8", "int4"), edge_bits="same").specs()]
    assert precisions == ["int4e8", "int4"]
    budget(tmp_path, "--target", "c", "--bits", "int8", "--cpi", "1.5")
    said = capsys.readouterr().out
    assert "15,000  yes" in said
    assert "edges" not in said


def test_edges_cost_what_both_rows_say(monkeypatch, tmp_path, capsys):
    takes = Footprint(flash=1000, ram=100, macs=1, instructions=10_000, how="counted")
    monkeypatch.setattr(
        "quarl.commands.budget.footprint",
        lambda policy, target, small: replace(takes, flash=3000 if policy.spec.edge_bits else 1000),
    )
    budget(tmp_path, "--target", "c", "--bits", "int4e8", "int4")
    assert "--bits int4 saves 2 kB of flash as c" in " ".join(capsys.readouterr().out.split())


def test_a_quantized_policy_has_no_line_about_other_precisions(counted, tmp_path, capsys):
    artifact.write(static([8, 64, 4], "int8"), tmp_path / "small.quarl")
    assert main(["budget", str(tmp_path / "small.quarl"), "--target", "c"]) == 0
    assert "quarl ptq" not in capsys.readouterr().out


def test_nothing_fits_is_an_exit_code_of_its_own(counted, tmp_path, capsys):
    code, rows = budget(tmp_path, "--target", "c", "--ram", "99")
    assert code == 3
    assert {row["fits"] for row in rows} == {False}
    assert "Nothing fits" in capsys.readouterr().out


def test_where_instructions_are_not_known_they_are_not_said_to_fit(monkeypatch, tmp_path):
    takes = Footprint(flash=1, ram=1, macs=1, instructions=None, how="so")
    monkeypatch.setattr("quarl.commands.budget.footprint", lambda policy, target, small: takes)
    words = ("--target", "tflite", "--bits", "int8", "--hz", "10", "--mhz", "10")
    assert [row["fits"] for row in budget(tmp_path, *words)[1]] == [None]
    monkeypatch.setattr("quarl.commands.budget.footprint", lambda policy, target, small: replace(takes, flash=3))
    assert [row["fits"] for row in budget(tmp_path, *words, "--flash", "2")[1]] == [False]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--flash 64bits", "--flash is '64bits'; use bytes above 0"),
        ("--ram 0", "--ram is '0'"),
        ("--ram -1", "--ram"),
        ("--hz 1000", "--hz and --mhz require each other"),
        ("--cpi 0.4", "--cpi must be at least 0.5, got 0.4"),
        ("--cpi nan", "--cpi must be at least 0.5, got nan"),
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
