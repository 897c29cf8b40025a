"""Files that mean harm, and files that are merely broken: nothing runs, nothing hangs, one line says why."""

from __future__ import annotations

import base64
import json
import os
import pickle
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import require
from quarl.envs.wrappers import wrapper_class
from quarl.errors import QuarlError
from quarl.policy.operators import as_float32
from quarl.readers import weights_only
from quarl.readers.load import read
from sb3_archives import saved, unzipped, zipped
from stress.fuzz import campaign, costly, seeds
from stress.fuzz.pickles import pickled
from stress.hostile import pickles, sizes
from waiting import PATIENCE_S

PARSERS = campaign.parsers()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What came of reading every hostile file, in a process with bounded memory."""
    folder = tmp_path_factory.mktemp("hostile")
    command = [sys.executable, "-m", "stress.hostile.corpus", str(folder), "--load"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not (folder / "canary").exists()
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_every_hostile_file_loads_cleanly_or_is_refused_in_one_line(outcomes: list[dict[str, Any]]):
    assert len(outcomes) >= 25
    assert len({row["mechanism"] for row in outcomes}) >= 8
    assert [row["name"] for row in outcomes if row["canary"]] == []
    assert {row["name"]: row["seconds"] for row in outcomes if row["seconds"] >= 2} == {}
    # the peak never falls, so the first file's is what the interpreter and its libraries take
    assert outcomes[-1]["peak_mb"] - outcomes[0]["peak_mb"] < 512
    assert {row["name"]: row["outcome"] for row in outcomes if row["outcome"] not in ("clean", "refused")} == {}


@pytest.mark.slow
def test_what_is_refused_outnumbers_what_is_harmless_once_read_as_data(outcomes: list[dict[str, Any]]):
    clean = {row["name"] for row in outcomes if row["outcome"] == "clean"}
    # What sits in attributes that no reader needs stays inert; a wrapper's name is only looked up when it is applied.
    assert clean == {
        "data-policy_kwargs",
        "data-lr_schedule",
        "data-policy_class",
        "sb2-zip-data",
        "optimizer-pth",
        "vecnormalize-beside",
        "sb2-attribute",
        "config-wrapper",
        "config-name",
        "artefact-wrapper",
        "artefact-path",
        # Read as far as weights go: a pickle behind a zip, and a header of nests that nobody asks for.
        "state-dict-tail",
        "artefact-deep",
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config-wrapper", "config-name", "artefact-wrapper"])
def test_a_wrapper_that_a_file_names_is_never_imported(name: str, outcomes: list[dict[str, Any]]):
    path = next(row["path"] for row in outcomes if row["name"] == name)
    (wrapper, _), *_ = read(path).provenance.wrappers
    with pytest.raises(QuarlError, match=r"os\.system"):
        wrapper_class(wrapper)


@pytest.mark.slow
def test_the_payloads_do_write_the_canary_when_they_are_unpickled(tmp_path: Path):
    """Otherwise the tests above would prove nothing."""
    armed = []
    for name in pickles.payloads(tmp_path):
        canary = tmp_path / name
        if name not in pickles.UNARMED:
            armed.append(canary)
            canary.with_suffix(".pkl").write_bytes(pickles.payloads(canary)[name])
    script = (
        "import pathlib, pickle, sys, time\n"
        "for path in sys.argv[1:]:\n"
        "    try: pickle.loads(pathlib.Path(path).read_bytes())\n"
        "    except Exception as error: print(path, error)\n"
        "time.sleep(0.5)\n"  # Popen does not wait
    )
    paths = [str(canary.with_suffix(".pkl")) for canary in armed]
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, *paths], timeout=PATIENCE_S, check=True)
    assert len(armed) == 15
    assert [canary.name for canary in armed if not canary.exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_broken_files_load_cleanly_or_are_refused_in_one_line(name: str, tmp_path: Path):
    if not PARSERS[name].files:
        require.folder("agents-more")
    row = campaign.run_parser(PARSERS[name], 400, 20, tmp_path)
    assert row["failures"] == []
    assert row["clean"] + row["refused"] == 400
    assert row["clean"] > 0
    assert row["rebuilt"] >= 200


@pytest.mark.parametrize("name", PARSERS)
def test_the_files_that_are_mutated_are_valid(name: str, tmp_path: Path):
    parser = PARSERS[name]
    for data in parser.files:
        parser.opens(data)
        parser.read(data, tmp_path)


def test_an_input_depends_on_seed_parser_and_number_only():
    forward = [campaign.make_input(PARSERS["sb3-data"], 0, n) for n in range(30)]
    backward = [campaign.make_input(PARSERS["sb3-data"], 0, n) for n in reversed(range(30))]
    assert forward == backward[::-1]
    assert forward[0] != campaign.make_input(PARSERS["sb3-data"], 1, 0)


def test_an_error_that_is_not_one_line_is_a_failure():
    def two_lines() -> None:
        raise ValueError("a\nb")

    assert campaign.outcome(lambda: None) == "clean"
    assert campaign.outcome(two_lines).startswith("builtins.ValueError")
    assert campaign.outcome(lambda: pickle.loads(b"")).startswith("builtins.EOFError")


def test_whatever_a_message_quotes_it_is_one_line_without_terminal_codes():
    assert str(QuarlError("a\nb\x1b[31mc\u2028d")) == r"a\nb\x1b[31mc\u2028d"
    assert len(str(QuarlError("a" * 10_000))) <= 600


def parameter_with(name: str) -> bytes:
    """A state dict whose weight is a Parameter with an attribute of that name."""
    weight = torch.nn.Parameter(torch.ones(2, 3))
    weight.x = 1  # type: ignore[attr-defined]
    members = unzipped(saved({"a.weight": weight}))
    text = b"X" + len(name).to_bytes(4, "little") + name.encode()
    return zipped({key: raw.replace(b"X\x01\0\0\0x", text) for key, raw in members.items()})


@pytest.mark.parametrize("name", ["detach", "numel", "untyped_storage", "is_quantized"])
def test_a_parameter_whose_state_shadows_a_method_is_read_as_it_is(name: str, tmp_path: Path):
    path = tmp_path / "m.pt"
    path.write_bytes(parameter_with(name))
    assert name.encode() in path.read_bytes()
    (layer,) = weights_only.read_weights(path)
    assert as_float32(layer.weight).tolist() == [[1.0] * 3] * 2


def colliding(count: int) -> bytes:
    """A dict whose keys are numpy's complex numbers, all with one hash."""
    head = b"cnumpy.core.multiarray\nscalar\nq\x00cnumpy\ndtype\nX\x04\0\0\0<c16\x85Rq\x010"
    numbers = [np.array(complex(-1_000_003 * n, n)).tobytes() for n in range(1, count + 1)]
    assert len({hash(np.frombuffer(raw, np.complex128)[0]) for raw in numbers}) == 1
    return b"\x80\x03" + head + b"}(" + b"".join(b"h\0h\x01C\x10" + raw + b"\x86RK\x01" for raw in numbers) + b"u."


def data_of(**changed: object) -> bytes:
    return seeds.sb3_agent({**seeds.sb3_data(), **changed})


BLOB = {":type:": "x", ":serialized:": base64.b64encode(colliding(33_000)).decode()}
RANGE = seeds.sb2_data("ddpg") | {"observation_range": (-(2**4000), 2**4000)}
LISTS = b"[" + b"".join(random.Random(0).choices((b"[],", b"{},"), k=2_000_000)) + b"0]"
FLOAT4 = {"a.weight": torch.ones(2, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}
DEEP = b'{"format": "quarl-policy", "x": ' + b"[" * 50_000
REFUSED: dict[str, tuple[str, bytes, str]] = {
    "json-of-lists": (
        "agent.zip",
        costly.deflated({"data": LISTS, "policy.pth": seeds.sb3_weights()}),
        "more than 200,000 values",
    ),
    "json-that-is-deep": ("policy.quarl", sizes.edited(None, DEEP), "not JSON"),
    "keys-of-one-hash": ("agent.zip", data_of(observation_space=BLOB, action_space=BLOB), "is a key"),
    "keys-in-statistics": ("CartPole-v1.pkl", colliding(33_000), "is a key"),
    "float4": ("m.pt", saved(FLOAT4), "numbers; save it as float32"),
    "a-range-beyond-floats": (
        "CartPole-v1.pkl",
        pickled((RANGE, list(seeds.sb2_arrays("ddpg").values()))),
        "int too large to convert to float",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_small_files_of_large_costs_are_refused_in_one_line(name: str, tmp_path: Path):
    file, data, said = REFUSED[name]
    (tmp_path / file).write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome = campaign.outcome(lambda: campaign.read_any(tmp_path / file))
    assert outcome == "refused"
    with pytest.raises(QuarlError, match=said):
        campaign.read_any(tmp_path / file)


@pytest.mark.parametrize("file", ["policy.quarl", "m.safetensors", "m.pt", "CartPole-v1.pkl", "m.onnx"])
def test_a_file_of_twenty_gigabytes_that_the_disk_does_not_hold_is_refused_unread(file: str, tmp_path: Path):
    start = {"policy.quarl": seeds.artefact(quantized=False), "m.pt": b"PK\3\4"}
    (tmp_path / file).write_bytes(start.get(file, b"\x80\x04"))
    with (tmp_path / file).open("r+b") as opened:
        opened.truncate(20 * 10**9)
    with pytest.raises(QuarlError, match=r"20,000,000,000 bytes, more than|is not a"):
        campaign.read_any(tmp_path / file)


@pytest.mark.slow
@pytest.mark.parametrize("kind", campaign.KINDS)
def test_costly_files_load_cleanly_or_are_refused_in_one_line(kind: str, tmp_path: Path):
    row = campaign.run_costly(kind, 4, 7, tmp_path)
    assert row["failures"] == []
    assert row["clean"] + row["refused"] == 4
