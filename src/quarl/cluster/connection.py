"""Ray's clusters: the token, raylets of this machine, this process as a driver, and what machines there are.

Ray is imported where it is used, behind the variables that it reads when it is loaded.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import platform
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from quarl import __version__, errors
from quarl.errors import QuarlError, extras, first_line
from quarl.files import temporary_folder
from quarl.formats import counted
from quarl.machine import usable_cores
from quarl.processes.child import Child
from quarl.processes.inside import Result, die_with_parent
from quarl.processes.muted import muted

TOKEN = Path(os.path.expanduser("~/.config/quarl/cluster.token"))
"""The token's file where neither an option nor RAY_AUTH_TOKEN_PATH names one."""
LOOPBACK = "127.0.0.1"
ANSWER_S, TASK_S, END_S = 4.0, 60.0, 10.0
"""For an address to answer, for machines to say what they are like, and for raylets to end."""
LOCAL_NODES = 2
"""Of a run's own cluster."""
OBJECT_BYTES = 256 * 2**20
"""Of shared memory on a machine: some versions of weights and pieces of rows."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine of a cluster: a raylet, of which one computer may have several."""

    id: str
    """Ray's, in hexadecimal digits."""
    address: str
    """Its IP."""
    name: str
    """Its host name."""
    cpus: float


def need_ray() -> None:
    """QuarlError where there is no Ray."""
    if sys.platform != "linux":
        raise QuarlError("a cluster needs Linux: its processes end with each other as Linux does it")
    with extras("a cluster"):
        if importlib.util.find_spec("ray") is None:
            raise ModuleNotFoundError(name="ray")


def token_file(path: Path | None = None, *, make: bool = False) -> Path:
    """The file of the token: `path`, else the one that RAY_AUTH_TOKEN_PATH names, else TOKEN.

    make: writes a new token, for its owner alone, where there is none. QuarlError where others may read it.
    """
    file = path or Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or TOKEN)
    try:
        if make and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
                opened.write(secrets.token_hex(32))
        mode = file.stat().st_mode
    except OSError as error:
        fix = "name another by --token FILE" if make else "copy it from the machine that runs quarl cluster start"
        raise QuarlError(f"the cluster's token is not in {file} ({error.strerror}): {fix}") from None
    if mode & 0o007:  # its group may: Kubernetes gives a secret to a group
        raise QuarlError(f"others may read the cluster's token: chmod 600 {file}")
    return file.resolve()


def environment(token: Path) -> dict[str, str]:
    """Variables that stand before Ray is imported, or a raylet is started, with this token."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "",  # it would come first
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_USAGE_STATS_CONFIG_PATH": os.devnull,  # no ~/.ray
        "RAY_health_check_timeout_ms": "3000",  # a machine that stands still is lost after 30 s, and not 65
        "RAY_worker_niceness": "0",  # in place of 15
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback stays loopback
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # no folder is sent to other machines
        "RAY_prestart_worker_first_driver": "0",  # which were a process a core
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
    }


def reach(address: str) -> tuple[str, str]:
    """(IP:PORT of the cluster, this machine's IP on the way there); QuarlError where nothing answers."""
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
        raise QuarlError(f"{address[:60]!r} is no address of a cluster: use IP:PORT, as quarl cluster start says it")
    try:
        with socket.create_connection((host, int(port)), ANSWER_S) as opened:
            return f"{opened.getpeername()[0]}:{port}", opened.getsockname()[0]
    except OSError as error:
        why = error.strerror or error
        raise QuarlError(f"no cluster answers at {address} ({why}): quarl cluster start says its address") from None


def connect(address: str, *, token: Path | None = None) -> list[Machine]:
    """Makes this process a driver of the cluster at IP:PORT, or auto for this machine's own; its machines, sorted.

    token: its file, as in `token_file`. QuarlError within 10 s where the cluster does not answer, has another token or
    version, or has not this machine, and where Ray is missing.
    """
    need_ray()
    file = token_file(token)
    if address == "auto":
        known = file.with_suffix(".address")
        if not (address := os.environ.get("RAY_ADDRESS", "") or (known.read_text() if known.is_file() else "")):
            raise QuarlError("this machine has begun no cluster: quarl cluster start does, or name one by IP:PORT")
    where, _ = reach(address)
    ray = _ray(file)
    from ray._private.services import find_node_ids

    if not _nodes_at(where, file) & {*find_node_ids()}:
        raise QuarlError(f"this machine is not in the cluster at {where}: quarl cluster join {where}")
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(where, log_to_driver=False, logging_level=logging.ERROR)
    if threading.current_thread() is threading.main_thread():  # Ray has taken the signal for itself
        signal.signal(signal.SIGTERM, handler)
    return machines()


def disconnect() -> None:
    """This process is no driver any more; what it has started in the cluster ends."""
    sys.modules["ray"].shutdown()


def machines() -> list[Machine]:
    """Machines of the connected cluster that are alive, by address, name and id."""
    keys = {"id": "NodeID", "address": "NodeManagerAddress", "name": "NodeManagerHostname"}
    alive = [node for node in sys.modules["ray"].nodes() if node["Alive"]]
    found = [Machine(**{k: node[v] for k, v in keys.items()}, cpus=node["Resources"].get("CPU", 0)) for node in alive]
    return sorted(found, key=lambda each: (each.address, each.name, each.id))


def enough(machines: Sequence[Machine], nodes: int | None) -> int:
    """How many of the machines are taken: `nodes`, or all; QuarlError where there are not so many."""
    if nodes is not None and nodes > len(machines):
        names = ", ".join(machine.name for machine in machines)
        raise QuarlError(f"--nodes {nodes}: the cluster has {counted(len(machines), 'machine')} ({names})")
    return nodes or len(machines)


def about() -> dict[str, Any]:
    """Versions of what this process runs, its niceness, and whether its machine asks for a token."""
    versions = {"quarl": __version__, "python": platform.python_version(), "ray": sys.modules["ray"].__version__}
    return {**versions, "niceness": os.nice(0), "token": os.environ.get("RAY_AUTH_MODE") == "token"}


def check_machines(machines: Sequence[Machine], say: Callable[[str], None] = errors.note) -> None:
    """QuarlError where a machine does not run QuaRL, or has other versions than this process.

    say: hears of machines on which tasks give way to others, and of those that ask for no token.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At

    ask = ray.remote(num_cpus=0, max_retries=0)(about)
    answers = [ask.options(scheduling_strategy=At(machine.id, soft=False)).remote() for machine in machines]
    ours, until = about(), time.monotonic() + TASK_S
    for machine, answer in zip(machines, answers, strict=True):
        where = f"machine {machine.name} ({machine.address})"
        try:
            theirs = ray.get(answer, timeout=max(until - time.monotonic(), 0))
        except Exception as error:
            raise QuarlError(f"{where} does not run QuaRL ({first_line(error)}): install there what is here") from None
        _same(where, {name: theirs[name] for name in ("quarl", "python", "ray")}, ours)
        if theirs["niceness"] > 0:
            say(f"{where} runs tasks at niceness {theirs['niceness']}: let RAY_worker_niceness be 0 there")
        if not theirs["token"]:
            say(f"{where} asks for no token: whoever reaches its ports runs there what he likes")


@dataclass(frozen=True, kw_only=True)
class Start:
    """What the process is told that runs raylets of this machine."""

    token: Path
    folder: Path
    """Of Ray's files, which goes when they end."""
    host: str = LOOPBACK
    """IP of this machine at which others reach it."""
    port: int = 0
    """Of a new cluster; 0: any that is free."""
    join: str = ""
    """Address of the cluster that they join; empty: the first begins a new one."""
    num_nodes: int = 1
    cpus: int | None = None
    """Cores of each, as the cluster sees it; None: an equal part of those that there are."""


class Raylets:
    """Raylets of this machine, in a child process that ends with this one, and Ray's files with it."""

    def __init__(self, start: Start, log: Path) -> None:
        """Returns when they are at work; QuarlError where they cannot be. log: what they print."""
        self.token, self._folder = start.token, start.folder
        self._child = Child("raylets", run, start, log, apart=True, linked=True)
        atexit.register(self.close)  # multiprocessing would wait for it
        try:
            self._child.start()
            self.address = self._child.hear()
            """IP:PORT of the cluster."""
            if isinstance(self.address, Result):
                raise QuarlError(self.address.error)
        except BaseException:
            self.close()
            raise

    def wait(self) -> None:
        """Returns never; QuarlError where they end by themselves."""
        self._child.join()
        raise QuarlError(f"this machine left the cluster at {self.address}: {self._child.reason()}")

    def close(self) -> None:
        """Ends them; more than once does no harm."""
        atexit.unregister(self.close)
        if self._child.process is not None:
            self._child.link.close()
            self._child.join(END_S)
            self._child.kill()
        _remove(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Local(Raylets):
    """A cluster of one run: raylets that only this machine reaches, and only with the run's own token."""

    def __init__(self, folder: Path, num_nodes: int = LOCAL_NODES, cpus: int | None = None) -> None:
        """folder: of the run, for what they print. cpus: of each, as in Start."""
        own = short_folder()
        token = token_file(own / "token", make=True)
        super().__init__(Start(token=token, folder=own, num_nodes=num_nodes, cpus=cpus), folder / "raylets.log")


def short_folder() -> Path:
    """Make a folder for this user alone, whose path leaves room for the names of Ray's sockets.

    It is locked as long as this process lives.
    """
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(temporary_folder(Path("/tmp") if len(tempfile.gettempdir()) > 20 else None))


def run(start: Start, link: Connection) -> None:
    """The child's main: sends the cluster's address once the raylets are at work, and ends them when `link` is closed.

    They die with this process, which lives for moments longer than its parent: for the folder.
    """
    die_with_parent(False)
    nodes: list[Any] = []
    known = None if start.join else start.token.with_suffix(".address")
    try:
        _ray(start.token)
        if start.join:
            _nodes_at(start.join, start.token)
        for _ in range(start.num_nodes):
            nodes.append(_node(start, nodes[0].address if nodes else start.join))
        if known:
            known.write_text(nodes[0].address)
        link.send(nodes[0].address)
        while not link.poll(1):
            if dead := nodes[0].dead_processes():
                raise QuarlError(f"Ray's {dead[0][0]} ended with exit code {dead[0][1].returncode}")
    except BrokenPipeError:
        pass  # the parent is gone
    finally:
        for node in reversed(nodes):
            node.kill_all_processes(check_alive=False, wait=True)
        if nodes and known:
            known.unlink(missing_ok=True)
        _remove(start.folder)
    os.killpg(0, signal.SIGKILL)  # Ray's agents would hear of it in a minute


def _node(start: Start, join: str) -> Any:
    """A raylet, and what else Ray has beside one."""
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    class Bare(Node):  # type: ignore[misc]  # Ray does not annotate it
        """Without the dashboard's process, which Ray starts even where it is off: 2.7 s of processor time, 70 MB."""

        def start_api_server(self, **_: Any) -> None: ...

    parameters = RayParams(
        node_ip_address=start.host,
        gcs_address=join or None,
        gcs_server_port=None if join else start.port,
        num_cpus=start.cpus or max(usable_cores() // start.num_nodes, 1),
        object_store_memory=OBJECT_BYTES,
        temp_dir=str(start.folder / "ray"),  # which Ray opens to all; the folder stays this user's
        include_dashboard=False,
        dashboard_agent_listen_port=0,
        include_log_monitor=False,
        no_monitor=True,
    )
    return Bare(parameters, head=not join, shutdown_at_exit=False, spawn_reaper=True)


def _ray(token: Path) -> Any:
    """Ray, told of the token."""
    os.environ.update(environment(token))
    import ray
    from ray._raylet import AuthenticationTokenLoader, Config

    Config.initialize("")  # whoever imported it before had other variables
    AuthenticationTokenLoader.instance().reset_cache()
    return ray


def _nodes_at(address: str, token: Path) -> set[str]:
    """Ids of a cluster's raylets; QuarlError where it takes another token, or has other versions than this process."""
    import ray
    from ray._common.usage.usage_lib import get_cluster_metadata
    from ray._raylet import Config, GcsClient

    Config.initialize('{"gcs_rpc_server_connect_timeout_s": 1, "py_gcs_connect_timeout_s": 2}')  # 40 s if it is mute
    try:
        with muted([2]):  # the line is ours
            client = GcsClient(address=address)
            nodes, cluster = client.get_all_node_info(timeout=ANSWER_S), get_cluster_metadata(client)
    except ray.exceptions.AuthenticationError:
        raise QuarlError(f"the cluster at {address} takes another token than that in {token}: copy its own") from None
    except Exception as error:
        raise QuarlError(f"no cluster of Ray {ray.__version__} is at {address}: {first_line(error)}") from None
    _same(f"the cluster at {address}", {name: cluster[f"{name}_version"] for name in ("python", "ray")}, about())
    return {each.hex() for each in nodes}


def _same(where: str, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """QuarlError where versions differ."""
    for name, version in theirs.items():
        if version != ours[name]:
            raise QuarlError(f"{where} has {name} {version}, this machine {ours[name]}: install the same on both")


def _remove(folder: Path) -> None:
    """Removes it, though Ray's last processes may write into it for another moment."""
    until = time.monotonic() + END_S
    while folder.exists() and time.monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)
