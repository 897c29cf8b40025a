"""Every verb that writes ends with exit code 2 and one line when the disk is full, and keeps what was there."""

from __future__ import annotations

import contextlib
import os
import resource

import pytest

import networks
import require
from quarl.cli import main
from quarl.latency import network_latency
from quarl.policy import artifact

pytestmark = pytest.mark.slow
OLD = b'{"an earlier": "good file"}'
STUDY = b"""name: small
episodes: 2
policies: [{algo: a2c, env: CartPole-v1, source: train, n_timesteps: 16}]
methods: [{method: fp32}]
"""
ENDS = (".zip", ".quarl", ".html", ".gif", ".onnx", ".npz", ".md", "weights.png", "contract.json")
QUICK = "--rounds 1 --updates 1 --states 20 --validation 1 --episodes 1"
VERBS = [  # command, bytes that a file may have, what is there before and must stay as it is
    ("train --algo a2c --env CartPole-v1 -n 16 --eval-freq 0 --eval-episodes 0 -f out", 20_000, ""),
    ("ptq agent.safetensors --bits 8 --episodes 1 -o out", 64, "int8e8.safetensors"),
    ("ptq agent.safetensors --bits 8 --episodes 1 -o out", 12_000, ""),
    ("eval agent.safetensors --episodes 1 --json out/rows.json", 64, "rows.json"),
    (f"distill agent.safetensors --bits 2 -o out {QUICK}", 64, "rows.csv"),
    ("export agent.safetensors --to c -o out --episodes 1", 64, "mine.txt"),
    ("export agent.safetensors --to onnx -o out --episodes 1", 2_000, "mine.txt"),
    ("inspect agent.safetensors -o out", 8, "output.txt"),
    ("inspect agent.safetensors -o out", 2_000, ""),
    ("study run study.yml -o out", 8, "rows.json"),
    ("sweep --algo a2c --env CartPole-v1 -o out", 8, "rows.json"),
    ("demo -o out", 2_000, "report.html"),
    ("bench latency --widths 4 --json out/rows.json", 64, "rows.json"),
    ("envs --json out/rows.json", 64, "rows.json"),
    ("doctor --json out/rows.json", 64, "rows.json"),
    ("play agent.safetensors --record out/play.gif --episodes 1 --max-episode-steps 3", 64, "play.gif"),
]


@contextlib.contextmanager
def room_for(size):
    """No file of this process grows beyond `size` bytes: the system refuses as on a full disk."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a policy and a study."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(network_latency, "measure", lambda *args, **options: [])
    artifact.write(networks.cartpole(), tmp_path / "agent.safetensors")
    (tmp_path / "study.yml").write_bytes(STUDY)
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.mark.parametrize(("words", "size", "old"), VERBS, ids=lambda value: str(value).split(" ")[0])
def test_a_full_disk_is_one_line_and_exit_code_2(here, capsys, words, size, old):
    if words.startswith("play"):
        require.package("imageio")
        require.package("pygame")
    if old:
        (here / "out" / old).write_bytes(OLD)
    before = files(here)
    with room_for(size):
        assert main(words.split()) == 2
    said = capsys.readouterr()
    *notes, last = said.err.splitlines()
    assert last.startswith("quarl: ")
    assert os.strerror(27) in last or "disk I/O error" in last
    assert "make room" in last or "free some" in last
    assert not [line for line in notes if "too large" in line and not line.endswith("training continues")]
    after = files(here)
    assert {path: after.get(path) for path in before} == before
    new = [path.name for path in after if path not in before]
    assert not [name for name in new if name.startswith((".", "checkpoint-")) or name.endswith(ENDS)]
