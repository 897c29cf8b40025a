"""The readers that are fuzzed, each with valid files to begin with and a mutator that knows their container."""

from __future__ import annotations

import io
import json
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import yaml
from rich.console import Console

from quarl.calibration import Calibrated, quantize, round_layers
from quarl.engines import load_fitting, sound
from quarl.errors import UnsupportedError
from quarl.export import c, contract, golden
from quarl.inert import npz, pickle
from quarl.inert import zip as container
from quarl.inert.reading_budget import read_json, reading
from quarl.inspection import LayerRow, inspect, whole
from quarl.policy import artifact
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.policy.layers import LayerWeights, of_policy
from quarl.quant.spec import QuantSpec
from quarl.readers import load, normalizer, sb2, sb3, weights_only, zoo
from quarl.readers.weights_only import read_model
from quarl.report import schema, tables, weight_figures
from quarl.runs import checkpoint
from sb3_archives import zipped
from stress.fuzz import agents, mutate, protobuf, seeds
from stress.fuzz import foreign as other

ENV = "CartPole-v1"
SPEC = QuantSpec.parse("int8", scheme="per-channel")


@dataclass(frozen=True)
class Parser:
    """A reader and the files that it is tried with."""

    name: str
    read: Callable[[bytes, Path], Any]
    """Of the bytes; those that read a file put it into the folder."""
    inside: mutate.Mutator
    opens: Callable[[bytes], Any]
    """Raises unless the container (zip and CRCs, opcodes, header, checksums) is whole."""
    files: tuple[bytes, ...]


def parsers() -> dict[str, Parser]:
    """Every reader of a file that somebody else wrote, by name; without files where those lie beside the checkout."""
    old = (*seeds.SB2_ALGORITHMS, "her")
    pickles = tuple(seeds.sb2_pickle(algo, protocol) for algo in old for protocol in (0, 2, 4))
    statistics = tuple(seeds.pickled(seeds.vecnormalize(), protocol) for protocol in (0, 2, 3, 4, 5))
    zips = (seeds.sb3_zip(), seeds.sb3_zip(continuous=True))
    documents = tuple(json.dumps(seeds.sb3_data(continuous=flag)).encode() for flag in (False, True))
    arrays = (seeds.npy(np.ones((2, 3))), seeds.npy(np.asfortranarray(np.ones((3, 2), np.float32))))
    artefacts = (seeds.artefact(quantized=False), seeds.artefact(quantized=True))
    weights = [seeds.sb3_weights(continuous=flag) for flag in (False, True)]

    def opcodes(data: bytes) -> None:
        for _ in pickletools.genops(data):
            pass

    def zip_file(data: bytes) -> None:
        container.unpack(data, "fuzzed")

    def document(data: bytes) -> None:
        yaml.compose(data, Loader=yaml.SafeLoader)

    def frame(data: bytes) -> None:
        assert data[:6] == b"\x93NUMPY"
        assert len(data) >= 10 + int.from_bytes(data[8:10], "little")

    def config(data: bytes, folder: Path) -> Any:
        if not (folder / ENV).is_dir():
            (folder / ENV).mkdir()
            _put(statistics[0], folder / ENV, "vecnormalize.pkl")
        _put(data, folder / ENV, "config.yml")
        return zoo.read_settings(folder / f"{ENV}.zip")

    def attributes(data: bytes, folder: Path) -> Any:
        agent = zipped({"data": data, "policy.pth": weights[b"policy_delay" in data]})
        return sb3.read_zip(_put(agent, folder, "agent.zip"))

    def described(data: bytes) -> Any:
        with reading("f"):
            contract.policy_of(read_json(data, "f"), "f")

    written, vectors, contracts = seeds.exported()

    rows = (
        Parser("pickle", lambda d, _: pickle.read_pickle(d, "f"), mutate.pickle_opcodes, opcodes, statistics),
        Parser(
            "vecnormalize",
            lambda d, f: normalizer.read_vecnormalize(_put(d, f, "v.pkl")),
            mutate.pickle_opcodes,
            opcodes,
            statistics,
        ),
        Parser("zoo-yaml", config, mutate.yaml_text, document, seeds.CONFIGS),
        Parser("sb3-zip", lambda d, f: sb3.read_zip(_put(d, f, "agent.zip")), mutate.member, zip_file, zips),
        Parser("sb3-data", attributes, mutate.json_tree, json.loads, documents),
        Parser("sb2-pickle", lambda d, f: sb2.read_sb2(_put(d, f, "a.pkl")), mutate.pickle_opcodes, opcodes, pickles),
        Parser(
            "sb2-zip",
            lambda d, f: sb2.read_sb2(_put(d, f, "a.zip")),
            mutate.member,
            zip_file,
            tuple(map(seeds.sb2_zip, old)),
        ),
        Parser(
            "sb3-kinds", lambda d, f: sb3.read_zip(_put(d, f, "agent.zip")), mutate.member, zip_file, agents.saved()
        ),
        *(
            Parser(f"{name}-beside", lambda d, f: load.read(_put(d, f, "agent")), inside, opens, agents.beside(suffix))
            for name, suffix, inside, opens in (
                ("sb3", ".zip", mutate.member, zip_file),
                ("sb2", ".pkl", mutate.pickle_opcodes, opcodes),
            )
        ),
        Parser("golden", lambda d, _: golden.read(d, "f"), mutate.member, zip_file, (vectors,)),
        Parser("contract", lambda d, _: described(d), mutate.json_tree, json.loads, contracts),
        Parser("c", lambda d, _: c.check(d.decode("ascii", "replace")), mutate.any_bytes, bytes.decode, (written,)),
        Parser("npy", lambda d, _: npz.read_npy(d, "f"), mutate.npy_header, frame, arrays),
        Parser("artefact", lambda d, _: artifact.from_bytes(d, "f"), mutate.safetensors, artifact._open, artefacts),
        Parser(
            "safetensors",
            lambda d, f: weights_only.read_weights(_put(d, f, "m.safetensors"), "safetensors"),
            other.safetensors_inside,
            other.safetensors_opens,
            other.safetensors_files(),
        ),
        Parser(
            "torch",
            lambda d, f: weights_only.read_weights(_put(d, f, "m.pt"), "torch"),
            other.torch_inside,
            other.torch_opens,
            other.torch_files(),
        ),
        Parser(
            "onnx",
            lambda d, f: _network(_put(d, f, "m.onnx")),
            protobuf.message,
            other.onnx_opens,
            other.onnx_files(),
        ),
        Parser(
            "actor",
            lambda d, f: load.read(_put(d, f, "m.pt"), activation="elu"),
            other.torch_inside,
            other.torch_opens,
            (other.actor_file(),),
        ),
    )
    return {row.name: row for row in rows}


ROWS = 16
"""Observations that a policy is tried with; a verb would take thousands, at the same cost for each."""


def use(loaded: Any, name: str = "fuzzed") -> None:
    """What the verb does that does most with it: a policy is quantised and run, weights are rounded, shown and drawn.

    A load is only clean if what it gave works. name: of the file; layers are drawn where it is given.
    """
    if isinstance(loaded, Policy):
        observations = np.zeros((ROWS, *loaded.observation_shape), loaded.observation_dtype)
        engine = load_fitting(loaded if isinstance(loaded, QuantizedPolicy) else quantize(loaded, SPEC))
        loaded.head(sound(loaded, observations[:1], engine.run(observations[:1])))
        if not isinstance(loaded, QuantizedPolicy):
            Calibrated(loaded, observations).prepare(QuantSpec.parse("int8"))
        loaded = of_policy(loaded)
    if isinstance(loaded, tuple) and any(isinstance(one, LayerWeights) for one in loaded):  # a pickle may be a tuple
        rounded = round_layers(loaded, SPEC)
        found = whole(name, loaded, rounded, SPEC)
        if name != "fuzzed":
            console = Console(file=io.StringIO(), width=160)
            document = schema.document(LayerRow, found.layers)
            console.print(tables.terminal(tables.cells(LayerRow, document["rows"]), name))
            weight_figures.weight_distribution(inspect(loaded, rounded, SPEC), name)
            plt.close("all")


def _network(path: Path) -> Any:
    """The policy of an .onnx file, otherwise its constant matrices."""
    try:
        return load.read(path, head="raw")
    except UnsupportedError:
        return weights_only.read_weights(path)


def read_any(path: Path) -> Any:
    """What `quarl inspect` makes of the file or folder: weights where it is no policy; or what `--resume` does."""
    if path.name.startswith("checkpoint-"):
        return checkpoint.restore(checkpoint.load_latest(path.parent), seeds.learner())
    if kind := weights_only.recognize(path):
        return _network(path) if kind == "onnx" else weights_only.read_weights(path, kind)
    try:
        return load.read(path)
    except UnsupportedError:
        if not path.is_file():
            raise
        return read_model(path)


def _put(data: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path
