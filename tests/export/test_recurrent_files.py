"""Files of policies with a memory: the state is apart, every runtime carries it alike, and misfits are refused."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import replace

import numpy as np
import pytest

import networks
import require
from quarl import Agent
from quarl.calibration import quantize
from quarl.engines import load
from quarl.errors import QuarlError, UnsupportedError
from quarl.export import contract, equal, export, golden, runtimes, targets, verification
from quarl.policy import artifact
from quarl.policy.operators import Slice
from quarl.policy.recurrent import Port, ports
from quarl.quant.spec import EXACT, QuantSpec

STEPS = 1000
RUNTIMES = {
    "tflite": ("litert", "tflm", "openvino"),
    "onnx": ("ort", "tract", "openvino"),
    "onnx-qdq": ("ort", "tract", "openvino"),
}


@functools.cache
def acting(layer, mode="static", bits="int8", size=12):
    """A quantized policy with bounded actions, observations in order, and the rows of its float32 self on them."""
    policy = networks.recurrent(layer, size=size)
    start = np.linspace(-0.5, 0.5, policy.state.size).astype(np.float32) * (layer == "gru")
    head = replace(networks.action_head("clip", 3), width=3)
    policy = replace(policy, state=start, head=head)
    x = np.random.default_rng(1).normal(size=(STEPS, 5)).astype(np.float32)
    exact = load(quantize(policy, EXACT), "reference")
    states = golden.carried(policy, exact.run, x)[:, 3:]
    rows = np.concatenate([x, np.concatenate([start[None], states[:-1]])], axis=1)
    return quantize(policy, QuantSpec.parse(bits, mode=mode), rows), x, rows


def written(folder, policy, target, inner=""):
    """The policy's file."""
    vectors = golden.computed(policy, np.zeros((1, *policy.observation_shape), np.float32))
    ((name, content),) = targets.write(policy, target, inner, vectors).items()
    (folder / name).write_bytes(contract.sealed(content))
    return folder / name


def expected(policy, x, arithmetic="f32-rne"):
    """Outputs of the reference that carries its state."""
    engine = load(policy, "reference") if arithmetic == "f32-rne" else golden.reference.load(policy, 1, arithmetic)
    return golden.carried(policy, lambda row: golden.given(policy, engine.run(row)), x)


@pytest.fixture(scope="module", params=["lstm", "gru", "gru-after"])
def static(request):
    return acting(request.param)


@pytest.mark.parametrize(("target", "name"), [(t, name) for t, names in RUNTIMES.items() for name in names])
def test_a_file_carries_the_state_of_the_reference_bit_for_bit(static, target, name, tmp_path):
    policy, x, _ = static
    require.runtime(name)
    path = written(tmp_path, policy, target)
    runtimes.sound(path)
    runtime = runtimes.load(name, path, policy.spec)
    count = STEPS if name in ("litert", "ort", "tflm") else 200
    got = golden.carried(policy, runtime.run, x[:count])
    wanted = expected(policy, x[:count], "q31-double" if name == "tflm" else "f32-rne")
    np.testing.assert_array_equal(got[:, 3:] * 2**11, wanted[:, 3:] * 2**11)  # steps of every state
    # OpenVINO computes the output, which is not rounded to a grid, in an order of its own.
    np.testing.assert_allclose(got[:, :3], wanted[:, :3], rtol=0, atol=0 if name != "openvino" else 1e-5)


@pytest.mark.parametrize("bits", ["int4", "int2"])
def test_narrow_weights_carry_the_same_state(bits, tmp_path):
    policy, x, _ = acting("lstm", bits=bits)
    for target, name in (("tflite", "litert"), ("onnx", "ort")):
        runtime = runtimes.load(name, written(tmp_path, policy, target))
        np.testing.assert_array_equal(golden.carried(policy, runtime.run, x[:300]), expected(policy, x[:300]))


@pytest.mark.parametrize("layer", ["lstm", "gru"])
@pytest.mark.parametrize(("target", "name"), [("tflite", "litert"), ("onnx", "ort")])
def test_dynamic_files_are_close_row_by_row(layer, target, name, tmp_path):
    policy, _, rows = acting(layer, "dynamic")
    runtime = runtimes.load(name, written(tmp_path, policy, target))
    vectors = golden.record(policy, rows[:128])
    assert equal.held("golden vectors", policy, target, vectors, runtime).result.endswith("within 1e-05")
    assert equal.held_in_order(policy, vectors, runtime).result != equal.DIFFERS


@pytest.mark.parametrize("target", ["tflite", "onnx"])
def test_each_part_of_the_state_is_an_input_and_an_output(static, target, tmp_path):
    policy = static[0]
    path, names = written(tmp_path, policy, target), [port.name for port in ports(policy)]
    assert names[1:] in (["h", "c"], ["h"])
    if target == "onnx":
        session = require.module("onnxruntime").InferenceSession(path)
        ends = [[(each.name, each.shape[1]) for each in side] for side in (session.get_inputs(), session.get_outputs())]
    else:
        own = runtimes.load("litert", path) and require.module("ai_edge_litert.interpreter").Interpreter(str(path))
        sides = own.get_input_details(), own.get_output_details()
        ends = [[(each["name"], each["shape"][1]) for each in side] for side in sides]
    parts = [(name, 12) for name in names[1:]]
    assert ends == [[("observation", 5), *parts], [("output", 3), *((f"{name}.next", size) for name, size in parts)]]


@pytest.fixture(scope="module", params=["tflite", "onnx"])
def folder(request, tmp_path_factory):
    """An export, its policy, and the observations of its sequence."""
    policy, x, rows = acting("gru")
    path = tmp_path_factory.mktemp(request.param) / "out"
    return path, export(policy, request.param, path, observations=rows[:300]), policy, x


def test_contract_describes_the_state(folder):
    path, full, policy, _ = folder
    assert (full["observation"]["shape"], full["action"]["num_outputs"]) == ([5], 3)
    assert len(full["observation"]["box"]["low"]) == len(full["observation"]["numbers"]) == 5
    (part,) = json.loads((path / "contract.json").read_text())["state"]
    assert (part["name"], part["next"], part["size"]) == ("h", "h.next", 12)
    np.testing.assert_array_equal(np.float32(part["start"]), policy.state)
    assert acting("lstm")[0].state.any() == 0
    assert [each["start"] for each in contract._parts(acting("lstm")[0])] == [0.0, 0.0]
    file = path / targets.FILES[full["target"]]
    for said in (full, contract.read(file.read_bytes(), "it")):
        exported = contract.policy_of(said, "it")
        np.testing.assert_array_equal(exported.state, policy.state)
        assert (exported.observation_shape, exported.seen, exported.head.width) == ((17,), (5,), 3)
    moved = {**full, "state": [{**part, "size": 11}]}
    assert list(contract.differences(policy, json.loads(json.dumps(moved)))) == ["state"]
    assert "state" in list(contract.differences(policy, {k: v for k, v in full.items() if k != "state"}))


def test_readme_code_carries_the_state(folder, monkeypatch):
    path, _, policy, x = folder
    lines = (path / "README.md").read_text().split("```python\n")[1].split("```")[0].splitlines()
    assert "h.next is h [12]" in (path / "README.md").read_text()
    first = next(i for i, line in enumerate(lines) if line.startswith("state = start"))
    monkeypatch.chdir(path)
    names = {}
    exec("\n".join(lines[: first + 1]), names)
    step, outputs = compile("\n".join(lines[first + 1 :]), "README.md", "exec"), []
    for names["observation"] in x[:50]:
        exec(step, names)
        outputs.append(np.ravel(names["output"]))
    np.testing.assert_array_equal(outputs, expected(policy, x[:100])[:50, :3])


def test_verify_checks_a_sequence_with_carried_state(folder):
    path, full, _, _ = folder
    rows = {(row.check, row.runtime): row for row in verification.verify(path, episodes=0) if not isinstance(row, str)}
    name = runtimes.for_file(path / targets.FILES[full["target"]])[0]
    sequence = rows["sequence", name]
    assert (sequence.result, sequence.count, rows["golden vectors", name].result) == ("equal", 256, "equal")


def test_a_file_with_another_state_differs_in_the_sequence(static, tmp_path):
    policy, _, rows = static
    grids = {name: replace(grid, scale=grid.scale * 2) if name == "h" else grid for name, grid in policy.grids.items()}
    runtime = runtimes.load("litert", written(tmp_path, replace(policy, grids=grids), "tflite"))
    row = equal.held_in_order(policy, golden.record(policy, rows[:64]), runtime)
    assert row.result == equal.DIFFERS
    assert "observations differ" in row.detail


@pytest.mark.parametrize(("target", "name"), [("tflite", "litert"), ("onnx", "ort"), ("tflite", "tflm")])
@pytest.mark.parametrize("case", ["other size", "missing part", "missing in the contract", "missing in the file"])
def test_a_file_whose_state_is_not_the_contracts_is_refused(target, name, case, tmp_path):
    require.installed(name)
    lstm, x, _ = acting("lstm")
    gru, small = acting("gru")[0], acting("lstm", size=8)[0]
    plain = quantize(networks.dense([5, 8, 3], head="clip"), QuantSpec.parse("int8", mode="static"), x)
    inside, claimed = {
        "other size": (small, lstm),
        "missing part": (gru, lstm),
        "missing in the contract": (gru, plain),
        "missing in the file": (plain, gru),
    }[case]
    full = contract.contract(claimed, target, arithmetic="f32-rne", source={"file": "", "sha256": ""})
    path = written(tmp_path, inside, target, contract.inner(full))
    exported, _ = verification.opened(path)
    with pytest.raises(QuarlError, match=r"[Dd]imension|observations of shape") as caught:
        runtimes.load(name, path).run(np.zeros((1, *exported.observation_shape), np.float32))
    assert "\n" not in str(caught.value)


def test_a_file_with_a_state_input_but_no_state_output_is_refused(tmp_path):
    onnx = require.module("onnx")
    path = written(tmp_path, acting("gru")[0], "onnx")
    model = onnx.load(path)
    del model.graph.output[1:]
    onnx.save(model, path)
    with pytest.raises(QuarlError, match=r"has 2 inputs and .* 1 outputs; .* for each part of its state"):
        runtimes.sound(path)


@pytest.mark.parametrize(
    "parts",
    [
        [{"name": "h", "next": "h.next", "size": 10**12, "start": 0.0}],
        [{"name": "h", "next": "h.next", "size": -1, "start": 0.0}],
        [{"name": "h", "next": "h.next", "size": 3, "start": [0.0]}, {"size": 2, "start": [1.0] * 3}],
        [{"name": "h", "next": "h.next"}],
        {"size": 3},
    ],
)
def test_a_contract_with_a_damaged_state_is_refused(folder, parts):
    with pytest.raises(QuarlError, match="does not describe a policy"):
        contract.policy_of({**folder[1], "state": parts}, "policy.onnx")


def test_int16x8_refuses_a_memory_by_name(static, tmp_path):
    policy, _, rows = static
    with pytest.raises(UnsupportedError, match="tflite-int16x8 has no kernels for policies with a memory") as caught:
        export(policy, "tflite-int16x8", tmp_path / "out", observations=rows[:64])
    assert "\n" not in str(caught.value)
    assert not os.path.lexists(tmp_path / "out")


def test_ports_refuse_a_state_that_is_not_read_in_its_parts(static):
    policy = static[0]
    assert ports(policy, apart=False) == [Port("observation", "observation", "output", policy.output)]
    # the first number of the state is that of the observation
    ops = [replace(op, start=4) if isinstance(op, Slice) and op.start == 5 else op for op in policy.ops]
    with pytest.raises(UnsupportedError, match="does not read it in parts"):
        ports(replace(policy, ops=tuple(ops)))


def test_agent_saves_and_exports_a_memory(tmp_path, capsys):
    policy, _, rows = acting("lstm")
    agent = Agent(policy)
    agent.save(tmp_path / "policy.onnx")
    assert "it has a memory: feed each output NAME.next" in capsys.readouterr().err
    full = agent.export("onnx", tmp_path / "out", observations=rows[:64])
    assert [part["name"] for part in full["state"]] == ["h", "c"]
    assert artifact.read(tmp_path / "out" / "policy.quarl").state.size == 24
