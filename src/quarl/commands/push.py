"""`quarl push`: publishes a folder with its model card on the Hugging Face hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quarl import __version__
from quarl.commands import terminal
from quarl.commands.eval import EvalRow
from quarl.config import PushConfig
from quarl.errors import QuarlError, printable
from quarl.export.contract import CONTRACT, SUMS, sha256
from quarl.export.verification import read_document, verify
from quarl.files import staged, temporary_folder, write_bytes
from quarl.post_training.measure import PtqRow
from quarl.readers import hub
from quarl.report import assessment, tables

CARD = "README.md"
KINDS = {"ptq": PtqRow, "eval": EvalRow}
"""Kinds of rows with returns, by the command that wrote them."""
PUBLISHED = (".quarl", ".safetensors", ".tflite", ".onnx", ".c", ".h", ".npz", ".json", ".csv", ".png", ".html")


def run(config: PushConfig) -> None:
    """Publish the folder, or write the files that would be published."""
    folder = Path(config.model[0])
    rows = config.rows or folder / "rows.json"
    contract = read_document(folder / CONTRACT) if (folder / CONTRACT).is_file() else {}
    document = read_document(rows) if config.rows or rows.is_file() else {}
    if not contract and not document:
        raise QuarlError(
            f"{folder} is not a folder of quarl export or quarl ptq: it has neither {CONTRACT} nor rows.json"
        )
    if config.to is not None:
        with staged(config.to) as out:
            _fill(out, folder, contract, document, config.to.name)
        terminal.say(f"card: {config.to / CARD}")
    else:
        repo = str(config.repo)
        with temporary_folder() as out:
            _fill(out, folder, contract, document, repo.partition("/")[2])
            hub.push(out, repo)
        terminal.say(f"published: https://huggingface.co/{repo}")


def _fill(out: Path, folder: Path, contract: Mapping[str, Any], document: Mapping[str, Any], name: str) -> None:
    """Copy the files to publish, write the card, and update the checksums."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.is_symlink() and path.suffix in PUBLISHED:
            shutil.copy(path, out / path.name)
    figures = [path.name for path in sorted(out.glob("*.png"))]
    page = ""
    if contract:
        next(verify(folder, episodes=0))  # checks the checksums first
        page = (folder / CARD).read_text()
    try:
        card = _card(contract, document, name, figures, page)
    except (KeyError, TypeError, ValueError, StopIteration, AttributeError) as error:
        raise QuarlError(f"{folder}: its rows or contract lack a field ({error!r}); measure it again") from None
    write_bytes(card.encode(), out / CARD)
    if (folder / SUMS).is_file():
        lines = (folder / SUMS).read_text().splitlines()
        lines = [line for line in lines if line[66:] != CARD] + [f"{sha256(card.encode())}  {CARD}"]
        write_bytes("".join(f"{line}\n" for line in sorted(lines, key=lambda line: line[66:])).encode(), out / SUMS)


def _card(contract: Mapping[str, Any], document: Mapping[str, Any], name: str, figures: list[str], page: str) -> str:
    """Return the model card: metadata for the hub in JSON, which is YAML; usage of the file; table and figures."""
    algo = document.get("algo") or contract.get("source", {}).get("algo") or "policy"
    env_id = document.get("env_id") or contract.get("environment", {}).get("id") or "no environment"
    rows = document.get("rows", [])
    wanted = contract.get("precision")
    results = [
        {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"type": env_id, "name": env_id},
            "metrics": [
                {
                    "type": "mean_reward",
                    "name": f"mean_reward, {row['precision']}",
                    "value": f"{row['mean']:.2f} +/- {row['std']:.2f}",
                    "verified": False,
                }
            ],
        }
        for row in rows
        if wanted in (None, row["precision"])
    ]
    head = {"library_name": "quarl", "tags": ["reinforcement-learning", "quantization", "quarl", algo, env_id]}
    if results:
        head["model-index"] = [{"name": name, "results": results}]
    parts = ["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items()), "---"]
    parts.append(page.rstrip() if page else f"# {tables.escaped(printable(f'{algo} on {env_id}'))}")
    if rows:
        parts.append(tables.to_markdown(tables.cells(KINDS[document["command"]], rows), "Returns"))
        parts += assessment.assess(rows) if document["command"] == "ptq" else []
    parts += [f"![{each}]({each})" for each in figures]
    parts.append(f"Written by QuaRL {__version__}.")
    return "\n".join(parts[: len(head) + 2]) + "\n\n" + "\n\n".join(parts[len(head) + 2 :]) + "\n"
