"""Integer-only C: the same bits as the reference gives, from files that hold nothing but kernels, tables and calls."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

import networks
import require
from quarl import engines, saturation
from quarl.calibration import quantize
from quarl.errors import QuarlError, UnsupportedError
from quarl.export import c, golden, runtimes
from quarl.export.c import boards
from quarl.export.c.lowering import Lowering
from quarl.policy.graph import ActionHead, ActivationGrid, QuantizedPolicy
from quarl.quant.affine import quantize as codes_of
from quarl.quant.spec import QuantSpec

MISSING = [name for name in networks.EVERY if "pool" in name or name == "softmax"]
FUNCTIONS = ("elu", "sigmoid", "clip", "one-sided", "selu", "silu", "gelu", "gelu_tanh", "mish", "softplus")
"""Networks that are the same C as "leaky_relu" but for the numbers of a table."""
KINDS = [name for name in networks.EVERY if name not in (*MISSING, *FUNCTIONS)]
WEIGHTS = ("odd", "convolutional", "padded", "sliced", "residual")
"""Networks whose weights lie in all the ways that nibbles do."""
WIDE = ActivationGrid(scale=0.1, zero_point=0, bits=16)
SOUND = "-std=c99 -U__GNUC__ -U__SSE2__ -O1 -g -Wall -Wextra -Werror -pedantic"
SOUND += " -fsanitize=undefined,address -fno-sanitize-recover=all"
"""With what stands in for functions that only gcc and clang have."""

UNUSED_OUT = ("-O2", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections")
"""As firmware is linked: without what nothing refers to."""


def static(name: str, precision: str = "int8", count: int = 300) -> tuple[QuantizedPolicy, np.ndarray]:
    """A network of tests/networks.py on static grids, and observations."""
    policy = networks.EVERY[name]()
    x = networks.observations(policy, min(count, 100) if policy.observation_dtype == "uint8" else count)
    return quantize(policy, QuantSpec.parse(precision, mode="static"), x), x


def written(name: str, precision: str = "int8") -> dict[str, str]:
    """Its files."""
    policy, x = static(name, precision)
    return {file: content.decode() for file, content in c.write(policy, "{}", golden.record(policy, x)).items()}


@pytest.mark.parametrize("name", MISSING)
def test_what_c_has_no_kernel_for_is_named_with_the_targets_that_have_one(name):
    with pytest.raises(UnsupportedError, match=r"C has no kernel for .* 'pool.0'|'shares'.*targets tflite and onnx"):
        written(name)


def test_dynamic_integers_and_floats_are_refused():
    policy = networks.EVERY["relu"]()
    x = networks.observations(policy, 8)
    for spec in (QuantSpec.parse("int8"), QuantSpec.parse("fp16")):
        quantized = quantize(policy, spec, x)
        with pytest.raises(UnsupportedError, match="--mode static"):
            c.write(quantized, "{}", golden.record(quantized, x))


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("tanh-normalized", "sum sum scale clip scale quantize_shift dense look_up dense look_up last clip"),
        ("squashed", "scale quantize_shift dense last squash"),
        ("padded", "quantize_bytes convolve convolve dense last argmax"),
        ("dueling", "scale quantize_shift dense last dense layer_norm clip quantize last sum sum sum argmax"),
        ("residual", "scale quantize_shift dense look_up dense dense dequantize dequantize sum quantize last clip"),
        (
            "sliced",
            "quantize convolve dense sum sum scale clip dequantize clip clip clip scale quantize dense last argmax",
        ),
    ],
)
def test_networks_become_calls_within_their_arrays_that_are_read_back(name, kernels):
    policy, _ = static(name, "int4", 8)
    text = Lowering(policy).program("{}").source()
    program = c.check(text)
    assert program.source() == text
    assert [call.kernel for call in program.calls] == [*kernels.split(), *["outside"] * (policy.box is not None)]


@pytest.mark.parametrize(("name", "comment"), [("net.2", "net.2"), ("*/ größe??/\n\\", "-/-gr--e--/--")])
def test_tables_name_their_layer_and_no_name_becomes_c(name, comment):
    policy, _ = static("relu", count=8)
    named = replace(policy, ops=(*policy.ops[:-1], replace(policy.ops[-1], name=name)))
    text = Lowering(named).program("").source()
    assert c.check(text).source() == text
    assert re.findall(r"/\* (.*) \*/\nstatic const uint32_t w", text) == ["net.0", "net.1", comment]


@pytest.mark.parametrize(
    ("name", "value", "grid", "said"),
    [
        ("relu", "net.0", WIDE, "no kernel for the 16-bit values of layer 'net.0'"),
        ("leaky_relu", "net.0.leaky_relu", WIDE, "no kernel for leaky_relu .* more than 8 bits"),
        ("padded", "scaled", replace(WIDE, scale=0.001), "no kernel for codes of 'scaled' beyond 8 bits"),
        ("relu", "observation.equalized", replace(WIDE, zero_point=9), "codes of 'obs.*' further than 16 bits"),
        ("relu", "net.0", None, "value 'net.0' has no grid"),
    ],
)
def test_grids_that_c_has_no_kernel_for_are_named(name, value, grid, said):
    policy, _ = static(name, count=8)
    grids = {**policy.grids, value: grid} if grid else {k: v for k, v in policy.grids.items() if k != value}
    with pytest.raises(QuarlError, match=said):
        Lowering(replace(policy, grids=grids)).program("")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int i, bad = 0;", 'int i, bad = system("true");'),
        ("    return 0;\n}\n", '    system("true");\n    return 0;\n}\n'),
        ('#include "policy.h"', '#include "policy.h"\n#include "/etc/passwd"'),
        ("/* {} */", "/* {} */ int x; /* */"),
        (r"re:, 16, 5, w", ", 16, 9, w"),
        (r"re:, 16, 5, w", ", 1600, 5, w"),
        (r"re:c \+ (\d+)\);", r"c + 9\1);"),
        (r"re:dense\(four8, ", "dense(four2, "),
        (r"re:dense\(four8, ", "dense(first, "),
        (r"re:dense\(four8, 128, 8, \d+,", "dense(four8, 128, 8, 32,"),
        (r"re:argmax\(3, y \+ 0", "argmax(4, y + 0"),
        (r"re:argmax\(3, y \+ 0", "argmax(3, w0 + 0"),
        (r"re:\{\n0x\w+,", "{\n0x1ffffffff,"),
        (r"re:\{\n-?\d+,", "{\nabort(),"),
        (r"re:POLICY_OBSERVATION \d+", "POLICY_OBSERVATION 999999999"),
        (r"re:POLICY_RAW \d+", "POLICY_RAW 999999999"),
        (r"re:int16_t c\[\d+\]", "int16_t c[4194304]"),
        (r"re:real r\[\d+\]", "real r[400]"),
        (r"re:POLICY_ACTION 1", "POLICY_ACTION 2"),
        ('policy_id[] = "', 'policy_id[] = "" "'),
        ("    (void)*id;", '    system("true");'),
        ("COUNTED(outside(5,", "COUNTED(outside(6,"),
        ("COUNTED(outside(5, 1, x", "COUNTED(outside(5, 2, x"),
        ("return COUNTED(", "return 1; COUNTED("),
        (r"re:COUNTED\(outside\(.*\)\)", "COUNTED(all_finite(5, x + 0))"),
        (r"re:COUNT\(0, 5,", "COUNT(0, 500,"),
        (r"re:COUNT\(0, 5,", "COUNT(-1, 5,"),
        (r"re:COUNT\(0, 5, c", "COUNT(0, 5, y"),
        (r"re:COUNT\(0, 5, c", "COUNT(i, 5, c"),
        ("define COUNT(grid, n, x, from, to) (void)0", "define COUNT(grid, n, x, from, to) abort()"),
        ("/* net.0 */", "/* net.0 */ int i; /* */"),
        ("/* net.0 */", "/* net 0 */"),
        ("Apache-2.0", "MIT"),
    ],
)
def test_c_that_quarl_did_not_write_is_not_taken(old, new):
    text = written("relu")["policy.c"]
    changed = re.sub(old[3:], new, text, count=1) if old.startswith("re:") else text.replace(old, new, 1)
    assert changed != text
    with pytest.raises(QuarlError, match=r"policy\.c"):
        c.check(changed)


@pytest.mark.parametrize(
    ("begin", "repeated"),
    [
        ("{all}", ""),  # of no pattern's beginning
        ("{upto}", "\nint policy_raw(const uint32_t *x, uint32_t *y) {{\n    int16_t c[1];\n    real r[1];\n    a("),
        ("{upto}", "static const int8_t w0[1] = {{\n1,"),
        ("{all}", "    a("),
    ],
)
def test_text_is_taken_apart_in_time_that_grows_with_its_length(begin, repeated):
    text = written("relu")["policy.c"]
    upto = text[: text.index("\nint policy_raw")]

    def cost(count: int) -> float:
        hostile = begin.format(all=text, upto=upto) + (repeated.format() or "x") * count
        hostile += text[len(upto) :] if begin == "{upto}" else ""
        spent = []
        for _ in range(3):
            before = time.process_time()
            with pytest.raises(QuarlError, match=r"policy\.c"):
                c.check(hostile)
            spent.append(time.process_time() - before)
        return min(spent)

    few = cost(500)
    assert cost(16_000) < 32 * 8 * few  # in proportion: at most 32 times; by pairs: 1,024 times


def test_a_program_that_ended_and_another_width_are_one_line(monkeypatch):
    policy, x = static("squashed", count=1)
    ended = SimpleNamespace(poll=lambda: 0)
    program = boards.Compiled(
        "c", boards.BOARDS["c"], "", Lowering(policy).program(""), Path(), ended, (0, 0), policy.head
    )
    monkeypatch.setattr(boards, "select", SimpleNamespace(select=lambda *pipes: ([], [], [])))  # without waiting
    for rows, said in ((x, "ended"), (np.zeros((2, 9), np.float32), "reads 4 numbers, an observation has 9")):
        with pytest.raises(QuarlError, match=rf"^policy\.c {said}"):
            program.run(rows)


def test_a_failing_compiler_is_one_line(monkeypatch):
    failed = subprocess.CompletedProcess((), 1, "", "policy.c:3: error\nmore")
    monkeypatch.setattr(subprocess, "run", Mock(side_effect=[failed, subprocess.TimeoutExpired((), 9)]))
    for said in ("does not compile policy.c: policy.c:3: error", "took more than 600 s"):
        with pytest.raises(QuarlError, match=f"^gcc {said}$"):
            boards.ran("gcc -c", Path())


def compiled(policy: QuantizedPolicy, x: np.ndarray, folder: Path, runtime: str = "c") -> boards.Compiled:
    """Return its policy.c in a runtime, whose compiler and emulator it requires."""
    require.runtime(runtime)
    for name, content in c.write(policy, "{}", golden.record(policy, x)).items():
        (folder / name).write_bytes(content)
    loaded = runtimes.load(runtime, folder / "policy.c")
    assert isinstance(loaded, boards.Compiled)
    return loaded


def reference(policy: QuantizedPolicy, x: np.ndarray) -> np.ndarray:
    """Its outputs."""
    return engines.run_all(engines.load(policy, "reference", batch=64), x)


def assert_same_bits(loaded: boards.Compiled, policy: QuantizedPolicy, x: np.ndarray) -> None:
    """Raw outputs bit for bit, actions too but for tanh's last places."""
    outputs = reference(policy, x)
    raw, action = loaded.both(x)
    away = np.zeros(x.shape, bool) if policy.box is None else (x < policy.box[0]) | (x > policy.box[1])
    np.testing.assert_array_equal(loaded.returned, away.reshape(len(x), -1).any(axis=1))
    assert (raw.view(np.uint32) == outputs.view(np.uint32)).all()
    expected = policy.head(outputs).reshape(len(x), -1)
    if policy.head.kind in ("tanh", "gaussian"):
        assert (np.abs(action - expected) <= 1e-6 * (policy.head.high - policy.head.low)).all()
    else:
        assert (action == expected).all()


def beside(policy: QuantizedPolicy) -> np.ndarray:
    """Return an end of the calibrated box with each number at that end, and just outside it."""
    assert policy.box is not None
    sides = [(end, np.nextafter(end, np.float32(far))) for end, far in zip(policy.box, (-np.inf, np.inf), strict=True)]
    rows = [np.where(np.arange(x.size).reshape(x.shape) == i, y, x) for x, y in sides for i in range(x.size)]
    return np.concatenate([policy.box, np.stack(rows)])


COUNTING = """#include "policy.h"
#include <stdio.h>
static NUMBER x[POLICY_OBSERVATION];
static RESULT action[POLICY_ACTION];
int main(void) {
    policy_count count = {0, 0, {0}, {0}};
    policy_counter = &count;
    while (fread(x, sizeof x, 1, stdin) == 1) policy_act(x, action);
    policy_counter = 0;
    policy_act(x, action);
    return fwrite(&count, sizeof count, 1, stdout) != 1;
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", ["gcc -std=c99", "g++ -std=c++17 -x c++", "clang -std=c99"])
@pytest.mark.parametrize("name", ["relu", "tanh-normalized", "dueling", "residual", "sliced", "padded"])
def test_counts_are_those_of_the_reference(words, name, tmp_path):
    require.program(words.split()[0])
    policy, x = static(name, count=60)
    if policy.box is not None:  # up to six times as far as calibration saw
        x = np.float32(x * np.linspace(0, 6, len(x)).reshape(-1, 1))
    for file, content in c.write(policy, "{}", golden.record(policy, x[:4])).items():
        (tmp_path / file).write_bytes(content)
    (tmp_path / "main.c").write_text(COUNTING)
    program, files = Lowering(policy).program(""), [tmp_path / "main.c", tmp_path / "policy.c"]
    macros = ["-DPOLICY_COUNT", f"-DNUMBER={program.x}", f"-DRESULT={program.a}", *boards.STRICT.split()[1:]]
    subprocess.run([*words.split(), "-O2", *macros, *files, "-o", tmp_path / "count"], check=True)
    printed = subprocess.run([tmp_path / "count"], input=x.tobytes(), capture_output=True, check=True).stdout
    values, numbers = engines.reference.load(policy, len(x)).trace(x), dict.fromkeys(policy.grids, (0, 0))
    for each, (low, high) in saturation.ends(policy).items():
        codes = codes_of(values[each], policy.grids[each].qparams) - policy.grids[each].zero_point
        numbers[each] = int((codes <= low).sum()), int((codes >= high).sum())
    got = np.frombuffer(printed, np.uint32).tolist()
    assert got[:2] == [len(x), saturation.outside(policy, x).sum()]
    low, high = zip(*numbers.values(), strict=True)
    counted = (len(got) - 2) // 2
    assert got[2:] == [*low[:counted], *high[:counted]]
    assert not any([*low[counted:], *high[counted:]])
    assert sum(got[2:]) > 0 or name in ("padded", "tanh-normalized")


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc -O2", "gcc -O3", "arm-none-eabi-gcc -mcpu=cortex-m0plus -mthumb -Os"])
def test_without_the_macro_counting_adds_no_byte_of_code(compiler, tmp_path):
    require.program(compiler.split()[0])
    text = written("dueling")["policy.c"]
    (tmp_path / "policy.h").write_text(written("dueling")["policy.h"])
    plain = re.sub(r"#ifdef POLICY_COUNT.*?#endif\n", "", re.sub(r" *COUNT\(.*\);\n", "", text), flags=re.DOTALL)
    plain = re.sub(r"COUNTED\((.*)\);", r"\1;", plain)
    assert "COUNT" in text
    assert "COUNT" not in plain
    code = []
    for each in (text, plain):
        (tmp_path / "policy.c").write_text(each)
        subprocess.run([*compiler.split(), "-c", "policy.c", "-o", "policy.o"], cwd=tmp_path, check=True)
        code.append((tmp_path / "policy.o").read_bytes())
    assert code[0] == code[1]


@pytest.mark.slow
@pytest.mark.parametrize("box", [([-1, 0, -0.0, 2], [1, 0, 5, 3e38]), ([-1] * 4, [1] * 4), ([0] * 4, [-0.0] * 4), None])
def test_policy_act_returns_1_just_outside_the_box(box, tmp_path):
    policy, x = static("squashed", count=20)
    policy = replace(policy, box=box and (np.float32(box[0]), np.float32(box[1])))
    loaded = compiled(policy, x, tmp_path)
    zeros = np.float32([[0, 0, 0, 0], [0, -0.0, 0, 2], [-0.0, 0, -0.0, 2], [-0.0] * 4])
    rows = [x, zeros, *([beside(policy)] if box else ())]
    assert_same_bits(loaded, policy, np.concatenate(rows))
    ends = [call.arguments[1] for call in loaded.program.seen]
    assert ends == ([] if box is None else ["0" if len(set(box[0])) == len(set(box[1])) == 1 else "1"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "int8") for name in KINDS), *((name, "int4") for name in WEIGHTS), ("relu", "int2"), ("odd", "int3e8")],
)
def test_compiled_c_gives_the_bits_of_the_reference(name, precision, tmp_path):
    policy, x = static(name, precision)
    assert_same_bits(compiled(policy, x, tmp_path), policy, x)


@pytest.mark.slow
@pytest.mark.parametrize("board", ["c-aarch64", "c-m4", "c-m0"])
@pytest.mark.parametrize(("name", "precision"), [("tanh-normalized", "int8"), ("dueling", "int4"), ("padded", "int4")])
def test_boards_give_the_bits_of_the_reference(board, name, precision, tmp_path):
    policy, x = static(name, precision)
    loaded = compiled(policy, x, tmp_path, board)
    assert_same_bits(loaded, policy, x if policy.box is None else np.concatenate([x, beside(policy)]))
    if board != "c-aarch64":
        # policy_act_float copies floats around policy_act, whose stack was watched
        numbers = loaded.program.observation + loaded.program.action
        copied = loaded.stack + (0 if policy.observation_dtype == "uint8" else 4 * numbers)
        assert 0 < loaded.stack <= copied <= loaded.deepest() <= copied + 160
        assert loaded.instructions > policy.num_weights


@pytest.mark.slow
def test_a_small_policy_fits_a_small_board(tmp_path):
    policy = networks.dense([4, 64, 64, 2], "tanh")
    x = networks.observations(policy, 100)
    loaded = compiled(quantize(policy, QuantSpec.parse("int8", mode="static"), x), x, tmp_path, "c-m4")
    loaded.both(x)
    assert loaded.flash() <= 8_500
    assert loaded.stack <= 600
    assert loaded.instructions <= 50_000
    symbols = subprocess.run(
        ["arm-none-eabi-nm", "-u", loaded.folder / "policy.o"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(symbols) - {"U"} <= {"__aeabi_lmul", "__aeabi_uldivmod", "__aeabi_llsl", "__aeabi_llsr"}  # of integers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squashed", "dueling", "sliced", "padded"])
def test_c_is_sound_under_sanitizers_and_its_selftest_passes(name, tmp_path):
    policy, x = static(name, "int4")
    compiled(policy, x, tmp_path)
    (tmp_path / "main.c").write_text(
        f"""#include "policy.h"
static {"uint8_t" if x.dtype == np.uint8 else "uint32_t"} x[POLICY_OBSERVATION];
int main(void) {{
    uint32_t y[POLICY_RAW + POLICY_ACTION];
    int first = policy_selftest();
    return first ? first : policy_act(x, (void *)y);
}}
"""
    )
    command = ["gcc", *SOUND.split(), *sorted(tmp_path.glob("*.c")), "-o", tmp_path / "selftest"]
    subprocess.run(command, check=True)
    subprocess.run([tmp_path / "selftest"], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    ["gcc -std=c99", "gcc -std=c11", "g++ -std=c++17 -x c++", "clang -std=c99", "clang++ -std=c++17 -x c++"],
)
def test_two_policies_share_a_program_in_c_and_in_cpp(words: str, tmp_path):
    require.program(words.split()[0])
    for name, network in (("hover", "squashed"), ("Land", "odd")):
        policy, x = static(network, "int4")
        for file, content in c.write(policy, "{}", golden.record(policy, x), name).items():
            (tmp_path / file).write_bytes(content)
    (tmp_path / "main.c").write_text(
        """#include "hover.h"
#include "Land.h"
int main(void) {
    float x[HOVER_OBSERVATION] = {0.5f, -1.0f, 0.25f, 2.0f}, y[HOVER_ACTION] = {7.0f, 7.0f}, not_a_number = 0.0f;
    uint32_t bits[HOVER_OBSERVATION] = {0x3f000000u, 0xbf800000u, 0x3e800000u, 0x40000000u}, again[HOVER_ACTION];
    float land[LAND_OBSERVATION] = {0.0f};
    int32_t choice[LAND_ACTION] = {-9};
    union { float number; uint32_t bits; } each;
    int i, wrong = 0;
    if (hover_selftest() || Land_selftest()) return 1;
    not_a_number /= not_a_number;
    if (hover_act(bits, again) || hover_act_float(x, y) || Land_act_float(land, choice)) return 2;
    for (i = 0; i < HOVER_ACTION; i++) {
        each.number = y[i];
        wrong += each.bits != again[i];
    }
    x[1] = land[6] = not_a_number;
    if (hover_act_float(x, y) != -1 || Land_act_float(land, choice) != -1) return 3;
    each.number = y[0];
    if (wrong || each.bits != again[0] || choice[0] < 0 || choice[0] > 1) return 4;
    x[1] = land[6] = 1e9f, y[0] = 7.0f, choice[0] = -9;
    return hover_act_float(x, y) != 1 || Land_act_float(land, choice) != 1 || y[0] > 2.0f || choice[0] < 0 ? 5 : 0;
}
"""
    )
    files = [str(tmp_path / f"{name}.c") for name in ("hover", "hover_selftest", "Land", "Land_selftest", "main")]
    strict = boards.STRICT.split()[1:]
    subprocess.run([*words.split(), *UNUSED_OUT, *strict, *files, "-o", tmp_path / "both"], check=True)
    assert subprocess.run([tmp_path / "both"], check=False).returncode == 0
    ids = re.findall(rb"(\w+) quarl [\d.]+ weights [0-9a-f]{16} grids [0-9a-f]{16}\0", (tmp_path / "both").read_bytes())
    assert sorted(ids) == [b"Land", b"hover"]


@pytest.mark.slow
def test_the_selftest_returns_the_first_vector_that_differs(tmp_path):
    require.program("gcc")
    policy, x = static("relu")
    vectors = golden.record(policy, x)
    outputs = vectors.outputs.copy()
    chosen = np.linspace(0, len(outputs) - 1, 64).round().astype(int)
    outputs[chosen[9:]] += 1
    for name, content in c.write(policy, "{}", replace(vectors, outputs=outputs)).items():
        (tmp_path / name).write_bytes(content)
    subprocess.run(["gcc", "-DPOLICY_MAIN", *sorted(tmp_path.glob("*.c")), "-o", tmp_path / "selftest"], check=True)
    assert subprocess.run([tmp_path / "selftest"], check=False).returncode == 10


@pytest.mark.slow
def test_a_runtime_leaves_no_process_and_no_folder(tmp_path):
    policy, x = static("relu")
    loaded = compiled(policy, x, tmp_path)
    folder, process = loaded.folder, loaded.process
    assert (loaded.run(x[:1]) == loaded.run(x[:2])[:1]).all()
    del loaded
    gc.collect()
    assert not folder.exists()
    assert process.returncode is not None


@pytest.mark.slow
def test_a_program_that_ends_is_one_line(tmp_path):
    policy, x = static("relu")
    loaded = compiled(policy, x, tmp_path)
    loaded.process.kill()
    with pytest.raises(QuarlError, match=r"^policy\.c ended"):
        loaded.run(x[:1])


@pytest.mark.slow
def test_no_comment_becomes_c(tmp_path):
    policy, x = static("relu")
    comment = json.dumps({"id": "*/ int x; /*", "??": "a\\"})
    text = c.write(policy, comment, golden.record(policy, x))["policy.c"].decode()
    assert json.loads(c.check(text).comment) == json.loads(comment)
    (tmp_path / "policy.c").write_text(text)
    require.runtime("c")
    loaded = runtimes.load("c", tmp_path / "policy.c")
    assert (loaded.run(x) == reference(policy, x)).all()


@pytest.mark.slow
def test_an_observation_with_nan_or_infinity_is_refused_and_leaves_the_action_alone(tmp_path):
    policy, x = static("squashed")
    loaded = compiled(policy, x, tmp_path)
    given = loaded.run(np.float32([x[0], [np.nan, 0, 0, 0], [0, 9, 0, -np.inf], x[1]]))
    assert loaded.returned.tolist() == [0, -1, -1, 0]
    assert np.isfinite(given).all(axis=1).tolist() == [True, False, False, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    "head", [ActionHead("argmax", start=-3), ActionHead("argmax", segments=(2, 3, 4)), ActionHead("binary")]
)
def test_discrete_heads_give_whole_numbers(head, tmp_path):
    policy = replace(networks.dense([5, 16, 9]), head=head)
    x = networks.observations(policy, 200)
    quantized = quantize(policy, QuantSpec.parse("int8", mode="static"), x)
    loaded = compiled(quantized, x, tmp_path)
    assert_same_bits(loaded, quantized, x)
    assert (loaded.run(x) == reference(quantized, x)).all()


@pytest.mark.slow
def test_large_and_tiny_observations_give_the_bits_of_the_reference(tmp_path):
    policy, x = static("tanh-normalized")
    extremes = np.float32([3e38, -3e38, 1e-38, -1e-45, 0.0, -0.0, 1e20, 16777217])
    rows = np.resize(extremes, (8 * 9, 9)).astype(np.float32)
    assert_same_bits(compiled(policy, x, tmp_path), policy, rows)


def test_a_missing_compiler_is_named_with_the_packages_that_have_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(QuarlError, match="apt install gcc-arm-none-eabi qemu-system-arm"):
        runtimes.load("c-m4", tmp_path / "policy.c")


@pytest.mark.slow
def test_requantisation_rounds_as_float32_does_near_ties_too(tmp_path):
    require.program("gcc")
    here = Path(__file__).parent / "boards" / "requantization.c"
    kernels = Path(boards.__file__).parent
    subprocess.run(["gcc", "-O2", "-I", kernels, here, "-lm", "-o", tmp_path / "test"], check=True)
    count = os.environ.get("QUARL_REQUANTISATIONS", "1000000")
    said = subprocess.run([tmp_path / "test", count], capture_output=True, text=True, check=True).stdout
    wrong, ties = map(int, said.split())
    assert wrong == 0
    assert ties > int(count) // 100
