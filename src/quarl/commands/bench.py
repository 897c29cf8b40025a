"""`quarl bench`: engines side by side, or training with actors of several precisions."""

from __future__ import annotations

from quarl.bench import latency
from quarl.bench.networks import STANDARD, with_hidden
from quarl.commands import terminal
from quarl.config import BenchActorQConfig, LatencyConfig
from quarl.report import schema


def run(config: LatencyConfig | BenchActorQConfig) -> None:
    """Measures and prints the rows."""
    if isinstance(config, LatencyConfig):
        _latency(config)
        return
    from quarl.commands import bench_actorq  # here: latencies need no learner

    bench_actorq.run(config)


def _latency(config: LatencyConfig) -> None:
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
