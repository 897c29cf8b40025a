"""The actors of an ActorQ run on several machines, in place of the supervisor's local ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from quarl.actorq.channel import LocalChannel
from quarl.actorq.counters import Node, Relay
from quarl.actorq.family import BLIND_S, ActorFamily, Watchdog
from quarl.actorq.faults import Fault, death
from quarl.actorq.roles import Channel
from quarl.cluster import connection, relay
from quarl.cluster.relay import RelaySpec
from quarl.config import ActorQConfig
from quarl.errors import NoClusterError, QuarlError
from quarl.files import temporary_folder
from quarl.formats import counted
from quarl.processes.child import Child, Children

RELAY_S = 30.0
"""Seconds without a heartbeat after which a relay counts as hung."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines of a run."""

    address: str
    token: Path
    num_nodes: int
    home: str = ""
    """Name of the learner's machine, on which actors leave the learner its cores; empty for local raylets."""


class ClusterFamily(ActorFamily):
    """The actors of all machines: one local process, the relay, and their processes through it."""

    def __init__(
        self,
        cluster: Cluster,
        config: ActorQConfig,
        channel: Channel,
        rungs: Sequence[float],
        cores: Sequence[frozenset[int] | None],
        incarnation: int,
        say: Callable[[str | Fault], None],
    ) -> None:
        """Prepare the relay without starting it.

        Args:
            cluster: Machines of the run.
            config: Options of the run.
            channel: Channel that the relay uses.
            rungs: Exploration rung of each actor of all machines.
            cores: CPU cores of each actor at `home`.
            incarnation: Number above all that the run ever had.
            say: Receives faults and lines for the user.
        """
        self._counters, self._say, self._watchdog = channel.counters, say, Watchdog(BLIND_S)
        self._counters.nodes[:, Node.AT_WORK] = len(rungs) // cluster.num_nodes
        log = config.output / "relay.log"
        spec = RelaySpec(
            config=config,
            channel=channel,
            rungs=tuple(rungs),
            actor_cores={cluster.home: tuple(cores)},
            incarnation=incarnation,
            address=cluster.address,
            token=cluster.token,
        )
        self.relay = Child("relay", relay.main, spec, log, apart=True, linked=True)  # apart: Ray prints a lot
        self.children = [self.relay]

    @property
    def num_alive(self) -> int:
        return int(self._counters.nodes[:, Node.ACTORS].sum()) if self.relay.alive() else 0

    @property
    def num_at_work(self) -> int:
        return 0 if self.relay.parked else int(self._counters.nodes[:, Node.AT_WORK].sum())

    def look(self) -> None:
        """Kill a relay that hangs, and pass on its messages."""
        self._watchdog.tick()
        heard = float(self._counters.relay[Relay.HEARTBEAT_S])
        self._watchdog.watch(self.relay, heard, RELAY_S, "no sign of life")
        with contextlib.suppress(OSError):  # it has just died
            while self.relay.alive() and self.relay.link.poll():
                if isinstance(news := self.relay.hear(), str | Fault):
                    self._say(news)

    def revive(self, children: Children) -> str:
        """Restart a dead relay, whose machines then begin again; return the reason if it died of a user error."""
        if not self.relay.alive() and not self.relay.parked:
            if self.relay.result.mistake is NoClusterError and self._counters.nodes[:, Node.BEGUN].any():
                folder = self.relay.spec.config.output
                return (
                    f"the cluster's first machine, {self.relay.spec.address}, does not answer any more; the checkpoint "
                    f"is in {folder}: start a cluster, then resume with --resume -o {folder}"
                )
            if self.relay.result.mistake:
                return self.relay.reason()
            if event := children.revive(self.relay):
                self._say(death(self.relay, event))
        return ""


@contextlib.contextmanager
def clustered(
    config: ActorQConfig, saved: Mapping[str, Any], say: Callable[[str], None]
) -> Iterator[tuple[ActorQConfig, dict[str, Any]]]:
    """Yield the run's options with its actors counted over all machines, and further arguments of its Supervisor.

    Local raylets live as long as the block.

    Args:
        config: Options of the command.
        saved: Options that a resumed run was started with.
        say: Receives the lines for the user.

    Raises:
        QuarlError: If machines cannot be reached, or differ.
    """
    where, nodes = config.cluster or saved["cluster"], config.nodes or saved.get("nodes")
    with contextlib.ExitStack() as stack:
        logs = stack.enter_context(temporary_folder())
        if where == "local":
            nodes = nodes or connection.LOCAL_NODES
            local = stack.enter_context(connection.Local(logs, nodes))
            cluster = Cluster(local.address, local.token, nodes)
        else:
            cluster = _surveyed(str(where), nodes, logs, say)
        each = config.actors_per_node or saved.get("actors_per_node") or config.num_actors
        config = replace(config, actors=cluster.num_nodes * each, actors_per_node=each)
        say(f"{counted(cluster.num_nodes, 'machine')} of {counted(each, 'actor')} each")
        yield (
            config,
            {
                "open_channel": partial(LocalChannel.create, num_nodes=cluster.num_nodes),
                "family": partial(ClusterFamily, cluster),
            },
        )


def _surveyed(address: str, nodes: int | None, logs: Path, say: Callable[[str], None]) -> Cluster:
    """Return the cluster's machines, found by a separate process: this one never imports Ray."""
    asks = Child("machines", _survey, address, logs / "machines.log", apart=True)
    asks.start()
    try:
        result = asks.result
    finally:
        asks.kill()
    if result.error:
        raise QuarlError(result.error)
    machines, said, home = result.value
    for line in said:
        say(line)
    return Cluster(address, connection.token_file(), connection.enough(machines, nodes), home)


def _survey(address: str) -> tuple[list[connection.Machine], list[str], str]:
    """Return the cluster's machines, warnings about them, and the name of this one."""
    said: list[str] = []
    machines, home = connection.connect(address), connection.own_name()
    connection.check_machines(machines, said.append)
    connection.disconnect()
    return machines, said, home
