"""`quarl bench`: engines side by side, or training with actors or learners of several precisions."""

from __future__ import annotations

from quarl import energy
from quarl.commands import terminal
from quarl.config import BenchActorQConfig, LatencyConfig, MixedPrecisionConfig
from quarl.experiments.methods import latency
from quarl.experiments.methods.networks import STANDARD, with_hidden


def run(config: LatencyConfig | BenchActorQConfig | MixedPrecisionConfig) -> int | None:
    """Measures and prints the rows; returns the exit code."""
    if isinstance(config, LatencyConfig):
        _latency(config)
        return None
    from quarl.commands import bench_training  # here: latencies need no learner

    if isinstance(config, MixedPrecisionConfig):
        return bench_training.mixed_precision(config)
    bench_training.actorq(config)
    return None


def _latency(config: LatencyConfig) -> None:
    """Measures every network and prints one row for each batch, engine and precision."""
    networks = [with_hidden(widths) for widths in config.hidden()] or list(STANDARD)
    with energy.meter(config) as meter, terminal.progress(len(networks)) as progress:
        # called before each network: the bar stands at those that are done
        rows = latency.measure(
            networks,
            seed=config.seed,
            progress=lambda name: progress(name, int(name != networks[0].name)),
        )
    title = "Latency of one call on one thread"
    terminal.tell(config, latency.LatencyRow, rows, title, seed=config.seed, energy=meter.cost)
