"""Schemes of the user's own code: rounded, measured, compared, and refused where their codes are not on a grid."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contracts
import networks
import quarl
from documents import ROOT, blocks
from quarl import engines
from quarl.calibration import quantize
from quarl.cli import main
from quarl.engines.litert.flatbuffer import Model
from quarl.errors import QuarlError
from quarl.lab.cells import key_of
from quarl.policy import artifact
from quarl.policy.graph import QuantizedPolicy
from quarl.quant.schemes import FUNCTIONS
from quarl.quant.spec import SCHEMES, QuantSpec
from refusals import refused

pytestmark = pytest.mark.usefixtures("elsewhere")

(GUIDE,) = [block.text for block in blocks(ROOT / "docs/guide/ptq.md") if block.name == "my_schemes.py"]
WRONG = {
    "weights + 99, scales, zeros": "codes or zero points that are not integers in -8..7",
    "codes + 0.5, scales, zeros": "codes or zero points that are not integers",
    "codes * np.nan, scales, zeros": "codes or zero points that are not integers",
    "codes, scales, zeros + 8": "codes or zero points that are not integers",
    "codes, scales * np.nan, zeros": "scales that are not positive and finite",
    "codes, scales * 0, zeros": "scales that are not positive and finite",
    "codes, scales * 1e40, zeros": "scales that are not positive and finite",
    "codes[:, :1], scales, zeros": r"codes of shape (16, 1) for weights of shape (16, 4)",
    "codes, scales[:, None], zeros": "scales (16, 1) and zero points (16,): use one each for 16 channels",
    "codes, scales, 0": "scales (16,) and zero points (): use one each for 16 channels",
    "codes + 0j, scales, zeros": "must be real numbers, got complex64",
    "codes, scales.astype(str), zeros": "must be real numbers, got <U32",
    "codes, scales, zeros > 0": "must be real numbers, got bool",
    "np.ma.masked_greater(codes, 5), scales, zeros": "must be real numbers, got a masked array",
    "codes, scales": "failed at layer 'net.0': ValueError: not enough values to unpack (expected 3, got 2)",
    "1 / 0": "failed at layer 'net.0': ZeroDivisionError",
    "sys.exit()": "failed at layer 'net.0': SystemExit",
}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leaves no scheme, module or path behind."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    forget()
    yield
    forget()


def forget() -> None:
    """Start as in a new process."""
    for name in [name for name in SCHEMES if ":" in name]:
        del SCHEMES[name]
    FUNCTIONS.clear()
    sys.modules.pop("my_schemes", None)


def write(returned: str = "codes, scales, zeros", name: str = "own", head: str = "") -> None:
    """Writes a module whose scheme returns that."""
    Path("my_schemes.py").write_text(f"""
import sys
import numpy as np
import quarl

{head}
@quarl.scheme({name!r})
def own(weights, bits):
    scales, zeros = np.full(len(weights), 0.1), np.zeros(len(weights))
    low, high = -2 ** (bits - 1), 2 ** (bits - 1) - 1
    codes = np.rint(weights * 10).clip(low + 1, high)
    return {returned}
""")


def quantized(policy: Any, bits: Any, mode: Any = "dynamic") -> QuantizedPolicy:
    rows = np.random.default_rng(1).normal(size=(64, *policy.observation_shape)).astype(np.float32)
    name = quarl.quant.schemes.typed_by_user("my_schemes:own")
    return quantize(policy, QuantSpec.parse(bits, scheme=name, mode=mode), rows)


def test_the_guides_scheme_runs_in_ptq_inspect_and_compare():
    assert len(GUIDE.splitlines()) <= 40
    Path("my_schemes.py").write_text(GUIDE)
    artifact.write(networks.cartpole(), "agent.safetensors")
    words = ["ptq", "agent.safetensors", "--bits", "8", "4", "--episodes", "3", "-o", "out", "--json", "rows.json"]
    assert main([*words, "--scheme", "mse", "my_schemes:pow2"]) == 0
    rows = contracts.read(Path("rows.json"))["rows"]
    assert [row["scheme"] for row in rows[3:]] == ["my_schemes:pow2"] * 2
    assert all(row["measured"] for row in rows)
    own = artifact.read("out/int4e8-my_schemes.pow2.safetensors")
    assert isinstance(own, QuantizedPolicy)
    for op in own.linear:
        assert set(np.frexp(op.weight.scale)[0]) == {0.5}
        error = np.abs(op.weight.dequantize() - networks.cartpole().linear[own.linear.index(op)].weight)
        inside = np.abs(op.weight.codes) < 2 ** (op.weight.bits - 1) - 1
        assert (error[inside] <= 0.5 * np.broadcast_to(op.weight.scale[:, None], error.shape)[inside]).all()
    code = inspect.getsource(sys.modules["my_schemes"].power_of_two).encode()
    assert own.spec.scheme.source == hashlib.sha256(code).hexdigest()
    assert main(["inspect", "agent.safetensors", "--scheme", "my_schemes:pow2", "--json", "layers.json"]) == 0
    assert {row["scheme"] for row in contracts.read(Path("layers.json"))["rows"]} == {"my_schemes:pow2"}
    agent = quarl.load("agent.safetensors")
    table = quarl.compare({"fp32": agent, "pow2": agent.quantize(4, scheme="pow2")}, episodes=3)
    assert (table[1].scheme, table[1].measured) == ("my_schemes:pow2", True)
    assert quarl.ptq(agent, [4], scheme="pow2", episodes=3)[1].returns == rows[4]["returns"]
    # a saved policy needs no code
    before = engines.run_all(engines.load(own), np.eye(4, dtype=np.float32))
    forget()
    Path("my_schemes.py").unlink()
    again = artifact.read("out/int4e8-my_schemes.pow2.safetensors")
    assert np.array_equal(engines.run_all(engines.load(again), np.eye(4, dtype=np.float32)), before)
    assert "my_schemes" not in sys.modules


@pytest.mark.parametrize("mode", ["dynamic", "static"])
@pytest.mark.parametrize("bits", ["int4", "int8", "int2"])
@pytest.mark.parametrize("engine", ["litert", "onnx"])
def test_codes_on_a_symmetric_grid_run_on_kernels_bit_for_bit(
    bits: str, mode: str, engine: str, monkeypatch: pytest.MonkeyPatch
):
    lowest = "np.where(codes < 0, low + (bits == 8), codes)"  # the code -8 is in no built-in grid
    write(f"{lowest}, scales, zeros")
    policy = quantized(networks.dense([6, 32, 32, 3], seed=2), bits, mode)
    assert all(op.weight.codes.min() == {"int2": -2, "int4": -8, "int8": -127}[bits] for op in policy.linear)
    packed: list[Any] = []
    nibbles = Model.nibbles
    monkeypatch.setattr(Model, "nibbles", lambda *told, **more: packed.append(0) or nibbles(*told, **more))
    loaded = engines.load(policy, engine, batch=64)
    assert loaded.measured
    assert bool(packed) == (engine == "litert" and bits != "int8")
    rows = np.random.default_rng(3).normal(size=(256, 6)).astype(np.float32)
    reference = engines.run_all(engines.load(policy, "reference", batch=64), rows)
    assert np.array_equal(engines.run_all(loaded, rows), reference)


@pytest.mark.parametrize(
    ("returned", "bits"), [("codes, scales, zeros + 1", 4), ("np.where(codes < -1, low, codes), scales, zeros", 8)]
)
def test_other_codes_are_simulated_and_keep_their_values(returned: str, bits: int):
    write(returned)
    policy = quantized(networks.cartpole(), bits)
    for engine in ("litert", "onnx"):
        loaded = engines.load_fitting(policy, engine)
        assert (loaded.name, loaded.measured) == ("reference", False)
    again = artifact.from_bytes(artifact.to_bytes(policy), "here")
    for each in zip(policy.linear, again.linear, strict=True):
        assert np.array_equal(*(op.weight.dequantize() for op in each))


@pytest.mark.parametrize("returned", WRONG)
def test_codes_off_their_grid_are_refused_in_one_line(returned: str, capsys: pytest.CaptureFixture[str]):
    write(returned)
    artifact.write(networks.cartpole(), "agent.safetensors")
    words = ("--scheme", "my_schemes:own", "--bits", "4", "--edge-bits", "same")
    line = refused(capsys, "ptq", "agent.safetensors", *words)
    assert "scheme 'my_schemes:own'" in line
    assert WRONG[returned] in line


def test_a_layer_whose_bias_needs_larger_scales_is_refused_in_static_mode():
    write("codes, scales * 1e-30, zeros")
    with pytest.raises(QuarlError, match="scales too small for the bias in static mode: use dynamic mode"):
        quantized(networks.cartpole(), 8, "static")
    write("codes * 0, scales * 1e-30, zeros")
    forget()
    assert all((op.weight.scale > 1e-20).all() for op in quantized(networks.cartpole(), 8, "static").linear[:-1])


@pytest.mark.parametrize(
    ("name", "head", "why"),
    [
        ("naive", "", "scheme 'naive' is one of QuaRL's; give yours another name"),
        ("a:b", "", "'a:b' cannot name a scheme"),
        ("other", "", "module 'my_schemes' defines no scheme 'own'; decorate a function in it with @quarl.scheme"),
        ("own", "@quarl.scheme('own')\ndef first(weights, bits): pass", "two functions are called scheme"),
        ("own", "quarl.scheme('more')(len)", "the source of scheme 'builtins:more' cannot be read"),
        ("own", "import no_such_module", "cannot import 'my_schemes' for scheme 'my_schemes:own': ModuleNotFoundError"),
    ],
)
def test_names_that_clash_or_do_not_exist_are_refused(name: str, head: str, why: str, capsys: Any):
    write(name=name, head=head)
    artifact.write(networks.cartpole(), "agent.safetensors")
    for verb in ("ptq", "inspect"):
        assert why in refused(capsys, verb, "agent.safetensors", "--scheme", "my_schemes:own")
        forget()


def test_a_file_never_imports_the_module_that_it_names(capsys: pytest.CaptureFixture[str]):
    write(head="open('imported', 'w').close()")
    data = artifact.to_bytes(quantized(networks.cartpole(), 8))
    forget()
    Path("imported").unlink()
    policy = artifact.from_bytes(data, "here")
    assert policy.spec.scheme.name == "my_schemes:own"
    assert main(["study", "run", study(8), "-o", "out", "--dry-run"]) == 2
    assert "line 7: scheme 'my_schemes:own' is code of a module" in (line := capsys.readouterr().err)
    assert "type --env-module my_schemes" in line
    assert not Path("imported").exists()
    with pytest.raises(QuarlError, match="the code of scheme 'my_schemes:own' is not imported here"):
        quantize(networks.cartpole(), policy.spec)


def test_keys_of_cells_hold_the_code_and_those_of_builtin_schemes_stay():
    write()
    keys = [key_of("ptq", {"spec": quantized(networks.cartpole(), 8).spec.to_json()})]
    write("codes * 1, scales, zeros")
    forget()
    keys += [key_of("ptq", {"spec": quantized(networks.cartpole(), 8).spec.to_json()})]
    assert keys[0] != keys[1]
    assert all("source" not in QuantSpec.parse(8, scheme=name).to_json()["scheme"] for name in ("default", "naive"))


def study(*bits: int) -> str:
    Path("study.yml").write_text(f"""episodes: 3
name: own
policies:
  - {{algo: dqn, env: CartPole-v1, source: 'file:agent.safetensors'}}
methods:
  - {{method: fp32}}
  - {{method: ptq, precision: {[*bits]}, scheme: 'my_schemes:own'}}
""")
    return "study.yml"


@pytest.mark.slow
def test_a_study_runs_and_is_not_resumed_with_other_code(capsys: pytest.CaptureFixture[str]):
    write()
    artifact.write(networks.cartpole(), "agent.safetensors")
    words = ["study", "run", study(8), "-o", "out", "--env-module", "my_schemes"]
    assert main([*words, "--json", "rows.json"]) == 0
    _, row = contracts.read(Path("rows.json"))["rows"]
    assert (row["state"], row["scheme"], row["measured"]) == ("done", "my_schemes:own", True)
    write("codes * 1, scales, zeros")
    forget()
    study(8, 4)
    assert "the code of scheme 'my_schemes:own' has changed since cells in out were" in refused(capsys, *words)
    write()
    forget()
    assert main([*words, "--json", "rows.json"]) == 0
    assert len(contracts.read(Path("rows.json"))["rows"]) == 3
    forget()
    assert main(["study", "report", "out"]) == 0
