"""`quarl envs`: suites and what they bring, or one environment and which algorithms fit."""

from __future__ import annotations

from quarl.commands import terminal
from quarl.config import EnvsConfig
from quarl.envs import catalog
from quarl.envs.options import EnvironmentOptions
from quarl.errors import QuarlError, did_you_mean


def run(config: EnvsConfig) -> None:
    """Prints one row a suite, or one an algorithm where an environment is named."""
    if config.env:
        rows = catalog.describe(config.env[0], EnvironmentOptions.said(config))
        terminal.tell(config, catalog.FitRow, rows, rows[0].env_id, env_id=rows[0].env_id)
    else:
        suites = catalog.suites(config.suite)
        if not suites:
            names = catalog.names()
            meant = did_you_mean(str(config.suite), names)
            raise QuarlError(f"unknown suite {config.suite!r}{meant} (known: {', '.join(names)})")
        ids = [] if config.suite is None else [", ".join(catalog.ids_of(config.suite))]
        terminal.tell(config, catalog.SuiteRow, suites, "Suites of environments", *ids)
