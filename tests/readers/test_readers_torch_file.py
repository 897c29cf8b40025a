"""PyTorch's files: what they hold is what PyTorch's own reader of data finds in them, in the format before 1.6 too."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO, SAC

import quarl
from quarl.__main__ import main
from quarl.errors import QuarlError
from quarl.readers.torch_file import read_nested, read_tensors
from sb3_archives import unzipped, zipped


def legacy(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def tensors() -> dict[str, torch.Tensor]:
    rows = torch.arange(24.0).reshape(2, 3, 4) / 7
    return {
        "rows": rows,
        "turned": rows.transpose(0, 2),
        "part": rows[1, 1:, ::2],  # in the middle of numbers that others share
        "one": torch.tensor(3.5),
        "none": torch.zeros(0, 5),
        "parameter": torch.nn.Parameter(torch.randn(3, 2)),
        "half": torch.randn(4).half(),
        "brain": torch.randn(4).bfloat16(),
        "double": torch.randn(4, dtype=torch.float64),
        "long": torch.tensor([2**40, -1]),
        "bytes": torch.tensor([0, 255], dtype=torch.uint8),
        "truths": torch.tensor([True, False]),
    }


def test_the_older_format_is_read_as_torch_reads_it():
    data = legacy(tensors())
    expected = torch.load(io.BytesIO(data), weights_only=True)
    found = read_tensors(data, "file")
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        wanted = (tensor.float() if tensor.is_floating_point() else tensor).detach().numpy()
        assert found[name].dtype == wanted.dtype
        np.testing.assert_array_equal(found[name], wanted)


def test_a_checkpoint_in_the_older_format_is_searched():
    checkpoint = {"epoch": 3, "model": torch.nn.Linear(2, 3).state_dict(), "best": {"bias": torch.ones(1)}}
    assert {name: array.shape for name, array in read_nested(legacy(checkpoint), "file").items()} == {
        "model.weight": (3, 2),
        "model.bias": (3,),
        "best.bias": (1,),
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.replace(b"little_endianq\x02\x88", b"little_endianq\x02\x89"), "big-endian"),
        (lambda data: data.replace(b"M\xe9\x03.", b"M\xea\x03.", 1), "does not begin as one"),
        (lambda data: b"\x80\x02\x8a\x01\x07." + data, "does not begin as one"),
        (lambda data: data[:-1], "ends before its numbers do"),
        (lambda data: data[:-20] + b"\xff" * 8 + data[-12:], "ends before its numbers do"),
        (lambda data: data.replace(b"FloatStorage", b"LabelStorage"), "a storage that nothing refers to"),
        (lambda data: data.replace(b"FloatStorage", b"FloatTensors"), "names torch.FloatTensors"),
        (lambda data: data.replace(b"torch\nFloatStorage", b"os\nsystem"), "names os.system"),
        (lambda data: data.replace(b"K\x00K\x03\x85", b"NK\x03\x85"), "impossible shape"),
        (lambda data: data.replace(b"K\x00K\x03\x85", b"K\x00K\x03K\x01\x86"), "impossible shape"),
        (
            lambda data: data.replace(b"K\x03Ntq\x07Q", b"K\x03\x88tq\x07Q"),
            "no numbers in the file",
        ),  # a view of another storage
    ],
)
def test_a_damaged_file_of_the_older_format_is_refused_in_one_line(change, said: str):
    data = legacy({"weight": torch.ones(3)})
    assert read_tensors(data, "file")["weight"].tolist() == [1, 1, 1]
    assert change(data) != data
    with pytest.raises(QuarlError, match=said):
        read_tensors(change(data), "file")


def test_every_cut_of_the_older_format_is_refused():
    data = legacy({"weight": torch.ones(2)})
    for size in range(len(data)):
        with pytest.raises(QuarlError):
            read_tensors(data[:size], "file")


def test_an_agent_in_the_older_format_acts_as_stable_baselines3(tmp_path: Path):
    model = SAC("MlpPolicy", "Pendulum-v1", use_sde=True, policy_kwargs={"net_arch": [16, 16]}, device="cpu")
    model.save(tmp_path / "agent.zip")
    members = unzipped((tmp_path / "agent.zip").read_bytes())
    members["policy.pth"] = legacy(torch.load(io.BytesIO(members["policy.pth"]), weights_only=True))
    (tmp_path / "agent.zip").write_bytes(zipped(members))
    rows = np.random.default_rng(0).uniform([-1, -1, -8], [1, 1, 8], (500, 3)).astype(np.float32)
    expected, _ = SAC.load(tmp_path / "agent.zip", device="cpu").predict(rows, deterministic=True)
    np.testing.assert_allclose(quarl.load(tmp_path / "agent").predict(rows)[0], expected, atol=1e-5)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of PyTorch that hold no agent, as people save them."""
    folder = tmp_path_factory.mktemp("files")
    policy = PPO("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [4]}, device="cpu").policy
    policy.save(folder / "policy.pkl")
    for name, content in (("module", policy.mlp_extractor), ("state", policy.state_dict())):
        torch.save(content, folder / f"{name}.pt")
        (folder / f"old_{name}.pt").write_bytes(legacy(content))
    (folder / "state.pt").rename(folder / "agent.cleanrl_model")
    torch.export.save(torch.export.export(torch.nn.Linear(4, 2), (torch.zeros(1, 4),)), folder / "program.pt2")
    older = {"serialized_exported_program.json": b"{}", "serialized_state_dict.pt": b"", "version": b"5.1"}
    (folder / "older.pt2").write_bytes(zipped(older))
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("policy.pkl", "model.policy.save.*with model.save, or give it to quarl\\.from_sb3"),
        ("module.pt", "pickles objects.*from_module"),
        ("old_module.pt", "pickles objects.*from_module"),
        ("agent.cleanrl_model", r"tensors by name.*from_module; quarl inspect agent\.cleanrl_model"),
        ("old_state.pt", r"tensors by name.*from_module; quarl inspect old_state\.pt"),
        (
            "program.pt2",
            r"is a program of torch\.export, whose code .* to quarl\.from_module, or to torch\.onnx\.export",
        ),
        ("older.pt2", r"is a program of torch\.export, whose code .* quarl inspect reads$"),
    ],
)
def test_what_is_no_agent_is_called_by_its_name_with_the_way_out(files, capsys, tmp_path, monkeypatch, name, said):
    monkeypatch.chdir(tmp_path)
    assert main(["eval", str(files / name), "--env", "CartPole-v1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(said, line)
    shown, weights = (
        main(["inspect", str(files / name), "--scheme", "naive"]),
        "inspect a" in said or "inspect o" in said,
    )
    assert shown == (0 if weights else 2)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ([line] if "whose code" in said else []) or (len(lines) == 1 and not weights)
