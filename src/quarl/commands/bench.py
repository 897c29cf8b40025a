"""`quarl bench`: engines side by side, or training with actors or learners of several precisions."""

from __future__ import annotations

from quarl import energy
from quarl.api import WRITERS
from quarl.commands import terminal
from quarl.config import BenchActorQConfig, LatencyConfig, MixedPrecisionConfig
from quarl.experiments.methods import files, latency
from quarl.experiments.methods.networks import STANDARD, with_hidden
from quarl.files import temporary_folder
from quarl.readers import find, load
from quarl.report import schema


def run(config: LatencyConfig | BenchActorQConfig | MixedPrecisionConfig) -> None:
    """Measure and print the rows."""
    if isinstance(config, LatencyConfig):
        _latency(config)
        return
    from quarl.commands import bench_training  # here: latencies need no learner

    if isinstance(config, MixedPrecisionConfig):
        bench_training.mixed_precision(config)
    else:
        bench_training.actorq(config)


def _latency(config: LatencyConfig) -> None:
    """Measures every network or file and prints one row for each batch, engine and precision."""
    if config.model:
        _of_files(config)
        return
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


def _of_files(config: LatencyConfig) -> None:
    """Measures the policies, each in every precision, and the files."""
    with energy.meter(config) as meter, temporary_folder() as folder:
        named: list[files.Named] = []
        for index, path in enumerate(find.named([word]) for word in config.model):
            if path.suffix.lower() in WRITERS:
                named += files.exported(path, config.runtime)
                continue
            policies = list(files.in_precisions(load.read(path), config.specs(), config.seed))
            (place := folder / str(index)).mkdir()
            named += files.written(policies, path.stem, config.runtime, place)
        with terminal.progress(len(named)) as progress:
            rows = files.measure(named, folder, seed=config.seed, progress=lambda name: progress(name, 1))
    about = schema.Told(model=" ".join(config.model), seed=config.seed, energy=meter.cost)
    title = "Latency of one call on one thread, and memory that the file adds"
    terminal.tell(config, latency.LatencyRow, rows, title, *files.verdicts(rows), **about)
