"""Folders of `quarl export`: what travels into them, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from test_contract import cartpole

import networks
import quarl
import require
from quarl import engines
from quarl.api import Agent
from quarl.calibration import quantize
from quarl.cli import main
from quarl.errors import QuarlError, UnsupportedError
from quarl.export import contract, export, golden, quantised, targets
from quarl.export.c.boards import STRICT
from quarl.export.equal import VerifyRow
from quarl.export.readme import readme
from quarl.export.targets import FILES
from quarl.export.verification import verify
from quarl.policy import artifact
from quarl.quant.spec import QuantSpec

EVERYTHING = {"README.md", "SHA256SUMS", "contract.json", "golden.npz", "policy.quarl"}


def agent(precision="int8", mode="static", policy=None):
    """A quantised policy, its observations."""
    policy = policy or networks.dense([5, 16, 3])
    x = networks.observations(policy, 40)
    return quantize(policy, QuantSpec.parse(precision, scheme="per-channel", mode=mode), x), x


@pytest.mark.slow
@pytest.mark.parametrize("target", ["tflite", "onnx", "onnx-qdq", "c"])
def test_a_folder_holds_the_file_with_all_that_proves_it(tmp_path, target):
    policy, x = agent()
    said = export(policy, target, tmp_path / "out", observations=x)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names - {"policy.h", "policy_selftest.c"} == EVERYTHING | {FILES[target]}
    assert json.loads((tmp_path / "out" / "contract.json").read_text()) == json.loads(json.dumps(said))
    assert (said["target"], said["precision"], said["mode"]) == (target, "int8", "static")
    assert ("flash" in said["footprint"], "how" in said["footprint"]) == (True, True)
    assert said["arithmetic"] == ("qdq" if target == "onnx-qdq" else "f32-rne")
    vectors = golden.read((tmp_path / "out" / "golden.npz").read_bytes(), "golden.npz")
    assert set(vectors.codes) == set(policy.grids)


@pytest.mark.parametrize(("precision", "mode"), [("int8", "static"), ("int4", "static"), ("int4e8", "dynamic")])
def test_codes_and_grids_travel_unchanged(tmp_path, precision, mode):
    policy, x = agent(precision, mode)
    artifact.write(policy, tmp_path / "small.quarl")
    again = artifact.read(tmp_path / "small.quarl")
    export(quantised(again, "tflite"), "tflite", tmp_path / "out", observations=x)
    sent = artifact.read(tmp_path / "out" / "policy.quarl")
    assert (sent.spec, sent.grids) == (policy.spec, policy.grids)
    for ours, theirs in zip(policy.linear, sent.linear, strict=True):
        np.testing.assert_array_equal(ours.weight.codes, theirs.weight.codes)
        np.testing.assert_array_equal(ours.weight.scale, theirs.weight.scale)
        np.testing.assert_array_equal(ours.bias, theirs.bias)


def test_a_dynamic_policy_keeps_its_codes_and_gets_grids_where_the_target_wants_them():
    policy, x = agent("int4", "dynamic")
    made = quantised(policy, "c", observations=x)
    assert made.spec.mode == "static"
    for ours, theirs in zip(policy.linear, made.linear, strict=True):
        np.testing.assert_array_equal(ours.weight.codes, theirs.weight.codes)
    engine = engines.load(made, "reference", batch=40)
    assert np.abs(engine.run(x) - engines.load(policy, "reference", batch=40).run(x)).max() < 0.1
    assert quantised(policy, "tflite", observations=x) is policy


def test_a_float_policy_becomes_static_int8_unless_it_is_said_otherwise():
    policy = networks.dense([5, 16, 3])
    x = networks.observations(policy, 40)
    assert quantised(policy, "tflite", observations=x).spec.in_words == "int8 static"
    assert quantised(policy, "tflite", "int4e8", "dynamic", observations=x).spec.in_words == "int4e8 dynamic"
    assert quantised(policy, "onnx", "fp32").spec.precision == "fp32"


def test_symmetric_activations_are_made_or_asked_for(tmp_path, capsys):
    float_policy, (asymmetric, x) = networks.dense([5, 16, 3]), agent()
    told = {"symmetric_activations": True, "observations": x}
    export(asymmetric, "onnx-qdq", tmp_path / "asymmetric", observations=x)
    line = "TensorRT, which was not run here, refuses the zero points of 2 of 3 grids: --symmetric-activations makes"
    assert line in capsys.readouterr().err
    for policy in (float_policy, agent(mode="dynamic")[0]):
        made = quantised(policy, "tflite", **told)
        assert made.spec.in_words == "int8 static symmetric"
        said = export(made, "onnx-qdq", tmp_path / made.spec.scheme.name, observations=x)
        assert said["spec"]["symmetric_activations"] is True
        assert {grid["zero_point"] for grid in said["grids"].values()} == {0}
    assert "TensorRT" not in capsys.readouterr().err
    for policy, precision in ((asymmetric, None), (float_policy, "fp32")):
        with pytest.raises(
            QuarlError, match=r"^symmetric activations require static grids with zero points 0, and the"
        ):
            quantised(policy, "onnx-qdq", precision, **told)


@pytest.mark.parametrize("target", ["c", "onnx-qdq"])
def test_dynamic_mode_has_no_form_in_integers_alone(tmp_path, target):
    policy, x = agent(mode="dynamic")
    with pytest.raises(UnsupportedError, match=f"^{target} needs static mode, this policy is dynamic"):
        export(policy, target, tmp_path / "out", observations=x)
    with pytest.raises(QuarlError, match=r"^unknown target 'rust'; choose one of tflite, tflite-int16x8, onnx"):
        export(policy, "rust", tmp_path / "out", observations=x)
    with pytest.raises(UnsupportedError, match=rf"^{target} is for integers, not fp16: export it to tflite or onnx"):
        export(agent("fp16")[0], target, tmp_path / "out", observations=x)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_recorded_is_asked_for(tmp_path):
    policy, _ = agent(mode="dynamic")
    both = r"with --env, or give recorded --observations \(env_id, env or observations in Python\)"
    with pytest.raises(QuarlError, match=both):
        quantised(policy, "c")
    with pytest.raises(QuarlError, match=both):
        export(policy, "tflite", tmp_path / "out")


def test_another_precision_than_a_policys_own_is_refused():
    policy, _ = agent("int4")
    with pytest.raises(QuarlError, match="the policy is int4 already: export the float one to --precision int8"):
        quantised(policy, "tflite", "int8")
    with pytest.raises(QuarlError, match="the policy is static and keeps its grids; drop --mode dynamic"):
        quantised(policy, "tflite", mode="dynamic")
    assert quantised(policy, "tflite", "int4") is policy


def test_agents_export_themselves(tmp_path):
    policy, x = agent()
    said = Agent(policy).export("tflite", tmp_path / "out", observations=x)
    assert said["source"]["file"] == ""
    assert quarl.load(tmp_path / "out" / "policy.quarl").policy.grids == policy.grids


def test_the_verb_says_what_runtimes_make_of_the_file(tmp_path, capsys):
    quarl.api.artifact.write(cartpole(), tmp_path / "agent.quarl")
    rows = tmp_path / "rows.json"
    command = f"export {tmp_path / 'agent.quarl'} --to tflite -o {tmp_path / 'out'} --json {rows}"
    assert main(command.split()) == 0
    document = json.loads(rows.read_text())
    assert document["command"] == "verify"
    assert [row["result"] for row in document["rows"] if row["runtime"] == "litert"] == ["equal"]
    source = json.loads((tmp_path / "out" / "contract.json").read_text())["source"]
    assert source["file"] == "agent.quarl"
    assert "its output is a score for each action" in capsys.readouterr().out


def test_grids_that_are_calibrated_anew_have_a_verdict_of_their_own(tmp_path, capsys):
    policy = cartpole()
    x = networks.observations(policy, 40)
    artifact.write(quantize(policy, QuantSpec.parse("int8", scheme="per-channel"), x), tmp_path / "agent.quarl")
    command = f"export {tmp_path / 'agent.quarl'} --mode static -o {tmp_path / 'out'} --episodes 12"
    assert main(command.split()) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "grids calibrated now: the file is static, while the policy is dynamic" in said
    assert re.search(r"return int8 static, 12 episodes: [a-z-]+ \([\d.]+, int8 dynamic [\d.]+; 95 %", said)


def test_int8_observations_are_refused_with_the_reason(tmp_path, capsys):
    artifact.write(cartpole(), tmp_path / "agent.quarl")
    assert main(f"export {tmp_path / 'agent.quarl'} --io int8 -o {tmp_path / 'out'}".split()) == 2
    assert capsys.readouterr().err.startswith("quarl: --io int8 would change the measured policy: ")
    assert not (tmp_path / "out").exists()


def test_exported_files_are_played(tmp_path, capsys):
    policy = cartpole()
    export(quantised(policy, "tflite"), "tflite", tmp_path / "out")
    assert main(f"eval {tmp_path / 'out' / 'policy.tflite'} --episodes 5 --json {tmp_path / 'file.json'}".split()) == 0
    assert main(f"eval {tmp_path / 'out' / 'policy.quarl'} --episodes 5 --json {tmp_path / 'own.json'}".split()) == 0
    file, own = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("file", "own"))
    assert file["rows"][0]["returns"] == own["rows"][0]["returns"]
    assert file["env_id"] == "CartPole-v1"
    assert main(f"eval {tmp_path / 'out' / 'policy.tflite'} --engine onnx".split()) == 2
    assert "is played as it is, with greedy actions: drop --engine" in capsys.readouterr().err


def exported(path, target, folder):
    return main(["export", str(path), "--to", target, "--env", "CartPole-v1", "--episodes", "1", "-o", str(folder)])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.slow
def test_an_export_is_repeated_and_replaces_no_other(tmp_path, capsys):
    first, second = (tmp_path / name / "best_model.safetensors" for name in "ab")
    for path, hidden in ((first, 16), (second, 8)):
        path.parent.mkdir()
        artifact.write(networks.dense([4, hidden, 2]), path)
    out = tmp_path / "out"
    assert exported(first, "onnx", out) == 0
    (out / "mine.txt").write_text("stays")
    whole = contents(out)
    assert exported(first, "onnx", out) == 0
    assert contents(out).keys() == whole.keys()
    whole = contents(out)
    for path, target in ((second, "onnx"), (first, "c")):
        capsys.readouterr()
        assert exported(path, target, out) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"quarl: {out} holds an export of another policy, or for another target: choose another")
        assert said.count("\n") == 1
        assert contents(out) == whole


@pytest.mark.parametrize("name", ["README.md", "policy.onnx", "golden.npz", "contract.json", "SHA256SUMS"])
@pytest.mark.parametrize("comes", ["before", "meanwhile", "edited"])
def test_an_export_replaces_no_file_of_the_users(tmp_path, monkeypatch, name, comes):
    policy, x = agent()
    out, write = tmp_path / "out", targets.write
    if comes == "edited" and name != "SHA256SUMS":
        export(policy, "onnx", out, observations=x)
    out.mkdir(exist_ok=True)

    def written(*args):
        (out / name).write_bytes(b"a user's")
        return write(*args)

    if comes == "meanwhile":
        monkeypatch.setattr("quarl.export.targets.write", written)
    else:
        (out / name).write_bytes(b"a user's")
    before = contents(out)
    with pytest.raises(QuarlError, match=f"{name} was not written by quarl export, or was edited since"):
        export(policy, "onnx", out, observations=x)
    assert contents(out) == ({name: b"a user's"} if comes == "meanwhile" else before)


def test_of_two_agents_exported_at_once_into_one_folder_one_is_refused(tmp_path, monkeypatch):
    (first, x), (second, y) = agent(), agent(policy=networks.dense([5, 8, 3]))
    write = targets.write

    def meanwhile(*args):
        monkeypatch.undo()
        export(second, "onnx", tmp_path / "out", observations=y)
        return write(*args)

    monkeypatch.setattr("quarl.export.targets.write", meanwhile)
    with pytest.raises(QuarlError, match=r"out holds an export of another policy, .*; the results are in "):
        export(first, "onnx", tmp_path / "out", observations=x)
    assert artifact.read(tmp_path / "out" / "policy.quarl").linear[0].weight.codes.shape[0] == 8


@pytest.mark.slow
def test_a_named_export_is_regenerated_and_verified_by_its_name(tmp_path):
    require.runtime("c")
    policy, x = agent("int4")
    said = export(policy, "c", tmp_path, observations=x, name="hover")
    assert (said["name"], said["verified"][0]["result"]) == ("hover", "equal")
    assert {path.name for path in tmp_path.iterdir()} == EVERYTHING | {"hover.h", "hover.c", "hover_selftest.c"}
    assert "HOVER_ACTION" in (tmp_path / "hover.h").read_text()
    page, source = ((tmp_path / name).read_text() for name in ("README.md", "hover.c"))
    assert "hover_act" in page
    assert "`hover.c` has no heap" in page
    digests = json.loads((tmp_path / "contract.json").read_text())["sha256"]
    assert f' weights {digests["weights"][:16]} grids {digests["grids"][:16]}";' in source
    for edited in (False, True):
        rows = [each for each in verify(tmp_path, ["c"], episodes=0, edited=edited) if isinstance(each, VerifyRow)]
        assert (rows[-1].runtime, rows[-1].result) == ("c", "equal")
        assert ("sources" in {row.check for row in rows}) == (not edited)
        text = (tmp_path / "hover.c").read_text()
        (tmp_path / "hover.c").write_text(text + "\n")


@pytest.mark.parametrize("package", [None, "cmake"])
@pytest.mark.parametrize("head", ["clip", "argmax"])
@pytest.mark.parametrize("network", ["relu", "padded", "lstm"])
def test_the_lines_of_a_readme_about_c_compile(network, head, package, tmp_path):
    require.program("gcc")
    float_ = networks.recurrent(network) if network == "lstm" else networks.EVERY[network]()
    shaped = networks.action_head(head, float_.num_outputs)
    if head == "clip":
        shaped = replace(shaped, low=-np.inf * shaped.high, high=np.inf * shaped.high)
    policy, x = agent(policy=replace(float_, head=replace(shaped, width=float_.head.width)))
    for file, content in targets.write(policy, "c", "{}", golden.record(policy, x), "hover", package).items():
        (tmp_path / file).write_bytes(content)
    about = {"arithmetic": "f32-rne", "source": {"file": "", "sha256": ""}, "env": None, "names": None}
    page = readme(contract.contract(policy, "c", **about, name="hover", package=package), "hover.c")
    first, *lines = page.split("```c\n")[1].split("```")[0].splitlines()
    assert ("hover_reset" in page) == ("hover_state" in page) == (network == "lstm")
    (tmp_path / "main.c").write_text("\n".join([first, "void stop(void);", "void act(int count) {", *lines, "}"]))
    done = subprocess.run(
        f"gcc -fsyntax-only {STRICT} -Wno-unused main.c".split(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["int", "2fast", "a-b", "../policy", "x" * 32])
def test_a_name_that_is_no_identifier_is_refused(name, tmp_path, capsys):
    artifact.write(agent()[0], tmp_path / "p.quarl")
    assert main(["export", str(tmp_path / "p.quarl"), "--to", "c", "-o", str(tmp_path / "out"), f"--name={name}"]) == 2
    assert capsys.readouterr().err.splitlines()[0].startswith(f"quarl: --name is {name!r}; use a C identifier")
    assert not (tmp_path / "out").exists()
    with pytest.raises(QuarlError, match="--name requires --to c"):
        targets.file_of("onnx", "hover")


def test_readme_names_operators_and_arena_of_tflite_micro(tmp_path):
    runtime = require.module("tflite_micro.python.tflite_micro.runtime")
    policy, x = agent()
    export(policy, "tflite", tmp_path, observations=x)
    page = (tmp_path / "README.md").read_text()
    without = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    file = Interpreter(str(tmp_path / "policy.tflite"), experimental_op_resolver_type=without)
    added = re.findall(r"operators\.Add(\w+)\(\);", page)
    expected = {each["op_name"].replace("_", "").lower() for each in file._get_ops_details()}
    assert sorted(map(str.lower, added)) == sorted(expected)
    assert f"MicroMutableOpResolver<{len(added)}>" in page
    content, arena = (tmp_path / "policy.tflite").read_bytes(), int(re.search(r"arena\[(\d+)\]", page)[1])
    runtime.Interpreter.from_bytes(content, arena_size=arena).invoke()
