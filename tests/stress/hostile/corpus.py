"""Malicious model files: each tries to write a canary file, to eat the machine, or to leave its folder.

    python -m stress.hostile.corpus FOLDER          # writes the corpus there
    python -m stress.hostile.corpus FOLDER --load   # and reads every file, one JSON line each

The canary is FOLDER/canary; nothing that is read may create it.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import os
import resource
import stat
import time
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from quarl.errors import QuarlError
from quarl.readers import weights_only
from quarl.readers.load import read as load_policy
from sb3_archives import unzipped, zipped
from stress.fuzz import seeds
from stress.fuzz.campaign import outcome
from stress.fuzz.pickles import pickled
from stress.fuzz.seeds import ENV, sb3_agent, zoo_run
from stress.hostile import foreign, kinds, sizes
from stress.hostile.pickles import payloads, system

MEMORY = 2**31
"""Bytes of address space that reading may take beyond what the process starts with."""
Row = tuple[str, str, Mapping[str, bytes | Path | int]]


@dataclass(frozen=True)
class Case:
    """One malicious file or folder."""

    name: str
    mechanism: str
    path: Path
    """What a user would hand to `quarl.load`."""


def build(folder: Path, canary: Path) -> list[Case]:
    """The corpus, written under `folder`; any case that is executed creates the file `canary`."""
    cases = []
    for mechanism, name, files in _rows(canary):
        root = folder / name
        for relative, data in files.items():
            path = root / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(data, Path):
                path.symlink_to(data)
            elif data == -1:
                os.mkfifo(path)
            else:
                path.write_bytes(data if isinstance(data, bytes) else b"")
                os.truncate(path, len(data) if isinstance(data, bytes) else data)
        # a zoo run is handed over as its folder, as its user would do it
        cases.append(Case(name, mechanism, root / Path(next(iter(files))).parts[0]))
    return cases


def load(case: Case, canary: Path) -> dict[str, object]:
    """Outcome ("clean", "refused" or a failure), processor seconds, whether the canary is there, peak memory."""
    start = time.process_time()
    end = outcome(lambda: _read(case.path))
    seconds = round(time.process_time() - start, 3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {
        "name": case.name,
        "mechanism": case.mechanism,
        "path": str(case.path),
        "outcome": end,
        "seconds": seconds,
        "canary": canary.exists(),
        "peak_mb": peak,
    }


def _read(path: Path) -> object:
    """Its policy, or its weights where it is of a kind that holds no policy."""
    kind = weights_only.recognize(path)
    if kind == "onnx" or path.name == "model.pt":
        with contextlib.suppress(QuarlError):
            weights_only.read_weights(path, kind)
        return load_policy(path)
    return weights_only.read_weights(path, kind) if kind else load_policy(path)


def _rows(canary: Path) -> Iterator[Row]:
    """(mechanism, name, files by relative path, the model first).

    A file is its bytes, the target of a link, or the size of holes; -1 is a FIFO.
    """
    yield from _data(canary)
    yield from _torch(canary)
    yield from _statistics(canary)
    yield from _old(canary)
    yield from _yaml(canary)
    yield from _arrays(canary)
    yield from _archives(canary)
    yield from sizes.rows(canary)
    yield from foreign.rows(canary)
    yield from kinds.rows(canary)


def _blob(payload: bytes) -> dict[str, str]:
    return {":type:": "<class 'function'>", ":serialized:": base64.b64encode(payload).decode()}


def _sb2_zip(**replaced: bytes) -> bytes:
    return zipped(unzipped(seeds.sb2_zip("ppo2")) | replaced)


def _data(canary: Path) -> Iterator[Row]:
    mechanism = "pickle in the zip's data"
    armed = payloads(canary)
    for key, kind in (
        ("observation_space", "reduce"),
        ("action_space", "build"),
        ("policy_kwargs", "exec"),
        ("lr_schedule", "code-object"),
        ("policy_class", "stack-global"),
    ):
        entry = {"__module__": "stable_baselines3.common.policies", **_blob(armed[kind])}
        yield mechanism, f"data-{key}", {"agent.zip": sb3_agent({**seeds.sb3_data(), key: entry})}
    kwargs = {"activation_fn": f"dict(x=__import__('os').system('touch {canary}'))"}
    yield "code as text", "policy-kwargs-code", {"agent.zip": sb3_agent({**seeds.sb3_data(), "policy_kwargs": kwargs})}
    old = json.loads(unzipped(seeds.sb2_zip("ppo2"))["data"])
    old["cliprange"] = _blob(armed["partial"])
    yield mechanism, "sb2-zip-data", {"agent.zip": _sb2_zip(data=json.dumps(old).encode())}


def _torch(canary: Path) -> Iterator[Row]:
    mechanism = "pickle of PyTorch"
    armed = payloads(canary)
    weights = unzipped(seeds.sb3_weights())
    pickle_member = next(name for name in weights if name.endswith("data.pkl"))
    for kind in ("reduce-protocol-2", "getattr", "newobj", "runstring"):
        infected = zipped({**weights, pickle_member: armed[kind]})
        yield mechanism, f"policy-pth-{kind}", {"agent.zip": sb3_agent(policy__pth=infected)}
    bare = armed["reduce-protocol-2"]
    yield mechanism, "policy-pth-bare", {"agent.zip": sb3_agent(policy__pth=bare)}
    infected = sb3_agent(policy__optimizer__pth=zipped({**weights, pickle_member: bare}), pytorch_variables__pth=bare)
    yield mechanism, "optimizer-pth", {"agent.zip": infected}


def _statistics(canary: Path) -> Iterator[Row]:
    for kind, payload in payloads(canary).items():
        yield "pickle of statistics", f"vecnormalize-{kind}", zoo_run(vecnormalize__pkl=payload)
    hidden = pickled(seeds.vecnormalize(obs_rms=system(canary)))
    yield "pickle of statistics", "vecnormalize-inside", zoo_run(vecnormalize__pkl=hidden)
    harmless = pickled(seeds.vecnormalize(venv=system(canary)))
    yield "pickle of statistics", "vecnormalize-beside", zoo_run(vecnormalize__pkl=harmless)
    old = {f"{ENV}.pkl": seeds.sb2_pickle("ppo2"), f"{ENV}/obs_rms.pkl": payloads(canary)["build"]}
    yield "pickle of statistics", "obs-rms", old


def _old(canary: Path) -> Iterator[Row]:
    mechanism = "pickle of Stable-Baselines 2"
    for kind, payload in payloads(canary).items():
        yield mechanism, f"sb2-{kind}", {f"{ENV}.pkl": payload}
    data, arrays = seeds.sb2_data("a2c"), list(seeds.sb2_arrays("a2c").values())
    yield mechanism, "sb2-attribute", {f"{ENV}.pkl": pickled(({**data, "lr_schedule": system(canary)}, arrays))}
    yield mechanism, "sb2-parameter", {f"{ENV}.pkl": pickled((data, [system(canary), *arrays[1:]]))}
    yield mechanism, "sb2-policy", {f"{ENV}.pkl": pickled(({**data, "policy": system(canary)}, arrays))}


def _yaml(canary: Path) -> Iterator[Row]:
    command = f"'touch {canary}'"
    documents = {
        "apply": f"normalize: !!python/object/apply:os.system [{command}]\n",
        "apply-whole": f"!!python/object/apply:subprocess.check_call [[touch, {canary}]]\n",
        "new": f"a: !!python/object/new:os.system [{command}]\n",
        "new-state": "a: !!python/object/new:type\n  args: [z, !!python/tuple [], {extend: !!python/name:exec }]\n"
        f"  listitems: \"open('{canary}', 'w')\"\n",
        "name": "env_wrapper: !!python/name:os.system\n",
        "module": "a: !!python/module:os\n",
        "ordered-dict": "!!python/object/apply:collections.OrderedDict\n"
        f"- - [a, !!python/object/apply:os.system [{command}]]\n",
    }
    for name, text in documents.items():
        yield "YAML tag", f"config-{name}", zoo_run(text.encode())
    yield "YAML tag", "args-apply", zoo_run(b"normalize: false\n", args__yml=documents["apply"].encode())
    code = f"dict(norm_obs=__import__('os').system({command}))"
    yield "code as text", "config-normalize-code", zoo_run(f'normalize: "{code}"\n'.encode())
    yield "code as text", "config-normalize-lambda", zoo_run(f'normalize: "(lambda: {code})()"\n'.encode())
    yield "code as text", "config-wrapper", zoo_run(b"env_wrapper:\n- os.system: {command: 'touch canary'}\n")


def _arrays(canary: Path) -> Iterator[Row]:
    mechanism = "array files"
    payload = payloads(canary)["reduce"]
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    code = b"{'descr': '<f4', 'fortran_order': __import__('os').system('touch x'), 'shape': (1,), }"
    huge = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 1048576), }"
    deep = b"{'descr': " + b"[" * 5000 + b"]" * 5000 + b", 'fortran_order': False, 'shape': (1,), }"
    for name, text in (("objects", header), ("code", code), ("huge-shape", huge), ("deep-header", deep)):
        array = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + payload
        yield mechanism, f"npy-{name}", {"agent.zip": _sb2_zip(parameters=zipped({"model/pi/w:0.npy": array}))}
    long = b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + header
    yield mechanism, "npy-long-header", {"agent.zip": _sb2_zip(parameters=zipped({"model/pi/w:0.npy": long}))}
    yield mechanism, "npz-is-a-pickle", {"agent.zip": _sb2_zip(parameters=payload)}


def _archives(canary: Path) -> Iterator[Row]:
    slip = {"../../canary": b"x", str(canary): b"x", "..\\..\\canary": b"x", "C:/canary": b"x"}
    for number, (name, data) in enumerate(slip.items()):
        yield "zip member names", f"zip-slip-{number}", {"agent.zip": _with_member(name, data)}
    link = zipfile.ZipInfo("data")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(link, b"/etc/passwd")
        archive.writestr("policy.pth", seeds.sb3_weights())
    yield "zip member names", "symlink-member", {"agent.zip": buffer.getvalue()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile knows that this is odd
        archive.writestr("data", json.dumps(seeds.sb3_data()))
        archive.writestr("policy.pth", seeds.sb3_weights())
        archive.writestr("policy.pth", payloads(canary)["reduce"])
    yield "zip member names", "duplicate-members", {"agent.zip": buffer.getvalue()}
    members = {"data": b"[" + b" " * 2**25 + b"]", "policy.pth": seeds.sb3_weights()}
    yield "decompression bomb", "zip-bomb", {"agent.zip": zipped(members, zipfile.ZIP_DEFLATED)}
    weights = zipped({"archive/data.pkl": pickled({}, 2), "archive/data/0": b"\0" * 2**25}, zipfile.ZIP_DEFLATED)
    yield "decompression bomb", "torch-bomb", {"agent.zip": sb3_agent(policy__pth=weights)}
    lying = bytearray(sb3_agent())
    at = lying.rindex(b"PK\x01\x02")
    lying[at + 20 : at + 28] = b"\xfe\xff\xff\xff" * 2  # packed and unpacked size in the directory
    yield "absurd sizes", "zip-sizes", {"agent.zip": bytes(lying)}
    yield "absurd sizes", "zip-many-members", {"agent.zip": zipped({f"m{n}": b"" for n in range(5_000)})}


def _with_member(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO(sb3_agent())
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


def main() -> None:
    """Writes the corpus; with --load also reads it, in bounded memory."""
    cli = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    cli.add_argument("folder", type=Path)
    cli.add_argument("--load", action="store_true", help="read every case and print what came of it")
    args = cli.parse_args()
    canary = args.folder.resolve() / "canary"
    cases = build(args.folder.resolve(), canary)
    if not args.load:
        print(f"{len(cases)} cases of {len({case.mechanism for case in cases})} mechanisms in {args.folder}")
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for case in cases:
            print(json.dumps(load(case, canary)), flush=True)


if __name__ == "__main__":
    main()
