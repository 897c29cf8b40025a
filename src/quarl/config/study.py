"""Options of `quarl study run`, `quarl study status` and `quarl study report`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Positional, subcommand

from quarl.config.base import Config, DrawnConfig, Output, check_folder
from quarl.errors import QuarlError
from quarl.fields import AT_LEAST_ONE, ENVIRONMENT, NOT_NEGATIVE, shown
from quarl.specs import SEED, Flag

FOLDER = Path("quarl-study")


@dataclass(frozen=True, kw_only=True)
class StudyRunConfig(Config):
    """Measure all missing cells of a study: algorithms x tasks x methods x precisions x seeds.

    Finished cells survive any interruption; repeat the command to resume.
    """

    verb: ClassVar[str] = "study run"
    examples = (
        "quarl study run smoke --jobs 2 -o study",
        "quarl study run paper-ptq --agents rl-trained-agents --dry-run",
    )
    positional: ClassVar[tuple[str, ...]] = ("study",)

    study: Positional[Annotated[str, shown("STUDY")]] = ""
    """A study file, or one included in QuaRL: smoke, paper-ptq, paper-qat, paper-actorq."""
    agents: Annotated[Path | None, shown("DIR", default="the study's own")] = None
    """Folder of the study's zoo: sources."""
    jobs: Annotated[int, AT_LEAST_ONE] = 1
    """Number of simultaneous cells, each on one core; in a cluster, of each machine."""
    cluster: Annotated[str | None, shown("ADDRESS|auto|local", default="this machine alone")] = None
    """Measure on the machines of a Ray cluster. ADDRESS: the IP:PORT printed by quarl cluster start. auto: the cluster
    that includes this machine. local: simulated machines on this one, for testing.
    """
    nodes: Annotated[int | None, shown("N", default="all"), AT_LEAST_ONE] = None
    """Number of machines of --cluster; 2 for local."""
    dry_run: Flag = False
    """Check the study and show the cells that it would measure, without measuring."""
    minutes: Annotated[float, shown("FLOAT", default="no bound"), NOT_NEGATIVE] = math.inf
    """Minutes after which no new cell starts; repeat the command to continue."""
    seed: Annotated[int | None, shown("N", default="the study's seeds"), SEED] = None
    """Use only this seed instead of the study's seeds."""
    only: Annotated[tuple[str, ...], shown("NAME ...", default="all")] = ()
    """Measure only these policies (ALGO/ENV), sources, methods or precisions, with fp32 for comparison."""
    retry_failed: Flag = False
    """Repeat cells that failed."""
    env_module: Annotated[str | None, shown("MODULE"), ENVIRONMENT] = None
    """Your own module, imported for environments and schemes of the study. Study files cannot import a module."""
    output: Output = FOLDER
    """Folder of the study: its rows, trained agents, and later its report."""

    def check(self) -> None:
        super().check()
        if not self.study:
            raise QuarlError(
                "STUDY is missing: add a study file or the name of an included one, as in quarl study run smoke"
            )
        if self.nodes is not None and self.cluster is None:
            raise QuarlError("--nodes requires --cluster")
        if self.env_module is not None and not re.fullmatch(r"[\w.]+", self.env_module):
            raise QuarlError(f"--env-module {self.env_module!r} is not a module name, such as my_module")
        check_folder(self.output)


@dataclass(frozen=True, kw_only=True)
class _FolderConfig(Config):
    """A verb that uses the folder of a study."""

    positional: ClassVar[tuple[str, ...]] = ("folder",)

    folder: Positional[Annotated[Path, shown("[DIR]")]] = FOLDER
    """Folder of the study."""


@dataclass(frozen=True, kw_only=True)
class StudyStatusConfig(_FolderConfig):
    """Show the progress of a study, which may be running."""

    verb: ClassVar[str] = "study status"
    examples = ("quarl study status study",)


@dataclass(frozen=True, kw_only=True)
class StudyReportConfig(_FolderConfig, DrawnConfig):
    """Create tables, figures and a page from a study's results so far."""

    verb: ClassVar[str] = "study report"
    examples = ("quarl study report study",)


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """Measure a whole study, resumably: run it, show its progress, create its report."""

    verb: ClassVar[str] = "study"

    chosen: OmitArgPrefixes[
        OmitSubcommandPrefixes[
            Annotated[StudyRunConfig, subcommand("run")]
            | Annotated[StudyStatusConfig, subcommand("status")]
            | Annotated[StudyReportConfig, subcommand("report")]
        ]
    ]
    """Action."""
