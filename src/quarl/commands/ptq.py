"""`quarl ptq`: one agent at many precisions, as rows, figures, a page and the quantized policies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from quarl import energy
from quarl.commands import model, terminal
from quarl.config import PtqConfig
from quarl.files import staged
from quarl.inspection import Layer, inspect
from quarl.policy import artifact
from quarl.policy.graph import Policy
from quarl.policy.layers import of_policy
from quarl.post_training.layer_bits import choose
from quarl.post_training.measure import Cell, PtqRow
from quarl.readers import load
from quarl.readers.normalizer import sentence
from quarl.report import assessment, schema, tables

DRAWN_BITS = 8
"""Bits whose levels the weight figure shows, or the nearest requested width."""


def run(config: PtqConfig) -> int:
    """Measure every precision, write the folder, print the table; return the exit code."""
    model.refuse_results_of_another(config)
    policy, environment = model.at_home(model.read(config), config)
    load.refuse_quantized(policy, model.locate(config), " or use quarl eval")
    recorded, covered = model.observations(config.observations, policy), model.envelope(config, policy)
    replaced: list[str] = []
    with staged(config.output, partial(model.list_replaced, config, replaced)) as folder:
        with (
            energy.meter(config) as meter,
            terminal.progress(config.num_episodes if recorded is None else None) as progress,
        ):
            cells, tried, said = choose(policy, environment, config, progress, recorded=recorded, envelope=covered)
        about = model.told(config, policy, cells[0].evaluation, meter.cost)
        for cell in cells:  # each scheme has its own file if there are several
            alone = len(config.scheme) == 1 or cell.policy.spec.float_type
            name = cell.row.precision if alone else f"{cell.row.precision}-{cell.row.scheme.replace(':', '.')}"
            artifact.write(cell.policy, folder / f"{name}.safetensors")
        rows = [cell.row for cell in cells]
        heading = f"{'Returns' if recorded is None else 'Fidelity'}, latency and size"
        document, shown = model.keep(folder, PtqRow, rows, heading, tried, **about)
        said += [*assessment.assess(document["rows"]), f"Measured with {about['statistics']}."]
        report = terminal.reported(partial(_draw, folder, config, cells, document, said, shown))
    terminal.show(PtqRow, document["rows"], policy.provenance.title(document["env_id"]))
    terminal.say("", *said, "", *report, *replaced)
    return terminal.finish(config, document, report)


def _draw(
    folder: Path,
    config: PtqConfig,
    cells: Sequence[Cell],
    document: schema.Document,
    said: Sequence[str],
    shown: Sequence[tuple[str, tables.Cells]],
) -> Path:
    """Write the figures and the page into `folder`; return the final path of the page."""
    from quarl.report import page, ptq_figures, weight_figures  # imported here: matplotlib belongs to an extra

    rows, policy, layers = document["rows"], cells[0].calibrated.policy, _drawn_layers(cells)
    title = policy.provenance.title(document["env_id"])
    drawn = [
        (name, draw.__doc__ or "", draw(rows, f"{title}: {about}"))
        for name, (draw, about) in (ptq_figures.FIGURES.items() if rows[0]["episodes"] else ())
    ]
    caption = "Weights of each layer (blue, logarithmic) and the levels of the quantizer (orange)"
    weights = weight_figures.weight_distribution(layers, f"{title}: weights and {layers[0].row.precision} levels")
    drawn.append(("weights", f"{caption}; per channel, those of the channel with the widest step.", weights))
    page.write(
        folder,
        drawn,
        config.figure_format,
        title=f"{title}: post-training quantization",
        facts=_facts(policy, document),
        sentences=said,
        tables=shown,
        command=config.command_line(),
    )
    return config.output / "report.html"


def _drawn_layers(cells: Sequence[Cell]) -> list[Layer]:
    """Return the layers at DRAWN_BITS or the nearest width, against the weights that were rounded."""
    calibrated = cells[-1].calibrated
    integers = [cell for cell in cells if cell.policy.spec.float_type is None]
    chosen = min(integers or cells[-1:], key=lambda cell: abs(cell.row.bits_weights - DRAWN_BITS)).policy
    rewritten = calibrated.rewrite(chosen.spec)[0] if integers else calibrated.policy
    return inspect(of_policy(rewritten), of_policy(chosen), chosen.spec)


def _facts(policy: Policy, document: schema.Document) -> dict[str, str]:
    provenance, row = policy.provenance, document["rows"][0]
    episodes = f"until a verdict, at most {row['max_episodes']}" if row["max_episodes"] else row["episodes"]
    alike = f"{episodes} at every precision, seed {document['seed']}, the same starts for each"
    played, trained = str(document["env_id"] or "none"), provenance.env_id
    return {
        "model": f"{document['model']} ({provenance.origin})",
        "algorithm": provenance.algo or "unknown",
        "environment": played if played == trained or not trained else f"{played} (trained on {trained})",
        "weights": f"{policy.num_weights:,} in {len(policy.linear)} layers",
        "episodes": alike if row["episodes"] else "none: actions on held-out observations are compared",
        "observations": sentence(policy),
        "actions": "sampled" if provenance.stochastic else "deterministic",
    }
