"""`quarl cluster`: this machine is given to a cluster as long as the command runs."""

from __future__ import annotations

import os
import socket

from quarl.cluster.connection import LOOPBACK, Raylets, Start, need_ray, reach, short_folder, token_file
from quarl.commands import terminal
from quarl.config import ClusterJoinConfig, ClusterStartConfig
from quarl.errors import QuarlError

OPEN = "Ray listens on all addresses of a machine, at ports that it chooses: let nobody in but the cluster's machines"


def run(config: ClusterStartConfig | ClusterJoinConfig) -> None:
    """Returns never: Ctrl-C, or a signal, ends it, and nothing of it is left."""
    need_ray()
    if isinstance(config, ClusterJoinConfig):
        token = token_file(config.token)
        join, host = reach(config.address)
        start = Start(token=token, folder=short_folder(), host=host, join=join, cpus=config.cpus)
        said = [f"{host} is in the cluster at {join}; Ctrl-C takes it out"]
    else:
        try:
            socket.create_server((config.host, config.port)).close()
        except OSError as error:
            where, why = f"{config.host}:{config.port}", os.strerror(error.errno or 0)
            raise QuarlError(f"cannot listen at {where} ({why}): choose another --host or --port") from None
        token = token_file(config.token, make=True)
        start = Start(token=token, folder=short_folder(), host=config.host, port=config.port, cpus=config.cpus)
        address = f"{config.host}:{config.port}"
        said = [
            f"a cluster is at {address}; Ctrl-C ends it",
            f"a machine joins by: quarl cluster join {address} --token {token}, once it has that file, too",
        ]
    with Raylets(start, start.folder / "raylets.log") as raylets:
        said.append("only this machine reaches it" if start.host == LOOPBACK else OPEN)
        terminal.say(*said)
        raylets.wait()
