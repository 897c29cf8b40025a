"""Malicious files of weights that are no policies: code in PyTorch files, paths in ONNX files, lengths everywhere."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn

from sb3_archives import saved, unzipped, zipped
from stress.fuzz import foreign as other
from stress.fuzz.pickles import pickled
from stress.fuzz.protobuf import varint
from stress.hostile.pickles import payloads

Files = dict[str, bytes]
Row = tuple[str, str, Mapping[str, bytes | Path | int]]
SIZES = "absurd sizes"


def rows(canary: Path) -> Iterator[Row]:
    """(mechanism, name, files by relative path, the model first)."""
    yield from _torch(canary)
    yield from _checkpoints(canary)
    yield from _script()
    yield from _onnx()
    yield from _safetensors()


def _torch(canary: Path) -> Iterator[Row]:
    mechanism = "pickle of PyTorch"
    (weights, *_) = other.torch_files()
    members = unzipped(weights)
    member = next(name for name in members if name.endswith("data.pkl"))
    for kind, payload in payloads(canary).items():
        yield mechanism, f"state-dict-{kind}", {"m.pt": zipped({**members, member: payload})}
    for name, count in {"bytearray": 2**32, "set": 2**20}.items():
        size = b"cbuiltins\n%s\n\x8a\x05%s\x85R0}." % (name.encode(), count.to_bytes(5, "little"))
        yield SIZES, f"state-dict-{name}", {"m.pt": zipped({**members, member: b"\x80\x02" + size})}
    yield mechanism, "state-dict-bare", {"m.pt": payloads(canary)["reduce-protocol-2"]}
    yield mechanism, "state-dict-tail", {"m.pt": weights + payloads(canary)["reduce-protocol-2"]}
    nested = b"\x80\x02}q\x00" + b"".join(
        b"}(" + b"".join(b"X\x02\x00\x00\x00%02dh%c" % (key, n) for key in range(60)) + b"uq%c" % (n + 1)
        for n in range(9)
    )
    yield "exponential or quadratic work", "state-dict-nested", {"m.pt": zipped({**members, member: nested + b"."})}
    deep = b"\x80\x02" + b"}X\x01\x00\x00\x00a" * 30_000 + b"}" + b"s" * 30_000 + b"."
    yield "exponential or quadratic work", "state-dict-deep", {"m.pt": zipped({**members, member: deep})}


def _checkpoints(canary: Path) -> Iterator[Row]:
    """Checkpoints of rsl_rl, and the agent.yaml that has their activation."""
    mechanism, yaml, ones = "layers by name", b"policy: {activation: elu}", torch.ones(3, 6)
    layer: dict[str, Any] = {"actor.0.weight": ones, "actor.0.bias": torch.ones(3)}
    deep = functools.reduce(lambda state, _: {"model_state_dict": state}, range(200), layer)
    for name, state in {
        "deep": deep,
        "huge": layer | {"actor.0.weight": torch.ones(1, 1).expand(2**20, 2**20)},
        "numbers": layer | {"actor.00.weight": ones},
    }.items():
        yield mechanism, f"actor-{name}", {"model.pt": saved({"model_state_dict": state}), "agent.yaml": yaml}
    twice = {"model_state_dict": layer, "model_state_dict.actor": {"0.weight": ones}}
    yield mechanism, "actor-names", {"model.pt": saved(twice), "agent.yaml": yaml}
    files: Mapping[str, bytes | Path | int] = {
        **{"fifo": -1, "link": Path("/etc/passwd"), "device": Path("/dev/zero"), "holes": 10**8, "list": b"- policy"},
        "terminal": b'policy: {activation: "\\e[2J"}',
        "tag": f"policy: !!python/object/apply:os.system ['touch {canary}']".encode(),
    }
    for name, content in files.items():
        yield mechanism, f"agent-yaml-{name}", {"model.pt": saved({"model_state_dict": layer}), "agent.yaml": content}


@functools.cache
def two_layers(change: Callable[[nn.Module], nn.Module]) -> Files:
    """Members of a TorchScript archive of two layers, 5 to 8 to 2."""
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(change(nn.Sequential(nn.Linear(5, 8), nn.ELU(), nn.Linear(8, 2)).eval())), file)
    return unzipped(file.getvalue())


def scripted(code: str, change: Callable[[nn.Module], nn.Module] = nn.Module.eval) -> Files:
    """The same with these lines in the body of forward; what follows a form feed stands behind it."""
    members = two_layers(change)
    member = next(name for name, text in members.items() if b"class Sequential" in text)
    body, _, behind = code.partition("\f")
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    text = f"class Sequential(Module):\n  def forward(self, input: Tensor) -> Tensor:\n{lines}{behind}\n"
    return {**members, member: text.encode()}


def _script() -> Iterator[Row]:
    calls = (
        f"  def f{n}(self, x):\n    return torch.cat([(self).f{n + 1}(x), (self).f{n + 1}(x)], 1)\n" for n in range(40)
    )
    for name, code in {
        "script-calls": "return (self).f0(input)\f" + "".join(calls),
        "script-cat": "a = input\n" + "a = torch.cat([a, a], 1)\n" * 60 + "return a",
        "script-lists": "a = torch.list([1])\n" + "a = [a, a]\n" * 60 + "return torch.add(input, a)",
        "script-million": "a = [" + "1,\n" * 10**6 + "]\nreturn input",
        "script-deep": "return " + "-" * 200_000 + "1",
        "script-huge": "return torch.add(input, torch.zeros([1000000, 1000000]))",
        "script-expanded": "return torch.add(input, torch.expand(torch.zeros([1, 5]), [1000000000, 5]))",
    }.items():
        yield "exponential or quadratic work", name, {"m.pt": zipped(scripted(code))}


def _onnx() -> Iterator[Row]:
    mechanism = "paths in a model"
    beside = {"secret.bin": np.ones(8, np.float32).tobytes()}
    odd = {"link.bin": Path("secret.bin"), "outside.bin": Path("/etc/passwd"), "fifo.bin": -1, "terabyte.bin": 2**40}
    for name, location in {
        "parent": "../secret.bin",
        "absolute": "/etc/passwd",
        "device": "/dev/zero",
        "inside-out": "a/../../secret.bin",
        "backslash": "..\\secret.bin",
        "drive": "C:/secret.bin",
        "empty": "",
        "nul": "secret.bin\0.txt",
        "folder": ".",
        **{name: f"{name}.bin" for name in ("link", "outside", "fifo", "terabyte")},
    }.items():
        yield mechanism, f"onnx-external-{name}", {"m.onnx": _external(location), **beside, **odd}
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    for name, other_place in {"twins": "secret.bin", "spelling": "./secret.bin"}.items():
        weights = [_outside("w", "secret.bin", length="32"), _outside("v", other_place, offset="16")]
        yield mechanism, f"onnx-external-{name}", {"m.onnx": _model([product], weights), "secret.bin": bytes(64)}
    node = helper.make_node("Constant", [], ["w"], value=_outside("w", "secret.bin"))
    yield mechanism, "onnx-external-constant", {"m.onnx": _model([node, product], []), **beside}
    for name, entries in {
        "offset": {"offset": str(2**62)},
        "negative": {"offset": "-8"},
        "length": {"length": "9" * 400},
        "words": {"length": "all"},
    }.items():
        yield SIZES, f"onnx-external-{name}", {"m.onnx": _external("secret.bin", **entries), **beside}
    weight = numpy_helper.from_array(np.ones((2, 2), np.float32), "w")
    del weight.dims[:]
    weight.dims.extend([2**31, 2**31])
    yield SIZES, "onnx-shape", {"m.onnx": _model([helper.make_node("MatMul", ["x", "w"], ["y"])], [weight])}
    codes = numpy_helper.from_array(np.ones((512, 512), np.int8), "w")
    scale = numpy_helper.from_array(np.float32(1), "s")
    nodes = []
    for number in range(3000):
        nodes += [helper.make_node("DequantizeLinear", ["w", "s"], [f"d{number}"])]
        nodes += [helper.make_node("Conv", ["x", f"d{number}", f"d{number - 1}"], [f"y{number}"])]
        nodes += [helper.make_node("Add", [f"y{number}", f"d{number}"], [f"z{number}"])]
    yield "exponential or quadratic work", "onnx-copies", {"m.onnx": _model(nodes, [codes, scale])}
    circle = [helper.make_node("Identity", ["a"], ["b"]), helper.make_node("Identity", ["b"], ["a"])]
    circle += [helper.make_node("MatMul", ["x", "a"], ["y"])]
    yield "exponential or quadratic work", "onnx-circle", {"m.onnx": _model(circle, [])}
    yield "exponential or quadratic work", "onnx-deep", {"m.onnx": _nested(7, 20_000)}
    relu = helper.make_node("Relu", ["x"], ["y"]).SerializeToString()
    many = (b"\x0a" + varint(len(relu)) + relu) * 10**6
    yield SIZES, "onnx-million", {"m.onnx": b"\x3a" + varint(len(many)) + many}
    chain = [helper.make_node("Mul", [f"y{n or ''}", "w"], [f"y{n + 1}"]) for n in range(10_000)]
    ends = [helper.make_node("MatMul", ["x", "w"], ["y"]), *chain, helper.make_node("Tanh", ["y10000"], ["z"])]
    square = numpy_helper.from_array(np.full((1, 1), 2, np.float32), "w")
    yield "exponential or quadratic work", "onnx-chain", {"m.onnx": _policy(ends, square)}
    for name, first in (("filled", ("ConstantOfShape", ["s"], ["c"])), ("expanded", ("Expand", ["w", "s"], ["c"]))):
        nodes = [helper.make_node(*first), helper.make_node("ReduceSum", ["c"], ["r"])]
        sizes = numpy_helper.from_array(np.int64([2**20] * 3), "s")
        yield (
            SIZES,
            f"onnx-{name}",
            {"m.onnx": _policy([*nodes, helper.make_node("Add", ["x", "r"], ["z"])], square, sizes)},
        )
    opset, calls = [helper.make_opsetid("", 20), helper.make_opsetid("f", 1)], list[onnx.FunctionProto]()
    for n in range(12):
        body = [
            helper.make_node(f"f{n + 1}", ["x"], ["a"], domain="f"),
            helper.make_node(f"f{n + 1}", ["a"], ["y"], domain="f"),
        ]
        calls.append(helper.make_function("f", f"f{n}", ["x"], ["y"], body, opset))
    calls.append(helper.make_function("f", "f12", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], opset))
    made = onnx.ModelProto.FromString(_policy([helper.make_node("f0", ["x"], ["z"], domain="f")]))
    made.functions.extend(calls)
    yield "exponential or quadratic work", "onnx-functions", {"m.onnx": made.SerializeToString()}


def _outside(name: str, location: str, **entries: str) -> onnx.TensorProto:
    """A weight whose numbers are in another file."""
    weight = numpy_helper.from_array(np.zeros((4, 2), np.float32), name)
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        weight.external_data.add(key=key, value=value)
    return weight


def _external(location: str, **entries: str) -> bytes:
    return _model([helper.make_node("MatMul", ["x", "w"], ["y"])], [_outside("w", location, **entries)])


def _policy(nodes: list[onnx.NodeProto], *constants: onnx.TensorProto) -> bytes:
    """A model from x [1, 1] to z."""
    ends = [helper.make_tensor_value_info(name, 1, [1, 1]) for name in ("x", "z")]
    return bytes(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)).SerializeToString())


def _model(nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto]) -> bytes:
    ends = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [1, 4]), ("y", None))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    return bytes(helper.make_model(graph).SerializeToString())


def _nested(number: int, depth: int) -> bytes:
    """Messages in messages; built from the inside, each as long as all that is in it."""
    parts, length = [], 0
    for _ in range(depth):
        head = varint(number << 3 | 2) + varint(length)
        parts.append(head)
        length += len(head)
    return b"".join(reversed(parts))


def _safetensors() -> Iterator[Row]:
    for name, header in {
        "shape": {"a.weight": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 2**63]}},
        "zeros": {"a.weight": {"dtype": "F32", "shape": [2**62, 0], "data_offsets": [0, 0]}},
        "overlap": {n: {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]} for n in ("a.weight", "b.weight")},
    }.items():
        text = json.dumps(header).encode()
        yield SIZES, f"weights-{name}", {"m.safetensors": len(text).to_bytes(8, "little") + text + bytes(4)}
    yield SIZES, "weights-length", {"m.safetensors": (2**60).to_bytes(8, "little") + b"{}" + bytes(64)}
    deep = b'{"a":' * 50_000
    data = len(deep).to_bytes(8, "little") + deep
    yield "exponential or quadratic work", "weights-deep", {"m.safetensors": data}
    yield "pickle of PyTorch", "weights-pickle", {"m.safetensors": pickled({})}
