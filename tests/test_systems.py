"""Other systems than Linux, as far as a Linux can tell: what they lack is taken away before QuaRL is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from quarl.commands import demo
from quarl.config import DemoConfig

ABSENT = {
    "win32": {
        "os": "fork setpgid killpg getpgid nice sysconf statvfs posix_fallocate sched_getaffinity sched_setaffinity",
        "signal": "SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIG_BLOCK SIG_UNBLOCK SIG_SETMASK pthread_sigmask",
        "sys.modules": "resource fcntl pwd grp termios",
    },
    "darwin": {"os": "posix_fallocate sched_getaffinity sched_setaffinity", "signal": "", "sys.modules": ""},
}
"""Names that Python has on Linux and not there, by its own documentation."""
AS_THERE = """
import os, signal, sys
import gymnasium, stable_baselines3, sb3_contrib, ai_edge_litert.interpreter, onnxruntime, onnx, matplotlib.pyplot
import asyncio, multiprocessing.connection, pathlib, platform, rich.progress, sqlite3, subprocess, tempfile, filelock
import scipy.stats, torch, yaml
{removed}
opened = os.open
def open_no_folder(path, *arguments, **options):
    if {platform!r} == "win32" and os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return opened(path, *arguments, **options)
os.open = open_no_folder
sys.platform = {platform!r}
from quarl.cli import main
from quarl.commands import demo
demo.BITS = ("8",)
codes = [main(words.split()) for words in {commands!r}]
print("exit codes", codes)
"""


def on(platform, *commands, folder):
    """A process that runs the commands in a Python without what that system lacks."""
    removed = [f"del {module}.{name}" for module in ("os", "signal") for name in ABSENT[platform][module].split()]
    removed += [f"sys.modules[{name!r}] = None" for name in ABSENT[platform]["sys.modules"].split()]
    script = AS_THERE.format(removed="\n".join(removed), platform=platform, commands=commands)
    command = [sys.executable, "-W", "ignore", "-c", script]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


ACTORQ = "actorq --algo dqn --env CartPole-v1 -n 5000 -o run"
NEEDS_LINUX = "quarl: quarl actorq needs Linux: "


@pytest.mark.slow
def test_windows_has_all_but_actorq_and_studies_which_say_so_in_one_line(tmp_path):
    done = on(
        "win32",
        "demo -o out",
        "train --algo dqn --env CartPole-v1 -n 600 --params learning_starts:100 -f logs",
        "eval out/int8-default.safetensors --episodes 3",
        "inspect out/CartPole-v1.quarl --bits 8 -o weights",
        ACTORQ,
        "study run smoke -o study",
        folder=tmp_path,
    )
    assert "exit codes [0, 0, 0, 0, 2, 2]" in done.stdout, done.stderr
    assert {"rows.json", "report.html", "int8-default.safetensors"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
    *_, actorq, study = done.stderr.strip().splitlines()
    assert actorq.startswith(NEEDS_LINUX)
    assert study.startswith("quarl: studies and sweeps fork their processes, which Windows cannot")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_macos_has_all_but_actorq_which_says_so_in_one_line(tmp_path):
    done = on("darwin", "demo -o out", ACTORQ, folder=tmp_path)
    assert "exit codes [0, 2]" in done.stdout, done.stderr
    *_, actorq = done.stderr.strip().splitlines()
    assert actorq.startswith(NEEDS_LINUX)


@pytest.mark.parametrize(
    ("prefix", "activated", "line"),
    [
        ("{folder}/.venv", "", "next: . .venv/bin/activate"),
        ("{folder}/my env", "", "next: . 'my env/bin/activate'"),
        ("/opt/venv", "", "next: . /opt/venv/bin/activate"),
        ("{folder}/.venv", "{folder}/.venv", None),
        ("/usr", "", None),
    ],
)
def test_the_demo_ends_by_naming_the_environment_that_is_not_activated(
    prefix, activated, line, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIRTUAL_ENV", activated.format(folder=tmp_path))
    monkeypatch.setattr(demo.ptq, "run", lambda config: None)
    monkeypatch.setattr(sys, "prefix", prefix.format(folder=tmp_path))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(demo.sysconfig, "get_path", lambda name: f"{sys.prefix}/bin")
    demo.run(DemoConfig())
    lines = capsys.readouterr().out.splitlines()
    assert [each for each in lines if each.startswith("next:")] == ([] if line is None else [line])
