"""The policy that the words of the command line name."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from quarl.arguments import policy_rows
from quarl.arrays import Array
from quarl.commands import terminal
from quarl.config import DistillConfig, ModelConfig, PtqConfig
from quarl.energy import Energy
from quarl.envs.environment import Environment, described, in_environment
from quarl.envs.options import UNSAID, EnvironmentOptions
from quarl.errors import MissingEnvironmentError, QuarlError, note
from quarl.evaluation import Evaluation
from quarl.files import write_bytes
from quarl.inert.npz import read_npy, read_npz
from quarl.inert.reading_budget import reading
from quarl.inert.zip import read_bytes
from quarl.policy.graph import Policy
from quarl.post_training.layer_bits import TRIED, AssignmentRow
from quarl.readers import find, load
from quarl.readers.normalizer import sentence
from quarl.report import schema, tables
from quarl.rows import Row

CHECKPOINT = "checkpoint-"
"""First letters of the files from which `quarl distill --resume` continues."""


def locate(config: ModelConfig) -> Path:
    """The path that MODEL means: itself, or the latest run of ALGO ENV under the folder."""
    return find.named(config.model, config.folder)


def refuse_results_of_another(config: PtqConfig | DistillConfig) -> None:
    """Raise QuarlError when the output folder holds results of another agent."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        there = config.output / "rows.json"
        document = json.loads(there.read_text() if there.is_file() else "{}")  # a FIFO is not opened
        if Path(other := document["model"]).resolve() != locate(config).resolve():
            raise QuarlError(f"{config.output} holds results of {other}: choose another -o, or remove them")


def list_replaced(config: PtqConfig | DistillConfig, said: list[str], folder: Path) -> None:
    """Check the output folder again, and list its files that those of `folder` replace.

    Args:
        config: The verb's options.
        said: Takes a line about replaced files, and one about policies of an earlier run that stay beside them.
        folder: The new files.

    Raises:
        QuarlError: Another run wrote results of another agent meanwhile.
    """
    refuse_results_of_another(config)
    new = {path.name for path in folder.iterdir()}
    there = sorted(path.name for path in config.output.iterdir() if path.is_file())
    others = [name for name in there if name not in new and not name.startswith(CHECKPOINT)]
    kept = [name for name in others if name.endswith(".safetensors")]
    if old := [name for name in there if name in new]:
        said.append(f"replaced in {config.output}: {', '.join(old)}")
    if kept:
        said.append(f"kept in {config.output}, of an earlier run and not in rows.json: {', '.join(kept)}")


def read(config: ModelConfig) -> Policy:
    """The policy (or the quantised one) at `locate(config)`; ALGO must be what the file says it is."""
    return load.read(
        locate(config),
        config.model[0] if config.folder is not None else "",
        config.normalize,
        config.frame_stack,
    )


def at_home(policy: Policy, config: ModelConfig) -> tuple[Policy, Environment | None]:
    """Return what `in_environment` makes of the verb's options, which are noted if the policy's file says otherwise."""
    policy_at_home, environment = in_environment(policy, config.env, **config.environment())
    if EnvironmentOptions.said(config) != UNSAID and policy_at_home.provenance != policy.provenance:
        assert environment is not None
        with contextlib.suppress(MissingEnvironmentError):  # recorded observations may do instead
            environment.make_for(policy_at_home).close()  # a mistake is one line
        note(f"environment: {described(policy_at_home.provenance)}")
    return policy_at_home, environment


def observations(file: Path, policy: Policy) -> Array:
    """The recorded observations [N, *shape] in an .npy file, or the one array of an .npz, or one for each
    key of a Dict, in the policy's dtype."""
    with reading(file):
        data = read_bytes(file)
        if not data.startswith((b"PK", b"\x93NUMPY")):
            raise QuarlError(f"{file} is not a .npy or .npz file: save the rows with numpy.save and give that")
        arrays = read_npz(data, str(file)) if data[:2] == b"PK" else {"": read_npy(data, str(file))}
    if policy.inputs and len(arrays) > 1:
        return policy_rows(policy, arrays)[0]
    if len(arrays) != 1:
        raise QuarlError(f"{file} holds {len(arrays)} arrays: save the observations alone")
    return policy_rows(policy, *arrays.values())[0]


def told(config: ModelConfig, policy: Policy, played: Evaluation | None, energy: Energy | None = None) -> schema.Told:
    """What the document of a verb's rows says of them. played: the episodes, where there were any."""
    env_id, seed = (policy.provenance.env_id, config.seed) if played is None else (played.env_id, played.seed)
    about = schema.Told(model=str(locate(config)), algo=policy.provenance.algo, env_id=env_id, seed=seed)
    return {**about, "energy": energy, "statistics": sentence(policy)}


def keep(
    folder: Path,
    kind: type[Row],
    rows: Sequence[Row],
    heading: str,
    tried: Sequence[AssignmentRow],
    **about: Unpack[schema.Told],
) -> tuple[schema.Document, list[tuple[str, tables.Cells]]]:
    """Write the rows as JSON and CSV, and print and write the assignments of bits that were tried.

    Args:
        folder: Where the files are written.
        kind: The class of the rows.
        rows: The verb's rows.
        heading: The heading of their table.
        tried: The assignments; none without a search.
        about: Facts for the documents.

    Returns:
        The document of the rows, and the tables of the page with their headings.
    """
    document = schema.document(kind, rows, **about)
    shown = [(heading, tables.cells(kind, document["rows"]))]
    schema.write(document, folder / "rows.json")
    write_bytes(tables.to_csv(document["rows"]).encode(), folder / "rows.csv")
    if tried:
        kept = terminal.keep(AssignmentRow, tried, TRIED, folder / "assignments.json", **about)
        shown.append((TRIED, tables.cells(AssignmentRow, kept["rows"])))
    return document, shown
