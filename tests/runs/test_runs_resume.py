"""A run goes on where it was: the learner bit for bit, its environments with new episodes."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.logger import Logger
from training_runs import same, session, train, weights, words

from quarl import checkpoint_file, qat
from quarl.cli import main, parse
from quarl.errors import QuarlError
from quarl.readers import load
from quarl.runs import callback, checkpoint
from quarl.runs import train as runs
from quarl.runs.checkpoint_model import take
from quarl.runs.checkpointer import AgentCheckpointer, StoredReplay
from quarl.runs.folder import RunFolder
from quarl.runs.train import Training
from refusals import refused


def resuming(algo, env, *more):
    return ["train", "--resume", "--algo", algo, "--env", env, *map(str, more)]


def equal(one, other):
    return one[0] == other[0] and same(one[1], other[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "env"),
    [
        ("ppo", "CartPole-v1"),
        ("a2c", "CartPole-v1"),
        ("dqn", "CartPole-v1"),
        ("sac", "Pendulum-v1"),
        ("td3", "Pendulum-v1"),
        ("d4pg", "Pendulum-v1"),
    ],
)
def test_what_is_resumed_is_bit_for_bit_what_was_left(algo, env, tmp_path):
    first = session(*words(algo, env, 256, "normalize:True"))
    ended = first.run(lambda label, done: None)
    assert ended.exit_code == 0
    facts, arrays = take(first.model)
    left = facts, {name: array.copy() for name, array in arrays.items()}
    if algo not in ("ppo", "a2c"):
        first.model.train(gradient_steps=5, batch_size=8)  # draws from replay what the resumed one must draw
    further = weights(first.model)
    second = session(*resuming(algo, env, "-n", 100_000))
    found = take(second.model)
    assert equal(found, left)
    if algo not in ("ppo", "a2c"):
        second.model.set_logger(Logger(folder=None, output_formats=[]))
        second.model.train(gradient_steps=5, batch_size=8)
    assert same(weights(second.model), further)


@pytest.mark.slow
def test_a_resumed_run_reaches_the_end_of_the_first_one_s_options(tmp_path, capsys):
    more = ["--eval-freq", "100", "--eval-episodes", "3", "--save-freq", "100", "--seed", "4"]
    train(tmp_path, "dqn", "CartPole-v1", 300, *more, evaluations=True)
    assert main(resuming("dqn", "CartPole-v1", "-n", 500, "--json", "row.json")) == 0
    run = tmp_path / "logs/dqn/CartPole-v1_1"
    found = np.load(run / "evaluations.npz")
    assert found["results"].shape == (len(found["timesteps"]), 3)
    assert found["timesteps"].tolist() == sorted({*found["timesteps"].tolist()})
    assert found["timesteps"][-1] == 512  # rollouts of 16 steps
    saved = checkpoint.load_latest(run)
    assert saved.facts["counters"]["num_timesteps"] == 512
    args = yaml.safe_load((run / "CartPole-v1/args.yml").read_text())
    assert (args["n_timesteps"], args["seed"], args["eval_freq"]) == (500, 4, 100)
    assert not (tmp_path / "logs/dqn/CartPole-v1_2").exists()
    shown = capsys.readouterr().out.splitlines()
    assert "options changed when the run was resumed" in shown[-4]
    assert shown[-3] == "report: logs/dqn/CartPole-v1_1/report.html"
    repeated = parse(shlex.split(shown[-1])[2:])
    assert (repeated.resume, repeated.n_timesteps, repeated.seed, repeated.eval_freq) == (False, 500, 4, 100)
    assert repeated.params == parse(words("dqn", "CartPole-v1", 300)).params


@pytest.mark.slow
def test_a_longer_run_explores_no_more_and_learns_no_faster_than_where_it_stopped(tmp_path, capsys, monkeypatch):
    falling = ("exploration_fraction:0.5", "learning_rate:lin_1e-3")
    stopped = ("--quant-delay", "0", "--qat", "8")  # training for a precision has the same clocks
    train(tmp_path, "dqn", "CartPole-v1", 304, *falling, *stopped)
    seen, plain = [], DQN._on_step

    def watched(self):
        plain(self)
        seen.append((self.exploration_rate, self.lr_schedule(self._current_progress_remaining)))

    monkeypatch.setattr(DQN, "_on_step", watched)
    assert main(resuming("dqn", "CartPole-v1", "-n", 640)) == 0
    assert len(seen) == 336
    assert set(seen) == {(0.04, 0.0)}  # the zoo's last epsilon; both had come to their ends
    said = capsys.readouterr().err
    assert "resuming at step 304 after 52 updates, 304 rows of replay, epsilon 0.04; schedules do not rise" in said
    assert "at 0 nothing more is learned: set constants, as in --params learning_rate:0.0001\n" in said


@pytest.mark.parametrize("verb", [["train"], ["train", "--qat", "8"], ["sweep", "--seeds", "1", "--bits", "8"]])
def test_a_run_that_would_learn_nothing_is_refused_before_it_begins(verb, tmp_path, capsys):
    words = ["--algo", "dqn", "--env", "CartPole-v1", "-n", "500", "--params", "learning_starts:1000", "train_freq:16"]
    error = refused(capsys, *verb, *words)
    assert "learning starts after step 1,000 and the run ends at 500: nothing would be learned; raise -n or" in error
    assert not list(tmp_path.rglob("*.zip"))


def test_episodes_after_a_resume_are_not_those_of_the_beginning(tmp_path):
    first = session(*words("dqn", "CartPole-v1", 64, "learning_starts:0"))
    first.run(lambda label, done: None)
    beginning = first.model.replay_buffer.observations[0].copy()
    second = session(*resuming("dqn", "CartPole-v1", "-n", 128))
    assert not np.array_equal(second.model.env.reset(), beginning)


def test_hyper_parameters_given_with_resume_stay_for_the_next_time(tmp_path):
    train(tmp_path, "dqn", "CartPole-v1", 128)
    session(*resuming("dqn", "CartPole-v1", "-n", 256, "--params", "learning_rate:1e-5"))
    again = session(*resuming("dqn", "CartPole-v1", "-n", 256))
    assert again.model.lr_schedule(1.0) == 1e-5
    assert not again.options.has_changed  # since the last time
    same = session(*resuming("dqn", "CartPole-v1", "--params", "learning_rate:1e-5"))
    assert (same.options.has_changed, same.n_timesteps) == (False, 256)
    assert session(*resuming("dqn", "CartPole-v1", "--params", "learning_rate:1e-4")).options.has_changed


@pytest.mark.slow
def test_hyper_parameters_given_with_resume_join_those_of_the_beginning(tmp_path):
    train(tmp_path, "dqn", "CartPole-v1", 1100, "--params", "gamma:0.9", "learning_rate:1e-3")
    again = session(*resuming("dqn", "CartPole-v1", "-n", 2048, "--params", "learning_rate:1e-5"))
    assert again.config.params == ("gamma:0.9", "learning_rate:1e-5")
    assert (again.model.gamma, again.model.lr_schedule(1.0)) == (0.9, 1e-5)


def stop_at(monkeypatch, steps):
    """Ctrl-C when so many steps have been made."""

    def show(self):
        if self.model.num_timesteps >= steps and self.interrupts.number is None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)  # as a wrapper forwards it

    monkeypatch.setattr(callback, "SHOWN_S", -1.0)
    monkeypatch.setattr(callback.TrainingCallback, "show", show)


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "done"), [("ppo", 512), ("dqn", 699)])
def test_ctrl_c_saves_exits_with_130_and_says_how_to_go_on(algo, done, tmp_path, capsys, monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        stop_at(patched, 700)
        assert main(words(algo, "CartPole-v1", 1024)) == 130
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if "stopped" in line]
    command = re.search(r"resume with quarl (train --resume .*)$", line)[1]
    # PPO's half rollout is played anew; DQN's steps are in replay, all but the one that was broken off
    assert checkpoint.load_latest(tmp_path / f"logs/{algo}/CartPole-v1_1").facts["counters"]["num_timesteps"] == done
    assert load.read(tmp_path / f"logs/{algo}/CartPole-v1_1").provenance.algo == algo
    assert signal.getsignal(signal.SIGINT) is before
    assert captured.out == f"report: logs/{algo}/CartPole-v1_1/report.html\n"
    assert line.removeprefix("quarl: ") in (tmp_path / captured.out.split()[1]).read_text()
    assert main([*command.split(), "--json", "row.json"]) == 0


def test_the_first_ctrl_c_says_how_to_leave_at_once(capfd, monkeypatch):
    with monkeypatch.context() as patched:
        stop_at(patched, 16)
        assert main(words("a2c", "CartPole-v1", 64)) == 130
    said = capfd.readouterr().err
    assert "quarl: stopping: the update is finished and saved; repeat the signal after 3 s to exit at once\n" in said


@pytest.mark.parametrize(
    ("algo", "more", "saved"),
    [
        (
            "dqn",
            ["learning_starts:0"],
            [0, 4, 9, 14, 19, 24, 29, 32],
        ),  # what is broken into has a step that is not in replay yet
        ("dqn", ["learning_starts:0", "--save-minutes", "12"], [0, 11, 23, 32]),
        ("dqn", ["learning_starts:0", "--save-minutes", "0"], [0, 32]),
        ("a2c", [], [0, 16, 32]),  # within its rollouts it learns nothing
    ],
)
def test_a_slow_environment_has_a_checkpoint_every_few_minutes(algo, more, saved, monkeypatch):
    now, found, step, save = [0.0], [], CartPoleEnv.step, AgentCheckpointer.save

    def slow(self, action):
        now[0] += 60.0
        return step(self, action)

    def counted(self, *clock, **options):
        found.append(self.model.num_timesteps)
        save(self, *clock, **options)

    monkeypatch.setattr(CartPoleEnv, "step", slow)
    monkeypatch.setattr(AgentCheckpointer, "save", counted)
    monkeypatch.setattr(callback, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert main(words(algo, "CartPole-v1", 32, *more, "--n-envs", "1")) == 0
    assert found == saved


@pytest.mark.slow
def test_ctrl_c_while_the_best_agent_is_written_leaves_it_whole(tmp_path, capsys, monkeypatch):
    plain = RunFolder.write_agent

    def interrupted(self, model, name=None):
        path = plain(self, model, name)
        if name is not None:
            os.kill(os.getpid(), signal.SIGINT)
        return path

    monkeypatch.setattr(RunFolder, "write_agent", interrupted)
    assert main(words("dqn", "CartPole-v1", 1000, "--eval-freq", "200", "--eval-episodes", "2")) == 130
    run = RunFolder(tmp_path / "logs/dqn/CartPole-v1_1", "CartPole-v1")
    _, mean, steps = run.read_best()
    timesteps, returns, _ = run.read_evaluations()[-1]
    assert (mean, steps) == (np.mean(returns), timesteps)
    assert load.read(run.path / "best_model.zip").provenance.algo == "dqn"


def test_an_evaluation_that_a_signal_breaks_off_is_not_training_time(tmp_path, monkeypatch):
    perf_counter, skipped_s = time.perf_counter, 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: perf_counter() + skipped_s)

    def look(self, model):
        nonlocal skipped_s
        skipped_s = 1e6
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("quarl.runs.evaluator.BestEvaluator.look", look)
    assert main(words("ppo", "CartPole-v1", 256, "--eval-freq", "64", evaluations=True)) == 130
    assert checkpoint.load_latest(tmp_path / "logs/ppo/CartPole-v1_1").state["clock_s"] < 1e6


def test_a_signal_in_the_last_evaluation_leaves_a_finished_run(tmp_path, capsys, monkeypatch):
    def conclude(self, model, integers):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("quarl.runs.evaluator.BestEvaluator.conclude", conclude)
    assert main(words("a2c", "CartPole-v1", 128)) == 130
    assert "stopped in its last evaluation; agent and checkpoint are in" in capsys.readouterr().err


@pytest.mark.slow
def test_quantisation_goes_on_acting_and_other_bits_are_refused_in_one_line(tmp_path, capsys):
    train(tmp_path, "dqn", "CartPole-v1", 512, "--qat", "w4a8", "--quant-delay", "200")
    error = refused(capsys, *resuming("dqn", "CartPole-v1", "--qat", "w8a8", "-n", 1024))
    assert "w4a8" in error
    assert "w8a8" in error
    for more, said in (
        (["--quant-delay", 5], "--quant-delay is 5 here and 200 in"),
        (["--qat-output-bits", 4], "--qat-output-bits is 4 here and None in"),
    ):
        assert main(resuming("dqn", "CartPole-v1", *more, "-n", 1024)) == 2
        assert said in capsys.readouterr().err
    again = session(*resuming("dqn", "CartPole-v1", "--qat", "w4a8", "-n", 1024))
    assert qat.is_active(again.model)
    assert qat.spec_of(again.model).precision == "w4a8e8"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--env", "CartPole-v1", "--seed", "7"], "--seed is 7 here and 0 in"),
        (["--env", "CartPole-v1", "--eval-episodes", "9"], "--eval-episodes is 9 here and 2 in"),
        (["--env", "CartPole-v1", "--qat", "8", "-n", "999"], "--qat is w8a8 here and fp32 in"),
        (["--env", "CartPole-v1", "--quant-delay", "5", "-n", "999"], "--quant-delay is 5 here and None in"),
        (["--env", "CartPole-v1"], "is trained to its end"),
        (["--env", "CartPole-v1", "-n", "40"], "(128 steps); resume it with more, as in -n 256"),
        (["--env", "CartPole-v1", "-n", "999", "--params", "policy_kwargs:dict(net_arch=[8])"], "cannot resume from"),
        (["--env", "Acrobot-v1"], "no run of a2c on Acrobot-v1 in logs"),
        (["--env", "CartPole-v1", "-f", "elsewhere"], "no run of a2c on CartPole-v1 in elsewhere"),
    ],
)
def test_what_cannot_be_resumed_is_one_line(more, said, tmp_path, capsys):
    train(tmp_path, "a2c", "CartPole-v1", 128)
    assert said in refused(capsys, "train", "--resume", "--algo", "a2c", *more)


@pytest.mark.slow
def test_a_mistaken_resume_changes_nothing_of_the_run(tmp_path, monkeypatch, capsys):
    train(tmp_path, "dqn", "CartPole-v1", 256)
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "tensorboard" else find(name))
    assert main(resuming("dqn", "CartPole-v1", "-n", 512, "--track", "tensorboard")) == 2
    assert "pip install 'quarl[tensorboard]'" in capsys.readouterr().err
    assert main(resuming("dqn", "CartPole-v1", "-n", 512)) == 0


def test_a_run_of_a_newer_quarl_is_left_as_it_is_and_a_damaged_one_is_said_to_begin_anew(tmp_path, monkeypatch):
    train(tmp_path, "a2c", "CartPole-v1", 100)
    config = parse(words("a2c", "CartPole-v1", 200))
    said: list[str] = []
    assert runs.from_here(config, said.append).resume
    before = sorted(tmp_path.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_file, "SCHEMA", checkpoint_file.SCHEMA - 1)
        with pytest.raises(QuarlError, match="schema"):
            runs.from_here(config, said.append)
    assert (sorted(tmp_path.rglob("*")), said) == (before, [])
    for path in tmp_path.rglob("checkpoint-*"):
        path.write_bytes(path.read_bytes()[:-9])
    assert runs.from_here(config, said.append) is config
    assert not (tmp_path / "logs").exists()
    assert len(said) == 1
    assert "training restarts from the beginning: all " in said[0]


def args(change):
    """What changes the text that a run kept of its options."""

    def damage(run):
        path = run / "CartPole-v1/args.yml"
        path.write_text(change(path.read_text()))

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: [path.unlink() for path in run.glob("checkpoint-*")], "no checkpoint in logs/a2c/CartPole-v1_1"),
        *((args(lambda _, text=text: text), "") for text in ("{algo: a2c}", "[1]", "seed: !!python/name:os.system")),
        *(
            (
                args(lambda text, params=params: yaml.safe_dump(yaml.safe_load(text) | {"params": params})),
                "is malformed: params is not a list of NAME:VALUE",
            )
            for params in ("gamma", {"gamma": 0.9}, [0.9])
        ),
    ],
)
def test_a_run_whose_files_are_damaged_or_gone_is_refused(damage, said, tmp_path, capsys):
    train(tmp_path, "a2c", "CartPole-v1", 128)
    damage(tmp_path / "logs/a2c/CartPole-v1_1")
    assert said in refused(capsys, *resuming("a2c", "CartPole-v1", "-n", 999))


def buffer(cls=ReplayBuffer, size=8, **kwargs):
    return cls(size, spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2), device="cpu", n_envs=2, **kwargs)


def fill(replay, rows):
    rng = np.random.default_rng(rows)
    for _ in range(rows):
        observations = rng.normal(size=(2, 2, 2)).astype(np.float32)
        replay.add(*observations, np.array([0, 1]), rng.normal(size=2), rng.random(2) < 0.2, [{}, {}])
    return replay


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("lean", [False, True])
def test_replay_comes_back_as_it_was(rows, lean):
    options = {"optimize_memory_usage": True, "handle_timeout_termination": False} if lean else {}
    saved = fill(buffer(**options), rows)
    state = {name: array.copy() for name, array in StoredReplay(saved).state().items()}
    found = buffer(**options)
    StoredReplay(found).load_state(state)
    assert (found.pos, found.full) == (saved.pos, saved.full)
    for name in ("observations", "actions", "rewards", "dones", "timeouts"):
        assert np.array_equal(getattr(found, name), getattr(saved, name))


def test_no_return_crosses_the_break():
    replay = fill(buffer(NStepReplayBuffer, 16, n_steps=3, gamma=0.5), 3)
    replay.dones[:] = 0
    StoredReplay(replay).end_episodes()
    before = replay._get_samples(np.array([0, 1, 2]))
    expected = [replay.rewards[k:3].T @ 0.5 ** np.arange(3 - k) for k in range(3)]
    for _ in range(3):
        replay.add(*np.ones((2, 2, 2), np.float32), np.array([0, 1]), np.full(2, 100.0), np.zeros(2), [{}, {}])
    after = replay._get_samples(np.array([0, 1, 2]))
    for k, sample in enumerate(after.rewards.numpy().ravel()):
        assert any(np.isclose(sample, value) for value in expected[k])
    assert before.dones.sum() == after.dones.sum() == 0  # cut off, not ended: there is a value to bootstrap on


def test_rows_of_another_buffer_are_refused():
    state = StoredReplay(fill(buffer(), 3)).state()
    with pytest.raises(QuarlError, match="observations of its replay"):
        StoredReplay(buffer()).load_state({**state, "observations": state["observations"][:, :1]})
    with pytest.raises(QuarlError, match="has room for"):
        StoredReplay(buffer(size=2)).load_state(state)


@pytest.mark.slow
def test_the_replay_of_a_stretch_is_gone_when_the_next_begins(tmp_path, monkeypatch):
    models, alive = [], []

    class Watched(Training):
        def __init__(self, *args):
            alive.append([model() for model in models if model() is not None])
            super().__init__(*args)
            models.append(weakref.ref(self.model))

    monkeypatch.setattr(runs, "Training", Watched)
    config = parse([*words("dqn", "CartPole-v1", 400, folder=tmp_path / "runs"), "--save-freq", "100"])
    runs.in_stretches(config, lambda line: None)
    assert alive == [[]] * 4


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "length"), [("ppo", 4096), ("dqn", 512)])
def test_a_run_in_stretches_ends_in_the_same_agent_whatever_signals_come(algo, length, tmp_path, monkeypatch):
    monkeypatch.setattr(callback, "SHOWN_S", 0.0)

    def stretched(folder, signals):
        config = parse([*words(algo, "CartPole-v1", length, folder=tmp_path / folder), "--save-freq", str(length // 4)])
        steps = []

        def progress(label, done):
            steps.append(done)
            if signals and sum(steps) > signals[0]:
                signals.pop(0)
                os.kill(os.getpid(), signal.SIGTERM)

        while True:
            session = Training(runs.from_here(config, print), lambda line: None)
            steps.clear()
            ended = session.run(progress, one_stretch=True)
            if ended.row is not None:
                return weights(session.model)

    signals = [0.15 * length, 0.4 * length, 0.65 * length]
    whole, broken = stretched("whole", []), stretched("broken", signals)
    assert not signals
    assert same(whole, broken)


def test_letters_beyond_ascii_are_escaped_in_the_header_of_a_checkpoint_as_they_always_were(tmp_path):
    path = tmp_path / "checkpoint"
    checkpoint_file.write(path, {}, {"größe": np.float32([1])})
    assert rb'"gr\u00f6\u00dfe":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}' in path.read_bytes()
    assert checkpoint_file.read(path)[1]["größe"].tolist() == [1]


@pytest.mark.slow
def test_checkpoints_with_right_checksums_and_wrong_contents_are_one_line(tmp_path, capsys):
    train(tmp_path, "a2c", "CartPole-v1", 64)
    older, path = sorted((tmp_path / "logs/a2c/CartPole-v1_1").glob("checkpoint-*"))
    older.unlink()
    manifest, arrays = checkpoint_file.read(path)
    arrays = {name: array.copy() for name, array in arrays.items()}
    facts = {key: manifest[key] for key in ("updates", "replay", "model", "state")}
    cases = [
        ({"state": {}}, "malformed (KeyError"),
        ({"state": {"clock_s": [], "qat": None}}, "malformed (TypeError"),
        ({"state": {"clock_s": 0.0, "qat": 5}}, "malformed"),
        *(({"model": {**facts["model"], name: 5}}, "") for name in facts["model"]),
        *(({"model": {key: v for key, v in facts["model"].items() if key != name}}, "") for name in facts["model"]),
        ({"updates": [[]]}, "are damaged"),
    ]
    for changed, said in cases:
        checkpoint_file.write(path, {**facts, **changed}, arrays)
        assert said in refused(capsys, *resuming("a2c", "CartPole-v1", "-n", 256))
