"""Small files that ask for unbounded work or memory, and QuaRL files with hostile contents under right checksums."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.container import DTYPES, parse, pieces
from stress.fuzz import seeds
from stress.fuzz.pickles import pickled
from stress.fuzz.seeds import ENV, sb3_agent, zoo_run

Files = dict[str, bytes]
Row = tuple[str, str, Files]
WORK = "exponential or quadratic work"


def rows(canary: Path) -> Iterator[Row]:
    """(mechanism, name, files by relative path)."""
    yield from _pickles()
    yield from _yaml()
    yield from _json()
    yield from _artefacts(canary)


def _pickles() -> Iterator[Row]:
    laughs = b"\x80\x02]q\x00" + b"".join(b"](" + b"h%c" % n * 16 + b"eq%c" % (n + 1) for n in range(60)) + b"."
    tuples = b"\x80\x02)q\x00" + b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(100))
    colliding = ((n * (2**61 - 1)).to_bytes(16, "little") for n in range(20_000))
    encode = (
        b"c_codecs\nencode\nq\x00X"
        + (2**20).to_bytes(4, "little")
        + b"a" * 2**20
        + b"q\x01X\x06\x00\x00\x00latin1q\x02"
    )
    for name, data in {
        "billion-laughs": laughs,
        "nested-key": tuples + b"}h\x64K\x01s.",
        "deep": b"\x80\x02" + b"]" * 90_000 + b"a" * 89_999 + b".",
        "deep-in-model": pickled((seeds.sb2_data("a2c"), []))[:-3] + b"0" + b"]" * 90_000 + b"a" * 89_999 + b"\x86.",
        "colliding-keys": b"\x80\x02}(" + b"".join(b"\x8a\x10" + n + b"K\x01" for n in colliding) + b"u.",
        "copies": b"\x80\x02" + encode + b"(" + b"h\x00h\x01h\x02\x86R" * 5000 + b"l.",
        "many-operations": b"\x80\x02" + b"]0" * 3_000_000 + b".",
        "huge-bytes": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7fx.",
        "huge-integer": b"\x80\x02\x8b" + (2**21).to_bytes(4, "little") + b"\x7f" * 2**21 + b".",
        "decimal-integer": b"L" + b"9" * 2**21 + b"L\n.",
        "huge-memo": b"\x80\x02]r\xff\xff\xff\xffj\xff\xff\xff\xff.",
    }.items():
        yield WORK, f"pickle-{name}", {f"{ENV}.pkl": data}


def _yaml() -> Iterator[Row]:
    aliases = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))
    merge = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 30))
    for name, text in {
        "aliases": aliases,
        "merge-keys": merge,
        "deep-flow": "[" * 60_000,
        "deep-mapping": "{a: " * 10_000,
        "deep-block": "".join(" " * n + "a:\n" for n in range(300)),
        "long-integer": "normalize: " + "9" * 60_000,
        "sexagesimal": "normalize: 1" + ":59" * 20_000,
        "normalize-deep": 'normalize: "' + "(" * 60_000 + '"',
        "large": "a: " + "b" * 2**22,
    }.items():
        yield WORK, f"yaml-{name}", zoo_run(text.encode())


def _json() -> Iterator[Row]:
    for name, text in {
        "deep": b"[" * 200_000,
        "digits": b'{"policy_delay": ' + b"9" * 500_000 + b"}",
        "policy-class": json.dumps({**seeds.sb3_data(), "policy_class": {"__module__": "a" * 2**20}}).encode(),
    }.items():
        yield WORK, f"json-{name}", {"agent.zip": sb3_agent(text)}


def _artefacts(canary: Path) -> Iterator[Row]:
    mechanism = "QuaRL file with right checksums"
    plain = {"algo": "ppo", "env_id": ENV, "env_kwargs": {}, "wrappers": [], "stochastic": False, "origin": "x"}
    stride = {"type": "Conv2d", "name": "a", "inputs": ["observation"], "stride": [0, 0], "padding": [2**30] * 2}
    flat = [
        {"type": "Flatten", "name": f"f{n}", "inputs": [f"f{n - 1}" if n else "observation"]} for n in range(20_000)
    ]
    wide = [
        {"type": "Concat", "name": f"c{n}", "inputs": [f"c{n - 1}" if n else "observation"] * 9} for n in range(900)
    ]
    for name, changes in {
        "wrapper": {"provenance": {**plain, "wrappers": [["os.system", {"command": f"touch {canary}"}]]}},
        "path": {"provenance": {**plain, "env_id": "../../../etc/passwd:x"}},
        "head": {"head": {"kind": "__class__", "start": 0}},
        "shape": {"observation": {"shape": [2**30] * 9, "dtype": "float32"}},
        "stride": {"observation": {"shape": [1, 3, 3], "dtype": "float32"}, "ops": [stride]},
        "dunder": {"ops": [{"type": "__init__", "name": "a", "inputs": []}]},
        "many-operators": {"ops": flat},
        "doubling": {"ops": wide},
    }.items():
        yield mechanism, f"artefact-{name}", {"policy.quarl": edited(lambda manifest, new=changes: manifest | new)}
    deep = b'{"format": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    yield mechanism, "artefact-deep", {"policy.quarl": edited(None, deep)}
    yield "absurd sizes", "safetensors-length", {"policy.quarl": (2**60).to_bytes(8, "little") + b"{}" + b" " * 64}
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 2**63]}}).encode()
    yield "absurd sizes", "safetensors-shape", {"policy.quarl": len(header).to_bytes(8, "little") + header}


def edited(
    edit: Callable[[dict[str, Any]], dict[str, Any]] | None,
    text: bytes = b"",
    *,
    arrays: Mapping[str, NDArray[Any]] | None = None,
    quantized: bool = False,
) -> bytes:
    """A valid artefact with its manifest edited, or replaced by `text`, and some arrays by others, checksums right."""
    found, metadata = parse(seeds.artefact(quantized=quantized))
    tensors = {name: np.frombuffer(raw, DTYPES[kind]).reshape(shape) for name, (kind, shape, raw) in found.items()}
    manifest = json.loads(metadata["manifest"])
    if arrays is not None:
        tensors |= arrays
        manifest["sha256"] = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in tensors.items()}
    if edit is not None:
        text = json.dumps(edit(manifest)).encode()
    return b"".join(pieces(tensors, {"manifest": text.decode(), "sha256": hashlib.sha256(text).hexdigest()}))
