"""Tiny valid files of weights that are no policies, and mutators that know their containers."""

from __future__ import annotations

import io
import json
import pickletools
import random
from collections import deque

import numpy as np
import onnx
import safetensors
import safetensors.numpy
import torch
from onnx import helper, numpy_helper

from quarl.calibration import quantize
from quarl.engines.onnx import write
from quarl.inert import zip as container
from quarl.policy.graph import ActionHead, Policy
from quarl.policy.operators import mlp
from quarl.quant.spec import QuantSpec
from sb3_archives import saved
from stress.fuzz import mutate, seeds


def onnx_files() -> tuple[bytes, ...]:
    """Policies, of which one is read as such, and a graph of operators that QuaRL does not write."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.integers(-9, 9, (3, 4)).astype(np.int8),
        "s": np.float32([1, 2, 3, 4]),
        "z": np.zeros(4, np.int8),
        "r": rng.standard_normal((1, 16, 4)).astype(np.float32),
        "c": rng.standard_normal((2, 3, 1, 1)).astype(np.float16),
        "a": rng.standard_normal((4, 3)).astype(np.float32),
        "b": rng.standard_normal((2, 4)).astype(np.float32),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=1),
        helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]),
        helper.make_node("Gemm", ["x", "t", "s"], ["g"], transB=1),
        helper.make_node("LSTM", ["g", "r", "r"], ["l"], hidden_size=4),
        helper.make_node("ConvTranspose", ["l", "c"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, 1, None) for name in ("x", "y")]
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    other = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], constants))
    floats = [quantize(seeds.float_policy(), QuantSpec.parse(bits)) for bits in ("fp32", "fp16")]
    tanh = Policy(
        observation_shape=(3,),
        ops=tuple(mlp([("a", arrays["a"], arrays["s"]), ("b", arrays["b"], arrays["s"][:2])], "tanh")),
        head=ActionHead("argmax"),
    )
    policies = [*floats, quantize(tanh, QuantSpec.parse("fp32"))]
    return (*(write(policy, 1) for policy in policies), other.SerializeToString())


def actor_file() -> bytes:
    """A checkpoint of rsl_rl with a normalizer."""
    layers = {"mlp.0.weight": torch.ones(4, 3), "mlp.0.bias": torch.ones(4)}
    own = {f"obs_normalizer._{name}": torch.ones(1, 3) for name in ("mean", "var")}
    return saved({"actor_state_dict": layers | own, "iter": 3})


def onnx_opens(data: bytes) -> None:
    onnx.load_model_from_string(data)


def torch_files() -> tuple[bytes, ...]:
    """A state dict, and a checkpoint with one in it; the first in the format before PyTorch 1.6 too."""
    state = {"a.weight": torch.ones(2, 3), "a.bias": torch.zeros(2), "c.weight": torch.ones(1, 2, 1, 1).half()}
    checkpoint = {"epoch": 1, "model": state, "optimizer": {"state": {0: {"step": torch.ones(())}}}}
    return saved(state), saved(checkpoint), saved(state, _use_new_zipfile_serialization=False)


def torch_inside(rng: random.Random, data: bytes) -> bytes:
    """A member of the zip changed, or the opcodes of one of the pickles that an older file begins with."""
    if data.startswith(b"PK"):
        return mutate.member(rng, data)
    file = io.BytesIO(data)
    for _ in range(rng.choice((0, 1, 2, 2, 2, 3))):  # the third is the state
        deque(pickletools.genops(file), 0)
    return data[: file.tell()] + mutate.pickle_opcodes(rng, data[file.tell() :])


def torch_opens(data: bytes) -> None:
    """Raises unless the zip is whole, or the first pickle."""
    if data.startswith(b"PK"):
        container.unpack(data, "fuzzed")
    else:
        pickletools.dis(data, out=io.StringIO())


def safetensors_files() -> tuple[bytes, ...]:
    tensors = {"a.weight": np.ones((2, 3), np.float32), "a.bias": np.ones(2, np.float32), "n": np.zeros(2, np.int64)}
    kernel = {"Dense_0.kernel": np.ones((2, 3), np.float16), "Dense_0.bias": np.ones(3, np.float16)}
    return safetensors.numpy.save(tensors, {"format": "pt"}), safetensors.numpy.save(kernel)


def safetensors_inside(rng: random.Random, data: bytes) -> bytes:
    """The file with its header or its numbers changed; the header's length is right."""
    length = int.from_bytes(data[:8], "little")
    header, numbers = data[8 : 8 + length], data[8 + length :]
    if rng.random() < 0.2:
        numbers = mutate.any_bytes(rng, numbers)[: len(numbers)].ljust(len(numbers), b"\0")
    else:
        header = mutate.json_tree(rng, header)
    return len(header).to_bytes(8, "little") + header + numbers


def safetensors_opens(data: bytes) -> None:
    json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    safetensors.deserialize(data)
