"""What `quarl cluster start` and `quarl cluster join` can be told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Positional, subcommand

from quarl.config.base import Config, at_least_one
from quarl.config.groups import shown
from quarl.errors import QuarlError


@dataclass(frozen=True, kw_only=True)
class _MachineConfig(Config):
    """A verb that gives this machine to a cluster, until Ctrl-C."""

    token: Annotated[Path | None, shown("FILE", default="~/.config/quarl/cluster.token")] = None
    """The cluster's token, which all its machines have; whoever has it can run anything on them."""
    cpus: Annotated[int | None, shown("N", default="all")] = None
    """Cores of this machine that the cluster may take."""

    def check(self) -> None:
        super().check()
        self.refuse(("json",), "is of rows, and there are none to write")
        at_least_one(cpus=self.cpus)


@dataclass(frozen=True, kw_only=True)
class ClusterStartConfig(_MachineConfig):
    """Begin a cluster of machines with this one, which others join; Ctrl-C ends it."""

    verb: ClassVar[str] = "cluster start"
    examples = ("quarl cluster start", "quarl cluster start --host 10.0.0.1")
    positional: ClassVar[tuple[str, ...]] = ()

    host: Annotated[str, shown("IP")] = "127.0.0.1"
    """Address of this machine at which the others reach it; 127.0.0.1 is for this machine alone."""
    port: int = 6379
    """Where others join."""

    def check(self) -> None:
        super().check()
        if not re.fullmatch(r"([0-9]+\.){3}[0-9]+", self.host) or self.host == "0.0.0.0":
            raise QuarlError(f"--host is {self.host[:60]!r}; use an IP of this machine, as in 10.0.0.1")
        if not 1024 <= self.port < 2**16:
            raise QuarlError(f"--port must be between 1024 and 65535, got {self.port}")


@dataclass(frozen=True, kw_only=True)
class ClusterJoinConfig(_MachineConfig):
    """Give this machine to a cluster that `quarl cluster start` began; Ctrl-C takes it out."""

    verb: ClassVar[str] = "cluster join"
    examples = ("quarl cluster join 10.0.0.1:6379",)
    positional: ClassVar[tuple[str, ...]] = ("address",)

    address: Positional[Annotated[str, shown("ADDRESS")]] = ""
    """IP:PORT, as `quarl cluster start` says it."""

    def check(self) -> None:
        super().check()
        if not self.address:
            raise QuarlError("ADDRESS is missing: IP:PORT of the cluster, as quarl cluster start says it")


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Make several machines one cluster for `quarl actorq` and `quarl study`: begin one, or join it."""

    verb: ClassVar[str] = "cluster"

    chosen: OmitArgPrefixes[
        OmitSubcommandPrefixes[
            Annotated[ClusterStartConfig, subcommand("start")] | Annotated[ClusterJoinConfig, subcommand("join")]
        ]
    ]
    """What to do."""
