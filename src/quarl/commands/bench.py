"""`quarl bench latency`: the latency of engines side by side."""

from __future__ import annotations

from quarl import energy
from quarl.commands import model, terminal
from quarl.config import LatencyConfig
from quarl.export import verification
from quarl.files import temporary_folder
from quarl.latency import file_latency, network_latency
from quarl.latency.networks import STANDARD, with_hidden
from quarl.readers import find, load
from quarl.report import schema


def run(config: LatencyConfig) -> None:
    """Measure every network or file and print one row for each batch, engine and precision."""
    if config.model:
        _of_files(config)
        return
    networks = [with_hidden(widths) for widths in config.hidden()] or list(STANDARD)
    with energy.meter(config) as meter, terminal.progress(len(networks)) as progress:
        # called before each network: the bar counts finished ones
        rows = network_latency.measure(
            networks,
            seed=config.seed,
            progress=lambda name: progress(name, int(name != networks[0].name)),
        )
    title = "Latency of one call on one thread"
    terminal.tell(config, network_latency.LatencyRow, rows, title, seed=config.seed, energy=meter.cost)


def _of_files(config: LatencyConfig) -> None:
    """Measure the policies, each in every precision, and the files."""
    with energy.meter(config) as meter, temporary_folder() as folder:
        named, recorded = list[file_latency.Named](), None
        for index, path in enumerate(find.named([word]) for word in config.model):
            if verification.is_exported(path):
                named += file_latency.exported(path, config.runtime)
                recorded = model.observations(config.observations, named[-1].policy)
                continue
            policy = load.read(path, **config.stated())
            recorded = model.observations(config.observations, policy)
            policies = list(file_latency.in_precisions(policy, config.specs(), config.seed, recorded))
            (place := folder / str(index)).mkdir()
            named += file_latency.written(policies, path.stem, config.runtime, place)
        with terminal.progress(len(named)) as progress:
            rows = file_latency.measure(
                named, folder, seed=config.seed, recorded=recorded, progress=lambda name: progress(name, 1)
            )
    about = schema.Told(model=" ".join(config.model), seed=config.seed, energy=meter.cost)
    title = "Latency of one call on one thread, and memory that the file adds"
    terminal.tell(config, network_latency.LatencyRow, rows, title, *file_latency.verdicts(rows), **about)
