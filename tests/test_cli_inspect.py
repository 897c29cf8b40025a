"""`quarl inspect` of files that are no policies, of several models, and of the hub."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, PPO

import contracts
import networks
import require
from quarl.calibration import quantize
from quarl.cli import main, parse
from quarl.config import InspectConfig
from quarl.engines import onnx
from quarl.policy import artifact
from quarl.quant.spec import SCHEMES, QuantSpec
from refusals import refused
from sb3_archives import Still

pytestmark = pytest.mark.usefixtures("elsewhere")

PLAIN = "Scheme default needs observations, and weights alone give none: rounded with per-channel."


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One policy in every format, and a zoo folder with a DQN and a PPO agent."""
    folder = tmp_path_factory.mktemp("files")
    policy = networks.dense([4, 16, 2])
    exact = quantize(policy, QuantSpec.parse("fp32"))
    artifact.write(policy, folder / "policy.safetensors")
    artifact.write(quantize(policy, QuantSpec.parse("int4", scheme="per-channel")), folder / "int4.quarl")
    (folder / "p.onnx").write_bytes(onnx.write(exact))
    named = {f"{op.name}.{part}": getattr(op, part) for op in policy.linear for part in ("weight", "bias")}
    (folder / "p.safetensors").write_bytes(safetensors.numpy.save(named))
    torch.save({name: torch.from_numpy(np.array(array)) for name, array in named.items()}, folder / "p.pt")
    for kind in (DQN, PPO):
        run = folder / "zoo" / kind.__name__.lower() / "CartPole-v1_1"
        run.mkdir(parents=True)
        options = {"policy_kwargs": {"net_arch": [8]}, "device": "cpu", "seed": 0}
        kind("MlpPolicy", "CartPole-v1", **options).save(run / "CartPole-v1.zip")
    return folder


def inspected(*words: object) -> dict:
    assert main(["inspect", *map(str, words), "--json", "rows.json"]) == 0
    return contracts.read("rows.json")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["p.onnx", "p.safetensors", "p.pt"])
def test_a_file_of_weights_has_the_rows_of_the_policy_that_it_was_written_from(files: Path, capsys, name: str):
    document = inspected(files / name, "--bits", 4)
    shown = capsys.readouterr().out
    assert PLAIN in shown
    assert (document["command"], document["algo"], document["env_id"]) == ("inspect", None, None)
    line = Path("quarl-inspect/output.txt").read_text()
    wanted = inspected(files / "policy.safetensors", "--bits", "int4", "--scheme", "per-channel")
    assert PLAIN not in capsys.readouterr().out
    anonymous = [{**row, "layer": ""} for row in document["rows"]]
    assert anonymous == [{**row, "layer": ""} for row in wanted["rows"]]
    assert Path("quarl-inspect/output.txt").read_text() == line.replace(name, "policy.safetensors")


def test_no_scheme_is_replaced_where_float_formats_have_none(files: Path, capsys):
    inspected(files / "p.pt", "--bits", "fp16")
    assert PLAIN not in capsys.readouterr().out


@pytest.mark.parametrize("scheme", ["qat-minmax", "actorq", "default"])
def test_a_quantised_policy_is_shown_as_it_is(tmp_path: Path, capsys, scheme: str):
    """Training and actors have schemes of their own names."""
    policy = quantize(networks.dense([4, 16, 2]), QuantSpec.parse("int4", scheme="per-channel"))
    named = SCHEMES.get(scheme) or replace(policy.spec.scheme, name=scheme)
    artifact.write(replace(policy, spec=replace(policy.spec, scheme=named)), tmp_path / "p.quarl")
    document = inspected("p.quarl", "--bits", 8)
    assert {(row["scheme"], row["precision"]) for row in document["rows"]} == {(scheme, "int4")}
    assert "rescales channels" not in capsys.readouterr().out


def test_a_policy_in_fp32_is_a_float_policy(files: Path, tmp_path: Path):
    exact = quantize(artifact.read(files / "policy.safetensors"), QuantSpec.parse("fp32"))
    artifact.write(exact, tmp_path / "policy.safetensors")
    words = ("--bits", 4, "--scheme", "per-channel")
    assert inspected("policy.safetensors", *words)["rows"] == inspected(files / "policy.safetensors", *words)["rows"]


def test_several_models_have_a_row_each_with_their_layers_in_it(files: Path, capsys):
    names = ["policy.safetensors", "p.onnx", "int4.quarl"]
    document = inspected(*(files / name for name in names), "--bits", 8)
    shown = capsys.readouterr().out
    assert document["command"] == "inspect models"
    assert [row["model"] for row in document["rows"]] == names
    assert [row["precision"] for row in document["rows"]] == ["int8", "int8", "int4"]
    first, second, third = document["rows"]
    keys = ("weights", "min", "max", "std", "spread", "sqnr_db", "histogram")
    assert [first[key] for key in keys] == [second[key] for key in keys]
    assert third["sqnr_db"] is None  # it is what it is
    assert [layer["shape"] for layer in first["layers"]] == [[16, 4], [2, 16]]
    assert PLAIN in shown
    lines = Path("quarl-inspect/output.txt").read_text().splitlines()
    assert [line.partition(" : ")[0] for line in lines] == names
    assert all(line in shown for line in lines)
    assert Path("quarl-inspect/weights.png").is_file()
    (repeat,) = [line for line in shown.splitlines() if line.startswith("repeat: ")]
    assert parse(repeat.split()[2:]).models() == [(str(files / name),) for name in names]


@pytest.mark.slow
def test_models_of_a_zoo_are_named_by_algorithm_and_environment(files: Path):
    document = inspected("dqn/CartPole-v1", "ppo/CartPole-v1", "-f", files / "zoo")
    assert [row["model"] for row in document["rows"]] == ["dqn/CartPole-v1", "ppo/CartPole-v1"]
    dqn = files / "zoo/dqn/CartPole-v1_1"
    alone = inspected("dqn/CartPole-v1", "-f", files / "zoo", "--scheme", "naive")
    other = inspected("dqn", "CartPole-v1", "-f", files / "zoo", "--scheme", "naive")
    assert {**alone, "date": other["date"]} == other
    both = inspected(dqn, files / "zoo/ppo/CartPole-v1_1")
    assert [row["model"] for row in both["rows"]] == [str(dqn), str(files / "zoo/ppo/CartPole-v1_1")]


def test_words_of_a_model_are_paths_or_pairs():
    def models(*words: str, folder: Path | None = None):
        return InspectConfig(model=words, folder=folder).models()

    zoo = Path("logs")
    assert models("a.zip") == [("a.zip",)]
    assert models("a.zip", "b.zip") == [("a.zip",), ("b.zip",)]
    assert models("dqn", "ALE/Pong-v5", folder=zoo) == [("dqn", "ALE/Pong-v5")]
    assert models("dqn/ALE/Pong-v5", "ppo/CartPole-v1", folder=zoo) == [("dqn", "ALE/Pong-v5"), ("ppo", "CartPole-v1")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "MODEL is missing"),
        ("dqn -f {}/zoo", "-f FOLDER requires ALGO ENV, or words ALGO/ENV"),
        ("dqn CartPole-v1 ppo -f {}/zoo", "got 'dqn'"),
        ("dqn/CartPole-v1 / -f {}/zoo", "got ''"),
        ("dqn/CartPole-v1 a2c/CartPole-v1 -f {}/zoo", "no folder .*a2c"),
        ("{}/p.pt {}/absent.pt", "no file .*absent.pt"),
        ("{}/p.pt hub:org", "is not a repository"),
    ],
)
def test_mistakes_are_one_line(files: Path, capsys, words: str, said: str):
    assert re.search(said, refused(capsys, "inspect", *words.format(files, files).split()))
    assert list(Path().iterdir()) == []


def test_a_file_of_tensorflow_is_refused_with_the_policy_beside_it(capsys):
    Path("p.tflite").write_bytes(b"\x1c\0\0\0TFL3")
    Path("graph.pb").touch()
    assert "name the .quarl or .safetensors policy or the model" in refused(capsys, "inspect", "graph.pb")
    Path("policy.quarl").touch()
    assert refused(capsys, "inspect", "p.tflite").endswith(
        "p.tflite is a file of TensorFlow, which is not read: name policy.quarl"
    )


def test_an_onnx_file_shows_its_policy_or_why_it_is_none(files: Path, capsys):
    rows = inspected(files / "p.onnx", "--head", "argmax")["rows"]
    assert "showing its constant matrices" not in capsys.readouterr().out
    assert [row["layer"] for row in rows] == ["net.0", "net.1"]
    rows = inspected(files / "p.onnx")["rows"]
    assert "fits several heads; choose one of --head" in capsys.readouterr().out
    assert [row["layer"] for row in rows] == ["net.0.weight", "net.1.weight"]
    assert "--head sin does not fit" in refused(capsys, "inspect", str(files / "p.onnx"), "--head", "sin")


@pytest.mark.slow
def test_a_model_that_cannot_be_run_shows_all_its_weights(files: Path, capsys, tmp_path: Path):
    from sb3_contrib import RecurrentPPO

    kwargs = {"net_arch": [], "lstm_hidden_size": 8}
    env = Still(spaces.Box(-1, 1, (2, 2)), spaces.Discrete(2))  # a memory reads vectors only
    RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=kwargs, device="cpu").save("recurrent.zip")
    document = inspected("recurrent.zip")
    assert "Not a policy that QuaRL can run" in capsys.readouterr().out
    assert {tuple(row["shape"]) for row in document["rows"]} == {(32, 4), (32, 8), (2, 8), (1, 8)}


def test_a_policy_with_nowhere_to_play_is_rounded_by_its_weights_alone(capsys, tmp_path: Path):
    artifact.write(networks.dense([4, 16, 2]), tmp_path / "plain.safetensors")
    document = inspected(tmp_path / "plain.safetensors", "--bits", "8")
    assert {row["scheme"] for row in document["rows"]} == {"per-channel"}
    assert PLAIN in capsys.readouterr().out


def test_an_agent_of_the_hub_is_a_model_of_every_verb(files: Path, monkeypatch: pytest.MonkeyPatch):
    require.module("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(Path("cache").absolute()))
    storage = Path("cache/models--org--dqn-CartPole-v1")
    (storage / "snapshots/c0ffee").mkdir(parents=True)
    (storage / "refs").mkdir()
    (storage / "refs/main").write_text("c0ffee")
    agent = (files / "zoo/dqn/CartPole-v1_1/CartPole-v1.zip").read_bytes()
    (storage / "snapshots/c0ffee/dqn-CartPole-v1.zip").write_bytes(agent)
    document = inspected("hub:org/dqn-CartPole-v1", files / "p.pt")
    assert [row["model"] for row in document["rows"]] == ["dqn-CartPole-v1.zip", "p.pt"]
    assert main(["eval", "hub:org/dqn-CartPole-v1", "--episodes", "1", "--json", "eval.json"]) == 0
    assert json.loads(Path("eval.json").read_text())["env_id"] == "CartPole-v1"


def test_names_of_files_and_of_layers_are_shown_short_and_obeyed_by_nothing(tmp_path, capsys):
    path = tmp_path / "\x1b[31m$x^{$.safetensors"
    layer = "\x1b]0;title\x07" + "層" * 10 + "a" * 100_000
    path.write_bytes(safetensors.numpy.save({f"{layer}.weight": np.ones((2, 3), np.float32)}))
    assert main(["inspect", str(path), "-o", str(tmp_path / "out"), "--json", str(tmp_path / "rows.json")]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "\x1b" not in captured.out
    assert r"\x1b[31m$x^{$.safetensors: weights at int8" in captured.out
    assert len(captured.out) < 5_000
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert len(row["layer"]) > 100_000
    assert (tmp_path / "out" / "weights.png").stat().st_size < 200_000
