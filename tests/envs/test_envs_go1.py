"""The robot of examples/go1: observation, reward, fall, the success rates of verbs, another robot's policy on it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from zeros import linear

import require
from quarl import engines, load
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
    assert int8["drop_high"] == pytest.approx(1.96**2 / (2 + 1.96**2), rel=1e-4)  # what two successes leave open


@pytest.mark.slow
def test_int8_acts_within_one_percent_with_270_inputs_as_recorded(monkeypatch):
    require.package("mujoco")
    agent = load(require.folder("agents-wild") / "torchscript" / "go2-himloco.pt")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import go1_joystick

    monkeypatch.setattr(go1_joystick, "FASTEST", np.array([1, 0.5, 1]))  # the lighter robot follows these
    robot, left_first, rows = go1_joystick.Go1(), [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8], []
    rest = np.array([0.1, 0.8, -1.5, -0.1, 0.8, -1.5, 0.1, 1, -1.5, -0.1, 1, -1.5])
    for step in range(4000):
        if step % 400 == 0:
            robot.reset(seed=step)
            action = np.zeros(12)
        _, gyro, down, _, speeds, _, command = np.split(robot._observation(), [3, 6, 9, 21, 33, 45])
        joints = robot.data.qpos[7:][left_first] - rest, speeds[left_first] * 0.05
        frame = np.hstack([command * [2, 2, 0.25], gyro * 0.25, down, *joints, action])
        rows.append(np.float32(np.hstack([frame, rows[-1][:225] if step % 400 else np.tile(frame, 5)])))
        action = agent.predict(rows[-1])[0]
        targets = (action * np.tile([0.125, 0.25, 0.25], 4) + rest)[left_first]
        assert not robot.step((targets - robot.home) / 0.5)[2], "it fell"
    small = agent.quantize("int8", mode="static", observations=np.stack(rows[:3200])).policy
    held_out, exact = np.stack(rows[3200:]), agent.predict(np.stack(rows[3200:]))[0]
    outputs = [engines.load(small, name, batch=800).run(held_out) for name in ("reference", "litert", "onnx")]
    assert all(np.array_equal(outputs[0], output) for output in outputs)
    assert np.sqrt(np.square((outputs[0] - exact) / np.ptp(exact, axis=0)).mean()) <= 0.01
