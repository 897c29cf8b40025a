"""The readers that are fuzzed, each with valid files to begin with and a mutator that knows their container."""

from __future__ import annotations

import json
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import fuzz_foreign as other
import fuzz_mutate as mutate
import fuzz_seeds as seeds
from quarl.engines.reference import as_float
from quarl.inspection import whole
from quarl.policy import artifact, container, foreign, legacy, normalizer, npz, sb3, unpickle, zoo
from quarl.policy.graph import Policy
from quarl.policy.layers import LayerWeights
from quarl.ptq import round_layers
from quarl.quant.spec import QuantSpec

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
    """Every reader of a file that somebody else wrote, by name."""
    old = ("a2c", "ppo2", "dqn", "ddpg")
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
        agent = seeds.zipped({"data": data, "policy.pth": weights[b"policy_delay" in data]})
        return sb3.read_zip(_put(agent, folder, "agent.zip"))

    rows = (
        Parser("pickle", lambda d, _: unpickle.read_pickle(d, "f"), mutate.pickle_opcodes, opcodes, statistics),
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
        Parser(
            "sb2-pickle", lambda d, f: legacy.read_sb2(_put(d, f, "a.pkl")), mutate.pickle_opcodes, opcodes, pickles
        ),
        Parser(
            "sb2-zip",
            lambda d, f: legacy.read_sb2(_put(d, f, "a.zip")),
            mutate.member,
            zip_file,
            tuple(map(seeds.sb2_zip, old)),
        ),
        Parser("npy", lambda d, _: npz.read_npy(d, "f"), mutate.npy_header, frame, arrays),
        Parser("artefact", lambda d, _: artifact.from_bytes(d, "f"), mutate.safetensors, artifact._open, artefacts),
        Parser(
            "safetensors",
            lambda d, f: foreign.read(_put(d, f, "m.safetensors"), "safetensors"),
            other.safetensors_inside,
            other.safetensors_opens,
            other.safetensors_files(),
        ),
        Parser(
            "torch",
            lambda d, f: foreign.read(_put(d, f, "m.pt"), "torch"),
            mutate.member,
            zip_file,
            other.torch_files(),
        ),
        Parser(
            "onnx",
            lambda d, f: foreign.read(_put(d, f, "m.onnx")),
            other.onnx_inside,
            other.onnx_opens,
            other.onnx_files(),
        ),
        Parser(
            "tflite",
            lambda d, f: foreign.read(_put(d, f, "m.tflite"), "tflite"),
            other.tflite_inside,
            other.tflite_opens,
            other.tflite_files(),
        ),
        Parser(
            "frozen",
            lambda d, f: foreign.read(_put(d, f, "m.pb")),
            other.frozen_inside,
            other.frozen_opens,
            other.frozen_files(),
        ),
    )
    return {row.name: row for row in rows}


def use(loaded: Any) -> None:
    """Runs a policy once, or rounds weights: a load is only clean if what it gave works."""
    if isinstance(loaded, Policy):
        observation = np.zeros((1, *loaded.observation_shape), np.float32)
        with np.errstate(all="ignore"):  # mutated weights may be huge
            loaded.head(as_float(loaded, observation)[loaded.output])
    if isinstance(loaded, tuple) and any(isinstance(one, LayerWeights) for one in loaded):  # a pickle may be a tuple
        whole("fuzzed", loaded, round_layers(loaded, SPEC), SPEC)


def _put(data: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path
