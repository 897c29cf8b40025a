"""`quarl demo`: trains an agent, then does with its file what `quarl ptq` does with anybody's."""

from __future__ import annotations

import time

from quarl.commands import ptq, terminal
from quarl.config import DemoConfig, PtqConfig
from quarl.demo import ENV_ID, MAX_STEPS, train
from quarl.files import staged


def run(config: DemoConfig) -> None:
    """Trains and saves the agent, quantises it, prints the table and where the report lies."""
    path = config.output / f"{ENV_ID}.zip"
    start = time.perf_counter()
    with staged(config.output) as folder, terminal.progress(MAX_STEPS) as progress:
        steps = train(folder / path.name, config.seed, progress)
    terminal.say(f"trained DQN on {ENV_ID}: {steps:,} steps in {time.perf_counter() - start:.0f} s, saved {path}")
    ptq.run(PtqConfig(model=(str(path),), seed=config.seed, output=config.output, json=config.json))
