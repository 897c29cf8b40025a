"""What goes wrong in training costs as little as it can, and is said in one line."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from training_runs import train, words

from quarl import files
from quarl.cli import main
from quarl.errors import QuarlError
from quarl.runs import checkpoint
from quarl.runs.folder import RunFolder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "env", "layer"),
    [
        ("dqn", "CartPole-v1", "the loss (the largest weights: q_net"),
        ("ppo", "CartPole-v1", "mlp_extractor"),
        ("sac", "Pendulum-v1", "actor"),
    ],
)
def test_a_diverged_run_stops_names_the_layer_and_goes_on_from_its_last_checkpoint(algo, env, layer, tmp_path, capsys):
    assert main(words(algo, env, 600, "learning_rate:1e30")) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"training diverged: {layer}" in error
    assert "the last good checkpoint is logs/" in error
    assert "--resume and a smaller --params learning_rate" in error
    found = checkpoint.load_latest(tmp_path / f"logs/{algo}/{env}_1")
    assert all(torch.isfinite(torch.as_tensor(array)).all() for name, array in found.arrays.items() if "policy" in name)
    again = ["train", "--resume", "--algo", algo, "--env", env, "--params", "learning_rate:1e-4"]
    assert main(again) == 0


def test_a_full_disk_costs_the_checkpoint_and_not_the_run(tmp_path, capsys, monkeypatch):
    calls = []

    def sync(descriptor):
        of_checkpoint = ".quarl-" in os.readlink(f"/proc/self/fd/{descriptor}")
        calls.extend([descriptor] * of_checkpoint)
        if of_checkpoint and len(calls) < 4:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "sync", sync)
    train(tmp_path, "dqn", "CartPole-v1", 400, "--save-freq", "100", "--eval-freq", "0", evaluations=True)
    lines = [line for line in capsys.readouterr().err.splitlines() if "No space left" in line]
    assert len(lines) == 1
    assert lines[0].endswith("training continues")
    assert checkpoint.load_latest(tmp_path / "logs/dqn/CartPole-v1_1").facts["counters"]["num_timesteps"] == 400


@pytest.mark.slow
def test_a_full_disk_costs_evaluations_and_the_best_agent_and_not_the_run(tmp_path, capsys, monkeypatch):
    full, whole = [], files.os.fsync

    def sync(descriptor):
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        if name.startswith((".evaluations.npz", ".best_model.yml")) and len(full) < 3:
            full.append(name)
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(descriptor)

    monkeypatch.setattr(files.os, "fsync", sync)
    train(tmp_path, "dqn", "CartPole-v1", 400, "--eval-freq", "100", evaluations=True)  # looked at every 16 steps
    lines = [line for line in capsys.readouterr().err.splitlines() if "No space left" in line]
    assert len(lines) == 2  # one a kind of file
    assert all(line.endswith("training continues") for line in lines)
    run = RunFolder(tmp_path / "logs/dqn/CartPole-v1_1", "CartPole-v1")
    assert len(full) == 3
    assert [steps for steps, *_ in run.read_evaluations()] == [112, 208, 304, 400]
    best = run.read_best()
    assert best is not None  # the first one's facts could not be written, so that a later one is the best
    assert best[2] > 112
    assert not list(run.path.glob(".*"))


def test_runs_that_start_at_once_get_folders_of_their_own(tmp_path, monkeypatch):
    train(tmp_path, "a2c", "CartPole-v1", 64)
    # as if the other run had not been there when the numbers were looked at
    monkeypatch.setattr("quarl.readers.find.numbered_runs", lambda folder, env_id: {})
    row = train(tmp_path, "a2c", "CartPole-v1", 64)
    assert row["folder"].endswith("CartPole-v1_2")
    monkeypatch.setattr("quarl.runs.folder.ATTEMPTS", 2)
    with pytest.raises(QuarlError, match="other runs took its number each time; choose another with -f"):
        RunFolder.new(tmp_path / "logs", "a2c", "CartPole-v1")
    with pytest.raises(QuarlError, match=r"cannot write to /proc/zz: .*; choose another with -f"):
        RunFolder.new(Path("/proc/zz"), "a2c", "CartPole-v1")


@pytest.mark.parametrize(("algo", "saved"), [("a2c", 128), ("dqn", 200)])
def test_an_environment_that_raises_is_not_taken_for_divergence_and_what_was_learnt_is_saved(
    algo, saved, tmp_path, capsys, monkeypatch
):
    step, calls = CartPoleEnv.step, []

    def raising(self, action):
        calls.append(action)
        if len(calls) > 200:
            raise KeyError("a fault of the user's environment")
        return step(self, action)

    monkeypatch.setattr(CartPoleEnv, "step", raising)
    assert main(words(algo, "CartPole-v1", 256)) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(
        'quarl: CartPole-v1 raised KeyError: "a fault of the user\'s environment" (test_runs_faults.'
    )
    assert said.endswith(
        f"after {saved} steps, which are saved: "
        f"resume with quarl train --resume --algo {algo} --env CartPole-v1 -f logs"
    )
    # A2C's rollout of 16 steps in 8 environments is played anew, DQN's steps are in replay
    assert checkpoint.load_latest(tmp_path / f"logs/{algo}/CartPole-v1_1").facts["counters"]["num_timesteps"] == saved
