"""Connections to Ray clusters: the token, raylets of this machine, this process as a driver, and the list of machines.

Ray is imported at the point of use, after the environment variables that it reads on import are set.
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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from quarl import __version__, errors
from quarl.errors import NoClusterError, QuarlError, extras, first_line
from quarl.files import temporary_folder
from quarl.formats import counted
from quarl.machine import usable_cores
from quarl.processes.child import Child
from quarl.processes.inside import Result, die_with_parent
from quarl.processes.muted import muted

TOKEN = Path(os.path.expanduser("~/.config/quarl/cluster.token"))
"""Token file unless an option or RAY_AUTH_TOKEN_PATH names another."""
LOOPBACK = "127.0.0.1"
ANSWER_S, TASK_S, END_S = 4.0, 60.0, 10.0
"""Timeouts in seconds: for an address to answer, for machines to report their versions, and for raylets to end."""
LOCAL_NODES = 2
"""Number of raylets of a run's own cluster."""
KEY = b"quarl"
"""Key of the version of QuaRL that started a cluster, in the cluster's own store."""
OBJECT_BYTES = 256 * 2**20
"""Bytes of shared memory on a machine: some versions of weights and batches of rows."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine of a cluster: a raylet, of which one computer may run several."""

    id: str
    """Ray's id, in hexadecimal digits."""
    address: str
    """IP address."""
    name: str
    """Host name."""
    cpus: float


def need_ray() -> None:
    """Raise QuarlError if Ray is not installed or not supported."""
    if sys.platform != "linux":
        raise QuarlError("a cluster needs Linux: its processes end with each other as Linux does it")
    with extras("a cluster"):
        if importlib.util.find_spec("ray") is None:
            raise ModuleNotFoundError(name="ray")


def token_file(path: Path | None = None, *, make: bool = False) -> Path:
    """Return the path of the token file: `path`, else the value of RAY_AUTH_TOKEN_PATH, else TOKEN.

    With `make`, a missing token is created, readable by its owner alone. Raises QuarlError if others may read it.
    """
    file = path or Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or TOKEN)
    try:
        if make and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
                opened.write(secrets.token_hex(32))
        mode = file.stat().st_mode
    except OSError as error:
        fix = "set another file with --token FILE" if make else "copy it from the machine that runs quarl cluster start"
        raise QuarlError(f"the cluster's token is not in {file} ({error.strerror}): {fix}") from None
    if mode & 0o007:  # the group may read it: Kubernetes gives a secret to a group
        raise QuarlError(f"others may read the cluster's token: chmod 600 {file}")
    return file.resolve()


def environment(token: Path) -> dict[str, str]:
    """Return the variables that must be set before Ray is imported or a raylet is started, with this token."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "",  # otherwise it takes precedence
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_USAGE_STATS_CONFIG_PATH": os.devnull,  # write no ~/.ray
        "RAY_health_check_timeout_ms": "3000",  # a machine that stops responding is lost after 30 s instead of 65
        "RAY_worker_niceness": "0",  # the default is 15
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keep loopback addresses
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # send no folder to other machines
        "RAY_prestart_worker_first_driver": "0",  # no idle process for every core
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",  # patch levels may differ
    }


def reach(address: str) -> tuple[str, str]:
    """Return the cluster's IP:PORT and this machine's IP on that route; raise QuarlError if nothing answers."""
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
        raise QuarlError(f"{address[:60]!r} is not a cluster address: use IP:PORT, as printed by quarl cluster start")
    try:
        with socket.create_connection((host, int(port)), ANSWER_S) as opened:
            return f"{opened.getpeername()[0]}:{port}", opened.getsockname()[0]
    except OSError as error:
        why = error.strerror or error
        raise NoClusterError(
            f"no cluster answers at {address} ({why}): quarl cluster start prints its address"
        ) from None


def connect(address: str, *, token: Path | None = None) -> list[Machine]:
    """Connect this process to a cluster as a driver, and return the cluster's machines, sorted.

    Args:
        address: IP:PORT of the cluster, or auto for this machine's own.
        token: Path of the token file, as in `token_file`.

    Raises:
        QuarlError: Within 10 s, if the cluster does not answer, has another token or version, or does not include this
            machine, and if Ray is missing.
    """
    need_ray()
    file = token_file(token)
    if address == "auto":
        known = file.with_suffix(".address")
        if not (address := os.environ.get("RAY_ADDRESS", "") or (known.read_text() if known.is_file() else "")):
            raise QuarlError("no cluster was started on this machine: run quarl cluster start, or give IP:PORT")
    where, _ = reach(address)
    ray = _ray(file)
    from ray._private.services import find_node_ids

    if not _nodes_at(where, file, errors.note) & {*find_node_ids()}:
        raise QuarlError(f"this machine is not in the cluster at {where}: quarl cluster join {where}")
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(where, log_to_driver=False, logging_level=logging.ERROR)
    ray._private.worker.print_to_stdstream = lambda *_, **__: None  # last lines of Ray's logs, on stderr
    if threading.current_thread() is threading.main_thread():  # restore the handler that Ray has replaced
        signal.signal(signal.SIGTERM, handler)
    return machines()


def disconnect() -> None:
    """Disconnect this process from the cluster; everything that it started there ends."""
    sys.modules["ray"].shutdown()


def machines() -> list[Machine]:
    """Return the live machines of the connected cluster, sorted by address, name and id.

    Machines that share a host name, as containers may, are named by their addresses.
    """
    keys = {"id": "NodeID", "address": "NodeManagerAddress", "name": "NodeManagerHostname"}
    alive = [node for node in sys.modules["ray"].nodes() if node["Alive"]]
    found = [Machine(**{k: node[v] for k, v in keys.items()}, cpus=node["Resources"].get("CPU", 0)) for node in alive]
    shared = {name for name, count in Counter(each.name for each in found).items() if count > 1}
    found = [replace(each, name=each.address) if each.name in shared else each for each in found]
    return sorted(found, key=lambda each: (each.address, each.name, each.id))


def own_name() -> str:
    """Return the name of this machine in the connected cluster."""
    here = sys.modules["ray"].get_runtime_context().get_node_id()
    return next(each.name for each in machines() if each.id == here)


def enough(machines: Sequence[Machine], nodes: int | None) -> int:
    """Return the number of machines to use: `nodes`, or all; raise QuarlError if there are fewer."""
    if nodes is not None and nodes > len(machines):
        names = ", ".join(machine.name for machine in machines)
        raise QuarlError(f"--nodes {nodes}: the cluster has {counted(len(machines), 'machine')} ({names})")
    return nodes or len(machines)


def about() -> dict[str, Any]:
    """Return this process's versions and niceness, and whether its machine requires a token."""
    versions = {"quarl": __version__, "python": platform.python_version(), "ray": sys.modules["ray"].__version__}
    return {**versions, "niceness": os.nice(0), "token": os.environ.get("RAY_AUTH_MODE") == "token"}


def check_machines(machines: Sequence[Machine], say: Callable[[str], None] = errors.note) -> None:
    """Raise QuarlError if a machine does not run QuaRL, or has other versions than this process.

    `say` receives a warning for machines that run tasks at low priority, and for those that require no token.
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
            raise QuarlError(
                f"{where} does not run QuaRL ({first_line(error)}): install the same versions there"
            ) from None
        _same(where, {name: theirs[name] for name in ("quarl", "python", "ray")}, ours, say)
        if theirs["niceness"] > 0:
            say(f"{where} runs tasks at niceness {theirs['niceness']}: set RAY_worker_niceness=0 there")
        if not theirs["token"]:
            say(f"{where} requires no token: anyone who reaches its ports can run code on it")


@dataclass(frozen=True, kw_only=True)
class Start:
    """The start arguments of the process that runs this machine's raylets."""

    token: Path
    folder: Path
    """Folder of Ray's files, removed when the raylets end."""
    host: str = LOOPBACK
    """IP of this machine at which others reach it."""
    port: int = 0
    """Port of a new cluster; 0 takes a free one."""
    join: str = ""
    """Address of the cluster to join; empty starts a new one."""
    num_nodes: int = 1
    cpus: int | None = None
    """Cores of each raylet as the cluster sees them; None means an equal part of this machine's."""


class Raylets(AbstractContextManager[Any]):
    """The raylets of this machine, in a child process that ends with this one and removes Ray's files."""

    def __init__(self, start: Start, log: Path) -> None:
        """Start the raylets and wait until they work; `log` receives their output.

        Raises QuarlError if they cannot start, and NoClusterError if the cluster to join does not answer.
        """
        self.token, self._folder = start.token, start.folder
        self._child = Child("raylets", run, start, log, apart=True, linked=True)
        atexit.register(self.close)  # otherwise multiprocessing would wait for the child
        try:
            self._child.start()
            if isinstance(heard := self._child.hear(), Result):
                raise (heard.mistake or QuarlError)(heard.error)
            self.address, self.said = heard
            """IP:PORT of the cluster, and lines about other versions there."""
        except BaseException:
            self.close()
            raise

    def wait(self) -> None:
        """Wait until the raylets end by themselves, which raises NoClusterError."""
        self._child.join()
        raise NoClusterError(f"this machine left the cluster at {self.address}: {self._child.reason()}")

    def close(self) -> None:
        """End the raylets; repeated calls are harmless."""
        atexit.unregister(self.close)
        if self._child.process is not None:
            self._child.link.close()
            self._child.join(END_S)
            self._child.kill()
        _remove(self._folder)

    def __exit__(self, *_: object) -> None:
        self.close()


class Local(Raylets):
    """A cluster of one run: raylets that only this machine can reach, and only with the run's own token."""

    def __init__(self, folder: Path, num_nodes: int = LOCAL_NODES, cpus: int | None = None) -> None:
        """Start the raylets.

        Args:
            folder: Folder of the run, which receives their log.
            num_nodes: Number of raylets.
            cpus: Cores of each, as in Start.
        """
        need_ray()
        own = short_folder()
        token = token_file(own / "token", make=True)
        super().__init__(Start(token=token, folder=own, num_nodes=num_nodes, cpus=cpus), folder / "raylets.log")


def short_folder() -> Path:
    """Create a folder for this user alone, with a path short enough for Ray's socket names.

    It is locked while this process lives.
    """
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(temporary_folder(Path("/tmp") if len(tempfile.gettempdir()) > 20 else None))


def run(start: Start, link: Connection) -> None:
    """Run the raylets in a child process until `link` is closed, after sending the cluster's address through it.

    The raylets die with this process, which outlives its parent by moments to remove the folder.
    """
    die_with_parent(False)
    nodes: list[Any] = []
    said: list[str] = []
    known = None if start.join else start.token.with_suffix(".address")
    try:
        # Start the raylets: the first one begins or joins the cluster.
        ray = _ray(start.token)
        if start.join:
            _nodes_at(start.join, start.token, said.append)
        for _ in range(start.num_nodes):
            nodes.append(_node(start, nodes[0].address if nodes else start.join))
        if known:
            known.write_text(nodes[0].address)
            ray._raylet.GcsClient(address=nodes[0].address).internal_kv_put(KEY, __version__.encode(), True, None)
        # Report the address, and watch the processes.
        link.send((nodes[0].address, said))
        while not link.poll(1):
            if dead := nodes[0].dead_processes():
                raise QuarlError(f"Ray's {dead[0][0]} ended with exit code {dead[0][1].returncode}")
    except BrokenPipeError:
        pass  # the parent has exited
    finally:
        for node in reversed(nodes):
            node.kill_all_processes(check_alive=False, wait=True)
        if nodes and known:
            known.unlink(missing_ok=True)
        _remove(start.folder)
    os.killpg(0, signal.SIGKILL)  # Ray's agents would notice only in a minute


def _node(start: Start, join: str) -> Any:
    """Start a raylet, with the further processes that Ray needs."""
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    class Bare(Node):  # type: ignore[misc]  # Ray has no annotations
        """A raylet without the dashboard process, which Ray always starts: 2.7 s of processor time, 70 MB."""

        def start_api_server(self, **_: Any) -> None: ...

    parameters = RayParams(
        node_ip_address=start.host,
        gcs_address=join or None,
        gcs_server_port=None if join else start.port,
        num_cpus=start.cpus or max(usable_cores() // start.num_nodes, 1),
        object_store_memory=OBJECT_BYTES,
        temp_dir=str(start.folder / "ray"),  # Ray opens this folder to all users; its parent stays private
        include_dashboard=False,
        dashboard_agent_listen_port=0,
        include_log_monitor=False,
        no_monitor=True,
    )
    return Bare(parameters, head=not join, shutdown_at_exit=False, spawn_reaper=True)


def _ray(token: Path) -> Any:
    """Import Ray with the token set, and return the module."""
    os.environ.update(environment(token))
    import ray
    from ray._raylet import AuthenticationTokenLoader, Config

    Config.initialize("")  # an earlier import may have seen other variables
    AuthenticationTokenLoader.instance().reset_cache()
    return ray


def _nodes_at(address: str, token: Path, say: Callable[[str], None]) -> set[str]:
    """Return the ids of a cluster's raylets; `say` receives a line if its Python has another patch level.

    Raises QuarlError if the cluster has another token or other versions than this process.
    """
    import ray
    from ray._common.usage.usage_lib import get_cluster_metadata
    from ray._raylet import Config, GcsClient

    # The default is 40 s without an answer.
    Config.initialize('{"gcs_rpc_server_connect_timeout_s": 1, "py_gcs_connect_timeout_s": 2}')
    try:
        with muted([2]):  # suppress Ray's own message
            client = GcsClient(address=address)
            nodes, cluster = client.get_all_node_info(timeout=ANSWER_S), get_cluster_metadata(client)
            started_by = client.internal_kv_get(KEY, None, ANSWER_S)
    except ray.exceptions.AuthenticationError:
        raise QuarlError(
            f"the cluster at {address} rejected the token in {token}: copy the cluster's token there"
        ) from None
    except Exception as error:
        raise NoClusterError(f"no cluster of Ray {ray.__version__} found at {address}: {first_line(error)}") from None
    theirs = {name: cluster[f"{name}_version"] for name in ("python", "ray")}
    if started_by:  # otherwise another program has started it
        theirs["quarl"] = started_by.decode()
    _same(f"the cluster at {address}", theirs, about(), say)
    return {each.hex() for each in nodes}


def _same(where: str, theirs: Mapping[str, str], ours: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Raise QuarlError if versions differ; only `say` it if they are patch levels of Python."""
    for name, version in theirs.items():
        line = f"{where} has {name} {version}, this machine {ours[name]}"
        if name == "python" and version != ours[name] and version.split(".")[:2] == ours[name].split(".")[:2]:
            say(f"{line}: patch levels may differ")
        elif version != ours[name]:
            raise QuarlError(f"{line}: install the same on both")


def _remove(folder: Path) -> None:
    """Remove the folder, retrying while Ray's last processes still write into it."""
    until = time.monotonic() + END_S
    while folder.exists() and time.monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)
