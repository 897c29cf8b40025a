"""Costly files: small ones that ask for much work or memory, by kind, with random sizes in random places.

Each kind makes a file in a folder, whose path is what a user would name. What is asked for is drawn from a range that
begins where real files are and ends where no machine would come to an end.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import random
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from quarl import checkpoint_file
from quarl.runs import checkpoint
from sb3_archives import saved, unzipped, zipped
from stress.fuzz import foreign as other
from stress.fuzz import mutate, seeds
from stress.fuzz.pickles import Call, Name, pickled
from stress.fuzz.seeds import ENV
from stress.hostile.sizes import edited

Generator = Callable[[random.Random, Path], Path]


def size(rng: random.Random, least: float, most: float) -> int:
    """A number whose logarithm is anything between the two's."""
    return int(least * (most / least) ** rng.random())


def put(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def deflated(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def operators(rng: random.Random, folder: Path) -> Path:
    """A graph of doubling, repeated, chained or idle operators."""
    count, name = size(rng, 2, 30_000), "observation"
    chosen = rng.choice(("Concat", "Activation", "Flatten", "Add", "mixed"))
    entries: list[dict[str, Any]] = []
    for number in range(min(count, 40) if chosen in ("Concat", "Add") else count):
        kind = rng.choice(("Concat", "Activation", "Flatten", "Add")) if chosen == "mixed" else chosen
        inputs = [name] * {"Concat": rng.randrange(1, 4), "Add": 2}.get(kind, 1)
        extra = {"kind": rng.choice(("relu", "tanh"))} if kind == "Activation" else {}
        entries.append({"type": kind, "name": f"o{number}", "inputs": inputs, **extra})
        name = f"o{number}" if rng.random() < 0.95 else name
    idle = rng.random() < 0.5  # behind them the real network, which reads none of them

    def edit(manifest: dict[str, Any]) -> dict[str, Any]:
        own = [*entries, *manifest["ops"]] if idle else [*manifest["ops"], *entries]
        if not idle and entries:
            own[len(manifest["ops"])]["inputs"] = [manifest["ops"][-1]["name"]] * len(entries[0]["inputs"])
        return {**manifest, "ops": own}

    return put(folder, "policy.quarl", edited(edit))


def images(rng: random.Random, folder: Path) -> Path:
    """Convolutions whose images, margins, strides or filters are large."""
    shape = [size(rng, 1, 8), size(rng, 8, 4000), size(rng, 8, 4000)]
    kernel = min(size(rng, 1, 99), *shape[1:])
    arrays = {
        "a/weight": np.ones((size(rng, 1, 64), shape[0], kernel, kernel), np.float32),
        "b/weight": np.ones((2, size(rng, 1, 9999)), np.float32),
    }
    arrays |= {"a/bias": np.zeros(len(arrays["a/weight"]), np.float32), "b/bias": np.zeros(2, np.float32)}
    stride, padding = [size(rng, 1, 9)] * 2, [size(rng, 1, 2**20) - 1] * 2
    ops = [
        {"type": "Conv2d", "name": "a", "inputs": ["observation"], "stride": stride, "padding": padding},
        {"type": "Flatten", "name": "f", "inputs": ["a"]},
        {"type": "Dense", "name": "b", "inputs": ["f"]},
    ]
    positions = [(n + 2 * padding[0] - kernel) // stride[0] + 1 for n in shape[1:]]
    width = len(arrays["a/weight"]) * positions[0] * positions[1]
    if width < 10_000:  # as it must be for the layer behind it
        arrays["b/weight"] = np.ones((2, width), np.float32)
    changes = {"ops": ops, "observation": {"shape": shape, "dtype": "uint8"}}
    return put(folder, "policy.quarl", edited(lambda manifest: manifest | changes, arrays=arrays))


def json_values(rng: random.Random, folder: Path) -> Path:
    """JSON of many, long or deep values, in the data of a zip that packs it to little, or in a header."""
    units = (b"[],", b"{},", b'"",', b"1,", b"1e9,", b"null,", b'{"a":[]},', b"[[[]]],", b'"\\u00e9",')
    unit = b"".join(rng.choices(rng.sample(units, rng.randrange(1, 4)), k=20_000))  # beyond what deflate looks back
    length = size(rng, 1000, 1.6e8)
    body = b'{"a": [' + unit * (length // len(unit)) + unit[: unit.rfind(b",", 0, length) + 1] + b"0]}"
    if rng.random() < 0.2:
        body = rng.choice((b"[", b'{"a":')) * size(rng, 100, 2e6)
    elif rng.random() < 0.1:
        body = b'{"a": ' + b"9" * size(rng, 100, 1e7) + b"}"
    match rng.randrange(4):
        case 0:
            return put(folder, "agent.zip", deflated({"data": body, "policy.pth": seeds.sb3_weights()}))
        case 1:
            members = {**unzipped(seeds.sb2_zip("ppo2")), "data": body}
            return put(folder, "agent.zip", deflated(members))
        case 2:
            header = body[: size(rng, 100, 2e7)]
            return put(folder, "m.safetensors", len(header).to_bytes(8, "little") + header)
    return put(folder, "policy.quarl", edited(None, body[: size(rng, 100, 2e7)]))


def _scalar(dtype: str, value: Any) -> bytes:
    """A numpy scalar, spelt with as few operations as can be once its parts are remembered."""
    raw = np.array(value, dtype).tobytes()
    return b"h\x00h\x01C" + bytes([len(raw)]) + raw + b"\x86R"


def keys(rng: random.Random, folder: Path) -> Path:
    """Dicts and sets whose keys have one hash, or hashes that take for ever, in every pickle that is read."""
    count, kind = size(rng, 10, 40_000), rng.randrange(5)
    order = {0: 1000003, 1: 2**61 - 1}.get(kind, 1)
    dtype = rng.choice(("<c16", "<c8", "<f8"))
    spelt = bytes([len(dtype), 0, 0, 0]) + dtype.encode()
    head = b"cnumpy.core.multiarray\nscalar\nq\x00cnumpy\ndtype\nX" + spelt + b"\x85Rq\x010"
    items = {
        0: lambda n: _scalar(dtype, complex(-order * n, n) if dtype != "<f8" else float(n * 2**61)),
        1: lambda n: b"\x8a\x10" + (n * order).to_bytes(16, "little"),
        2: lambda n: b"G" + np.array(float(n) * 2.0**61, ">f8").tobytes(),
        3: lambda n: b"K\x01K\x02\x86" if n % 2 else b")",
        4: lambda n: b"X\x04\x00\x00\x00%04x" % (n % 65536),
    }[kind]
    pairs = b"".join(items(n) + b"K\x01" for n in range(1, count + 1))
    data = b"\x80\x03" + head + b"}(" + pairs + b"u."
    if rng.random() < 0.2:  # tuples of tuples
        data = b"\x80\x02)q\x00" + b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(100)) + b"}h\x64K\x01s."
    return _in_some_reader(rng, folder, data)


def _in_some_reader(rng: random.Random, folder: Path, data: bytes) -> Path:
    """The pickle where one is read: an old agent, statistics, an entry of a zip's data, PyTorch's weights."""
    blob = {":type:": "x", ":serialized:": base64.b64encode(data).decode()}
    match rng.randrange(5):
        case 0:
            return put(folder, f"{ENV}.pkl", data)
        case 1:
            for name, content in seeds.zoo_run(vecnormalize__pkl=data).items():
                put(folder, name, content)
            return folder / f"{ENV}_1"
        case 2:
            entries = dict.fromkeys(("observation_space", "action_space"), blob)
            return put(folder, "agent.zip", seeds.sb3_agent({**seeds.sb3_data(), **entries}))
        case 3:
            attributes = {f"a{n}": blob for n in range(size(rng, 1, 30))}
            own = json.loads(unzipped(seeds.sb2_zip("ppo2"))["data"])
            members = {**unzipped(seeds.sb2_zip("ppo2")), "data": json.dumps({**own, **attributes}).encode()}
            return put(folder, "agent.zip", deflated(members))
    members = unzipped(other.torch_files()[0])
    name = next(name for name in members if name.endswith("data.pkl"))
    return put(folder, "m.pt", zipped({**members, name: data}))


def operations(rng: random.Random, folder: Path) -> Path:
    """Pickles of many operations, deep nests, long numbers, or one value many times."""
    count = size(rng, 1000, 3e6)
    laughs = b"]q\x00" + b"".join(b"](" + b"h%c" % n * 16 + b"eq%c" % (n + 1) for n in range(rng.randrange(1, 60)))
    data = rng.choice(
        (
            b"N0" * count + b"N",
            b"]" * count + b"a" * (count - 1),
            b"(" * count + b"l" * count,
            b")" + b"\x85" * count,
            b"}q\x00" + b"h\x00" * count,
            b"\x8b" + count.to_bytes(4, "little") + b"\x7f" * count,
            b"I" + b"9" * min(count, 10**6) + b"\n",
            b"X" + count.to_bytes(4, "little") + b"a" * count + b"q\x00" + b"h\x000" * min(count, 10**5),
            laughs,
        )
    )
    return _in_some_reader(rng, folder, b"\x80\x02" + data + b".")


def sparse(rng: random.Random, folder: Path) -> Path:
    """A file of zeros, up to 20 GB, that takes no room on the disk, behind a valid beginning or none."""
    length = size(rng, 2**20, 2e10)
    kind, width = rng.choice((("F32", 4), ("F16", 2), ("F8_E4M3", 1), ("I64", 8)))
    columns = size(rng, 1, 2**14)
    shape = [length // (columns * width) + 1, columns]
    length = shape[0] * columns * width
    header = json.dumps({"a.weight": {"dtype": kind, "shape": shape, "data_offsets": [0, length]}}).encode()
    length += 8 + len(header)
    begin = {
        "m.safetensors": len(header).to_bytes(8, "little") + header,
        "policy.quarl": seeds.artefact(quantized=False),
        "m.onnx": other.onnx_files()[0],
        "m.pt": other.torch_files()[0],
        "agent.zip": seeds.sb3_agent(),
        f"{ENV}.pkl": seeds.sb2_pickle("ppo2"),
    }
    chosen = rng.choice(list(begin))
    path = put(folder, chosen, begin[chosen])
    with path.open("r+b") as file:
        file.truncate(max(length, len(begin[chosen])))
    return path


def names(rng: random.Random, folder: Path) -> Path:
    """Layers whose names are long, or would be obeyed by a terminal, a table or a page."""
    piece = rng.choice(("a", "é", "層", "\x1b[31m", "</td><script>", "$x^{$", "|", "[red]", "\n", "\u202e", "x" * 999))
    name = (piece * size(rng, 1, 1e5))[:100_000]
    tensors = {f"{name}.weight": torch.ones(2, 3), f"{name}.bias": torch.zeros(2)}
    match rng.randrange(3):
        case 0:
            return put(folder, "m.pt", saved(tensors))
        case 1:
            import safetensors.torch  # here: only this kind needs it

            return put(folder, "m.safetensors", safetensors.torch.save(tensors))
    return put(folder, "m.onnx", _onnx(name, 1))


def _onnx(name: str, count: int) -> bytes:
    """A graph of products with one weight."""
    weight = numpy_helper.from_array(np.ones((3, 3), np.float32), name)
    nodes = [helper.make_node("MatMul", [f"v{n}", name], [f"v{n + 1}"]) for n in range(count)]
    ends = [helper.make_tensor_value_info(f"v{n}", onnx.TensorProto.FLOAT, None) for n in (0, count)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    return helper.make_model(graph).SerializeToString()


def numbers(rng: random.Random, folder: Path) -> Path:
    """Numbers that no network has: in operators, heads, statistics, ranges and weights."""
    odd = rng.choice((float("nan"), float("inf"), -5.0, -1e-30, 0.0, 1e-45, 3e38, 1e308, 2**4000, -(2**63), 10**30))
    odd32 = np.float32(np.clip(float(odd) if abs(odd) < 1e300 else np.inf, -3e38, np.inf))

    def edit(manifest: dict[str, Any]) -> dict[str, Any]:
        for op in rng.sample(manifest["ops"], 2):
            for field in ("epsilon", "clip"):
                if field in op:
                    op[field] = odd
        wrappers = [["gymnasium.wrappers.TimeLimit", {"max_episode_steps": odd}]] if rng.random() < 0.3 else []
        manifest["provenance"] |= {"env_kwargs": {"x": odd}, "wrappers": wrappers}
        return manifest

    arrays = {f"a/{part}": np.full((4, 3) if part == "weight" else 4, odd32) for part in ("weight", "bias")}
    attributes = seeds.sb2_data("ddpg") | {"observation_range": (-odd, odd)}
    state = {"a.weight": torch.full((2, 3), float(odd32)), "a.bias": torch.full((2,), float(odd32))}
    match rng.randrange(6):
        case 0:
            return put(folder, "policy.quarl", edited(edit))
        case 1:
            return put(folder, "policy.quarl", edited(lambda manifest: manifest, arrays=arrays))
        case 2:
            return put(folder, f"{ENV}.pkl", pickled((attributes, list(seeds.sb2_arrays("ddpg").values()))))
        case 3:
            return put(folder, "m.pt", saved(state))
        case 4:
            grids = {"observation": [odd, 0, 8], "a": [0.1, odd, 8]}
            return put(folder, "policy.quarl", edited(lambda manifest: manifest | {"grids": grids}, quantized=True))
    changed = rng.choice(("clip_obs", "epsilon", "obs_rms"))
    value = (
        odd if changed != "obs_rms" else Call(Name("x", "RunningMeanStd"), (), {"mean": odd, "var": odd}, pickle.NEWOBJ)
    )
    for name, data in seeds.zoo_run(vecnormalize__pkl=pickled(seeds.vecnormalize(**{changed: value}))).items():
        put(folder, name, data)
    return folder / f"{ENV}_1"


def tensors(rng: random.Random, folder: Path) -> Path:
    """PyTorch tensors of odd types, layouts and classes, and parameters with a state of their own."""
    parameter = torch.nn.Parameter(torch.ones(2, 3))
    for name in ("detach", "numel", "shape", "numpy", "is_quantized"):
        setattr(parameter, f"x_{name}", 1)
    dense = torch.ones(rng.randrange(4), rng.randrange(4))
    kinds = [torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.complex64, torch.uint16, torch.float8_e5m2]
    small = [getattr(torch, name) for name in ("float4_e2m1fn_x2", "float8_e8m0fnu") if hasattr(torch, name)]
    packed = torch.ones(2, 4, dtype=torch.uint8)
    value = rng.choice(
        (
            parameter,
            dense.to(rng.choice(kinds)),
            packed.view(rng.choice([*small, torch.uint8])),
            torch.ones(1, 1).expand(size(rng, 2, 2**31), size(rng, 2, 2**31)),
            dense.to_sparse(),
            torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8),
            torch.ones(2, 3, device="meta"),
            torch.ones(3, 2).t()[:, 1:],
            {"weight": [dense] * 3},
        )
    )
    # PyTorch's own reader would set these names, and call them afterwards
    shadowed = {b"\x08\0\0\0x_detach": b"\x06\0\0\0detach", b"\x07\0\0\0x_numel": b"\x05\0\0\0numel"}
    members = unzipped(saved({"a.weight": value, "a.bias": torch.zeros(2)}))
    for name, raw in members.items() if rng.random() < 0.8 else ():
        for before, after in shadowed.items():
            raw = raw.replace(before, after)
        members[name] = raw
    return put(folder, "m.pt", zipped(members))


def parts(rng: random.Random, folder: Path) -> Path:
    """Many members, nodes, fields, operators or entries, each small."""
    count = size(rng, 100, 2e5)
    match rng.randrange(4):
        case 0:
            arrays = {f"model/a{n}/w:0.npy": seeds.npy(np.ones((2, 2), np.float32)) for n in range(min(count, 9000))}
            return put(folder, "agent.zip", zipped({**unzipped(seeds.sb2_zip("a2c")), "parameters": zipped(arrays)}))
        case 1:
            return put(folder, "m.onnx", _onnx("w", min(count, 50_000)))
        case 2:
            header = {f"t{n}.weight": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]} for n in range(count)}
            text = json.dumps(header).encode()
            return put(folder, "m.safetensors", len(text).to_bytes(8, "little") + text + bytes(4))
    state = {f"layer{n}.weight": torch.ones(1, 1) for n in range(min(count, 9000))}
    return put(folder, "m.pt", saved(state))


def configurations(rng: random.Random, folder: Path) -> Path:
    """YAML of aliases, merges, nests and long numbers, as an agent's config.yml or args.yml."""
    count = size(rng, 3, 60_000)
    wide = rng.randrange(2, 12)
    aliases = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * wide)}]\n" for n in range(1, min(count, 60)))
    text = rng.choice(
        (
            f"a0: &a0 [x]\n{aliases}",
            "a0: &a0 {x: 1}\n"
            + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}, b{n}: 1}}\n" for n in range(1, min(count, 900))),
            "[" * count,
            "{a: " * count,
            "a: [" + "[]," * min(count, 20_000) + "]",
            "a: 1" + ":59" * min(count, 20_000),
            "normalize: " + "9" * count,
            'normalize: "' + "(" * count + '"',
            "".join("  " * n + "a:\n" for n in range(min(count, 300))),
            "env_kwargs: {" + "".join(f"k{n}: .nan, " for n in range(min(count, 4000))) + "}",
            "frame_stack: " + str(count),
        )
    )
    other_file = {"args__yml": text.encode()} if rng.random() < 0.5 else {}
    config = b"normalize: false\n" if other_file else text.encode()
    for name, data in seeds.zoo_run(config, **other_file).items():
        put(folder, name, data)
    return folder / f"{ENV}_1"


def checkpoints(rng: random.Random, folder: Path) -> Path:
    """A learner's checkpoint with right checksums whose facts are changed, missing, or too many."""
    path = checkpoint.save(folder, seeds.learner(), {"clock_s": 0.0})
    manifest, arrays = checkpoint_file.read(path)
    facts = {name: manifest[name] for name in ("updates", "replay", "model", "state")}
    if rng.random() < 0.2:
        facts["state"] = {"a": [[]] * size(rng, 10, 1e6)}
    kept = {name: array.copy() for name, array in arrays.items() if rng.random() < 0.98}
    checkpoint_file.write(path, json.loads(mutate.json_tree(rng, json.dumps(facts).encode())), kept)
    return path


KINDS: Mapping[str, Generator] = {
    "operators": operators,
    "images": images,
    "json-values": json_values,
    "colliding-keys": keys,
    "pickle-operations": operations,
    "sparse-files": sparse,
    "names": names,
    "numbers": numbers,
    "tensors": tensors,
    "parts": parts,
    "configurations": configurations,
    "checkpoints": checkpoints,
}
