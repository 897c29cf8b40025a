"""`quarl cluster`: this machine is given to a cluster as long as the command runs."""

from __future__ import annotations

import os
import socket

from quarl.cluster.connection import LOOPBACK, Raylets, Start, need_ray, reach, short_folder, token_file
from quarl.commands import terminal
from quarl.config import ClusterJoinConfig, ClusterStartConfig
from quarl.errors import QuarlError


def run(config: ClusterStartConfig | ClusterJoinConfig) -> None:
    """Returns never: Ctrl-C, or a signal, ends it, and nothing of it is left."""
    need_ray()
    if isinstance(config, ClusterJoinConfig):
        token = token_file(config.token)
        address, host = reach(config.address)
        start = Start(token=token, folder=short_folder(), host=host, join=address, cpus=config.cpus)
    else:
        check_free(config.host, config.port)
        token = token_file(config.token, make=True)
        start = Start(token=token, folder=short_folder(), host=config.host, port=config.port, cpus=config.cpus)
    with Raylets(start, start.folder / "raylets.log") as raylets:
        terminal.say(*lines(start, raylets.address))
        raylets.wait()


def check_free(host: str, port: int) -> None:
    """QuarlError where nothing can listen there."""
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise QuarlError(f"cannot listen at {host}:{port} ({why}): choose another --host or --port") from None


def lines(start: Start, address: str) -> list[str]:
    """What is said once the machine is there."""
    if start.join:
        return [f"{start.host} is in the cluster at {address}; Ctrl-C takes it out"]
    token = f"--token {start.token}"
    alone = ["only this machine reaches it: begin it with --host IP for others"] if start.host == LOOPBACK else []
    return [
        f"a cluster is at {address}; Ctrl-C ends it",
        *alone,
        f"a machine joins by: quarl cluster join {address} {token}, once it has that file, too",
    ]
