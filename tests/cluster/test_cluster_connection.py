"""Clusters on this machine: who gets in, what listens, what is said of mistakes, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

import require
from quarl.cli import main
from quarl.cluster.connection import token_file
from quarl.files import read_rows
from stress.chaos.run import below, living
from waiting import until

pytestmark = pytest.mark.slow

require.package("ray")


def listening(processes: list[int]) -> list[str]:
    """Addresses at which these processes listen, as /proc/net has them: in hexadecimal digits, lowest byte first."""
    owned = set()
    for process in processes:
        for path in Path(f"/proc/{process}/fd").glob("*"):
            try:
                owned.add(os.readlink(path))
            except OSError:
                continue
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in owned]


def python(script: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, with arguments and variables."""
    command = [sys.executable, "-c", script, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})


@contextmanager
def running(*commands: list[str]) -> Iterator[list[tuple[int, str]]]:
    """The process of each command and the first line that it says, until they have ended."""
    with ExitStack() as stack:
        processes = [stack.enter_context(subprocess.Popen(each, stdout=PIPE, text=True)) for each in commands]
        yield [(process.pid, process.stdout.readline()) for process in processes if process.stdout is not None]


def driver(address: str, token: Path) -> dict[str, Any]:
    """What a process sees that connects: the machines, or the error's line."""
    done = python(DRIVER, address, str(token))
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


DRIVER = """
import dataclasses, json, pathlib, signal, sys
from quarl.cluster import connection
from quarl.errors import QuarlError
ours = lambda number, frame: None
signal.signal(signal.SIGTERM, ours)
found, said = {}, []
try:
    machines = connection.connect(sys.argv[1], token=pathlib.Path(sys.argv[2]))
    found["machines"] = [dataclasses.asdict(each) for each in machines]
    connection.check_machines(machines, said.append)
    connection.__version__ = "0.0.0"
    try:
        connection.check_machines(machines[:1], said.append)
    except QuarlError as error:
        found["other version"] = str(error)
    connection.disconnect()
except QuarlError as error:
    found["error"] = str(error)
print(json.dumps({**found, "said": said, "kept": signal.getsignal(signal.SIGTERM) is ours}))
"""
OWNER = """
import pathlib, sys, time
from quarl.cluster.connection import Local
local = Local(pathlib.Path(sys.argv[1]), num_nodes=2, cpus=1)
print(local.address, local.token, flush=True)
time.sleep(1000)
"""
STRANGER = """
import sys
from ray._raylet import GcsClient
try:
    print(GcsClient(address=sys.argv[1]).get_all_node_info(timeout=5))
except Exception as error:
    print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's home while raylets and drivers of this module run."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        yield folder


@dataclass(frozen=True)
class Owner:
    """A process with a cluster of its own."""

    process: int
    address: str
    token: Path


@pytest.fixture(scope="module")
def local(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    """With two raylets; the last test kills it."""
    with running([sys.executable, "-c", OWNER, str(tmp_path_factory.mktemp("run"))]) as ((process, said),):
        address, token = said.split()
        yield Owner(process, address, Path(token))
        os.kill(process, signal.SIGKILL)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """A token that no cluster has."""
    return token_file(tmp_path / "token", make=True)


def test_a_driver_sees_the_raylets_as_machines_that_are_alike(local: Owner):
    found = driver(local.address, local.token)
    assert [(each["address"], each["cpus"]) for each in found["machines"]] == [("127.0.0.1", 1)] * 2
    assert len({each["id"] for each in found["machines"]}) == 2
    assert (found["said"], found["kept"]) == ([], True)
    assert found["other version"].startswith("machine 127.0.0.1 (127.0.0.1) has quarl ")  # both have one host name
    assert found["other version"].endswith(", this machine 0.0.0: install the same on both")


def test_only_loopback_listens(local: Owner):
    addresses = listening(below(local.process))
    assert len(addresses) > 4
    assert {*addresses} <= {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


def test_nobody_gets_in_without_the_token_or_with_another(local: Owner, token: Path):
    found = driver(local.address, token)
    assert found["error"].startswith(f"the cluster at {local.address} rejected the token in {token}: copy")
    stranger = python(STRANGER, local.address, RAY_AUTH_MODE="disabled")
    assert stranger.stdout.split() == ["AuthenticationError"]


def test_the_token_is_its_owners_alone(local: Owner, token: Path):
    assert (token.stat().st_mode & 0o777, local.token.stat().st_mode & 0o777) == (0o600, 0o600)
    assert local.token.parent.stat().st_mode & 0o777 == 0o700
    assert token.read_text() != local.token.read_text()
    assert token_file(token, make=True).read_text() == token.read_text()


def test_what_cannot_be_a_cluster_is_one_line(token: Path, capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        join = ("cluster", "join", "--token", str(token))
        lines = {
            (*join, f"127.0.0.1:{port}"): "no cluster of Ray 2.",
            ("cluster", "start", "--port", str(port)): f"cannot listen at 127.0.0.1:{port} (Address already in use)",
        }
        for words, line in lines.items():
            assert main([*words]) == 2
            (said,) = capsys.readouterr().err.splitlines()
            assert said.startswith(f"quarl: {line}"), said


def test_machines_begin_a_cluster_or_join_one_and_leave_it_at_a_signal(local: Owner, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    quarl, token = [sys.executable, "-m", "quarl", "cluster"], token_file(tmp_path / "token", make=True)
    start = [*quarl, "start", "--port", port, "--token", str(token), "--cpus", "7"]
    join = [*quarl, "join", local.address, "--token", str(local.token)]
    late = [*quarl, "join", f"127.0.0.1:{port}", "--token", str(token), "--cpus", "1", "--retry"]
    with running(late, start, join) as ((third, late_joined), (first, begun), (second, joined)):
        assert late_joined == f"127.0.0.1 is in the cluster at 127.0.0.1:{port}; Ctrl-C removes it\n"
        assert begun == f"a cluster is at 127.0.0.1:{port}; Ctrl-C stops it\n"
        assert joined == f"127.0.0.1 is in the cluster at {local.address}; Ctrl-C removes it\n"
        assert sorted(each["cpus"] for each in driver("auto", token)["machines"]) == [1, 7]
        processes = {*below(first), *below(second), *below(third)}
        os.kill(first, signal.SIGTERM)
        os.kill(second, signal.SIGINT)
        os.kill(third, signal.SIGINT)
    until(lambda: not processes & living().keys())
    until(lambda: [path.name for path in tmp_path.iterdir()] == ["token"])


def test_a_run_whose_first_machine_ends_says_how_to_resume(token: Path, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = f"127.0.0.1:{free.getsockname()[1]}"
    quarl, out = [sys.executable, "-m", "quarl"], tmp_path / "out"
    start = [*quarl, "cluster", "start", "--port", where.partition(":")[2], "--token", str(token)]
    words = "--preset none --net-arch 8 --params learning_starts:200 -n 10000000 --eval-freq 0 --actors-per-node 1"
    command = [*quarl, "actorq", *words.split(), "--cluster", where, "-o", str(out)]
    variables = {**os.environ, "RAY_AUTH_TOKEN_PATH": str(token), "HOME": str(tmp_path)}
    with running(start) as ((first, _),), subprocess.Popen(command, stderr=PIPE, text=True, env=variables) as run:
        until(lambda: any(row["timesteps"] for row in read_rows(out / "metrics.jsonl")))
        os.kill(first, signal.SIGTERM)
        _, said = run.communicate()
    assert run.returncode == 2
    *_, last = said.splitlines()
    assert last == (
        f"quarl: the cluster's first machine, {where}, does not answer any more; the checkpoint is in {out}: start a "
        f"cluster, then resume with --resume -o {out}"
    )
    assert list(out.glob("checkpoint-*"))


def test_nothing_is_left_of_a_cluster_whose_owner_is_killed(local: Owner, home: Path):
    processes = {*below(local.process)}
    assert len(processes) > 6
    os.kill(local.process, signal.SIGKILL)
    until(lambda: not processes & living().keys())
    until(lambda: not local.token.parent.exists())
    assert list(home.iterdir()) == []
