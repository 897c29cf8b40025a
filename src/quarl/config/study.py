"""What `quarl study run`, `quarl study status` and `quarl study report` can be told."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Positional, subcommand

from quarl.config.base import Config, Flag, Output, at_least_one, check_folder
from quarl.config.groups import ENVIRONMENT, shown
from quarl.errors import QuarlError

FOLDER = Path("quarl-study")


@dataclass(frozen=True, kw_only=True)
class StudyRunConfig(Config):
    """Measure every cell of a study that is missing: algorithms x tasks x methods x precisions x seeds.

    A finished cell is kept whatever happens afterwards; the same command goes on where the last one ended.
    """

    verb: ClassVar[str] = "study run"
    examples = (
        "quarl study run smoke --jobs 2 -o study",
        "quarl study run paper-ptq --agents rl-trained-agents --dry-run",
    )
    positional: ClassVar[tuple[str, ...]] = ("study",)

    study: Positional[Annotated[str, shown("STUDY")]] = ""
    """A study file, or one that comes with QuaRL: smoke, paper-ptq, paper-qat, paper-actorq."""
    agents: Annotated[Path | None, shown("DIR", default="what the study says")] = None
    """Where its zoo: sources lie."""
    jobs: int = 1
    """Cells at a time, each on one core; of each machine of a cluster."""
    cluster: Annotated[str | None, shown("ADDRESS|auto|local", default="this machine alone")] = None
    """Measure on the machines of a Ray cluster, at IP:PORT as quarl cluster start says it; auto: the one that this
    machine is of; local: machines that are processes of this one, for trying."""
    nodes: Annotated[int | None, shown("N", default="all that are there")] = None
    """Machines of --cluster to measure on; of local 2."""
    dry_run: Flag = False
    """Check the study, show what would be measured, and measure nothing."""
    minutes: Annotated[float, shown("FLOAT", default="no bound")] = math.inf
    """No cell begins after so long; the same command goes on."""
    seed: Annotated[int | None, shown("N", default="the study's seeds")] = None
    """Only this seed, in place of the study's."""
    only: Annotated[tuple[str, ...], shown("NAME ...", default="all")] = ()
    """Measure only these policies (ALGO/ENV), sources, methods or precisions, and the fp32 beside them."""
    retry_failed: Flag = False
    """Measure cells again that failed."""
    env_module: Annotated[str | None, shown("MODULE"), ENVIRONMENT] = None
    """Module of your own that registers environments which the study names; it is imported. No file can name one."""
    output: Output = FOLDER
    """Folder of the study: its rows, agents that it trained, and later its report."""

    def check(self) -> None:
        super().check()
        if not self.study:
            raise QuarlError("STUDY is missing: name a file, or one that comes with QuaRL, as in quarl study run smoke")
        at_least_one(jobs=self.jobs, nodes=self.nodes)
        if self.nodes is not None and self.cluster is None:
            raise QuarlError("--nodes counts machines of a cluster: name it with --cluster")
        if not self.minutes >= 0:
            raise QuarlError(f"--minutes must not be negative, got {self.minutes:g}")
        if self.env_module is not None and not re.fullmatch(r"[\w.]+", self.env_module):
            raise QuarlError(f"--env-module {self.env_module!r} is no name of a module, as in my_module")
        check_folder(self.output)


@dataclass(frozen=True, kw_only=True)
class _FolderConfig(Config):
    """A verb about what a study has measured."""

    positional: ClassVar[tuple[str, ...]] = ("folder",)

    folder: Positional[Annotated[Path, shown("[DIR]")]] = FOLDER
    """Folder of the study."""


@dataclass(frozen=True, kw_only=True)
class StudyStatusConfig(_FolderConfig):
    """Show how far a study is; it may be running."""

    verb: ClassVar[str] = "study status"
    examples = ("quarl study status study",)


@dataclass(frozen=True, kw_only=True)
class StudyReportConfig(_FolderConfig):
    """Make tables, figures and a page of what a study has measured so far."""

    verb: ClassVar[str] = "study report"
    examples = ("quarl study report study",)


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """Measure a whole study, resumably: run it, see how far it is, make its report."""

    verb: ClassVar[str] = "study"

    chosen: OmitArgPrefixes[
        OmitSubcommandPrefixes[
            Annotated[StudyRunConfig, subcommand("run")]
            | Annotated[StudyStatusConfig, subcommand("status")]
            | Annotated[StudyReportConfig, subcommand("report")]
        ]
    ]
    """What to do."""
