"""`quarl verify`: what is damaged, differs or is missing is said, and where."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from test_contract import cartpole
from test_export import agent

import networks
from quarl.cli import main
from quarl.errors import QuarlError
from quarl.export import contract, export, golden, quantised, runtimes, targets, verification
from quarl.export.equal import DIFFERS, VerifyRow, compare, held
from quarl.export.verification import verify
from quarl.policy import artifact
from quarl.policy.operators import Linear


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of CartPole's policy, whose agent lies beside it."""
    root = tmp_path_factory.mktemp("exported")
    artifact.write(cartpole(), root / "agent.quarl")
    policy = quantised(cartpole(), "tflite")
    export(policy, "tflite", root / "out", source=root / "agent.quarl")
    return root / "out"


def rows(path, **given):
    """(rows, what is left out)."""
    all_of = list(verify(path, **given))
    return [each for each in all_of if isinstance(each, VerifyRow)], [each for each in all_of if isinstance(each, str)]


def test_a_whole_folder_passes_every_check(folder):
    done, left_out = rows(folder, names=["litert"], episodes=12)
    assert [(row.check, row.runtime, row.result) for row in done[:-1]] == [
        ("sha256", None, "intact"),
        ("contract", None, "intact"),
        ("golden vectors", "reference", "equal"),
        ("sources", None, "equal"),
        ("golden vectors", "litert", "equal"),
        ("rollout", "litert", "equal"),
    ]
    assert (done[-1].check, done[-1].count) == ("return", 12)
    assert "fp32" in done[-1].detail
    assert left_out == []


@pytest.mark.parametrize(
    "name", ["policy.tflite", "contract.json", "golden.npz", "policy.quarl", "README.md", "SHA256SUMS"]
)
def test_a_flipped_bit_anywhere_is_an_error_that_names_the_file(folder, tmp_path, name, capsys):
    size = (folder / name).stat().st_size
    for place in np.linspace(0, size - 1, 6).astype(int).tolist():
        copy = tmp_path / f"at-{place}"
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        content = bytearray((copy / name).read_bytes())
        content[place] ^= 1
        (copy / name).write_bytes(content)
        assert main(["verify", str(copy), "--runtime", "litert", "--episodes", "0"]) == 2
        said = capsys.readouterr().err
        assert name in said
        assert said.count("\n") == 1


PLACES = {
    "policy.tflite": r"at byte [\d,]+",
    "policy.onnx": r"at byte [\d,]+",
    "policy.c": r"in line \d+",
    "policy.h": r"in line \d+",
    "policy_selftest.c": r"in line \d+",
    "README.md": r"in line \d+",
    "golden.npz": r"(Bad CRC-32 for file '\w|Error -3 while decomp|no array in it|member|\.npy|not a whole zip)",
    "policy.quarl": r"(tensor '[\w./]+' (does not match|has dtype)|manifest|header|container|no array in it)",
    "contract.json": r"(is damaged in '[\w.]+'|what no policy decides|not JSON|lacks '\w+'|contract\.json)",
    "SHA256SUMS": "",
}
"""By file, what is said of a place in it."""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["tflite", "onnx", "c"])
def test_a_flipped_bit_is_said_with_its_place(tmp_path, target):
    export(quantised(cartpole(), target), target, tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    rng = np.random.default_rng(0)
    for _ in range(200):
        name = names[rng.integers(len(names))]
        path = tmp_path / "out" / name
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(QuarlError) as said:
            rows(tmp_path / "out", names=["litert"], episodes=0)
        assert re.search(rf"{name if PLACES[name] else ''}.*{PLACES[name]}", str(said.value), re.S), (name, said.value)
        path.write_bytes(whole)


def test_the_byte_of_a_flipped_weight_is_named(tmp_path):
    policy, x = agent()
    export(policy, "tflite", tmp_path / "out", observations=x)
    content = (tmp_path / "out" / "policy.tflite").read_bytes()
    last = policy.linear[-1]
    start = content.index(last.weight.codes.tobytes())
    (tmp_path / "out" / "policy.tflite").write_bytes(
        content[:start] + bytes([content[start] ^ 4]) + content[start + 1 :]
    )
    with pytest.raises(QuarlError, match=f"it is damaged at byte {start:,};"):
        rows(tmp_path / "out", episodes=0)


@pytest.mark.slow
def test_a_file_alone_says_which_checks_are_missing(folder, tmp_path):
    shutil.copy(folder / "policy.tflite", tmp_path / "policy.tflite")
    done, left_out = rows(tmp_path / "policy.tflite", names=["litert"], episodes=3)
    assert [(row.check, row.count) for row in done] == [("contract", 1), ("return", 3)]
    assert left_out == [
        "left out, because they need the folder: sha256 of files, golden vectors, rollout, return against fp32"
    ]


def test_an_agent_that_is_gone_or_changed_costs_the_comparison_and_is_said(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "out")
    done, left_out = rows(tmp_path / "out", names=["litert"], episodes=3)
    assert left_out == [
        "left out: return against fp32 "
        f"(its agent 'agent.quarl' is not beside {tmp_path / 'out'}: name it with --agent)"
    ]
    named, left_out = rows(tmp_path / "out", agent=folder.parent / "agent.quarl", names=["litert"], episodes=3)
    assert (left_out, "fp32" in named[-1].detail) == ([], True)
    assert done[-1].check == "return"
    (tmp_path / "agent.quarl").write_bytes(b"another")
    assert "has changed since" in rows(tmp_path / "out", names=["litert"], episodes=3)[1][0]


def test_an_agent_that_loses_successes_at_the_same_return_is_inferior_by_a_row_of_its_own():
    runtime, returns = SimpleNamespace(name="litert", version="1"), np.ones(100)
    before = SimpleNamespace(returns=returns, successes=np.arange(100) < 100)
    after = SimpleNamespace(returns=returns, successes=np.arange(100) < 80)
    on_return, success = verification._judged(runtime, after, before, 5.0, 0)
    assert (on_return.check, on_return.result) == ("return", "non-inferior")
    assert (success.check, success.result, success.count) == ("success", "inferior", 100)
    assert success.detail.startswith("80 %, fp32 100 %; 95 % interval of the difference [−28.9, −12.4]")
    assert "fewer" not in on_return.detail + success.detail
    lost = SimpleNamespace(returns=returns[:5] / 2, successes=np.arange(5) < 1)
    for row in verification._judged(
        runtime, lost, SimpleNamespace(returns=returns[:5], successes=returns[:5] > 0), 5.0, 0
    ):
        assert row.detail.endswith("; fewer than 10 episodes")
    assert row.result == "undecided"


def sealed_anew(folder):
    """Makes the sums fit what lies there now."""
    names = sorted(path.name for path in folder.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{contract.sha256((folder / name).read_bytes())}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(lines))


def test_golden_vectors_that_are_not_the_policys_are_refused_with_their_place(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "out")
    vectors = golden.read((tmp_path / "out" / "golden.npz").read_bytes(), "golden.npz")
    outputs = vectors.outputs.copy()
    outputs[17, 1] += 1
    (tmp_path / "out" / "golden.npz").write_bytes(replace(vectors, outputs=outputs).to_bytes())
    sealed_anew(tmp_path / "out")
    with pytest.raises(QuarlError, match=r"golden\.npz, 'outputs': 1 observations differ, first number 17"):
        rows(tmp_path / "out", names=["litert"], episodes=0)


def test_a_contract_that_was_rewritten_is_not_the_policys(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "out")
    said = json.loads((tmp_path / "out" / "contract.json").read_text())
    said["action"]["start"] = 1
    (tmp_path / "out" / "contract.json").write_text(json.dumps(said))
    sealed_anew(tmp_path / "out")
    with pytest.raises(QuarlError, match=r"contract\.json differs from policy\.quarl in 'action\.start'"):
        rows(tmp_path / "out", names=["litert"], episodes=0)


def test_edited_files_are_verified_in_their_folder_alone(folder):
    with pytest.raises(QuarlError, match=r"^--edited requires the folder of policy\.tflite"):
        rows(folder / "policy.tflite", edited=True)


class Otherwise:
    """A runtime whose sums lose what is small, wherever a layer reads more than eight numbers."""

    name, arithmetic, version = "litert", "f32-rne", "1"

    def __init__(self, run):
        self.run = run


def test_the_first_layer_that_a_runtime_computes_otherwise_is_named(tmp_path, monkeypatch):
    policy, x = agent(policy=networks.dense([5, 16, 16, 3]))
    vectors = golden.record(policy, x)
    loaded = runtimes.load

    def load(name, file):
        runtime = loaded(name, file)
        return Otherwise(lambda x: runtime.run(x) + (runtime.run(x).shape[1] == 16 and file.stat().st_size > 3_000))

    monkeypatch.setattr(runtimes, "load", load)
    (tmp_path / "policy.tflite").write_bytes(targets.write(policy, "tflite", "", vectors)["policy.tflite"])
    right = loaded("litert", tmp_path / "policy.tflite")
    row = held("golden vectors", policy, "tflite", vectors, Otherwise(lambda x: right.run(x) + 1))
    assert row.result == DIFFERS
    layers = [op.name for op in policy.ops if isinstance(op, Linear)]
    assert f"first in layer {layers[1]!r}" in row.detail or f"first in layer {layers[0]!r}" in row.detail


def test_a_file_that_is_not_its_policys_is_told_from_a_runtime_that_computes_otherwise(tmp_path):
    policy, x = agent()
    other, _ = agent(policy=networks.dense([5, 16, 3], seed=3))
    vectors = golden.record(policy, x)
    (tmp_path / "policy.tflite").write_bytes(targets.write(other, "tflite", "", vectors)["policy.tflite"])
    row = held("golden vectors", policy, "tflite", vectors, runtimes.load("litert", tmp_path / "policy.tflite"))
    assert row.result == DIFFERS
    assert "observations differ, first number 0" in row.detail
    assert "no layer differs" in row.detail


def test_integers_have_to_come_out_as_such_and_floats_nearly_always():
    exact, _ = agent()
    dynamic, _ = agent(mode="dynamic")
    expected = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    off = expected.copy()
    off[7, expected[7].argmax()] += 1e-3
    assert compare(exact, expected, off, "f32-rne")[0].observation == 7
    assert compare(dynamic, expected, off, "f32-rne") == (None, "99.75 % within 1e-05")
    assert compare(exact, expected, off, "qdq") == (None, "99.75 % within 1e-05")
    flipped = expected.copy()
    flipped[7, expected[7].argmin()] += 100
    assert compare(dynamic, expected, flipped, "f32-rne")[1] == DIFFERS
    with pytest.raises(QuarlError, match=r"returns \(2,\) numbers"):
        compare(exact, expected, expected[:, :2], "f32-rne")


def test_edges_are_for_integers_alone():
    policy, x = agent()
    vectors = golden.record(policy, x)

    class Pairs(Otherwise):
        arithmetic = "qdq"

    def off_at_the_edges(x):
        given = vectors.given[: len(x)].copy()
        given[40:] += 1
        return given

    assert held("golden vectors", policy, "tflite", vectors, Pairs(off_at_the_edges)).result == "equal"
    assert compare(policy, vectors.given, off_at_the_edges(vectors.given), "f32-rne")[0].observation == 40


def test_runtimes_that_are_not_there_are_left_out_unless_they_are_asked_for(folder, monkeypatch, capsys):
    monkeypatch.setitem(runtimes.RUNTIMES, "openvino", runtimes.RUNTIMES["openvino"]._replace(module="no_such_package"))
    assert any("openvino is not installed: pip install" in line for line in rows(folder, episodes=0)[1])
    assert main(["verify", str(folder), "--runtime", "openvino", "--episodes", "0"]) == 2
    assert "openvino is not installed: pip install" in capsys.readouterr().err


def test_openvino_is_not_held_to_activations_that_are_quantised_at_run_time(tmp_path, capsys):
    policy, x = agent("int8", "dynamic")
    export(policy, "tflite", tmp_path / "out", observations=x)
    assert main(["verify", str(tmp_path / "out"), "--episodes", "0"]) == 0
    assert "openvino runs static integers, not int8 dynamic: export it with --mode static" in capsys.readouterr().out


def test_what_tflite_micro_has_not_names_the_target_that_has_it(tmp_path, capsys):
    policy, x = agent("int4")
    export(policy, "tflite", tmp_path / "out", observations=x)
    assert main(["verify", str(tmp_path / "out"), "--runtime", "tflm", "--episodes", "0"]) == 2
    assert "tflm runs fp32 and static int8, not int4 static: boards run static int2 to int8 --to c" in (
        capsys.readouterr().err
    )


def test_a_difference_ends_the_verb_with_code_2_after_its_table(folder, tmp_path, capsys, monkeypatch):
    shutil.copytree(folder, tmp_path / "out")
    loaded = runtimes.load
    monkeypatch.setattr(runtimes, "load", lambda *about: Otherwise(lambda x: loaded(*about).run(x) + 1))
    assert main(["verify", str(tmp_path / "out"), "--runtime", "litert", "--episodes", "0"]) == 2
    said = capsys.readouterr()
    assert "differs" in said.out
    assert "in litert, golden vectors: 3" in said.err
