"""`quarl train`: train and evaluate an agent, and save it in a folder that the zoo's scripts can read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from quarl import energy
from quarl.commands import terminal
from quarl.config import TrainConfig
from quarl.formats import number
from quarl.report import schema
from quarl.runs.outcome import TrainRow
from quarl.runs.train import Training


def run(config: TrainConfig) -> int:
    """Train to the end; return the exit code: 0, 2 without room for the page, or 128 + the signal that ended it."""
    notes: list[str] = []

    def say(line: str) -> None:
        notes.append(line)
        terminal.note(line)

    with energy.meter(config) as meter:
        session = Training(config, say)
        with terminal.progress(session.n_timesteps) as progress:
            ended = session.run(progress)
    row = ended.row
    said = [ended.message] if row is None else [*_sentences(session, row)]

    def page() -> Path:
        # imported here: matplotlib takes its time, and nothing waits for it now
        from quarl.commands.training_page import of_train

        return of_train(session, row, [*said, *notes])

    if row is None:
        terminal.complain(ended.message)
        terminal.say(*terminal.reported(page))
        return ended.exit_code
    # for a resumed run these are the run's own options, not the words that resumed it
    config = dataclasses.replace(session.config, resume=False)
    about = schema.Told(algo=row.algo, env_id=row.env_id, seed=row.seed, energy=meter.cost)
    title = f"{row.algo} on {row.env_id}"
    return terminal.tell(config, TrainRow, [row], title, *said, *terminal.reported(page), **about)


def _sentences(session: Training, row: TrainRow) -> Iterator[str]:
    folder = session.folder()
    yield (
        f"trained {row.algo} on {row.env_id} for {row.clock_s / 60:.1f} min: {row.timesteps:,} environment steps "
        f"({row.steps_per_s:,.0f} a second), {row.updates:,} updates"
    )
    if not row.episodes:
        yield "not evaluated: --eval-episodes is 0"
    if row.mean_quantised is not None and row.switched_at is not None:
        how = "measured" if row.measured_quantised else "simulated"
        yield (
            f"return {number(row.mean)} in float32 and {number(row.mean_quantised)} at {row.precision} ({how}), "
            f"trained for that precision from step {row.switched_at:,} on"
        )
    if row.switched_at is not None:
        yield f"quantized policy: {folder.integers}"
    yield f"agent: {folder.agent}"
    if session.config.resume:
        yield terminal.resumed(session.steps_before)
    if session.options.has_changed:
        yield "options changed when the run was resumed: the command below uses the last ones from the beginning"
