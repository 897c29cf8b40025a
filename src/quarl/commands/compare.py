"""`quarl compare`: agents against a baseline on the same episodes, as a table and a figure."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from quarl.commands import model, terminal
from quarl.comparison import CompareRow, compared
from quarl.config import CompareConfig
from quarl.files import staged
from quarl.report import schema, tables


def run(config: CompareConfig) -> int:
    """Play all agents, write the folder, print the table; return the exit code."""
    recorded: Any = config.observations and partial(model.observations, config.observations)
    model.refuse_results_of_another(config)
    replaced: list[str] = []
    with staged(config.output, partial(model.list_replaced, config, replaced)) as folder:
        found = compared(config.agents(), config, {"env_id": config.env}, recorded)
        told = schema.Told(model=found.rows[0].arm, env_id=found.env_id, seed=config.seed)
        document = terminal.keep(CompareRow, found.rows, found.title, folder / "comparison.json", **told)
        heading = [(found.title, tables.cells(CompareRow, document["rows"]))]
        tables.write_latex(folder, "Comparison", heading, config.command_line())
        tables.write_returns(document, folder)
        drawn = [] if recorded else terminal.reported(partial(_draw, folder, config, document, found.title), "figure")
    terminal.say("", *found.verdicts, "", *drawn, *replaced)
    return terminal.finish(config, document, drawn)


def _draw(folder: Path, config: CompareConfig, document: schema.Document, title: str) -> Path:
    """Write the figure into `folder`; return its final path."""
    from quarl.report import compare_figures, style  # imported here: matplotlib belongs to an extra

    figure = compare_figures.differences(document["rows"], title)
    files = [f"comparison.{suffix}" for suffix in config.figure_format]
    for name in files:
        style.save(figure, folder / name)
    return config.output / files[0]
