"""Mutations of valid files: bytes, JSON trees, pickle opcodes and zip members, with every checksum made right again."""

from __future__ import annotations

import base64
import contextlib
import copy
import hashlib
import json
import random
import struct
from collections.abc import Callable
from typing import Any

from sb3_archives import unzipped, zipped
from stress.fuzz.pickles import pickle_opcodes

Mutator = Callable[[random.Random, bytes], bytes]
NUMBERS = (0, 1, -1, 2, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**64, -(2**63), 10**30, 0.5, 1e308)
ODD_VALUES: tuple[Any, ...] = (
    *NUMBERS,
    -1e308,
    float("nan"),
    float("inf"),
    None,
    True,
    False,
    "",
    "a" * 300,
    "\n\x1b[31m\x00é\ud7ff",
    "../../canary",
    "__import__('os').system('true')",
    "NaN",
    [],
    {},
    [[]],
    [None] * 40,
    {"": {}},
)
DEEP = (b"[" * 3000, b"{'a':" * 500, b"(" * 3000, b"]" * 64)


def any_bytes(rng: random.Random, data: bytes) -> bytes:
    """One to eight changes that know nothing of the format."""
    out = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        if not out:
            return bytes(rng.randbytes(8))
        at = rng.randrange(len(out))
        match rng.randrange(9):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at] = rng.randrange(256)
            case 2:
                out[at : at + rng.randrange(1, 9)] = b""
            case 3:
                out[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 4:
                del out[at:]
            case 5:  # a length or an offset becomes an absurd one
                form = rng.choice(["<B", "<H", "<I", "<Q", ">I"])
                size = struct.calcsize(form)
                top = 2 ** (8 * size)
                value = rng.choice((0, 1, top - 1, top // 2, top // 2 - 1, rng.randrange(top)))
                out[at : at + size] = struct.pack(form, value)
            case 6:
                start = rng.randrange(len(out))
                out[at:at] = out[start : start + rng.randrange(1, 65)]
            case 7:
                start = rng.randrange(len(out))
                chunk = bytes(out[start : start + rng.randrange(1, 65)])
                out[at : at + len(chunk)] = chunk
            case 8:
                out[at:at] = rng.choice(DEEP) if rng.random() < 0.1 else b"%d" % rng.getrandbits(rng.randrange(1, 80))
    return bytes(out)


def json_tree(rng: random.Random, data: bytes) -> bytes:
    """The document with one to three values replaced, moved, removed or renamed; pickles in it are mutated as such."""
    document = json.loads(data)
    for _ in range(rng.randrange(1, 4)):
        places = list(_places(document))
        if not places:
            break
        parent, key = rng.choice(places)
        value = parent[key]
        if isinstance(value, str) and key == ":serialized:" and rng.random() < 0.8:
            with contextlib.suppress(ValueError):  # it may have been replaced before
                parent[key] = base64.b64encode(pickle_opcodes(rng, base64.b64decode(value))).decode()
            continue
        match rng.randrange(6):
            case 0 | 1:
                parent[key] = copy.deepcopy(rng.choice(ODD_VALUES))  # or the next input would begin with its changes
            case 2:
                other, name = rng.choice(places)
                parent[key] = json.loads(json.dumps(other[name]))
            case 3:
                del parent[key]
            case 4 if isinstance(parent, dict):
                parent[str(rng.choice(ODD_VALUES)) if rng.random() < 0.5 else f"{key}x"] = parent.pop(key)
            case 4:
                parent.insert(key, json.loads(json.dumps(parent[key])))
            case 5 if isinstance(value, int | float):
                parent[key] = rng.choice((value + 1, -value, value * 2, 0, rng.choice(NUMBERS)))
            case 5:
                parent[key] = _nested(rng.choice((20, 200)))
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _places(node: Any) -> Any:
    """Every (container, key) of a tree."""
    stack = [node]
    while stack:
        here = stack.pop()
        items = here.items() if isinstance(here, dict) else enumerate(here) if isinstance(here, list) else ()
        for key, child in items:
            yield here, key
            stack.append(child)


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def npy_header(rng: random.Random, data: bytes) -> bytes:
    """The .npy file with its header or its numbers changed and the header's length made right."""
    if data[:6] != b"\x93NUMPY" or rng.random() < 0.3:
        return any_bytes(rng, data)
    length = int.from_bytes(data[8:10], "little")
    header, numbers = data[10 : 10 + length], data[10 + length :]
    descr = rng.choice((b"|O", b"<f8", b"<f2", b">f4", b"<c8", b"|b1", b"<U4", b"|V8", b"<i8", b"f"))
    shape = b"(%s)" % b", ".join(b"%d" % abs(int(rng.choice(NUMBERS[:14]))) for _ in range(rng.randrange(4)))
    match rng.randrange(5):
        case 0:
            header = header.replace(b"<f4", descr).replace(b"<f8", descr)
        case 1:
            start = header.index(b"(")
            header = header[:start] + shape + header[header.index(b")") + 1 :]
        case 2:
            header = header.replace(b"False", rng.choice((b"True", b"None", b"1", b"__import__('os')")))
        case 3:
            header = any_bytes(rng, header)
        case 4:
            numbers = any_bytes(rng, numbers) if numbers else b"\0"
    return data[:8] + min(len(header), 65535).to_bytes(2, "little") + header + numbers


def member(rng: random.Random, data: bytes) -> bytes:
    """The zip with one member changed by its own kind's mutator, or the set of members changed; CRCs are right."""
    members = unzipped(data)
    name = rng.choice(list(members))
    match rng.randrange(12):
        case 0:
            del members[name]
        case 1:
            members[rng.choice(("data", "parameters", "policy.pth", f"{name}x", "a/../../b", "x" * 300))] = members[
                name
            ]
        case _:
            members[name] = _by_kind(members[name])(rng, members[name])
    return zipped(members)


def _by_kind(data: bytes) -> Mutator:
    if data.startswith(b"PK"):
        return member
    if data.startswith(b"\x93NUMPY"):
        return npy_header
    if data[:1] in (b"{", b"["):
        return json_tree
    return pickle_opcodes if data.startswith(b"\x80") else any_bytes


def safetensors(rng: random.Random, data: bytes) -> bytes:
    """The artefact with manifest, header or numbers changed; every sha256 and length is made right."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    numbers = data[8 + length :]
    kind = rng.randrange(4)
    text = header["__metadata__"]["manifest"]
    if kind == 0:
        numbers = any_bytes(rng, numbers)[: len(numbers)].ljust(len(numbers), b"\0")
    if kind in (1, 2):
        text = json_tree(rng, text.encode()).decode("utf-8", "replace")
    if kind == 3:
        tensor = rng.choice([name for name in header if name != "__metadata__"])
        entry = header[tensor]
        match rng.randrange(3):
            case 0:
                entry["dtype"] = rng.choice(("F64", "F32", "F16", "BF16", "I32", "U8", "I64", "BOOL", "F8_E4M3", "C64"))
            case 1:
                entry["shape"] = [abs(int(rng.choice(NUMBERS[:8]))) for _ in range(rng.randrange(4))]
            case 2:
                entry["data_offsets"] = [abs(int(rng.choice(NUMBERS[:12]))) for _ in range(2)]
    manifest = json.loads(text)
    if isinstance(manifest, dict) and isinstance(manifest.get("sha256"), dict):
        for tensor, entry in header.items():
            if tensor != "__metadata__" and tensor in manifest["sha256"]:
                start, end = entry["data_offsets"]
                manifest["sha256"][tensor] = hashlib.sha256(numbers[start:end]).hexdigest()
    text = json.dumps(manifest)
    header["__metadata__"] = {"manifest": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded + numbers


YAML_PIECES = (
    b"!!python/object/apply:os.system ['true']",
    b"!!python/object/new:os.system ['true']",
    b"!!python/name:os.system",
    b"!!python/module:os",
    b"!!python/tuple [1, 2]",
    b"!!binary AAAA",
    b"!!timestamp 2001-01-01",
    b"!!set {a, b}",
    b"!!float .inf",
    b"&a [*a]",
    b"<<: *a",
    b"? [a]\n: b\n",
    b"{a: 1, a: 2}",
    b"%YAML 9.9\n---\n",
    b"--- a\n--- b\n",
    b"0x" + b"f" * 40,
    b"1:2:3:4:5.6",
    b"\xff\xfe",
    b"'''",
    b"|\n  x\n",
)


def yaml_text(rng: random.Random, data: bytes) -> bytes:
    """The document with lines removed, repeated or exchanged, or a YAML construct put in."""
    lines = data.split(b"\n")
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, rng.choice(lines))
            case 2:
                cut = rng.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:cut] + rng.choice(YAML_PIECES) + lines[at][cut:]
            case 3:
                key, _, _ = lines[at].rpartition(b" ")
                lines[at] = key + b" " + rng.choice((*YAML_PIECES, b"%s" % str(rng.choice(ODD_VALUES)).encode()))
            case 4:
                lines[at] = b"  " * rng.randrange(3) + lines[at].strip()
        if not lines:
            return b""
    return b"\n".join(lines)
