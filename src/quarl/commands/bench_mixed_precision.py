"""`quarl bench mixed-precision`: cells that are missing are measured, the table is made of all that are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quarl import energy
from quarl.commands import terminal
from quarl.config import MixedPrecisionConfig
from quarl.envs import resolve
from quarl.experiments.methods.cells import Cells
from quarl.experiments.methods.mixed_precision import updates
from quarl.experiments.methods.mixed_precision_learning import learning
from quarl.files import write_bytes
from quarl.report import schema

TITLES = {"updates": "An update of DQN on images", "learning": "Returns of DQN trained in mixed precision"}


def run(config: MixedPrecisionConfig) -> None:
    """Measures what is missing, within the time, and shows everything that is there."""
    resolve(config.env, trusted=True)  # a typo leaves no folder behind
    with energy.meter(config) as meter:
        cells = Cells(config.output, config.minutes, terminal.note, meter)
        found = updates(config, cells) if config.what == "updates" else learning(config, cells)
    document = schema.document(
        f"bench mixed-precision {config.what}",
        found,
        algo="dqn",
        env_id=config.env,
        seed=config.seed,
        energy=meter.cost,
    )
    write_bytes(schema.to_text(document).encode(), config.output / f"{config.what}.json")
    if document["rows"]:
        terminal.show(document["command"], document["rows"], TITLES[config.what])
        terminal.say(*_sentences(document["rows"]))
    if cells.missing:
        terminal.say(f"the time is over with {cells.missing} cells to go: repeat the command to go on")
    terminal.finish(config, document)


def _sentences(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What the table means on this device."""
    emulated = list(dict.fromkeys(row["dtype"] for row in rows if not row.get("native", True)))
    if emulated:
        yield (
            f"{rows[0]['device']} has no instructions that multiply {' or '.join(emulated)} numbers: "
            "it converts them, and a slower update is what is to be expected"
        )
    if not all(row["updates"] for row in rows):
        yield "≈: too slow for the time that it was given (--seconds), extrapolated from batches of 2 and 4"
