"""Exported files in the runtimes that they are for."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import networks
import require
from quarl import engines
from quarl.calibration import quantize
from quarl.engines import litert, onnx
from quarl.errors import QuarlError, UnsupportedError
from quarl.export import runtimes
from quarl.processes.inside import Result
from quarl.quant.spec import QuantSpec

WRITERS = {".tflite": litert.write, ".onnx": onnx.write}


def exported(tmp_path, policy, suffix, precision="int8", mode="static"):
    """The quantised policy, its observations, and its file."""
    x = networks.observations(policy, 32)
    made = quantize(policy, QuantSpec.parse(precision, scheme="per-channel", mode=mode), x)
    path = tmp_path / f"policy{suffix}"
    path.write_bytes(WRITERS[suffix](made, acts=True))
    return made, x, path


def given(policy, x):
    """What a file of the policy is to give: actions, or the scores of discrete ones."""
    outputs = engines.run_all(engines.load(policy, "reference", batch=len(x)), x)
    return outputs if policy.head.is_discrete else policy.head(outputs)


def loaded(name, path):
    """Return the file in a runtime, which is required."""
    require.installed(name)
    return runtimes.load(name, path)


def acting(name, path):
    """Return as `loaded` does; skip too if the runtime acts otherwise."""
    require.runtime(name)
    return loaded(name, path)


@pytest.mark.parametrize("network", ["relu", "tanh-normalized", "squashed", "convolutional", "dueling", "sliced"])
@pytest.mark.parametrize(
    ("name", "suffix", "arithmetic"),
    [
        ("litert", ".tflite", "f32-rne"),
        ("ort", ".onnx", "f32-rne"),
        ("tract", ".onnx", "f32-rne"),
        ("openvino", ".tflite", "qdq"),  # none of these has a sum next to a rounding tie
        ("openvino", ".onnx", "qdq"),
    ],
)
def test_files_act_as_the_reference_does(tmp_path, network, name, suffix, arithmetic):
    policy, x, path = exported(tmp_path, networks.EVERY[network](), suffix)
    runtime = acting(name, path)
    assert (runtime.name, runtime.arithmetic) == (name, arithmetic)
    np.testing.assert_allclose(runtime.run(x), given(policy, x), rtol=0, atol=1e-6)


CPU = Path("/proc/cpuinfo")
PLAIN = """
import sys; from pathlib import Path; import numpy as np; sys.modules["openvino_telemetry"] = None; import openvino
folder = Path(sys.argv[1])
network = openvino.Core().compile_model(folder / "policy.tflite", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
print([network([row[None]])[0][0].tolist() for row in np.load(folder / "x.npy")])
"""
"""OpenVINO without the hint for accuracy."""


def test_four_bit_weights_act_in_openvino_with_the_hint_alone(tmp_path):
    policy, x, path = exported(tmp_path, networks.dense([4, 64, 64, 2]), ".tflite", "int4")
    runtime = acting("openvino", path)
    np.testing.assert_allclose(runtime.run(x), given(policy, x), rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif("vnni" not in CPU.read_text() if CPU.exists() else True, reason="OpenVINO has other kernels there")
def test_four_bit_weights_act_otherwise_in_openvino_without_the_hint(tmp_path):
    policy, x, path = exported(tmp_path, networks.dense([4, 64, 64, 2]), ".tflite", "int4")
    loaded("openvino", path)
    np.save(tmp_path / "x.npy", x)
    # in a process of its own: in pytest's, the tests of SIGINT that came after it ended in a segmentation fault
    done = subprocess.run([sys.executable, "-c", PLAIN, str(tmp_path)], check=True, capture_output=True, text=True)
    assert np.abs(np.array(json.loads(done.stdout)) - given(policy, x)).max() > 1e-3


def test_rows_are_each_run_alone(tmp_path):
    _, x, path = exported(tmp_path, networks.dense([5, 16, 3]), ".tflite", mode="dynamic")
    runtime = runtimes.load("litert", path)
    np.testing.assert_array_equal(runtime.run(x)[7], runtime.run(x[7:8])[0])


def test_what_a_runtime_does_not_take_is_refused_in_a_line(tmp_path, capfd):
    _, _, path = exported(tmp_path, networks.dense([5, 16, 3]), ".tflite", mode="dynamic")
    with pytest.raises(UnsupportedError, match=r"^ort runs \.onnx files, not policy\.tflite$"):
        runtimes.load("ort", path)
    with pytest.raises(
        QuarlError, match=r"unknown runtime 'litter'; choose one of litert, ort, .*; did you mean 'litert'"
    ):
        runtimes.load("litter", path)
    with pytest.raises(
        QuarlError,
        match=r"^tflm does not run .*: Input type: FLOAT32 with .* INT8 not supported\.; it runs fp32 and static int8",
    ):
        loaded("tflm", path)
    _, _, path = exported(tmp_path, networks.dense([5, 16, 3]), ".onnx", mode="dynamic")
    with pytest.raises(QuarlError, match=r"^openvino does not run policy\.onnx: Check '!shape\.rank"):
        loaded("openvino", path)
    assert capfd.readouterr() == ("", "")


def test_a_processor_on_which_openvino_acts_otherwise_is_told_and_floats_are_not_refused(tmp_path, monkeypatch):
    policy, _, path = exported(tmp_path, networks.dense([5, 16, 3]), ".tflite")
    loaded("openvino", path)
    monkeypatch.setattr(runtimes.machine, "instruction_sets", lambda: ["avx2", "fma"])
    with pytest.raises(UnsupportedError, match="without VNNI it adds in 16 bits, which saturate"):
        runtimes.load("openvino", path, policy.spec)
    runtimes.load("openvino", path, QuantSpec.parse("fp32"))
    monkeypatch.setattr(runtimes.machine, "instruction_sets", lambda: ["avx2", "avx-vnni"])
    runtimes.load("openvino", path, policy.spec)


@pytest.mark.parametrize("name", list(runtimes.RUNTIMES))
def test_a_broken_file_is_refused_in_a_line(tmp_path, name, capfd):
    path = tmp_path / f"broken{runtimes.RUNTIMES[name].suffixes[0]}"
    path.write_bytes(b"hello" * 10)
    with pytest.raises(QuarlError, match=re.escape(f"{name} does not run {path.name}: ") + ".{4,250}$"):
        loaded(name, path)
    assert capfd.readouterr() == ("", "")


def crash(about, link):
    """Die as a runtime does that reads beyond its memory."""
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(about, link):
    """Load, and then never answer."""
    link.send(("f32-rne", "1"))
    while True:
        link.recv()


class InThread:
    """A child process's work in a thread of this one."""

    def __init__(self, name, work, about, *_, **options):
        self.link, self.theirs = multiprocessing.Pipe()
        self.start = threading.Thread(target=self.serve, args=(work, about), daemon=True).start
        self.hear, self.kill = self.link.recv, self.link.close

    def serve(self, work, about):
        try:
            work(about, self.theirs)
        except QuarlError as error:
            self.theirs.send(Result(error=str(error), mistake=type(error)))
        except EOFError:
            pass


CHILDREN = [pytest.param(runtimes.Child, marks=pytest.mark.slow, id="process"), pytest.param(InThread, id="thread")]


@pytest.mark.parametrize("child", CHILDREN)
def test_an_untrusted_file_runs_apart_and_may_hang(tmp_path, monkeypatch, capfd, child):
    monkeypatch.setattr(runtimes, "Child", child)
    policy, x, path = exported(tmp_path, networks.dense([5, 16, 3]), ".tflite")
    runtime = runtimes.apart("litert", path, policy.spec)
    np.testing.assert_array_equal(runtime.run(x), runtimes.load("litert", path).run(x))
    with pytest.raises(QuarlError, match=r"litert does not run the file|takes observations"):
        runtime.run(np.zeros((1, 7), np.float32))
    monkeypatch.setattr(runtimes, "_serve", hang)
    runtime = runtimes.apart("litert", path)
    monkeypatch.setattr(runtimes, "LIMIT_S", 0.01)
    with pytest.raises(QuarlError, match=r"^litert does not run policy\.tflite: it took more than 0\.01 s$"):
        runtime.run(x[:1])
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_file_that_crashes_its_runtime_is_refused_in_a_line(tmp_path, monkeypatch, capfd):
    _, _, path = exported(tmp_path, networks.dense([5, 16, 3]), ".tflite")
    monkeypatch.setattr(runtimes, "_serve", crash)
    with pytest.raises(QuarlError, match=r"^litert does not run policy\.tflite: its process was ended by SIGSEGV$"):
        runtimes.apart("litert", path)
    assert capfd.readouterr() == ("", "")


def unsound(kind):
    """An .onnx file that is none of a policy."""
    import onnx
    from onnx import TensorProto, helper

    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in ("a", "b", "c")]
    node = helper.make_node("Add", ["a", "w"], ["c"])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1, 2], [1.0, 2.0])
    if kind == "external":
        weight.ClearField("float_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="secret")
    nodes = {"empty": [], "constant": [helper.make_node("Constant", [], ["w"], value=weight), node]}.get(kind, [node])
    weights = [] if kind == "constant" else [weight]
    inputs = value[:2] if kind == "inputs" else value[:1]
    return onnx.helper.make_model(helper.make_graph(nodes, "g", inputs, value[2:], weights)).SerializeToString()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("empty", "has 1 inputs and 0 operators"),
        ("inputs", "has 2 inputs and 1 operators"),
        ("external", "has data in other files"),
    ],
)
def test_models_that_are_no_policy_are_refused_before_a_runtime_sees_them(tmp_path, kind, why):
    require.package("onnxruntime")  # it comes with onnx
    (tmp_path / "secret").write_bytes(bytes(8))
    path = tmp_path / "policy.onnx"
    path.write_bytes(unsound(kind))
    with pytest.raises(QuarlError, match=why):
        runtimes.sound(path)
    path.write_bytes(unsound("constant"))
    runtimes.sound(path)


@pytest.mark.parametrize("name", list(runtimes.RUNTIMES))
def test_a_missing_runtime_names_the_line_that_installs_it(tmp_path, name, monkeypatch):
    kind = runtimes.RUNTIMES[name]
    monkeypatch.setitem(runtimes.RUNTIMES, name, kind._replace(module="quarl_knows_no_such_module"))
    with pytest.raises(QuarlError, match=re.escape(f"runtime {name} is not installed: {kind.fix}")):
        runtimes.load(name, tmp_path / f"x{kind.suffixes[0]}")


@pytest.mark.parametrize("suffix", list(WRITERS))
def test_metadata_lie_in_the_file_as_they_were_given_and_change_no_bit(tmp_path, suffix):
    made, x, path = exported(tmp_path, networks.dense([5, 16, 3]), suffix)
    name = "litert" if suffix == ".tflite" else "ort"
    plain, texts = runtimes.load(name, path).run(x), {"quarl.contract": '{"é": [1, 2]}', "other": ""}
    content = WRITERS[suffix](made, acts=True, metadata=texts)
    for text in ("quarl.contract", *texts.values()):
        assert text.encode() in content
    path.write_bytes(content)
    np.testing.assert_array_equal(runtimes.load(name, path).run(x), plain)
