"""Weights of files that are no policies: a policy written in any format gives its own weights back."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import safetensors.numpy
import torch
from onnx import helper, numpy_helper

import networks
from quarl.calibration import quantize
from quarl.engines.onnx import write
from quarl.errors import QuarlError
from quarl.inert import reading_budget
from quarl.policy import artifact
from quarl.policy.layers import of_policy
from quarl.policy.operators import as_float32
from quarl.quant.spec import QuantSpec
from quarl.readers import torch_file, weights_only
from quarl.readers.load import read as read_policy
from quarl.readers.weights_only import read_model
from sb3_archives import saved, zipped

RNG = np.random.default_rng(0)
POLICIES = ("relu", "odd", "tanh-normalized", "convolutional", "padded", "dueling")


def random(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def quantized(name: str, precision: str):
    return quantize(networks.EVERY[name](), QuantSpec.parse(precision, scheme="per-channel"))


def refusal(path: Path, said: str | None = None) -> str:
    with pytest.raises(QuarlError, match=said) as caught:
        weights_only.read_weights(path)
    text = str(caught.value)
    assert "\n" not in text
    assert path.name in text
    return text


# ONNX


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", POLICIES)
def test_an_onnx_file_of_a_policy_gives_its_weights_and_biases(tmp_path: Path, name: str, precision: str):
    policy = quantized(name, precision)
    layers = weights_only.read_weights(put(tmp_path / "p.onnx", write(policy, 1)))
    found = {layer.name.removesuffix(".weight"): layer for layer in layers}
    for op in policy.linear:
        layer = found[op.name]
        assert layer.operator == type(op).__name__
        np.testing.assert_allclose(layer.weight, as_float32(op.weight), rtol=1e-6, atol=0)
        assert np.array_equal(layer.bias, op.bias)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_an_onnx_file_of_codes_alone_is_refused_with_their_count(tmp_path: Path, precision: str):
    path = put(tmp_path / "p.onnx", write(quantized("relu", precision), 1))
    refusal(path, "only matrices of integers, as in quantized layers: 3; inspect the model from which they were made")


def onnx_file(nodes, initializers) -> bytes:
    ends = [helper.make_tensor_value_info(name, 1, None) for name in ("x", "y")]
    return helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], initializers)).SerializeToString()


def initializer(name: str, array: np.ndarray):
    return numpy_helper.from_array(array, name)


def test_constant_matrices_of_onnx_have_the_axes_of_their_readers(tmp_path: Path, capsys):
    arrays = {"w": random(3, 5), "v": random(2, 5), "fc.weight": random(2, 4), "fc.bias": random(4)}
    arrays |= {"codes": np.int8([[1, 2]]), "more": np.uint8([[1]]), "indices": np.int64([1, 2])}
    table = random(9, 4)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Gemm", ["p", "v"], ["q"], transB=1),
        helper.make_node("Gemm", ["q", "fc.weight", "fc.bias"], ["r"]),
        helper.make_node("Constant", [], ["table"], value=initializer("", table)),
        helper.make_node("Gather", ["table", "r"], ["y"]),
    ]
    data = onnx_file(nodes, [initializer(name, array) for name, array in arrays.items()])
    layers = {layer.name: layer for layer in weights_only.read_weights(put(tmp_path / "m.onnx", data))}
    expected = {"w": arrays["w"].T, "v": arrays["v"], "fc.weight": arrays["fc.weight"].T, "table": table}
    assert {name: layer.weight.tolist() for name, layer in layers.items()} == {
        name: weight.tolist() for name, weight in expected.items()
    }
    assert layers["fc.weight"].bias.tolist() == arrays["fc.bias"].tolist()
    said = capsys.readouterr().err
    assert "m.onnx: left out are matrices of integers, as in quantized layers: 2; inspect the model" in said


def external(tmp_path: Path, location: str, **entries: str) -> Path:
    """A model whose weight is said to lie in another file."""
    weight = initializer("w", np.zeros((4, 2), np.float32))
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        weight.external_data.add(key=key, value=value)
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    return put(folder / "m.onnx", onnx_file([helper.make_node("MatMul", ["x", "w"], ["y"])], [weight]))


@pytest.mark.parametrize("location", ["weights.bin", "parts/weights.bin"])
def test_weights_in_a_file_beside_the_model_are_read(tmp_path: Path, location: str):
    path = external(tmp_path, location, offset="4", length="32")
    target = path.parent / location
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(bytes(4) + np.arange(8, dtype=np.float32).tobytes())
    (layer,) = weights_only.read_weights(path)
    assert layer.weight.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.parametrize(
    ("location", "entries", "said"),
    [
        ("../secret.bin", {}, "outside its folder"),
        ("a/../../secret.bin", {}, "outside its folder"),
        ("{tmp}/secret.bin", {}, "outside its folder"),
        ("..\\secret.bin", {}, "outside its folder"),
        ("", {}, "outside its folder"),
        ("link.bin", {}, "not a file of its folder"),
        ("loop.bin", {}, "not a file of its folder|cannot read"),
        ("absent.bin", {}, "no file"),
        (".", {}, "is a folder"),
        ("x" * 5000, {}, "cannot read|no file"),
        ("own.bin", {"offset": "1"}, "has no bytes"),
        ("own.bin", {"offset": "-4"}, "has no bytes"),
        ("own.bin", {"length": "9" * 30}, "has no bytes"),
        ("own.bin", {"length": "many"}, "not a valid ONNX file"),
        ("own.bin", {"length": "28"}, "not a valid ONNX file"),
    ],
)
def test_weights_anywhere_else_are_refused(tmp_path: Path, location: str, entries: dict[str, str], said: str):
    put(tmp_path / "secret.bin", np.ones(8, np.float32).tobytes())
    path = external(tmp_path, location.replace("{tmp}", str(tmp_path)), **{"length": "32", **entries})
    (path.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    (path.parent / "loop.bin").symlink_to("loop.bin")
    put(path.parent / "own.bin", bytes(32))
    refusal(path, said)


# Tensors by name


def state() -> dict[str, np.ndarray]:
    return {"net.0.weight": random(4, 3), "net.0.bias": random(4), "net.1.weight": random(4), "log_std": random(1, 4)}


def test_a_safetensors_file_gives_its_weights_by_name(tmp_path: Path):
    tensors = state()
    (layer,) = weights_only.read_weights(put(tmp_path / "m.safetensors", safetensors.numpy.save(tensors)))
    assert (layer.name, layer.operator) == ("net.0.weight", "Dense")
    assert np.array_equal(layer.weight, tensors["net.0.weight"])
    assert np.array_equal(layer.bias, tensors["net.0.bias"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_real_numbers_of_any_width_become_float32(tmp_path: Path, dtype: torch.dtype):
    weight = torch.from_numpy(random(2, 3)).to(dtype)
    from safetensors.torch import save

    (layer,) = weights_only.read_weights(
        put(tmp_path / "m.safetensors", save({"w.weight": weight, "n": torch.zeros(2, 2).int()}))
    )
    assert np.array_equal(layer.weight, weight.float().numpy())


def test_a_policy_that_quarl_saved_is_not_foreign(tmp_path: Path):
    artifact.write(networks.dense([4, 2]), tmp_path / "p.safetensors")
    assert weights_only.recognize(tmp_path / "p.safetensors") == ""


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt", ".cleanrl_model"])
def test_a_state_dict_gives_its_weights(tmp_path: Path, suffix: str):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 4), torch.nn.Flatten(), torch.nn.Linear(8, 2, bias=False))
    layers = weights_only.read_weights(put(tmp_path / f"m{suffix}", saved(model.state_dict())))
    assert [(layer.name, layer.operator) for layer in layers] == [("0.weight", "Conv2d"), ("2.weight", "Dense")]
    assert np.array_equal(layers[0].bias, model[0].bias.detach().numpy())
    assert layers[1].bias is None


def test_recurrent_layers_of_a_state_dict_are_named_as_such(tmp_path: Path):
    model = torch.nn.ModuleDict({"lstm": torch.nn.LSTM(3, 4), "rnn": torch.nn.GRU(3, 4)})
    layers = weights_only.read_weights(put(tmp_path / "m.pt", saved(model.state_dict())))
    assert [layer.operator for layer in layers] == ["LSTM", "LSTM", "Recurrent", "Recurrent"]
    assert np.array_equal(layers[0].bias, model["lstm"].bias_ih_l0.detach().numpy())


def test_a_checkpoint_gives_the_weights_of_the_state_dict_in_it(tmp_path: Path):
    tensors = {name: torch.from_numpy(array) for name, array in state().items()}
    checkpoint = {"epoch": 3, "model": {"actor": tensors}, "optimizer": {"state": {0: {"exp_avg": torch.ones(4, 3)}}}}
    (layer,) = weights_only.read_weights(put(tmp_path / "m.ckpt", saved(checkpoint)))
    assert layer.name == "model.actor.net.0.weight"


def test_weights_with_outputs_last_are_turned_by_their_names(tmp_path: Path):
    tensors = {"params.Dense_0.kernel": random(3, 4), "params.Dense_0.bias": random(4)}
    tensors |= {"params.Conv_0.kernel": random(5, 6, 3, 8)}
    dense, conv = sorted(
        weights_only.read_weights(put(tmp_path / "m.safetensors", safetensors.numpy.save(tensors))),
        key=lambda x: x.weight.ndim,
    )
    assert np.array_equal(dense.weight, tensors["params.Dense_0.kernel"].T)
    assert np.array_equal(dense.bias, tensors["params.Dense_0.bias"])
    assert conv.weight.shape == (8, 3, 5, 6)


def test_where_nothing_is_called_a_weight_every_matrix_is_one(tmp_path: Path):
    tensors = {"a": random(2, 3), "b": random(3), "c": random(4, 4)}
    layers = weights_only.read_weights(put(tmp_path / "m.safetensors", safetensors.numpy.save(tensors)))
    assert [layer.name for layer in layers] == ["a", "c"]


class Code:
    def __reduce__(self):
        return print, ("executed",)


def torch_zip(pickled: bytes) -> bytes:
    return zipped({"m/data.pkl": pickled, "m/version": b"3"})


SHARED: dict = {}
for _ in range(4):
    SHARED = {str(number): SHARED for number in range(60)}


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("m.pt", saved({"w.weight": Code()}), "holds code, which is never run"),
        ("m.pt", saved([1, 2]), "holds a list"),
        ("m.pt", saved({"weight": torch.zeros(2, 2, dtype=torch.complex64)}), "complex"),
        ("m.pt", saved({"weight": torch.zeros(1, 1).expand(4096, 4096).to_sparse()}), "not a plain dense tensor|bytes"),
        ("m.pt", saved({"w": torch.full((2, 2), float("inf"))}), "NaN or infinity"),
        ("m.pt", saved({"epoch": 3}), "no weights"),
        ("m.pt", saved(SHARED), "200,000 values"),
        ("m.pt", b"\x80\x02}q\x00.", "is not a zip"),
        ("m.pt", torch_zip(b"\x80\x02]q\x00."), "holds a list"),
        ("m.pt", torch_zip(b"\x80\x02cbuiltins\nbytearray\n\x8a\x04\x00\x00\x00\x10\x85R0}."), "builtins.bytearray"),
        ("m.pt", torch_zip(b"\x80\x02ctorch\nTensor\n\x8a\x04\x00\x00\x00\x10\x85R0}."), "torch.Tensor"),
        ("m.onnx", b"onnx", "not a valid ONNX file"),
        ("m.onnx", b"", "no weights"),
        ("m.safetensors", b"\x40\x00\x00\x00\x00\x00\x00\x00{" + b" " * 63, "not a complete safetensors"),
        ("m.safetensors", (2**60).to_bytes(8, "little") + b"{}" + bytes(20), "not a complete safetensors"),
        ("m.safetensors", safetensors.numpy.save({"n": np.zeros((2, 2), np.int64)}), "no weights"),
        (
            "m.safetensors",
            safetensors.numpy.save({"w": np.zeros([1] * 9, np.float32)}),
            "the weight of layer 'w' has shape",
        ),
        ("m.txt", b"hello, this is text", "is not a .safetensors"),
    ],
)
def test_broken_and_unfit_files_are_refused_in_one_line(tmp_path: Path, capsys, name: str, data: bytes, said: str):
    refusal(put(tmp_path / name, data), said)
    assert capsys.readouterr().out == ""


def test_more_layers_than_are_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = saved({"a.weight": torch.zeros(4, 4), "b.weight": torch.zeros(4, 4)})
    for module, said in (
        ("weights_only", "has 2 layers, more than the limit of 1"),
        ("torch_file", "more than the 1 tensors"),
    ):
        monkeypatch.setattr(f"quarl.readers.{module}.MAX_MEMBERS", 1)
        refusal(put(tmp_path / "m.pt", data), said)


def test_one_tensor_under_many_names_is_counted_as_often_as_it_is_read(monkeypatch: pytest.MonkeyPatch):
    one = torch.zeros(4, 4)
    data = saved({f"w{number}": one for number in range(10)})
    assert len(torch_file.read_tensors(data, "m.pth")) == 10
    monkeypatch.setattr(reading_budget, "SPELT_OUT", 0)
    monkeypatch.setattr(reading_budget, "SMALL_COPIES", 9 * 64)
    for read in (torch_file.read_tensors, torch_file.read_nested):
        with pytest.raises(QuarlError, match=r"m\.pth: it has more than 576 bytes to be made"):
            read(data, "m.pth")


def test_terminal_codes_in_the_names_of_tensors_are_spelt_out(tmp_path: Path):
    tensors = {"\x1b]0;title\x07\x1b[31mnet.weight": random(2, 3), "層.weight": random(2, 3)}
    layers = weights_only.read_weights(put(tmp_path / "m.safetensors", safetensors.numpy.save(tensors)))
    assert [layer.name for layer in layers] == [r"\x1b]0;title\x07\x1b[31mnet.weight", "層.weight"]


def test_numbers_that_no_format_of_ours_has_are_named(tmp_path: Path):
    header = b'{"a":{"dtype":"F8_E8M0","shape":[2,2],"data_offsets":[0,4]}}'
    data = len(header).to_bytes(8, "little") + header + bytes(4)
    assert "F8_E8M0" in refusal(put(tmp_path / "m.safetensors", data))
    assert ml_dtypes.float8_e4m3fn(1.5) == 1.5


# Stable-Baselines models


def test_a_bare_pickle_of_stable_baselines_2_is_a_policy(agents: Path, tmp_path: Path):
    path = put(tmp_path / "agent.pkl", (agents / "sb2/dqn/CartPole-v1.pkl").read_bytes())
    assert weights_only.recognize(path) == ""
    assert read_policy(path).provenance.algo == "dqn"


@pytest.mark.parametrize("algo", ["dqn", "ppo2"])
def test_parameters_of_a_model_are_those_of_its_policy_and_more(agents: Path, algo: str):
    path = agents / ("sb2/dqn/CartPole-v1.pkl" if algo == "dqn" else "sb2/ppo2/HopperBulletEnv-v0.pkl")
    everything = [layer.weight for layer in read_model(path)]
    policy = read_policy(path)
    dueling = {"deepq/model/action_value/fully_connected_1"}  # its mean over the outputs was taken out
    for layer in of_policy(policy):
        if layer.name not in dueling and layer.weight.shape != (2, 64):
            assert any(x.shape == layer.weight.shape and np.array_equal(x, layer.weight) for x in everything)
    assert len(everything) > len(policy.linear)


def test_parameters_of_a_stable_baselines3_zip_include_its_critic(agents: Path):
    names = [layer.name for layer in read_model(agents / "sb3/ppo/CartPole-v1_1/CartPole-v1.zip")]
    assert "value_net.weight" in names
    assert "action_net.weight" in names


def test_a_long_name_is_read_in_a_time_in_proportion_to_it(tmp_path: Path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors.numpy.save({"a" * 2_000_000 + ".weight": random(2, 3)}))
    (layer,) = weights_only.read_weights(path)
    assert len(layer.name) == 2_000_007  # a search for the last part that began at every letter would take hours
