"""Wrong arguments and states of the library: each is named in one line, and no file is left."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import networks
import quarl
import require
from quarl import engines, evaluation, files
from quarl.actorq import wire
from quarl.actorq.limiter import RateLimiter
from quarl.actorq.shared_memory import PREFIX, Block, Memory
from quarl.algorithms import tuned
from quarl.cluster import connection
from quarl.commands import doctor
from quarl.config import DoctorConfig
from quarl.energy import grams_per_kwh
from quarl.errors import QuarlError
from quarl.policy import artifact
from quarl.policy.graph import Provenance
from quarl.policy.trained import NetworkPlan
from quarl.readers import zoo
from quarl.runs import checkpoint

CARTPOLE = networks.cartpole()


def malformed():
    raise KeyError("clock_s")


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: evaluation.record(CARTPOLE, "calibration", seed=-1), "seed must not be negative, got -1"),
        (lambda: evaluation.record(CARTPOLE, "calibration", num=0), "number of observations must be at least 1, got 0"),
        (
            lambda: engines.sound(CARTPOLE, np.zeros((1, 4), np.float32), np.float32([[np.inf, 0]])),
            "the outputs hold NaN or infinity, unlike the float32 values; use engine reference",
        ),
        (lambda: RateLimiter(1.0, batch_size=0, min_size=0), "batch_size must be at least 1, got 0"),
        (lambda: wire.unpack(artifact.to_bytes(CARTPOLE)), "is not quantized; the publisher sends another format"),
        (lambda: NetworkPlan.from_json({"layers": [{}], "rows": 1}), "training is malformed: 'path'"),
        (
            lambda: Memory(Path(f"{PREFIX}full"), {"a": Block(np.dtype("u1"), (2**60,))}, create=True),
            "use a smaller --net-arch or fewer",
        ),
        (lambda: files.make_folder(Path("/proc/zz")), "cannot write to /proc/zz: No such file or directory; choose"),
        (lambda: grams_per_kwh(Path(), None), "codecarbon has no data on the electricity of the world (FileNotFound"),
        (
            lambda: zoo.of_observation({}, (4,), Provenance()),
            "the statistics of VecNormalize belong to a Dict, not to one",
        ),
        (checkpoint.sound()(malformed), "the checkpoint's contents are malformed (KeyError: 'clock_s'); start again"),
        (lambda: connection.enough([], 3), "--nodes 3: the cluster has 0 machines"),
        (
            lambda: connection._same("the cluster at x", {"python": "3.1.9"}, {"python": "3.11.9"}, print),
            "the cluster at x has python 3.1.9, this machine 3.11.9: install the same on both",
        ),
        (lambda: quarl.actorq(actor=3), "actorq has no keyword 'actor'; did you mean 'actors'?"),
        (lambda: quarl.actorq(algo="PPO"), "train it with quarl train --algo ppo"),
        (lambda: quarl.actorq("Pendulum-v1", preset="none"), "use ddpg, td3, sac or d4pg"),
        (lambda: quarl.actorq(preset="none", params={"nonsense": 1}), "nonsense"),
        (
            lambda: connection.connect("auto", token=connection.token_file(Path("/proc/self/zz"))),
            "the cluster's token is not in /proc/self/zz (No such file or directory): copy it from the machine that",
        ),
    ],
)
def test_a_wrong_argument_is_named_and_leaves_no_file(call, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QuarlError, match=re.escape(line)) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_system_without_what_a_command_needs_is_named(tmp_path, monkeypatch, capsys):
    require.package("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(QuarlError, match="no cluster was started on this machine: run quarl cluster start"):
        connection.connect("auto", token=connection.token_file(tmp_path / "token", make=True))
    monkeypatch.setattr(doctor, "examine", lambda: [doctor.Check("litert", "broken", False, "install it")])
    with pytest.raises(QuarlError, match="1 check failed: litert; see the advice in the table's last column"):
        doctor.run(DoctorConfig())
    (tmp_path / "dqn.yml").write_text("CartPole-v1: 3")
    monkeypatch.setattr(tuned, "file_of", lambda algo: tmp_path / "dqn.yml")
    with pytest.raises(QuarlError, match=r"dqn\.yml: CartPole-v1 holds a int, not hyper-parameters by name"):
        tuned.read("dqn", "CartPole-v1")
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(QuarlError, match="a cluster needs Linux"):
        connection.need_ray()


def test_missing_ray_is_the_same_line_everywhere_and_patch_levels_may_differ(tmp_path, monkeypatch):
    connection._same("it", {"python": "3.11.2"}, {"python": "3.11.9"}, (said := []).append)
    assert said == ["it has python 3.11.2, this machine 3.11.9: patch levels may differ"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for call in (lambda: connection.Local(tmp_path), lambda: connection.connect("auto")):
        with pytest.raises(QuarlError, match=r"^a cluster needs ray: pip install 'quarl\[cluster\]'$"):
            call()
