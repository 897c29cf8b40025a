"""Agents of the Hugging Face hub: huggingface_hub itself runs, on a cache laid out by hand or against a server here."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import require
from quarl.errors import QuarlError
from quarl.policy.operators import Normalize
from quarl.readers import find, hub
from quarl.readers.load import read
from sb3_archives import write_run
from waiting import PATIENCE_S

require.module("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A repository as RL Zoo pushes it."""
    run = write_run(tmp_path_factory.mktemp("run"))
    return {
        "ppo-Still-v0.zip": (run / "Still-v0.zip").read_bytes(),
        "ppo-Still-v0/data": b"{}",
        "ppo-Still-v0/policy.pth": b"unpacked once more",
        "config.yml": b"normalize: true\n",
        "args.yml": b"!!python/object/apply:collections.OrderedDict\n- - - env\n    - Still-v0\n",
        "env_kwargs.yml": b"{}\n",
        "vec_normalize.pkl": (run / "Still-v0/vecnormalize.pkl").read_bytes(),
        "train_eval_metrics.zip": b"PK",
        "old_env_stats.pkl": b"of another agent",
        "replay_buffer.pkl": b"gigabytes",
        "README.md": b"# ppo",
        "replay.mp4": b"film",
    }


def lay_out(cache: Path, repo: str, files: dict[str, bytes]) -> Path:
    """huggingface_hub's cache with one repository in it, as a download leaves it."""
    storage = cache / f"models--{repo.replace('/', '--')}"
    (storage / "refs").mkdir(parents=True)
    (storage / "refs/main").write_text(COMMIT)
    (storage / "blobs").mkdir()
    for name, data in files.items():
        blob = storage / "blobs" / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        link = storage / "snapshots" / COMMIT / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return storage / "snapshots" / COMMIT


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def test_a_repository_in_the_cache_is_an_agent_with_its_settings(tmp_path: Path, files, offline):
    folder = lay_out(tmp_path, "org/ppo-Still-v0", files)
    path = hub.fetch("org/ppo-Still-v0", tmp_path)
    assert path == folder / "ppo-Still-v0.zip"
    assert find.settings_folder(path) == folder
    policy = read(path)
    assert (policy.provenance.algo, policy.provenance.env_id) == ("ppo", "Still-v0")
    assert any(isinstance(op, Normalize) for op in policy.ops)


def test_a_local_copy_of_a_repository_is_read_as_a_folder(tmp_path: Path, files):
    clone = tmp_path / "ppo-Still-v0"
    for name, data in files.items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_bytes(data)
    policy = read(clone)
    assert policy.provenance.env_id == "Still-v0"
    assert any(isinstance(op, Normalize) for op in policy.ops)


@pytest.mark.parametrize("cloned", [False, True])
def test_a_repository_without_the_zoo_s_settings_keeps_its_statistics(tmp_path: Path, files, offline, cloned: bool):
    """As huggingface_sb3's package_to_hub lays it out; a clone has the zip unpacked beside it too."""
    pushed = {"config.json": b"{}", "results.json": b"{}"}
    pushed |= {name: files[name] for name in ("ppo-Still-v0.zip", "vec_normalize.pkl")}
    pushed |= {name: data for name, data in files.items() if cloned and name.startswith("ppo-Still-v0/")}
    lay_out(tmp_path, "org/ppo-Still-v0", pushed)
    policy = read(hub.fetch("org/ppo-Still-v0", tmp_path))
    assert policy.provenance.env_id == "Still-v0"
    assert any(isinstance(op, Normalize) for op in policy.ops)


def test_a_zip_alone_is_named_after_algorithm_and_environment(tmp_path: Path, files, offline):
    lay_out(tmp_path, "me/lander", {"ppo-LunarLander-v2.zip": files["ppo-Still-v0.zip"], "results.json": b"{}"})
    assert read(hub.fetch("me/lander", tmp_path)).provenance.env_id == "LunarLander-v2"


def test_of_several_zips_one_is_named(tmp_path: Path, files, offline):
    agent = files["ppo-Still-v0.zip"]
    lay_out(tmp_path, "me/two", {"a.zip": agent, "b.zip": agent, "train_eval_metrics.zip": b"PK"})
    lay_out(tmp_path, "me/own", {"a.zip": agent, "own.zip": agent})
    with pytest.raises(QuarlError, match=r"has a\.zip, b\.zip; name one, as in hub:me/two/a\.zip"):
        hub.fetch("me/two", tmp_path)
    assert hub.fetch("me/two/b.zip", tmp_path).name == "b.zip"
    assert hub.fetch("me/own", tmp_path).name == "own.zip"


@pytest.mark.parametrize(
    ("repo", "said"),
    [
        ("org/none", "no zip of a Stable-Baselines3 agent"),
        ("org/none/agent.zip", "has no file agent.zip; it has no zip"),
        ("org/absent", "switched off"),
        ("org", "is not a repository.*hub:sb3/ppo-CartPole-v1"),
        ("", "is not a repository"),
        ("org/", "is not a repository"),
        ("org/a/../../../etc/passwd", "is not a repository"),
        ("org/a b", "not a valid repository name"),
        ("org/a--b", "not a valid repository name"),
    ],
)
def test_what_cannot_be_had_is_one_line(tmp_path: Path, capsys, offline, repo: str, said: str):
    lay_out(tmp_path, "org/none", {"README.md": b"nothing"})
    with pytest.raises(QuarlError, match=said):
        hub.fetch(repo, tmp_path)
    assert capsys.readouterr() == ("", "")


def test_other_paths_are_left_alone(tmp_path: Path):
    assert find.named([str(tmp_path / "agent.zip")]) == tmp_path / "agent.zip"
    assert find.named(["hubris.zip"]) == Path("hubris.zip")


def test_a_name_without_zip_means_the_zip_where_nothing_else_is_called_so(tmp_path: Path):
    assert find.named([str(tmp_path / "ppo-v1.5")]) == tmp_path / "ppo-v1.5"
    (tmp_path / "ppo-v1.5.zip").touch()
    assert find.named([str(tmp_path / "ppo-v1.5")]) == tmp_path / "ppo-v1.5.zip"
    (tmp_path / "ppo-v1.5").mkdir()
    assert find.named([str(tmp_path / "ppo-v1.5")]) == tmp_path / "ppo-v1.5"


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(QuarlError, match=r"pip install 'quarl\[hub\]'"):
        hub.fetch("org/extra", tmp_path)


@pytest.fixture
def server(files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """(address, what was asked for) of a server that answers as the hub does."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(f"{self.command} {path}")
            root, resolve = "/api/models/org/ppo-Still-v0", f"/org/ppo-Still-v0/resolve/{COMMIT}/"
            if path in (root, f"{root}/revision/main"):
                self.answer(json.dumps({"id": "org/ppo-Still-v0", "sha": COMMIT, "siblings": []}).encode())
            elif path.startswith(f"{root}/tree/"):
                entries = [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in files.items()
                ]
                self.answer(json.dumps(entries).encode())
            elif path.startswith(resolve) and path.removeprefix(resolve) in files:
                self.answer(files[path.removeprefix(resolve)], "application/octet-stream")
            else:
                self.answer(b"{}", status=404, **{"X-Error-Code": "RepoNotFound"})

        do_HEAD = do_GET

        def answer(self, data: bytes, kind: str = "application/json", status: int = 200, **headers: str) -> None:
            self.send_response(status)
            etag = hashlib.sha1(data).hexdigest()
            sent = {"Content-Type": kind, "Content-Length": len(data), "ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
            for name, value in {**sent, **headers}.items():
                self.send_header(name, str(value))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", asked
        running.shutdown()
        thread.join()


def fetch(repo: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A new Python, because huggingface_hub looks at its environment once, when it is imported."""
    clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    code = "import sys; from quarl.readers import hub; print(hub.fetch(sys.argv[1]))"
    command = [sys.executable, "-W", "error", "-c", code, repo]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=clean | environment
    )


@pytest.mark.slow
def test_what_is_read_is_fetched_and_nothing_else(tmp_path: Path, files, server, offline):
    address, asked = server
    done = fetch("org/ppo-Still-v0", HF_ENDPOINT=address, HF_HUB_CACHE=str(tmp_path), HF_HUB_DISABLE_XET="1")
    assert (done.returncode, done.stderr) == (0, "")
    fetched = {path.rpartition("/")[2] for path in asked if "/resolve/" in path}
    assert fetched == {"ppo-Still-v0.zip", "config.yml", "args.yml", "vec_normalize.pkl", "old_env_stats.pkl"}
    path = hub.fetch("org/ppo-Still-v0", tmp_path)  # without a connection
    assert str(path) == done.stdout.strip()
    assert path.read_bytes() == files["ppo-Still-v0.zip"]


@pytest.mark.slow
@pytest.mark.parametrize("reachable", [True, False])
def test_a_repository_that_is_not_there_and_a_hub_that_is_not_are_one_line(tmp_path: Path, server, reachable: bool):
    address = server[0] if reachable else "http://127.0.0.1:9"
    done = fetch("org/other", HF_ENDPOINT=address, HF_HUB_CACHE=str(tmp_path))
    said = "no such repository, or it is private; check the name" if reachable else "cannot be reached"
    *_, last = done.stderr.splitlines()
    assert last.startswith("quarl.errors.QuarlError: cannot fetch org/other from the hub: ")
    assert said in last
