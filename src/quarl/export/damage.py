"""Location of the damage in a file of an exported folder, as far as the other files reveal it."""

from __future__ import annotations

from pathlib import Path

from quarl.errors import QuarlError
from quarl.export import contract, golden, targets
from quarl.export.contract import CONTRACT, GOLDEN, POLICY, SUMS
from quarl.export.readme import readme
from quarl.inert.reading_budget import read_json
from quarl.policy import artifact
from quarl.policy.graph import QuantizedPolicy


def place(folder: Path, name: str) -> str:
    """Return a clause about the damaged array, key, byte or line, as far as it is known."""
    content = (folder / name).read_bytes()
    try:
        policy, vectors = artifact.read(folder / POLICY), golden.read((folder / GOLDEN).read_bytes(), GOLDEN)
        full = read_json((folder / CONTRACT).read_bytes(), CONTRACT)
        if not isinstance(policy, QuantizedPolicy) or name in (POLICY, GOLDEN):
            return f"no array in it is damaged, {SUMS} may be"
        if name == CONTRACT:
            return f"it is damaged in {next(map(repr, contract.differences(policy, full)), 'what no policy decides')}"
        files = targets.write(policy, full["target"], contract.inner(full), vectors, full["name"], full["package"])
        page = readme(full, targets.file_of(full["target"], full["name"]))
        written = contract.sealed(files[name]) if name in files else page.encode()
    except (QuarlError, KeyError, TypeError, AttributeError, ValueError) as error:
        return str(error).partition(";")[0] if isinstance(error, QuarlError) else f"{CONTRACT} lacks {error}"
    if written == content:
        return f"it is whole, {SUMS} is damaged"
    first = next((at for at, (a, b) in enumerate(zip(written, content, strict=False)) if a != b), len(content))
    binary = name.endswith((".tflite", ".onnx"))
    return f"it is damaged {f'at byte {first:,}' if binary else f'in line {written[:first].count(10) + 1}'}"
