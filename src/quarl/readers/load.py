"""Policies from any supported file or folder; the contents decide the kind, not the name."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quarl.errors import QuarlError, UnsupportedError, detail, extras
from quarl.inert.reading_budget import reading
from quarl.inert.zip import Opened, read_bytes
from quarl.policy import artifact
from quarl.policy.graph import Policy, QuantizedPolicy, is_quantized
from quarl.readers import find, normalizer, sb2, sb3, state_dict, torchscript, weights_only
from quarl.readers.torch_file import is_script, program, read_nested

KINDS = (
    "a Stable-Baselines3 zip, an RL Zoo run folder, a Stable-Baselines 2 .pkl or .zip, an .onnx file, a "
    "checkpoint of rsl_rl, rl_games or skrl, or a policy that QuaRL saved"
)
ORBAX = ("_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt")
"""Files in the folder of a checkpoint of flax or Brax."""
TENSORS = (
    "holds tensors by name, not what to compute with them: load them into their module and give that to "
    "quarl.from_module; quarl inspect {} shows them"
)
MAX_HEADER = 2**32
"""Largest header in bytes; the first bytes of other kinds of files are a far larger number."""


def read(
    path: str | Path,
    algo: str = "",
    normalize: str | Path | None = None,
    frame_stack: int | None = None,
    *,
    head: str = "",
    output_name: str = "",
    fix: Mapping[str, float] | None = None,
    activation: str = "",
) -> Policy | QuantizedPolicy:
    """Read the policy at `path`: an SB3 zip, zoo run folder, Stable-Baselines 2 .pkl or zip, .onnx or QuaRL's own file.

    Args:
        path: File or folder; hub:ORG/NAME is fetched from the Hugging Face hub.
        algo: Algorithm of a training library's file; "" accepts any.
        normalize: File of VecNormalize's statistics, or "none"; None finds the one beside the agent.
        frame_stack: Number of stacked observations; overrides the files beside the agent.
        head: Meaning of the output of an .onnx or TorchScript file, as in "clip:-1,1"; "" leaves it to the file.
        output_name: Name of the output of an .onnx file that is the action; "" chooses the only one.
        fix: Numbers of inputs of an .onnx file that are constant.
        activation: Function between the layers of a checkpoint of rsl_rl, rl_games or skrl; "" is that of agent.yaml.

    Raises:
        QuarlError: There is no policy, it is damaged, or it belongs to another algorithm.
    """
    start, path = time.perf_counter(), find.named([str(path)])
    if path.suffix == ".msgpack" or any(os.path.exists(path / name) for name in ORBAX):
        raise UnsupportedError(
            f"{path} is a checkpoint of flax or Brax, which has no names of layers: {state_dict.ROUTE}"
        )
    with reading(path):
        stated = {"head": head, "output_name": output_name, "fix": dict(fix or {}), "activation": activation}
        policy = _read(find.opened(path), algo, normalize, frame_stack, stated)
    choices = {name: value for name, value in stated.items() if value}
    policy = replace(policy, provenance=replace(policy.provenance, choices=choices))
    said = f"{policy.provenance.algo or 'no algorithm'}, {policy.num_weights:,} weights, {normalizer.sentence(policy)}"
    detail(f"read {path} in {time.perf_counter() - start:.2f} s: {said}")
    return policy


def _read(
    file: Opened, algo: str, normalize: str | Path | None, frame_stack: int | None, stated: Mapping[str, Any]
) -> Policy | QuantizedPolicy:
    start, path = file.start or file.contents(), file.path
    if start[4:8] == b"TFL3" or path.suffix in (".tflite", ".pb"):
        beside = path.with_name("policy.quarl")
        source = beside if beside.is_file() else "the .quarl or .safetensors policy or the model that it was made from"
        raise QuarlError(f"{path} is a file of TensorFlow, which is not read: name {source}")
    if file.is_zip and is_script(file.names):
        if normalize is not None or algo or any(stated[name] for name in ("output_name", "fix", "activation")):
            raise QuarlError(f"{path} is TorchScript, which defines all but its head: give it no option but --head")
        return torchscript.read(file, stated["head"])
    kind, activation = weights_only.recognize(file), str(stated["activation"])
    needless = {"onnx": ("activation",), "torch": ("output_name", "fix")}.get(kind, tuple(stated))
    if any(stated[name] for name in needless):
        raise QuarlError(
            f"{path} defines its own actions: drop --head, --output-name and --fix, which .onnx files need, and "
            "--activation, which checkpoints need"
        )
    # Safetensors begin with the length of a JSON header, whose bytes can be the first ones of a zip or a pickle too.
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < MAX_HEADER:
        if normalize is not None:
            raise QuarlError(f"{path} is a policy that QuaRL saved, with its statistics inside: drop --normalize")
        return artifact.from_bytes(file.contents(), str(path))
    if kind == "onnx":
        with extras("reading .onnx"):
            from quarl.readers import onnx_program
        if normalize is not None or algo:
            raise QuarlError(f"{path} is an ONNX file, which contains its normalizer and names no algorithm: drop them")
        return onnx_program.read(file, stated["head"], stated["output_name"], stated["fix"])
    if kind == "torch" and start.startswith((b"PK", b"\x80")):
        if (why := _of_pytorch(file)) or (policy := state_dict.read(file, activation, stated["head"])) is None:
            raise QuarlError(f"{path} {why or TENSORS.format(path.name)}")
        if normalize is not None or algo:
            raise QuarlError(f"{path} is a checkpoint, which contains its normalizer and names no algorithm: drop them")
        return policy
    # Both libraries' zips have `data`; only the older one lists its parameters.
    if file.is_zip and "parameter_list" not in file.names:
        return sb3.read_zip(file, algo.lower(), normalize, frame_stack)
    if start.startswith((b"PK", b"\x80")) or path.suffix == ".pkl":
        return sb2.read_sb2(file, algo, normalize, frame_stack)
    raise QuarlError(f"{path} is not {KINDS}; check the path")


def contents(path: Path) -> bytes:
    """Return the bytes of an agent's file, followed by those of the files on which an .onnx file depends."""
    with reading(path):
        data = read_bytes(path)
        if path.suffix != ".onnx":
            return data
        with extras("reading .onnx"):
            from quarl.readers import onnx_constants
        return data + b"".join(onnx_constants.external_files(data, path))


def _of_pytorch(file: Opened) -> str:
    """Return the reason that a PyTorch file is not read, and how to use it; "" if it holds tensors by name."""
    if said := program(file.names):
        return said
    try:
        read_nested(file.contents(), str(file.path))
    except QuarlError:
        saved = "pickles objects, as model.policy.save and torch.save(module) do, which are never run"
        fix = "save the whole model with model.save, or give it to quarl.from_sb3, a module to quarl.from_module"
        return f"{saved}: {fix}"
    return ""


def refuse_quantized(policy: Policy, path: Path | str, more: str = "") -> None:
    """Raise QuarlError, which names the file and `more` that fits, if the policy is already quantized."""
    if is_quantized(policy):
        raise QuarlError(f"{path} is already quantized ({policy.spec.precision}); give the float policy{more}")
