"""The robot of examples/go1: its observation, reward and fall, and the success rates that verbs report of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from zeros import linear

import require
from quarl.cli import main
from quarl.envs import make
from quarl.policy import artifact
from quarl.policy.graph import ActionHead

EXAMPLE = Path(__file__).parents[2] / "examples" / "go1"


@pytest.mark.slow
def test_go1_stands_at_home_and_falls_when_its_legs_fold(monkeypatch):
    require.package("mujoco")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import go1_joystick  # registers the id

    with make("Go1Joystick-v0") as env:
        first, again = (env.reset(seed=3)[0] for _ in range(2))
        assert np.array_equal(first, again)
        assert np.allclose(first[6:9], [0, 0, -1], atol=0.01)  # gravity
        assert np.abs(first[9:21]).max() <= 0.1 + 1e-6  # joints start near their home
        command = first[45:] / go1_joystick.FASTEST
        assert (np.abs(command) <= 1).all()
        for _ in range(10):
            observation, reward, terminated, _, info = env.step(np.zeros(12, np.float32))
            assert 0 < reward < 1
        assert (terminated, info["is_success"], observation[33:45].any()) == (False, True, False)
        env.unwrapped.data.qpos[3:7] = [0, 1, 0, 0]  # on its back
        *_, terminated, _, info = env.step(np.ones(12, np.float32))
        assert (terminated, info["is_success"]) == (True, False)


@pytest.mark.slow
def test_verbs_report_the_success_rate_and_its_loss_at_a_precision(tmp_path, monkeypatch):
    require.package("mujoco")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.chdir(tmp_path)
    artifact.write(linear((48,), 12, ActionHead("clip", -np.ones(12), np.ones(12))), tmp_path / "p.safetensors")
    home = ["p.safetensors", "--env", "go1_joystick:Go1Joystick-v0", "--max-episode-steps", "20"]
    assert main(["eval", *home, "--episodes", "4", "--json", "eval.json"]) == 0
    assert main(["ptq", *home, "--episodes", "2", "--bits", "8", "-o", "out"]) == 0
    (row,) = json.loads(Path("eval.json").read_text())["rows"]
    shares = [round(row[name], 4) for name in ("success", "success_low", "success_high")]
    assert shares == [1.0, 0.5101, 1.0]  # 4 / (4 + 1.96²)
    exact, int8 = json.loads(Path("out/rows.json").read_text())["rows"]
    assert (exact["drop"], int8["drop"], int8["success"]) == (None, 0.0, 1.0)
    assert int8["drop_high"] == pytest.approx(1.96 * np.sqrt(2 / 4 / 4), rel=1e-4)
