"""What a study file says: policies, methods, and what holds for all their cells."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARGIN_PCT = 5.0
"""Of a study that names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntry:
    """Where one agent, or one for each seed, comes from."""

    line: int
    algo: str
    env: str
    sources: tuple[str, ...]
    """Of these the first that is at hand: train, zoo:FOLDER, hub:ORG/NAME or file:PATH."""
    na: str
    """Why its cells are not measured where no source is at hand."""
    n_timesteps: int | None
    """Environment steps of its training; None: RL Zoo's."""
    params: Mapping[str, Any]
    """Hyper-parameters of its training over the tuned ones."""
    name: str
    """What tables call its source; empty: its source."""
    seeds: tuple[int, ...] | None
    """None: the study's."""
    episodes: int | None
    actorq: Mapping[str, Any]
    """Options of `quarl actorq` for this task."""
    train: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of `quarl train` for its trainings."""
    normalize: str | None = None
    """The statistics with which the agent observed, or none; None: what lies beside it."""
    deterministic: bool = False
    """Whether it never samples its actions; else as RL Zoo plays such agents."""
    world: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """environment: the options of EnvironmentConfig, part of what determines agents; empty where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodEntry:
    """A method with the precisions at which every policy goes through it."""

    line: int
    method: str
    precisions: tuple[str, ...] = ("fp32",)
    schemes: tuple[str, ...] = ("default",)
    modes: tuple[str, ...] = ("dynamic",)
    fine_tune: float | None = None
    """Environment steps of quantisation-aware training, as a share of the agent's own; None: from scratch."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of `quarl actorq`, or those of `quarl train` for quantisation-aware training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The whole file."""

    path: Path
    name: str
    about: str
    episodes: int
    margin: float
    """Loss of return, in percent of fp32's, that is still acceptable."""
    seeds: tuple[int, ...]
    minutes: float
    """Bound of one cell."""
    memory_gb: float
    """Bound of one cell's processes together."""
    agents: Path
    """What zoo:FOLDER and file:PATH are relative to."""
    policies: tuple[PolicyEntry, ...]
    methods: tuple[MethodEntry, ...]
    document: Mapping[str, Any]
    """The file as it was read."""

    def at(self, line: int) -> str:
        return f"{self.path}, line {line}"
