"""`quarl bench mixed-precision`: cells that are missing are measured, the table is made of all that are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quarl import energy
from quarl.commands import study, terminal
from quarl.config import MixedPrecisionConfig
from quarl.envs import resolve
from quarl.experiments.methods import mixed_precision_learning
from quarl.experiments.methods.cells import Cells
from quarl.experiments.methods.mixed_precision import UpdatesRow, updates
from quarl.experiments.methods.mixed_precision_learning import LearningRow
from quarl.experiments.runner import measure_document
from quarl.processes.signals import SIGNALLED
from quarl.report import schema
from quarl.rows import Row

TITLES = {"updates": "An update of DQN on images", "learning": "Returns of DQN trained in mixed precision"}


def run(config: MixedPrecisionConfig) -> int:
    """Measures what is missing, within the time, and shows everything that is there."""
    resolve(config.env, trusted=True)  # a typo leaves no folder behind
    left, code = 0, 0
    kind: type[Row]
    found: Sequence[Row]
    with energy.meter(config) as meter:
        if config.what == "updates":
            cells = Cells(config.output, config.minutes, terminal.note, meter)
            found, left = updates(config, cells), cells.missing
        else:
            asked = config.output, mixed_precision_learning.document(config), config.env
            measured = measure_document(*asked, terminal.progress, jobs=1, minutes=config.minutes)
            if (code := study.ended(measured, config)) > SIGNALLED:
                return code
            found = mixed_precision_learning.rows(config, measured.records)
            terminal.say(*study.failures(measured.records))
            for path in (config.output / "runs").rglob("checkpoint-*") if not code and not measured.left else ():
                path.unlink()  # they hold replay
    kind = UpdatesRow if config.what == "updates" else LearningRow
    document = schema.document(kind, found, algo="dqn", env_id=config.env, seed=config.seed, energy=meter.cost)
    schema.write(document, config.output / f"{config.what}.json")
    if document["rows"]:
        terminal.show(kind, document["rows"], TITLES[config.what])
        terminal.say(*_sentences(document["rows"]))
    if left:
        terminal.say(f"the time is over with {left} cells to go: repeat the command to go on")
    terminal.finish(config, document)
    return code


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
