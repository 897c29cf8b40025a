"""Cells: one agent through one method at one precision with one seed, and the key of its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from quarl import formats
from quarl.lab.source import Agent
from quarl.quant.spec import FLOAT_BITS
from quarl.rows import Algorithm, Column, Environment, Method, Precision, Seed, Source

Item = TypeVar("Item")
VERSION = 3
"""Part of every key; raised if a cell's computation changes, so that older results are not taken for newer ones."""
TRAIN, FP32, PTQ, QAT, ACTORQ, UNTRAINED, DISTILL = "train", "fp32", "ptq", "qat", "actorq", "untrained", "distill"
UPDATES, THROUGHPUT = "updates", "throughput"
TODO, RUNNING, DONE, FAILED, NA = "todo", "running", "done", "failed", "na"
RUNS = (ACTORQ, THROUGHPUT)
STATES = (DONE, FAILED, NA, RUNNING, TODO)


def turned(items: Sequence[Item], by: int) -> Sequence[Item]:
    """Return the items, beginning with another at every turn."""
    by %= max(len(items), 1)
    return (*items[by:], *items[:by])


def key_of(method: str, work: Mapping[str, Any]) -> str:
    """Return the hash of everything that determines a result, which is its key in the store."""
    text = json.dumps([VERSION, method, work], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentName:
    """The name of an agent in tables; its seeds are several agents, or several evaluations of one from a file."""

    algo: Algorithm
    env_id: Environment
    source: Source

    def of_agent(self) -> AgentName:
        """Return the agent part of a longer name."""
        return AgentName(algo=self.algo, env_id=self.env_id, source=self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(AgentName):
    """The name of a cell in tables, unique within a study."""

    method: Method
    precision: Precision
    scheme: Annotated[str, Column("scheme", _scheme, of=("scheme", "method", "precision"), caption="scheme {}")] = (
        "default"
    )
    mode: Annotated[str, Column("mode", _mode, of=("mode", "method"), caption="{} activations")] = "dynamic"
    """static or dynamic activations; of ActorQ the engine and the options in which its runs differ."""
    seed: Seed


def _scheme(scheme: str, method: str, precision: str) -> str:
    return formats.unless_float(scheme, precision) if method == PTQ else ""


def _mode(mode: str, method: str) -> str:
    return mode if method in (PTQ, DISTILL) or (method in RUNS and mode != "dynamic") else ""


NAMES = tuple(field.name for field in fields(Named))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(Named):
    """One cell of a study's table, or one training that other cells need."""

    episodes: int
    na: str = ""
    """Reason that it is not measured; empty if it is measured."""
    needs: str = ""
    """Key of the training that produces its agent."""
    after: tuple[str, ...] = ()
    """Keys of the runs whose results bound or determine it; they end first, in whatever way."""
    agent: Agent | None = None
    work: Mapping[str, Any]
    """Everything that determines the result, in plain values."""

    @property
    def key(self) -> str:
        return key_of(self.method, self.work)

    @property
    def label(self) -> tuple[str, ...]:
        return tuple(str(getattr(self, name)) for name in NAMES)

    def refused(self, why: str) -> Cell:
        """Return the cell as one that is not measured; only its label tells it apart from others."""
        return replace(self, na=why, needs="", after=(), agent=None, work={"label": list(self.label)})

    @property
    def is_integer(self) -> bool:
        """True if weights are codes, which are fitted to observations."""
        return self.method == PTQ and self.precision not in FLOAT_BITS

    @property
    def title(self) -> str:
        scheme = f" {self.scheme}" if self.method == PTQ and self.scheme != "default" else ""
        precision = f" {self.precision}{scheme}" if self.precision != self.method else ""
        mode = f" ({self.mode})" if self.method in RUNS and self.mode != "dynamic" else ""
        return f"{self.algo} {self.env_id} {self.method}{precision}{mode} seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A cell with the paths for the process that measures it or reads its agent."""

    cell: Cell
    study: Path
    """Folder of the study."""
    path: Path | None
    """File of the agent to play or fine-tune; None starts from scratch."""
    before: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Results of the runs that the cell names in `after`, by key, without those that failed."""

    @property
    def folder(self) -> Path:
        """Folder of the cell inside the study's."""
        return self.study / "runs" / self.cell.key
