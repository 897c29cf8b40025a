"""Where a file of an exported folder is not as it was written, as far as the others tell."""

from __future__ import annotations

import re
from pathlib import Path

from quarl.errors import QuarlError
from quarl.export import contract, golden, targets
from quarl.export.contract import CONTRACT, GOLDEN, POLICY, SUMS
from quarl.export.readme import readme
from quarl.inert.budget import read_json
from quarl.policy import artifact
from quarl.policy.graph import QuantizedPolicy


def place(folder: Path, name: str) -> str:
    """What is damaged, in a clause: the tensor, array, key or line, as far as is known."""
    content = (folder / name).read_bytes()
    try:
        policy, vectors = artifact.read(folder / POLICY), golden.read((folder / GOLDEN).read_bytes(), GOLDEN)
        full = read_json((folder / CONTRACT).read_bytes(), CONTRACT)
        if not isinstance(policy, QuantizedPolicy) or name in (POLICY, GOLDEN):
            return f"no array in it is damaged, {SUMS} may be"
        if name == CONTRACT:
            key = next(contract.differences(policy, full), None)
            return f"it is damaged in {'what the policy does not tell' if key is None else repr(key)}"
        file, target = targets.FILES[full["target"]], full["target"]
        files = targets.write(policy, target, contract.inner(full), vectors)
        written = contract.sealed(files[name]) if name in files else readme(full, file).encode()
    except (QuarlError, KeyError, TypeError, AttributeError, ValueError) as error:
        return str(error).partition(";")[0] if isinstance(error, QuarlError) else f"{CONTRACT} lacks {error}"
    if written == content:
        return f"it is whole, {SUMS} is damaged"
    first = next((at for at, (a, b) in enumerate(zip(written, content, strict=False)) if a != b), len(content))
    if name == file and target != "c":
        where = _tensor(written, first) if target == "tflite" else _name(policy, written[:first])
        return f"it is damaged at byte {first:,}, {where}"
    return f"it is damaged in line {written[:first].count(10) + 1}"


def _tensor(written: bytes, place: int) -> str:
    """The constant of a .tflite that the byte belongs to."""
    from ai_edge_litert import schema_py_generated as schema  # here, and what follows: what they are for is rare

    from quarl.engines.litert.file import DATA_SLOT

    model = schema.Model.GetRootAs(written)
    graph = model.Subgraphs(0)
    for tensor in map(graph.Tensors, range(graph.TensorsLength())):
        data = model.Buffers(tensor.Buffer())
        start = data._tab.Vector(data._tab.Offset(DATA_SLOT)) if data.DataLength() else place + 1
        if start <= place < start + data.DataLength():
            return f"in tensor {tensor.Name().decode()!r}"
    return "in its head, before all tensors"


def _name(policy: QuantizedPolicy, before: bytes) -> str:
    """What the bytes name last of the policy's operators: in .onnx files names stand before numbers."""
    names = b"|".join(re.escape(op.name.encode()) for op in policy.ops)
    last = [*re.finditer(rb"(?:%s)(?:\.[a-z]+)?" % names, before)][-1:]
    return f"behind the name {last[0][0].decode()!r}" if last else "before all names of layers"
