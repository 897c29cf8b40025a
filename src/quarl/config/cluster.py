"""Options of `quarl cluster start` and `quarl cluster join`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Positional, subcommand

from quarl.config.base import Config
from quarl.errors import QuarlError
from quarl.fields import AT_LEAST_ONE, Bound, shown
from quarl.specs import Flag


@dataclass(frozen=True, kw_only=True)
class _MachineConfig(Config):
    """A verb that adds this machine to a cluster, until Ctrl-C."""

    token: Annotated[Path | None, shown("FILE", default="~/.config/quarl/cluster.token")] = None
    """Token file of the cluster, the same on all machines; anyone who has it can run code on them."""
    cpus: Annotated[int | None, shown("N", default="all"), AT_LEAST_ONE] = None
    """Number of this machine's cores for the cluster."""

    def check(self) -> None:
        super().check()
        self.refuse(("json",), "has no rows to write")


@dataclass(frozen=True, kw_only=True)
class ClusterStartConfig(_MachineConfig):
    """Start a cluster with this machine, for other machines to join; Ctrl-C ends it."""

    verb: ClassVar[str] = "cluster start"
    examples = ("quarl cluster start", "quarl cluster start --host 10.0.0.1")
    positional: ClassVar[tuple[str, ...]] = ()

    host: Annotated[str, shown("IP")] = "127.0.0.1"
    """IP address of this machine for the others; 127.0.0.1 is for this machine alone."""
    port: Annotated[int, Bound("must be between 1024 and 65535", lambda port: 1024 <= port < 2**16)] = 6379
    """Port for other machines to join."""

    def check(self) -> None:
        super().check()
        if not re.fullmatch(r"([0-9]+\.){3}[0-9]+", self.host) or self.host == "0.0.0.0":
            raise QuarlError(f"--host is {self.host[:60]!r}; use an IP address of this machine, such as 10.0.0.1")


@dataclass(frozen=True, kw_only=True)
class ClusterJoinConfig(_MachineConfig):
    """Add this machine to a cluster started with `quarl cluster start`; Ctrl-C removes it."""

    verb: ClassVar[str] = "cluster join"
    examples = ("quarl cluster join 10.0.0.1:6379",)
    positional: ClassVar[tuple[str, ...]] = ("address",)

    address: Positional[Annotated[str, shown("ADDRESS")]] = ""
    """IP:PORT of the cluster, as printed by `quarl cluster start`."""
    retry: Flag = False
    """Wait for a first machine that does not answer, and join again when it is back."""

    def check(self) -> None:
        super().check()
        if not self.address:
            raise QuarlError("ADDRESS is missing: use IP:PORT of the cluster, as printed by quarl cluster start")


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Combine several machines into a cluster for `quarl actorq` and `quarl study`: start one, or join it."""

    verb: ClassVar[str] = "cluster"

    chosen: OmitArgPrefixes[
        OmitSubcommandPrefixes[
            Annotated[ClusterStartConfig, subcommand("start")] | Annotated[ClusterJoinConfig, subcommand("join")]
        ]
    ]
    """Action."""
