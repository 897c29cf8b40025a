"""`quarl bench latency`: engines side by side on networks of given sizes."""

from __future__ import annotations

from quarl.bench import latency
from quarl.bench.networks import STANDARD, with_hidden
from quarl.commands import terminal
from quarl.config import BenchConfig
from quarl.report import schema


def run(config: BenchConfig) -> None:
    """Measures every network and prints one row for each batch, engine and precision."""
    networks = [with_hidden(widths) for widths in config.hidden()] or list(STANDARD)
    with terminal.progress(len(networks)) as progress:
        # called before each network: the bar stands at those that are done
        rows = latency.measure(
            networks,
            seed=config.seed,
            progress=lambda name: progress(name, int(name != networks[0].name)),
        )
    document = schema.document("bench latency", [row.to_json() for row in rows], seed=config.seed)
    terminal.show("bench latency", document["rows"], "Latency of one call on one thread")
    terminal.finish(config, document)
