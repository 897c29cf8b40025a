"""`quarl verify --prove`: bounds of every kernel, states at which grids saturate, and the proof file checked again."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from recheck import Recheck, recheck
from test_c import KINDS, static
from test_contract import cartpole

import networks
import require
from quarl.calibration import quantize
from quarl.cli import main
from quarl.engines import reference
from quarl.export import c, export, golden, quantised
from quarl.export.c import bounds, every_point
from quarl.export.c.lowering import Lowering
from quarl.export.c.program import Program
from quarl.export.c.proof import prove, source_of
from quarl.policy import artifact
from quarl.policy.graph import QuantizedPolicy
from quarl.quant.spec import QuantSpec


def everything(program: Program) -> bounds.Run:
    """All calls for all observations."""
    ends = (0, 255) if program.x == "uint8_t" else (-bounds.NORMAL[1], bounds.NORMAL[1])
    return bounds.Run(program, np.repeat(np.reshape(np.float64(ends), (2, 1, 1)), program.observation, axis=2))


def broken(run: bounds.Run) -> list[str]:
    """Claims that do not hold."""
    claims = [claim for call in run.claims for claim in call.items()]
    return [name for name, (low, high, least, most) in claims if not least <= low <= high <= most]


@pytest.mark.parametrize("precision", ["int8", "int4", "int3", "int2"])
@pytest.mark.parametrize("name", KINDS)
def test_bounds_hold_the_reference_and_agree_with_a_second_program(name, precision):
    policy, x = static(name, precision, 24)
    program = c.check(text := Lowering(policy).program("{}").source())
    run = everything(program)
    assert broken(run) == []
    rows = x.reshape(len(x), -1).astype(np.float64)
    points, box = bounds.Run(program, rows[None]), bounds.Run(program, np.stack([rows.min(0), rows.max(0)])[:, None])
    assert np.array_equal(points.values["y"][0], reference.load(policy, len(x)).run(x))
    assert (box.values["y"][0] <= points.values["y"][0]).all()
    assert (points.values["y"][0] <= box.values["y"][1]).all()
    for grid, wide in zip(points.grids, box.grids, strict=True):
        assert (wide.codes[0] <= grid.codes).all()
        assert (grid.codes <= wide.codes[1]).all()
    if precision == "int8" or "conv" not in text:  # pure Python takes its time
        found = [{k: v[:2] for k, v in claims.items() if "unwritten" not in k} for claims in run.claims]
        assert found == [claims for _, claims in Recheck(text).calls]


def test_every_kernel_that_a_program_calls_has_a_rule():
    source = (Path(c.__file__).parent / "kernels.c").read_text()
    called = set(re.findall(r"^static (?:void|real|int|\w+_t) (\w+)\((?:int n|four_rows)", source, re.M))
    assert called - {"all_finite"} == set(bounds.RULES)


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("tanh-normalized", r"(int32_t b\d+\[32\] = \{\n)-?\d+", r"\g<1>2147483647", "sum"),
        ("tanh-normalized", r"(four8, 128, 12), \d+,", r"\1, 31,", "shifted sum"),
        ("tanh-normalized", r"(uint32_t w\d+\[\d+\] = \{\n(?:0x\w+,){11})0x\w+", r"\g<1>0xffffffff", "weight"),
        ("tanh-normalized", r"(uint32_t m\d+\[32\] = \{\n)0x\w+", r"\g<1>0x80000000", "multiplier"),
        ("tanh-normalized", r"(look_up\(32, c \+ \d+), -?\d+", r"\1, -300", "index"),
        ("tanh-normalized", r"(quantize_shift\(9, [^;]*?), 0x\w+u", r"\1, 0x00000000u", "inverse"),
        ("tanh-normalized", r"(m\d+, c \+) 0", r"\1 20", "unwritten numbers in x"),
        ("tanh-normalized", r"(quantize_shift\(9, r \+) 0(.*), -\d+, \d+,", r"\1 0\2, -99999, 99999,", "code"),
        ("dueling", r"(layer_norm\(\d+, c \+ \d+, 0x\w+u), 0x\w+u", r"\1, 0x00000001u", "epsilon"),
        ("dueling", r"(layer_norm\(\d+, c \+ \d+), 0x\w+u", r"\1, 0x3f800000u", "share"),
        ("l2-norm", r"(l2_norm\(\d+, c \+ \d+), 0x\w+u", r"\1, 0x00000000u", "least"),
    ],
)
def test_numbers_of_edited_files_that_leave_their_range_are_named(name, old, new, said):
    text = Lowering(static(name, count=24)[0]).program("{}").source()
    edited = re.sub(old, new, text, count=1, flags=re.S)
    assert edited != text
    assert broken(everything(c.check(edited)))[0].startswith(said)


def written(policy: QuantizedPolicy, folder: Path) -> Path:
    """Write as much of an export as a proof reads; a whole one compiles the file."""
    folder.mkdir()
    artifact.write(policy, folder / "policy.quarl")
    x = np.zeros((2, *policy.observation_shape), np.float32)
    (folder / "policy.c").write_bytes(c.write(policy, "{}", golden.record(policy, x))["policy.c"])
    (folder / "contract.json").write_text('{"target": "c", "name": "policy", "package": null}')
    return source_of(folder)


@pytest.fixture(scope="module")
def policy() -> QuantizedPolicy:
    return quantised(cartpole(), "c")


def test_a_proof_agrees_with_a_second_program_until_a_number_changes(policy, tmp_path):
    first, left_out, *grids = prove(written(policy, tmp_path / "out"))
    assert (first.check, first.result, recheck(tmp_path / "out")) == ("32-bit sums", "proven", "")
    assert "--calls allows 0" in left_out
    assert [row.check for row in grids] == ["grid of quantize_shift 1", "grid of net.0"]
    text = (proof := tmp_path / "out" / "proof.json").read_text()
    for change, said in (
        (lambda proof: proof["calls"][2]["bounds"]["sum"].__setitem__(0, 0.0), "in place of"),
        (lambda proof: proof["grids"][0]["codes"].__setitem__(1, 0.0), "the codes of"),
        (lambda proof: proof.update(result="not proven"), "the calls are not proven there"),
        (lambda proof: proof["sha256"].update(w1=""), "other tables"),
    ):
        change(altered := json.loads(text))
        proof.write_text(json.dumps(altered))
        assert said in recheck(tmp_path / "out")


def test_a_grid_saturates_at_a_state_inside_the_box_that_the_reference_confirms(policy, tmp_path):
    grids = {
        k: replace(grid, scale=grid.scale / 8) if k.startswith("net.0") else grid for k, grid in policy.grids.items()
    }
    narrow = replace(policy, grids=grids)
    *_, row = prove(written(narrow, tmp_path / "out"))
    assert row.check == "grid of net.0"
    assert (row.count, row.result) == (8, "saturates")
    x = np.float32(json.loads((tmp_path / "out" / "proof.json").read_text())["grids"][1]["observation"])
    assert row.detail.endswith(" at " + ", ".join(f"{each:.9g}" for each in x))
    assert ((policy.box[0] <= x) & (x <= policy.box[1])).all()
    ends, exact = grids["net.0"], reference.load(policy, 1).trace(x[None])["net.0"]
    assert exact.max() > ends.scale * (ends.steps[1] + 1)  # on the wider grid
    assert reference.load(narrow, 1).trace(x[None])["net.0"].max() == np.float32(ends.scale) * ends.steps[1]


def test_more_points_than_a_float_holds_are_left_out_with_their_number(tmp_path):
    wide = networks.dense([200, 8, 2])
    x = networks.observations(wide, 50)
    _, left_out, *_ = prove(written(quantize(wide, QuantSpec.parse("int8", mode="static"), x), tmp_path / "out"))
    assert re.search(r"about 10\^[3-9]\d\d of them are in the box, --calls allows 0", left_out)


def test_a_policy_without_a_box_has_no_verdict_on_its_grids(policy, tmp_path):
    row, said = prove(written(replace(policy, box=None), tmp_path / "out"))
    assert row.result == "proven"
    assert "no box of calibration observations" in said


@pytest.mark.slow
def test_every_point_of_the_first_grid_is_run_and_decides_all_others(tmp_path):
    require.runtime("c")
    network = networks.dense([2, 16, 3], head="clip", seed=3)
    wide = quantize(network, QuantSpec.parse("int8", mode="static"), networks.observations(network, 200))
    box = np.float32([0.5, -0.7]), np.float32([0.52, -0.68])
    x = np.stack(np.meshgrid(*np.linspace(*box, 400).T, indexing="ij"), axis=-1).reshape(-1, 2).astype(np.float32)
    largest = bounds.Run(Lowering(wide).program("{}"), x[None].astype(np.float64)).grids[1].codes[0].max(axis=1)
    share = float(np.median(largest)) / 255  # half of the points are beyond the grid
    grids = {k: replace(g, scale=g.scale * share) if k.startswith("net.0") else g for k, g in wide.grids.items()}
    narrow = replace(wide, grids=grids, box=box)
    program = Lowering(narrow).program("{}")
    run = bounds.Run(program, x[None].astype(np.float64))
    codes, first = np.unique(run.grids[0].codes[0], axis=0, return_index=True)
    clipped = (run.grids[1].beyond > 0).any(axis=1)[first]
    assert 0 < clipped.sum() < len(codes)
    every = every_point.run_all(program, np.stack(box).astype(np.float64), 2**16)
    assert every.points == len(codes)
    outputs = reference.load(narrow, len(x)).run(x)
    assert np.array_equal(every.outputs, np.stack([outputs.min(axis=0), outputs.max(axis=0)], axis=1))
    ((index, (count, state)),) = every.saturating.items()
    assert (index, count) == (1, clipped.sum())
    assert (bounds.Run(program, state[None, None].astype(np.float64)).grids[1].beyond > 0).any()
    rows = list(prove(written(narrow, tmp_path / "out"), len(codes)))
    assert [(row.check, row.count) for row in rows[1:2]] == [("points of the first grid", len(codes))]
    assert f"; {count:,} points saturate, the first at" in rows[3].detail
    left_out = list(prove(tmp_path / "out" / "policy.c", len(codes) - 1))[1]
    assert f"--calls allows {len(codes) - 1:,}" in left_out


@pytest.mark.slow
def test_verify_proves_and_exits_with_1_where_a_sum_overflows(policy, tmp_path, capsys):
    require.runtime("c")
    export(policy, "c", folder := tmp_path / "out")
    command = ["verify", str(folder), "--prove", "--episodes", "0", "--runtime", "c", "--json", str(tmp_path / "rows")]
    assert main(command) == 0
    rows = json.loads((tmp_path / "rows").read_text())["rows"]
    assert ("32-bit sums", "proven") in [(row["check"], row["result"]) for row in rows]
    assert main(command) == 0  # beside the proof
    text = (folder / "policy.c").read_text()
    (folder / "policy.c").write_text(re.sub(r"(int32_t b\d+\[8\] = \{\n)-?\d+", r"\g<1>2147483647", text))
    assert main(command) == 2  # the file was edited
    capsys.readouterr()
    assert main([*command, "--edited"]) == 1
    assert re.search(r"32-bit sums: dense\(four8, .*\): sum from .* leaves", capsys.readouterr().err)
    assert recheck(folder) == ""  # it agrees that nothing is proven


def test_what_is_not_c_has_no_proof(policy, tmp_path, capsys):
    path = written(policy, tmp_path / "out")
    (path.parent / "contract.json").write_text('{"target": "tflite", "name": "policy", "package": null}')
    for model, said in (
        (path.parent, "--prove requires C in static integers"),
        (path, "requires the folder of policy.c"),
    ):
        assert main(["verify", str(model), "--prove"]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
