"""The only save format of a policy: safetensors whose metadata is a JSON manifest with a sha256 of every tensor.

Codes are packed to their n bits. Nothing in the file is executed: operators are looked up in a closed table, and every
number is checked against it before use.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, Field, astuple, fields
from pathlib import Path
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, first_line
from quarl.files import write_parts
from quarl.inert.reading_budget import reading
from quarl.inert.zip import read_bytes
from quarl.policy.container import DTYPES, Bytes, digest, parse, pieces, sealed, unsealed
from quarl.policy.graph import ActionHead, ActivationGrid, Policy, Provenance, QuantizedPolicy, as_metadata, ungridded
from quarl.policy.inputs import KINDS, Input
from quarl.policy.operators import OPERATORS, L2Norm, Op, QuantizedTensor
from quarl.quant.affine import TINY
from quarl.quant.packing import pack, packed_size, storage_dtype, unpack
from quarl.quant.spec import QuantSpec

HEAD_ARRAYS = ("low", "high", "log_std")
BOX = ("box/low", "box/high")
STATE = "state"
HEAD_SETTINGS = ("segments", "zero_based", "width")
"""Settings that are written only for a head that has them."""
CHOICES = ("head", "output_name", "fix", "activation")
"""Keys of Provenance.choices."""
FORMAT = "quarl-policy"
VERSION = 5
"""Version of a file that older readers would misread.

It is 4 for L2 norms, 3 for heads that divide the scores or pass on numbers from 0, 2 for grids without a level at 0,
otherwise 1.
"""
SMALL = 2**20
"""Bytes of tensors below which starting threads takes longer than hashing."""


def to_bytes(policy: Policy) -> bytes:
    """Return the whole artifact of a Policy or QuantizedPolicy."""
    return b"".join(pieces(*_contents(policy)))


def write(policy: Policy, path: str | os.PathLike[str]) -> None:
    """Save the policy; after a crash the file is either the old one or the new one, complete."""
    write_parts(pieces(*_contents(policy)), Path(path))


def _contents(policy: Policy) -> tuple[dict[str, Array], dict[str, str]]:
    """Return tensors and metadata of the container."""
    tensors: dict[str, Array] = {}
    ops = [_op_to_json(op, tensors) for op in policy.ops]
    for field in HEAD_ARRAYS:
        if (array := getattr(policy.head, field)) is not None and array.size:
            tensors[f"head/{field}"] = np.asarray(array, np.float32)
    if policy.state.size:
        tensors[STATE] = policy.state
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": _version(policy),
        "observation": {"shape": policy.observation_shape, "dtype": policy.observation_dtype},
        "head": {"kind": policy.head.kind, "start": policy.head.start}
        | {name: value for name in HEAD_SETTINGS if (value := getattr(policy.head, name))},
        "ops": ops,
        "provenance": provenance_to_json(policy.provenance),
    }
    # Entries that older versions lack are written only if they are needed.
    if policy.inputs:
        manifest["observation"]["inputs"] = list(map(astuple, policy.inputs))
    if isinstance(policy, QuantizedPolicy):
        manifest["spec"] = policy.spec.to_json()
        manifest["grids"] = {name: [g.scale, g.zero_point, g.bits] for name, g in policy.grids.items()}
        tensors |= zip(BOX, policy.box or (), strict=False)
    tensors = {name: np.array(array, order="C", copy=None) for name, array in tensors.items()}
    if sum(array.nbytes for array in tensors.values()) < SMALL:
        manifest["sha256"] = {name: digest(array) for name, array in tensors.items()}
    else:
        with ThreadPoolExecutor() as pool:  # hashing leaves the interpreter's lock alone
            manifest["sha256"] = dict(zip(tensors, pool.map(digest, tensors.values()), strict=True))
    return tensors, sealed(json.dumps(manifest, separators=(",", ":"), default=plain))


def _version(policy: Policy) -> int:
    """Return the oldest version that reads the policy correctly."""
    if policy.state.size:
        return VERSION
    if any(isinstance(op, L2Norm) for op in policy.ops):
        return 4
    if any(getattr(policy.head, name) for name in HEAD_SETTINGS):
        return 3
    return 2 if any(getattr(op.weight, "mid_rise", False) for op in policy.linear) else 1


def plain(value: Any) -> Any:
    """Return numpy numbers, which environments use, as JSON values."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise QuarlError(f"cannot save {str(value)[:60]!r}: an artifact holds only numbers, text and lists")


def read(path: str | os.PathLike[str]) -> Policy:
    """Return the Policy or QuantizedPolicy in the file; refuse wrong checksums, versions or contents."""
    with reading(path):
        return from_bytes(read_bytes(Path(path)), str(path))


def from_bytes(data: Bytes, where: str, *, checked: bool = False) -> Policy:
    """Return the policy that `to_bytes` wrote. Arrays are views of `data`, which must not change.

    Args:
        data: The artifact.
        where: Name of the source in errors.
        checked: The bytes are known to be intact, so the checksums of tensors are not computed again.

    Raises:
        QuarlError: The artifact is damaged or of another version.
    """
    try:
        tensors, manifest = _open(data, checked)
        return _policy(manifest, tensors)
    except QuarlError as error:
        raise QuarlError(f"{where}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError, IndexError) as error:
        raise QuarlError(f"{where} is not a valid QuaRL policy file: {first_line(error)[:120]}") from None


def _open(data: Bytes, checked: bool = False) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return checked tensors and the manifest."""
    members, metadata = parse(data)
    manifest: dict[str, Any] = unsealed(metadata, FORMAT)
    if manifest["version"] not in range(1, VERSION + 1):
        raise QuarlError(
            f"format version {manifest['version']} is newer than version {VERSION} of this QuaRL; update QuaRL"
        )
    if set(manifest["sha256"]) != set(members):
        raise QuarlError("the manifest and the tensors disagree; the file is damaged")
    tensors = {}
    for name, (dtype, shape, numbers) in members.items():
        if not checked and hashlib.sha256(numbers).hexdigest() != manifest["sha256"][name]:
            raise QuarlError(f"tensor {name!r} does not match its sha256; the file is damaged")
        tensors[name] = np.frombuffer(numbers, DTYPES[dtype]).reshape(shape)
    return tensors, manifest


def _policy(manifest: dict[str, Any], tensors: Mapping[str, Array]) -> Policy:
    head = ActionHead(
        kind=_one_of(manifest["head"]["kind"], ("argmax", "binary", "clip", "tanh", "gaussian")),
        start=_size(manifest["head"]["start"], -(2**31)),
        zero_based=manifest["head"].get("zero_based", False) is True,
        segments=tuple(_size(n) for n in manifest["head"].get("segments", ())),
        width=_size(manifest["head"].get("width", 0), 0),
        **{field: _reals(f"head/{field}", tensors) for field in HEAD_ARRAYS if f"head/{field}" in tensors},
    )
    inputs = manifest["observation"].get("inputs", ())
    common: dict[str, Any] = {
        "observation_shape": _sizes(manifest["observation"]["shape"]),
        "inputs": tuple(Input(_word(k), _one_of(kind, KINDS), _sizes(s), _sizes(v)) for k, kind, s, v in inputs),
        "observation_dtype": _one_of(manifest["observation"]["dtype"], ("float32", "uint8")),
        "ops": tuple(_op_from_json(entry, tensors) for entry in manifest["ops"]),
        "head": head,
        "state": _reals(STATE, tensors).reshape(-1) if STATE in tensors else np.zeros(0, np.float32),
        "provenance": provenance_from_json(manifest["provenance"]),
    }
    if "spec" not in manifest:
        return Policy(**common)
    grids = {str(name): _grid(*entry) for name, entry in manifest["grids"].items()}
    box = _box(tensors, common["observation_shape"])
    policy = QuantizedPolicy(**common, spec=QuantSpec.from_json(manifest["spec"]), grids=grids, box=box)
    if (name := ungridded(policy)) is not None:
        raise QuarlError(f"the value {name!r} has no grid, which static mode needs")
    if policy.spec.symmetric_activations and any(grid.zero_point for grid in grids.values()):
        raise QuarlError("a grid has a zero point other than 0, but the spec has symmetric activations")
    return policy


def _box(tensors: Mapping[str, Array], shape: tuple[int, ...]) -> tuple[Array, Array] | None:
    """Return the ends of the calibration observations; None if the file has none."""
    if BOX[0] not in tensors:
        return None
    low, high = (_reals(name, tensors) for name in BOX)
    if not low.shape == high.shape == shape or not np.isfinite([low, high]).all() or (low > high).any():
        raise QuarlError("the ends of the calibration observations do not fit the observation")
    return low, high


def _op_to_json(op: Op, tensors: dict[str, Array]) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": type(op).__name__, "name": op.name, "inputs": op.inputs}
    settings = (field.name for field in _fields(type(op)) if field.type in SETTINGS)
    entry |= {name: getattr(op, name) for name in settings if getattr(op, name) != ()}
    for field, value in op.arrays.items():
        key = f"{op.name}/{field}"
        if not isinstance(value, QuantizedTensor):
            tensors[key] = value if value.dtype in DTYPES.values() else value.astype(np.float32)
            continue
        width, codes = value.width, value.codes
        entry["codes"] = {"shape": codes.shape, "bits": value.bits, "width": width}
        if value.mid_rise:
            codes = codes >> 1
            entry["codes"]["mid_rise"] = True
        bytes_already = width == 8 and codes.dtype == np.int8  # spares a copy of most of the file
        flat = codes.reshape(-1).view(np.uint8) if bytes_already else pack(codes, width)
        tensors[key] = np.frombuffer(flat, np.uint8)
        tensors[f"{key}.scale"] = value.scale
        if value.zero_point.any():
            tensors[f"{key}.zero_point"] = value.zero_point
    return entry


def _fields(kind: type[Op]) -> tuple[Field[Any], ...]:
    """Return the fields that only operators of this kind have."""
    return fields(kind)[len(fields(Op)) :]


def _op_from_json(entry: dict[str, Any], tensors: Mapping[str, Array]) -> Op:
    kind, name = OPERATORS[_one_of(entry["type"], tuple(OPERATORS))], _word(entry["name"])
    values: dict[str, Any] = {"name": name, "inputs": tuple(_word(i) for i in entry["inputs"])}
    for field in _fields(kind):
        key = f"{name}/{field.name}"
        if field.type in SETTINGS:
            given = entry[field.name] if field.default is MISSING else entry.get(field.name, field.default)
            values[field.name] = SETTINGS[field.type](given)
        elif field.type == "Weight" and "codes" in entry:
            values[field.name] = _codes(entry["codes"], key, tensors)
        else:
            values[field.name] = _reals(key, tensors)
    return kind(**values)


def _codes(entry: dict[str, Any], key: str, tensors: Mapping[str, Array]) -> QuantizedTensor:
    shape = _sizes(entry["shape"])
    count, bits, width = int(np.prod(shape, dtype=object)), _size(entry["bits"], 2, 32), _size(entry["width"])
    packed, scale = tensors[key], _reals(f"{key}.scale", tensors)
    if not 2 <= width <= 34 or packed.dtype != np.uint8 or packed.size != packed_size(count, width):
        raise QuarlError(f"the codes of {key!r} do not fit their shape {shape} at {width} bits")
    zero_point = tensors.get(f"{key}.zero_point", np.zeros(shape[0], np.int32))  # only now is the size known to be real
    if (
        zero_point.dtype != np.int32
        or scale.shape != shape[:1]
        or zero_point.shape != shape[:1]
        or not (scale >= TINY).all()
    ):
        raise QuarlError(f"the grid of {key!r} does not fit its {shape[0]} channels")
    codes = unpack(packed.data, width, count).reshape(shape)
    if (mid_rise := entry.get("mid_rise", False)) is True:
        codes = 2 * codes.astype(storage_dtype(-(2**bits), 2**bits - 1)) + 1
    return QuantizedTensor(codes, scale, zero_point, bits, mid_rise)


def provenance_to_json(provenance: Provenance) -> dict[str, Any]:
    """Return the fields as JSON values, without `longest`."""
    values = {field.name: getattr(provenance, field.name) for field in fields(provenance) if field.name != "longest"}
    wrappers = [(name, dict(kwargs)) for name, kwargs in provenance.wrappers]
    values |= {"env_kwargs": dict(provenance.env_kwargs), "wrappers": wrappers}
    return {name: value for name, value in values.items() if value or name not in ("metadata", "choices")}


def provenance_from_json(entry: Mapping[str, Any]) -> Provenance:
    """Return the Provenance that `provenance_to_json` wrote, with checked values."""
    limit = entry.get("max_episode_steps")  # missing in older files, like the source of statistics
    return Provenance(
        algo=_word(entry["algo"]),
        env_id=_word(entry["env_id"]),
        env_kwargs=dict(entry["env_kwargs"]),
        wrappers=tuple((str(name), dict(kwargs)) for name, kwargs in entry["wrappers"]),
        max_episode_steps=None if limit is None else _size(limit),
        statistics=_word(entry.get("statistics", "")),
        stochastic=bool(entry["stochastic"]),
        origin=_word(entry["origin"]),
        metadata=as_metadata(dict(entry.get("metadata", {})).items()),
        choices={
            _one_of(name, CHOICES): _word(value) if name != "fix" else {_word(k): _number(n) for k, n in value.items()}
            for name, value in dict(entry.get("choices", {})).items()
        },
    )


def _reals(key: str, tensors: Mapping[str, Array]) -> Array:
    """Return the tensor of that name; raise QuarlError if it holds integers."""
    if tensors[key].dtype.kind in "iu":
        raise QuarlError(f"tensor {key!r} holds {tensors[key].dtype} instead of real numbers")
    return tensors[key]


def _grid(scale: Any, zero_point: Any, bits: Any) -> ActivationGrid:
    """Return the grid of a value if its numbers are valid."""
    half = 2 ** (_size(bits, 2, 16) - 1)
    if not TINY <= _number(scale) < 2**127 or not -half <= _number(zero_point) < half:
        raise QuarlError("a value's grid has no valid scale, zero point and bits")
    return ActivationGrid(scale=float(np.float32(scale)), zero_point=int(zero_point), bits=bits)


def _number(value: Any) -> float:
    """Return the value if it is a number; infinity counts as one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise QuarlError(f"{str(value)[:60]!r} is not a number")
    return float(value)


def _size(value: Any, least: int = 1, most: int = 2**31 - 1) -> int:
    """Return the value if it is an integer from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise QuarlError(f"{str(value)[:60]!r} is not a size from {least} to {most}")
    return value


def _sizes(values: Any) -> tuple[int, ...]:
    """Return the values if they are sizes."""
    return tuple(_size(value) for value in values)


def _pair(value: Any) -> tuple[int, int]:
    """Return the first two values if they are sizes of 0 or more."""
    return _size(value[0], 0), _size(value[1], 0)


def _numbers(value: Any) -> tuple[float, ...]:
    """Return the entries of the value if they are numbers."""
    return tuple(map(_number, value))


def _word(value: Any) -> str:
    """Return the value if it is printable text, which no terminal interprets."""
    if not isinstance(value, str) or not value.isprintable():
        raise QuarlError(f"{str(value)[:60]!r} is not a name")
    return value


def _one_of(value: Any, allowed: tuple[str, ...]) -> Any:
    """Return the value if it is allowed."""
    if value not in allowed:
        raise QuarlError(f"{str(value)[:60]!r} is not one of {', '.join(allowed)}")
    return value


SETTINGS: Mapping[Any, Callable[[Any], Any]] = {
    "float": _number,
    "str": _word,
    "int": lambda value: _size(value, 0),
    "tuple[float, ...]": _numbers,
    "tuple[int, int]": _pair,
    "tuple[int, ...]": _sizes,
}
"""Check of a value in the manifest, by the type of the operator's field. All other fields are arrays."""
