"""Recurrent policies as C: the caller owns the state, and every bit of it is the reference's."""

from __future__ import annotations

import functools
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from test_c import UNUSED_OUT, compiled
from test_packages import SANITIZED, ran

import networks
import require
from quarl.calibration import quantize
from quarl.engines import load
from quarl.engines.lookup_tables import table
from quarl.errors import QuarlError
from quarl.export import c, golden
from quarl.export.c import boards
from quarl.export.c.bounds import NORMAL, Run
from quarl.export.c.lowering import Lowering
from quarl.export.c.program import check
from quarl.export.footprint import footprint
from quarl.policy.operators import Activation
from quarl.quant.spec import EXACT, QuantSpec

LAYERS = ("lstm", "gru", "gru-after")
STEPS, RESET = 1000, 400
REALS = {"sum", "quantize", "quantize_shift", "dequantize"}
"""Kernels of real numbers that no gate and no state needs."""


def rows_of(policy, observations):
    """Rows and outputs of a sequence with a carried state, which is reset at RESET."""
    engine, state, rows, outputs = load(policy, "reference"), policy.state, [], []
    for step, x in enumerate(observations):
        rows.append(np.concatenate([x, policy.state if step == RESET else state]))
        outputs.append(engine.run(rows[-1][None])[0])
        state = outputs[-1][policy.num_outputs :]
    return np.array(rows), np.array(outputs)


@functools.cache
def static(layer, precision="int8", start=0.0):
    """A recurrent network in static integers with its rows and outputs."""
    float_ = networks.recurrent(layer)
    float_ = replace(float_, state=float_.state + np.float32(start))
    x = 2 * np.random.default_rng(1).normal(size=(STEPS, 5)).astype(np.float32)
    policy = quantize(float_, QuantSpec.parse(precision, mode="static"), rows_of(quantize(float_, EXACT), x[:300])[0])
    return policy, *rows_of(policy, x)


@pytest.mark.parametrize("layer", LAYERS)
def test_gates_and_states_are_integers_and_the_text_is_read_back(layer):
    policy, rows, outputs = static(layer)
    program = Lowering(policy).program("{}")
    assert check(text := program.source()).source() == text
    assert (program.observation, program.raw) == (rows.shape[1], outputs.shape[1])
    named = [call.kernel for call in program.network]
    assert not REALS & set(named)
    assert [named.count(name) for name in ("threshold", "to_real")] == ([1, 2] if layer == "lstm" else [0, 1])
    assert program.ram >= 4 * (policy.state.size + rows.shape[1])
    assert program.seen[0].sizes["n"] == policy.seen[0] == 5
    assert "void policy_reset(policy_state *state);" in (header := program.header())
    assert "#define POLICY_OBSERVATION 5\n" in header


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("#define POLICY_STATE 12\n", "#define POLICY_STATE 11\n"),
        ("EACH(i, 12) state->numbers[i] = y[3 + i]", "EACH(i, 99) state->numbers[i] = y[3 + i]"),
        ("void policy_reset(", "int policy_reset("),
        ("quantize_power(12, x + 5, -7", "quantize_power(12, x + 5, -99"),
    ],
)
def test_another_state_is_not_what_quarl_wrote(old, new):
    text = Lowering(static("gru")[0]).program("{}").source()
    assert old in text
    with pytest.raises(QuarlError, match=r"^(policy\.c|quarl export did not write)"):
        check(text.replace(old, new))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_bounds_hold_for_all_states_and_are_the_references_numbers(layer, precision):
    policy, rows, outputs = static(layer, precision)
    program = Lowering(policy).program("{}")
    every = Run(program, np.repeat(np.reshape((-NORMAL[1], NORMAL[1]), (2, 1, 1)), program.observation, axis=2))
    assert all(least <= low <= high <= most for each in every.claims for low, high, least, most in each.values())
    got = Run(program, rows[None, :50].astype(np.float64)).values["y"][0]
    np.testing.assert_array_equal(got, outputs[:50])
    low, high = every.values["y"][:, 0]
    assert ((outputs >= low) & (outputs <= high)).all()


def test_thresholds_are_the_tanh_of_each_of_65536_codes():
    policy = static("lstm")[0]
    (op,) = (op for op in policy.ops if isinstance(op, Activation) and op.kind == "tanh_ratio")
    program = Lowering(policy).program("{}")
    (call,) = (call for call in program.network if call.kernel == "threshold")
    found = call.sizes["low"] + np.searchsorted(program.tables[call.place("limit")[0]], np.arange(-(2**15), 2**15))
    np.testing.assert_array_equal(found, table(op, policy.grids[op.inputs[0]], policy.grids[op.name]))


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("board", "precision"), [("c", "int8"), ("c", "int3"), ("c-m4", "int8"), ("c-m0", "int8")])
def test_every_bit_of_states_and_outputs_is_the_references(board, precision, layer, tmp_path):
    policy, rows, outputs = static(layer, precision, start=0.25)
    loaded = compiled(policy, rows[:64], tmp_path, board)
    raw, action = loaded.both(rows)
    np.testing.assert_array_equal(raw.view(np.uint32), outputs.view(np.uint32))
    np.testing.assert_array_equal(action, policy.head(outputs))
    np.testing.assert_array_equal(loaded.run(rows)[:, 3:], outputs[:, 3:])
    assert policy.box is not None
    away = (rows < policy.box[0]) | (rows > policy.box[1])
    np.testing.assert_array_equal(loaded.returned, away[:, :5].any(axis=1))
    if board == "c-m4":
        assert footprint(policy, "c", tmp_path / "policy.c").ram == loaded.deepest() + 4 * policy.state.size


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
def test_grids_of_other_steps_are_computed_in_real_numbers(layer, tmp_path):
    policy = static(layer)[0]
    fixed = {op.name for op in policy.ops if isinstance(op, Activation)} | {"h", "c", "memory.hidden", "memory.cell"}
    grids = {
        name: each if name in fixed else replace(each, scale=each.scale * 1.1) for name, each in policy.grids.items()
    }
    other = replace(policy, grids=grids)
    rows, outputs = rows_of(other, np.random.default_rng(3).normal(size=(200, 5)).astype(np.float32))
    raw, _ = compiled(other, rows[:9], tmp_path).both(rows)
    np.testing.assert_array_equal(raw.view(np.uint32), outputs.view(np.uint32))


CARRYING = """#include "hover.h"
#include "Land.h"
#include <stdio.h>
int main(void) {
    static hover_state hover;
    static Land_state land, before;
    float x[HOVER_OBSERVATION], y[HOVER_ACTION], z[LAND_ACTION];
    int step, i, changed = 0;
    if (hover_selftest() || Land_selftest()) return 1;
    for (step = 0; fread(x, sizeof x, 1, stdin) == 1; step++) {
        if (step % 400 == 0) hover_reset(&hover), Land_reset(&land);
        if (hover_act_float(&hover, x, y) < 0 || Land_act_float(&land, x, z) < 0) return 2;
        fwrite(y, sizeof y, 1, stdout), fwrite(hover.numbers, sizeof hover.numbers, 1, stdout);
        fwrite(z, sizeof z, 1, stdout), fwrite(land.numbers, sizeof land.numbers, 1, stdout);
    }
    before = land;
    x[2] = (x[2] - x[2]) / (x[2] - x[2]);
    if (Land_act_float(&land, x, z) != -1) return 3;
    for (i = 0; i < LAND_STATE; i++) changed += before.numbers[i] != land.numbers[i];
    x[2] = 1e9f;
    return changed || Land_act_float(&land, x, z) != 1 ? 4 : 0;
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", ["gcc -std=c99", "gcc -std=c11", "g++ -std=c++17 -x c++", "clang -std=c99"])
def test_two_memories_in_one_program_carry_their_own_states(words, tmp_path):
    require.program(words.split()[0])
    wanted = []
    for name, layer in (("hover", "gru"), ("Land", "lstm")):
        policy, rows, _ = static(layer)
        wanted.append(rows_of(policy, rows[: 2 * RESET, :5])[1])
        for file, content in c.write(policy, "{}", golden.record(policy, rows[:64]), name).items():
            (tmp_path / file).write_bytes(content)
        wanted[-1][:, :3] = policy.head(wanted[-1])
    (tmp_path / "main.c").write_text(CARRYING)
    files = [str(tmp_path / f"{name}.c") for name in ("hover", "hover_selftest", "Land", "Land_selftest", "main")]
    strict = [*UNUSED_OUT, *boards.STRICT.split()[1:]]
    subprocess.run([*words.split(), *strict, *files, "-o", tmp_path / "both"], check=True)
    x = rows[: 2 * RESET, :5].astype(np.float32).tobytes()
    done = subprocess.run([tmp_path / "both"], input=x, capture_output=True, check=True).stdout
    got = np.frombuffer(done, np.uint32).reshape(2 * RESET, -1)
    np.testing.assert_array_equal(got, np.concatenate(wanted, axis=1).view(np.uint32))


@pytest.mark.slow
def test_the_loop_resets_its_state_and_survives_faults(tmp_path):
    require.program("gcc", "cmake")
    policy, rows, _ = static("gru", start=0.5)
    vectors = golden.record(policy, rows[:64])
    for file, content in c.write(policy, "{}", vectors, "hover", "cmake").items():
        (tmp_path / file).write_bytes(content)
    assert (tmp_path / "hover_control.c").read_text().count("hover_reset(&c->state);") == 3
    ran(f"gcc -std=c99 {SANITIZED} hover.c hover_selftest.c hover_control.c hover_main.c -o replay", tmp_path)
    printed = np.loadtxt(ran("./replay", tmp_path).splitlines(), ndmin=2)
    finite = vectors.observations[np.isfinite(vectors.observations).all(axis=1)]
    chosen = finite[np.linspace(0, len(finite) - 1, len(printed)).round().astype(int), :5]
    np.testing.assert_allclose(printed, policy.head(rows_of(policy, chosen)[1]), atol=3e-6)
