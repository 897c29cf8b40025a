"""`quarl verify` of folders that others edited: what is refused, and what is compiled or run only with --edited."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from test_export import agent
from test_verify import folder, rows, sealed_anew  # noqa: F401  # a fixture

import networks
import require
from quarl import engines
from quarl.calibration import quantize
from quarl.cli import main
from quarl.errors import QuarlError
from quarl.export import contract, equal, export, golden, runtimes
from quarl.export.c import boards
from quarl.export.verification import CODE
from quarl.policy import artifact
from quarl.policy.graph import ActionHead
from quarl.quant.spec import QuantSpec

BOUNDS = {"low": -np.ones(9, np.float32), "high": 2 * np.ones(9, np.float32)}
HEADS = {
    "argmax": ActionHead("argmax", start=2),
    "segments": ActionHead("argmax", segments=(2, 3, 4)),
    "binary": ActionHead("binary"),
    "clip": ActionHead("clip", **BOUNDS),
    "tanh": ActionHead("tanh", **BOUNDS),
}
"""Every way in which a file's output becomes an action."""
ZERO = "    int i;\n    (void)x;\n    for (i = 0; i < POLICY_ACTION; i++) a[i] = 0;\n    return 0;\n}\n"


@pytest.fixture
def copied(folder, tmp_path):  # noqa: F811
    return shutil.copytree(folder, tmp_path / "out")


def headed(name):
    """A static int8 policy with the head, and observations."""
    policy = replace(networks.dense([5, 16, 9]), head=HEADS[name])
    x = networks.observations(policy, 40)
    return quantize(policy, QuantSpec.parse("int8", mode="static"), x), x


def contents(path, change):
    """Rewrites a JSON file."""
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))
    sealed_anew(path.parent)


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_a_policy_act_that_always_answers_0_is_told(tmp_path, head, monkeypatch):
    require.program("gcc")
    policy, x = headed(head)
    out = tmp_path / "out"
    export(policy, "c", out, observations=x)
    code = (out / "policy.c").read_text()
    (out / "policy.c").write_text(code.replace('#include "policy.h"', '#include "policy.h"\n/* mine */', 1))
    done, left_out = rows(out, names=["c"], edited=True)
    assert [row.result for row in done if row.runtime == "c"] in (["equal"], ["equal within 1e-06"])
    assert any("--edited" in line for line in left_out)
    start = code.index("    real y[", code.index("int policy_act"))
    (out / "policy.c").write_text(code[:start] + ZERO)
    if HEADS[head].is_discrete:
        with pytest.raises(QuarlError, match=r"^policy_act gives \[0"):
            rows(out, names=["c"], edited=True)
    else:
        assert rows(out, names=["c"], edited=True)[0][-1].result == equal.DIFFERS
    sealed_anew(out)
    monkeypatch.setattr(boards.subprocess, "run", None)  # nothing is compiled
    with pytest.raises(QuarlError, match=r"policy\.c is not what quarl export writes.*or give --edited"):
        rows(out, names=["c"])


@pytest.mark.parametrize("head", ["argmax", "segments", "binary"])
def test_actions_that_c_chooses_are_held_to_its_scores(head):
    policy, x = headed(head)
    outputs = engines.run_all(engines.load(policy, "reference", batch=len(x)), x)
    actions = policy.head(outputs).reshape(len(x), -1).astype(np.int32)

    class Answers(boards.Compiled):
        def both(self, observations):
            return outputs, actions

    program = type("Program", (), {"a": "int32_t"})
    compiled = Answers("c", boards.BOARDS["c"], "1", program, None, None, (0, 0), policy.head)
    np.testing.assert_array_equal(compiled.run(x), outputs)
    actions[17, -1] += 1
    with pytest.raises(QuarlError, match=r"^policy_act gives .* in place of .* for observation 17$"):
        compiled.run(x)


@pytest.mark.parametrize(
    "name",
    ["policy.tflite", *(pytest.param(n, marks=pytest.mark.slow) for n in sorted(CODE) if n[-2:] in (".c", ".h"))],
)
def test_sources_have_to_be_what_export_writes_to_the_byte(copied, tmp_path, name, monkeypatch):
    out = copied
    if name != "policy.tflite":
        out = tmp_path / "c"
        policy, x = agent()
        export(policy, "c", out, observations=x)
    (out / name).write_bytes((out / name).read_bytes() + b"\n")
    sealed_anew(out)
    monkeypatch.setattr(runtimes, "load", None)  # none is loaded
    with pytest.raises(QuarlError, match=rf"{name} is not what quarl export writes from policy\.quarl.*--edited"):
        rows(out, episodes=0)


@pytest.mark.slow
def test_a_folder_of_another_version_is_refused_with_that_version(copied, capsys):
    contents(copied / "contract.json", lambda said: said.update(quarl="0.0.7"))
    assert main(["verify", str(copied), "--episodes", "0"]) == 2
    assert "was exported by quarl 0.0.7, not " in capsys.readouterr().err
    assert main(["verify", str(copied), "--episodes", "0", "--runtime", "litert", "--edited"]) == 0


def test_a_file_that_nothing_ran_or_wrote_again_is_refused(copied, monkeypatch, capsys):
    kinds = {name: kind._replace(module="no_such_package") for name, kind in runtimes.RUNTIMES.items()}
    monkeypatch.setattr(runtimes, "RUNTIMES", kinds)
    assert main(["verify", str(copied), "--episodes", "0"]) == 0  # it is what export writes
    for more in ([str(copied), "--edited"], [str(copied / "policy.tflite")]):
        assert main(["verify", *more, "--episodes", "0"]) == 2
        assert "was neither run nor compared" in capsys.readouterr().err


def test_a_runtime_that_refuses_an_edited_file_is_an_error(copied, monkeypatch):
    def refuse(name, *about):
        raise QuarlError(f"{name} does not run it")

    monkeypatch.setattr(runtimes, "apart", refuse)
    with pytest.raises(QuarlError, match=r"^litert does not run it$"):
        rows(copied, episodes=0, edited=True)


@pytest.mark.parametrize("name", sorted(CODE - {"policy.tflite"}))
def test_code_that_the_folder_does_not_list_is_refused(copied, name):
    (copied / "notes.txt").write_text("mine")
    (copied / name).write_text("stale")
    with pytest.raises(
        QuarlError, match=rf"{name} does not belong to this export: SHA256SUMS does not list it; remove it"
    ):
        rows(copied, episodes=0)


def ways(document, at=()):
    """Keys and places in JSON, as tuples."""
    pairs = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in pairs:
        yield (*at, key)
        yield from ways(value, (*at, key))


def wrong(document, way):
    """The document without the key, and with values of other kinds there."""
    for value in (..., None, 7, "x", [], {}, True):
        changed = copy.deepcopy(document)
        at = changed
        for key in way[:-1]:
            at = at[key]
        if type(at[way[-1]]) is not type(value):
            if value is ...:
                del at[way[-1]]
            else:
                at[way[-1]] = value
            yield changed


FREE = (("observation", "low"), ("observation", "high"), ("control_period",))


@pytest.mark.slow
def test_every_key_of_a_contract_is_missed_and_no_kind_is_mistaken(folder):  # noqa: F811
    full = json.loads((folder / "contract.json").read_text())
    policy = artifact.read(folder / "policy.quarl")
    assert list(contract.differences(policy, full)) == []
    seen = 0
    for way in ways(full):
        if way[:2] in FREE or (len(way) > 1 and ".".join(map(str, way[:-1])).startswith(contract.TOLD)):
            continue
        for changed in wrong(full, way):
            seen += 1
            assert next(contract.differences(policy, changed), None) == ".".join(
                key for key in way if isinstance(key, str)
            ) or any(not isinstance(key, str) for key in way), way
    assert seen > 300


@pytest.mark.parametrize(
    "key", ["format", "quarl", "target", "source", "environment", "observation", "action", "sha256"]
)
def test_a_contract_with_a_missing_or_mistyped_key_is_one_line(copied, key, capsys):
    full = json.loads((copied / "contract.json").read_text())
    for changed in wrong(full, (key,)):
        contents(copied / "contract.json", lambda said, changed=changed: (said.clear(), said.update(changed)))
        assert main(["verify", str(copied), "--episodes", "0"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("quarl")
        assert said.count("\n") == 1


def test_the_contract_inside_a_file_is_read_or_refused_whatever_it_holds(folder):  # noqa: F811
    inner = json.loads(contract.inner(json.loads((folder / "contract.json").read_text())))
    read = 0
    for way in ways(inner):
        for changed in wrong(inner, way):
            with contextlib.suppress(QuarlError):
                read += contract.policy_of(changed, "policy.tflite").width > 0
    assert read > 0
    inner["environment"]["id"] = None
    with pytest.raises(
        QuarlError, match=r"^policy\.tflite: its contract does not describe a policy .*'None' is not a name"
    ):
        contract.policy_of(inner, "policy.tflite")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("observations", lambda x: np.zeros((len(x), 7), np.float32)),
        ("observations", lambda x: np.zeros(len(x), np.float32)),
        ("observations", lambda x: x.astype(str)),
        ("observations", lambda x: x.astype(complex)),
        ("outputs", lambda x: np.zeros((len(x), 9), np.float32)),
        ("outputs", lambda x: x.astype(str)),
        ("given", lambda x: x.astype(object).astype("U8")),
    ],
)
def test_golden_vectors_of_another_width_or_kind_are_refused(copied, name, change):
    vectors = golden.read((copied / "golden.npz").read_bytes(), "golden.npz")
    (copied / "golden.npz").write_bytes(replace(vectors, **{name: change(getattr(vectors, name))}).to_bytes())
    sealed_anew(copied)
    with pytest.raises(QuarlError, match=r"golden\.npz( has observations| lacks|: .* only arrays of numbers)"):
        rows(copied, episodes=0)


@pytest.mark.parametrize("edges", [np.nan, np.inf])
def test_golden_vectors_with_a_count_that_is_no_number_are_refused(copied, edges, tmp_path):
    arrays = dict(np.load(copied / "golden.npz"))
    np.savez(tmp_path / "other.npz", **{**arrays, "edges": np.array(edges)})
    with pytest.raises(QuarlError, match="holds no golden vectors"):
        golden.read((tmp_path / "other.npz").read_bytes(), "golden.npz")


@pytest.mark.parametrize("head", ["argmax", "tanh"])
def test_other_arithmetic_is_said_beside_its_difference_from_predict(head):
    policy, x = headed(head)
    vectors = golden.record(policy, x)
    shown = golden.computed(policy, vectors.observations, "q31-double").given

    class Micro:
        name, arithmetic, version = "tflm", "q31-double", "1"

        def run(self, observations):
            return shown

    row = equal.held("golden vectors", policy, "tflite", vectors, Micro())
    assert row.detail.startswith("equal to TFLite Micro's arithmetic; actions ")
    ours, theirs = (policy.head(y) if policy.head.is_discrete else y for y in (vectors.given, shown))
    away = np.abs(np.float64(ours) - theirs).reshape(len(ours), -1)
    if not away.any():
        assert row.detail.endswith("actions are those of predict")
        return
    assert row.detail.endswith(f" in {(away > 0).any(axis=1).sum()} of {len(ours)} rows")
    assert ("by up to" in row.detail) == (not policy.head.is_discrete)
    assert policy.head.is_discrete or f"by up to {away.max():.3g} in" in row.detail


def test_eval_of_a_file_does_not_deny_the_normalizer_inside(copied, capsys):
    assert main(["eval", str(copied / "policy.tflite"), "--episodes", "2"]) == 0
    said = capsys.readouterr().out
    assert "not normali" not in said
    assert "the file reads raw observations: its normalizer, if any, is inside" in said
