"""`quarl cluster`: adds this machine to a cluster while the command runs."""

from __future__ import annotations

import os
import socket
import time

from quarl.cluster.connection import LOOPBACK, Raylets, Start, need_ray, reach, short_folder, token_file
from quarl.commands import terminal
from quarl.config import ClusterJoinConfig, ClusterStartConfig
from quarl.errors import NoClusterError, QuarlError, note_once

OPEN = "Ray listens on all addresses of a machine, at ports that it chooses: allow only the cluster's machines in"
AGAIN_S = 3.0
"""Seconds between two tries of `join --retry`."""


def run(config: ClusterStartConfig | ClusterJoinConfig) -> None:
    """Run until Ctrl-C or a signal, then remove all traces; `join --retry` joins again until then."""
    need_ray()
    while True:
        try:
            _run(config)
        except NoClusterError as error:
            if isinstance(config, ClusterStartConfig) or not config.retry:
                raise
            note_once(f"{error}; it is tried again every {AGAIN_S:g} s")
            time.sleep(AGAIN_S)


def _run(config: ClusterStartConfig | ClusterJoinConfig) -> None:
    if isinstance(config, ClusterJoinConfig):
        token = token_file(config.token)
        join, host = reach(config.address)
        start = Start(token=token, folder=short_folder(), host=host, join=join, cpus=config.cpus)
        said = [f"{host} is in the cluster at {join}; Ctrl-C removes it"]
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
            f"a cluster is at {address}; Ctrl-C stops it",
            f"to join from another machine, copy that file to it: quarl cluster join {address} --token {token}",
        ]
    with Raylets(start, start.folder / "raylets.log") as raylets:
        said.append("only this machine can reach it" if start.host == LOOPBACK else OPEN)
        terminal.say(*raylets.said, *said)
        raylets.wait()
