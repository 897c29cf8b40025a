"""The policy named on the command line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import numpy as np

from quarl.arguments import recorded_rows
from quarl.arrays import Array
from quarl.commands import terminal
from quarl.config import CompareConfig, DistillConfig, ModelConfig, PtqConfig
from quarl.config.trained_policy import CalibratedConfig
from quarl.energy import Energy
from quarl.envs.environment import Environment, described, in_environment
from quarl.errors import MissingEnvironmentError, QuarlError, note
from quarl.evaluation import Evaluation
from quarl.files import write_bytes
from quarl.inert.csv_rows import read_csv
from quarl.inert.npz import read_npy, read_npz
from quarl.inert.reading_budget import reading
from quarl.inert.zip import read_bytes
from quarl.policy.graph import Policy
from quarl.post_training.layer_bits import TRIED, AssignmentRow
from quarl.readers import find, load
from quarl.readers.normalizer import sentence
from quarl.report import schema, tables
from quarl.rows import Row
from quarl.specs import ROWS

CHECKPOINT = "checkpoint-"
"""Prefix of the files from which `quarl distill --resume` continues."""
DRAWN = (".png", ".pdf", ".svg")
"""Suffixes of figures."""


def locate(config: ModelConfig) -> Path:
    """Return the path of MODEL: the file itself, or the latest run of ALGO ENV under the folder."""
    return find.named(config.model, config.folder)


def refuse_results_of_another(config: PtqConfig | DistillConfig | CompareConfig) -> None:
    """Raise QuarlError when the output folder holds results of another agent, or any of one if several are compared."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        there = config.output / "rows.json"
        document = json.loads(there.read_text() if there.is_file() else "{}")  # a FIFO is not opened
        mine = None if isinstance(config, CompareConfig) else locate(config).resolve()
        if Path(other := document["model"]).resolve() != mine:
            raise QuarlError(f"{config.output} holds results of {other}: choose another -o, or remove them")


def list_replaced(config: PtqConfig | DistillConfig | CompareConfig, said: list[str], folder: Path) -> None:
    """Check the output folder again, and list its files that those of `folder` replace.

    Args:
        config: The command's options.
        said: Receives a line about replaced files, and one about policies of an earlier run that stay beside them, and
            its figures in other formats.
        folder: The new files.

    Raises:
        QuarlError: Another run wrote results of another agent meanwhile.
    """
    refuse_results_of_another(config)
    new = {path.name for path in folder.iterdir()}
    figures = {path.stem for path in folder.iterdir() if path.suffix in DRAWN}
    there = sorted(path for path in config.output.iterdir() if path.is_file())
    others = [path for path in there if path.name not in new and not path.name.startswith(CHECKPOINT)]
    kept = [
        path.name for path in others if path.suffix == ".safetensors" or (path.suffix in DRAWN and path.stem in figures)
    ]
    if old := [path.name for path in there if path.name in new]:
        said.append(f"replaced in {config.output}: {', '.join(old)}")
    if kept:
        said.append(f"kept in {config.output}, of an earlier run and not of this one: {', '.join(kept)}")


def read(config: ModelConfig) -> Policy:
    """Return the (float or quantized) policy at `locate(config)`; ALGO must agree with the file."""
    return load.read(
        locate(config),
        config.model[0] if config.folder is not None else "",
        config.normalize,
        config.frame_stack,
        **config.stated(),
    )


def at_home(policy: Policy, config: ModelConfig) -> tuple[Policy, Environment | None]:
    """Apply the command's environment options with `in_environment`.

    The environment is printed if it differs from the policy's file.
    """
    options = config.environment()
    policy_at_home, environment = in_environment(policy, config.env, **options)
    if any(options.values()) and policy_at_home.provenance != policy.provenance:
        assert environment is not None
        with contextlib.suppress(MissingEnvironmentError):  # recorded observations may be used instead
            environment.make_for(policy_at_home).close()  # raises a one-line error for a mistake
        note(f"environment: {described(policy_at_home.provenance)}")
    return policy_at_home, environment


def observations(file: Path | None, policy: Policy) -> Array | None:
    """Return the recorded observations [N, *shape] of a file in the policy's dtype; None without a file.

    The file is a .csv with one row per step, an .npy, or an .npz with one array, or with one array for each key of a
    Dict. With a memory the policy also needs the array episode_start, bool [N].

    Raises:
        QuarlError: The file is none of these, its arrays do not fit the policy, or a number is not finite in float32.
    """
    if file is None:
        return None
    with reading(file):
        data = read_bytes(file)
        if data.startswith(b"PK"):
            arrays = read_npz(data, str(file))
        elif data.startswith(b"\x93NUMPY"):
            arrays = {"": read_npy(data, str(file))}
        elif file.suffix.lower() == ".csv":
            arrays = {"": read_csv(data, str(file))}
        else:
            raise QuarlError(f"{file} is not a .npy, .npz or .csv file: save the observations with numpy.save")
    if len(arrays) != 1 and not (arrays and (policy.inputs or policy.state.size)):
        raise QuarlError(f"{file} holds {len(arrays)} arrays: save only the observations")
    for array in (each for each in arrays.values() if each.dtype.kind == "f" and each.ndim):
        with np.errstate(over="ignore"):
            bad = np.flatnonzero(~np.isfinite(array.astype(np.float32)))
        if bad.size:
            row, column = divmod(int(bad[0]), array.size // len(array))
            place = f"{file}, row {row + 1}, column {column + 1}"
            raise QuarlError(f"{place} is {array.flat[bad[0]]:g}; use finite float32 numbers")
    try:
        return recorded_rows(policy, arrays if len(arrays) > 1 else next(iter(arrays.values())))
    except QuarlError as error:
        raise QuarlError(f"{file}: {error}") from None


def envelope(config: CalibratedConfig, policy: Policy) -> str | Array:
    """Return the name of the envelope, or the rows of its file as the policy reads them."""
    rows = observations(Path(config.envelope), policy) if config.envelope.lower().endswith(ROWS) else None
    return config.envelope if rows is None else rows


def told(config: ModelConfig, policy: Policy, played: Evaluation | None, energy: Energy | None = None) -> schema.Told:
    """Return the header of the document of a command's rows.

    Args:
        config: The command's options.
        policy: The policy.
        played: The evaluation, if there was one.
        energy: Energy of the run, if it was measured.

    Returns:
        Fields of the document.
    """
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
        folder: Folder of the files.
        kind: Class of the rows.
        rows: Rows of the command.
        heading: Heading of their table.
        tried: Assignments; none without a search.
        **about: Facts for the documents.

    Returns:
        The document of the rows, and the tables of the page with their headings.
    """
    document = schema.document(kind, rows, **about)
    shown = [(heading, tables.cells(kind, document["rows"]))]
    schema.write(document, folder / "rows.json")
    write_bytes(tables.to_csv(document["rows"]).encode(), folder / "rows.csv")
    tables.write_returns(document, folder)
    if tried:
        kept = terminal.keep(AssignmentRow, tried, TRIED, folder / "assignments.json", **about)
        shown.append((TRIED, tables.cells(AssignmentRow, kept["rows"])))
    return document, shown
