"""Faults that runs survive: a tenth of stress.chaos on real processes, and the parts that notice them."""

from __future__ import annotations

import collections
import dataclasses
import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from quarl.actorq import family, workers
from quarl.actorq.build import build, limiter_of
from quarl.actorq.counters import Actor, Control, Learner, Publisher
from quarl.actorq.environments import RETRIES, Environments
from quarl.actorq.shared_memory import Memory
from quarl.actorq.supervisor import Supervisor
from quarl.actorq.versions import RESERVED, Versions
from quarl.cli import parse
from quarl.config import ActorQConfig
from quarl.envs import Environment
from quarl.errors import QuarlError
from quarl.files import read_rows, write_rows
from quarl.processes.inside import Result
from quarl.runs import checkpoint, evaluator
from stress.chaos import faults, kills, poison
from stress.chaos.run import Run
from waiting import PATIENCE_S, until


@pytest.mark.slow
def test_kills_stops_and_errors_lose_nothing_and_duplicate_nothing(tmp_path):
    """One run that is started twice: SIGKILL of its learner ends the first start, Ctrl-C the second."""
    words = ("--actors", "3", "-n", "60000", "--save-replay-buffer", "--save-freq", "200")
    words += ("--max-staleness", str(kills.BOUND))
    chaos = {"step_s": 0.004, "raise_p": 0.01}
    with Run(tmp_path, *words, chaos=chaos) as run:
        frozen = run.ready().rows()[-1]
        own = os.getpriority(os.PRIO_PROCESS, 0)
        politeness = [
            os.getpriority(os.PRIO_PROCESS, run.pid(name)) - own for name in ("learner", "actor-0", "publisher")
        ]
        assert politeness == [ActorQConfig.nice, ActorQConfig.nice, 0]
        run.send("publisher", signal.SIGSTOP)
        run.until(lambda: "actors wait for newer weights" in run.text())
        run.until(lambda: run.rows()[-1]["timesteps"] > frozen["timesteps"])  # they have gone on to the bound
        pid = run.send("publisher", signal.SIGKILL)
        run.until(lambda: run.pid("publisher") not in (None, pid))
        run.until(lambda: run.rows()[-1]["published_version"] > frozen["published_version"] + 2)
        assert run.rows()[-1]["staleness_max"] <= kills.BOUND
        assert [actor["incarnation"] for actor in run.rows()[-1]["actors"]] == [0, 0, 0]
        time.sleep(random.Random(0).uniform(0, 1))
        run.send("learner", signal.SIGKILL)
        assert run.finish() == 1
        why = f"the learner died (killed by SIGKILL): the run ends; see {run.output / 'learner.log'}; resume with"
        assert why in run.text()
        first, saved = run.rows()[-1], checkpoint.load_latest(run.output)
    with Run(tmp_path, *words, "--resume", chaos=chaos) as run:
        again = run.ready().rows()[0]
        assert saved.facts["counters"]["num_timesteps"] <= again["timesteps"]
        assert again["version"] > first["version"]
        before = run.workers("actor-1")
        run.send("actor-1", signal.SIGKILL)
        run.back("actor-1", before)  # within 5 s on a machine that does nothing else: see the benchmark
        os.killpg(run.process.pid, signal.SIGINT)
        os.killpg(run.process.pid, signal.SIGINT)  # as a wrapper forwards it
        assert run.finish() == 130
        assert not run.orphans()
        assert not run.shared_files()
        assert 0 <= run.lost() <= 1
        last = run.rows()[-1]
        assert last["learner"]["duplicates"] == 0
        assert "Traceback" not in run.text()
    found = faults.links(run.output)
    assert found["rows"] == last["timesteps"]
    assert found["links"] > 0.9 * found["rows"]
    assert found["links_across"] == found["transitions_across"] == 0


@pytest.mark.slow
def test_a_run_replaces_a_killed_actor_and_resumes(tmp_path):
    with Run(tmp_path, "--actors", "1", "-n", "1200", chaos={"step_s": 0.002}) as run:
        before = run.ready().workers("actor-0")
        run.send("actor-0", signal.SIGKILL)
        run.back("actor-0", before)
        assert run.finish() == 0
        assert run.told("actor 0", "died", "killed by SIGKILL")
        assert run.rows()[-1]["actors"][0]["incarnation"] == 1
    with Run(tmp_path, "--actors", "1", "-n", "1500", "--resume") as run:
        assert run.finish() == 0
        assert not run.orphans()
        last = run.rows()[-1]
        assert (last["timesteps"], last["learner"]["duplicates"]) == (1500, 0)


@pytest.mark.slow
def test_a_crash_loop_is_parked_and_too_few_actors_end_the_run(tmp_path):
    words = ("--actors", "2", "-n", "60000", "--min-actors", "2")
    with Run(tmp_path, *words, chaos={"step_s": 0.005, "raises": ["actor 0"]}) as run:
        assert run.finish() == 4
        lines = [line for line in run.text().splitlines() if "cores" not in line and "no time limit" not in line]
        why, log = "(RuntimeError: the simulation broke down)", run.output / "actor-0.log"
        of_actor = [line for line in lines if "actor 0 died" in line]
        assert of_actor[0] == f"quarl: actor 0 died {why}: restarted; see {log}"
        assert f"quarl: actor 0 died 5 times in 60 s of work {why}: parked; see {log}" in of_actor
        more = rf"quarl: actor 0 died \d more times? in \d+ s {re.escape(why)}"
        assert sum(re.fullmatch(more, line) is not None for line in of_actor) == len(of_actor) - 2
        few = f"quarl: only 1 of 2 actors are left and --min-actors is 2; resume with --resume -o {run.output}"
        assert {few, f"report: {run.output / 'report.html'}"} == {*lines[-2:]}
        assert (run.faults("actor 0"), run.faults("environment of actor 0", "raised")) == (5, 25)
        assert run.told("environment of actor 0", "raised", why[1:-1])
        assert (run.output / "actor-0.log").read_text().count("Traceback") == 5
        assert run.rows()[-1]["actors"][0]["steps"] == 0


@pytest.mark.slow
def test_an_actor_that_hangs_and_one_that_is_slow_do_not_hold_the_others(tmp_path):
    chaos = {"step_s": 0.005, "hangs": {"actor 1": 30}, "slow": {"actor 2": 0.5}}
    with Run(tmp_path, "--actors", "3", "-n", "60000", "--env-timeout", "5", chaos=chaos) as run:
        run.ready().until(lambda: len(list(run.counted("actor 1"))) == 2)
        hung, successor = sorted(run.counted("actor 1"), key=lambda one: one[2])
        assert successor[2] > hung[3]  # how much later is the benchmark's matter

        def steps(number):
            return run.rows()[-1]["actors"][number]["steps"]

        run.until(lambda: steps(0) > 4 * steps(2) > 0)
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.finish() == 130
        lines = [line for line in run.text().splitlines() if "cores" not in line and "no time limit" not in line]
        assert lines[0].startswith("quarl: actor 1 died (no step for 5 s): restarted; see ")
        assert not [line for line in lines[1:] if "no step" in line]


@pytest.mark.slow
def test_a_slow_learner_makes_actors_wait_and_no_memory_grow(tmp_path):
    found = faults.slow_learner(tmp_path, seconds=6.0)
    assert found["failed"] == []


@pytest.mark.slow
def test_children_die_with_a_supervisor_that_is_killed():
    code = (
        "import os, signal, time\n"
        "from quarl.processes.child import Child, Children\n"
        "if __name__ == '__main__':\n"
        "    children, child = Children(), Child('actor 7', time.sleep, 3600)\n"
        "    children.start(child)\n"
        "    print(child.process.pid, flush=True)\n"
        "    comm = f'/proc/{child.process.pid}/comm'\n"
        "    while open(comm).read() != 'quarl-actor-7\\n':\n"
        "        time.sleep(0.01)\n"
        "    print('named', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    pid, named = done.stdout.split()
    assert (named, done.returncode) == ("named", -signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_learner_without_a_supervisor_saves_and_leaves(tmp_path, monkeypatch):
    with poison.rig(tmp_path) as rig:
        rig.train(7)
        monkeypatch.setattr(rig.learner, "orphaned", lambda: True)
        rig.learner.run()
        assert rig.counters.learner[Learner.DONE] == 1
        assert checkpoint.load_latest(tmp_path).updates == rig.learner.model._n_updates


@pytest.mark.slow
def test_what_is_not_finite_is_neither_published_nor_saved(tmp_path, capsys):
    found = poison.poisoned(tmp_path, poisons=6)
    assert not found["failed"]
    assert (found["rollbacks"], found["not_finite"], found["saved_not_finite"]) == (6, 0, 0)
    assert found["refused"] > 0
    assert found["published"] > 50


@pytest.mark.slow
def test_a_second_signal_leaves_at_once():
    code = (
        "import os, signal, time\n"
        "from quarl.processes import signals\n"
        "signals.AGAIN_S = 0\n"
        "with signals.Interrupts(lambda: print('killed', flush=True)) as interrupts:\n"
        "    assert not interrupts.attempt(lambda: os.kill(os.getpid(), signal.SIGTERM))\n"
        "    assert interrupts.number == signal.SIGTERM\n"
        "    assert not interrupts.attempt(lambda: print('never'))\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "killed\n", "")


def config(output: Path, **changed) -> ActorQConfig:
    chosen = {
        "actors": 2,
        "eval_freq": 0,
        "n_timesteps": 1000,
        "output": output,
        "params": ("batch_size:16",),
        "preset": "none",
    }
    return ActorQConfig(**chosen | changed)


@pytest.fixture
def supervised(tmp_path):
    """A supervisor that started nobody, and its counters."""
    said: list[str] = []
    supervisor = Supervisor(config(tmp_path / "out"), said.append)
    supervisor.config.output.mkdir()
    yield supervisor, said
    supervisor.channel.remove()


def test_a_publisher_that_keeps_dying_ends_the_run_which_is_saved(supervised):
    supervisor, _ = supervised
    at_work(supervisor)
    publisher = supervisor.workers.publisher
    publisher.process.killed, publisher.parked = True, True
    supervisor.children.revive = lambda child: None
    supervisor.children.alive = list
    wound_up = []
    supervisor._wind_up = lambda: wound_up.append(True)
    found = supervisor._tick()
    assert found is not None
    assert (found[0], wound_up) == (1, [True])
    assert found[1] == "the publisher keeps dying; there is no checkpoint yet: start again"
    (supervisor.config.output / "checkpoint-0000000000.safetensors").touch()
    assert supervisor._over(1, "it ended")[1].startswith("it ended; resume with --resume -o ")


@pytest.mark.parametrize(("trained_for", "finish"), [((False, False), 0), ((False, True), 0), ((True, True), 1)])
def test_a_target_that_is_reached_before_quantisation_acts_does_not_end_the_run(tmp_path, trained_for, finish):
    supervisor = Supervisor(config(tmp_path / "out", qat="w8a8", quant_delay=500, target=10.0), print)
    try:
        at_work(supervisor)
        supervisor.children.alive = list
        supervisor._catch_up = supervisor._evaluate = lambda: True
        for clock_s, done in enumerate(trained_for):
            supervisor.evaluator._add({"return": 10.0 + clock_s, "clock_s": clock_s, "trained_for": done})
        supervisor.counters.learner[Learner.EVALUATIONS] = 2
        supervisor._tick()
        assert supervisor.counters.control[Control.FINISH] == finish
        assert supervisor.counters.control[Control.EVALUATED] == 2
        assert supervisor.evaluator.reached_s == (1.0 if finish else None)
        supervisor.evaluator.entries = [{"return": 10.0, "last": False}, {"return": 11.0, "last": False}]
        assert not supervisor.evaluator.reached  # a file of before does not say it
    finally:
        supervisor.channel.remove()


class _Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


class _Living:
    """What a child's process is to its workers."""

    killed = False

    def is_alive(self):
        return not self.killed

    def kill(self):
        self.killed = True

    def join(self, timeout=None):
        pass


@pytest.fixture
def watched(supervised, monkeypatch):
    """Workers that are watched, of processes that are there in name only, on a clock that is set by hand."""
    supervisor, said = supervised
    clock = _Clock()
    monkeypatch.setattr(family, "time", clock)
    _watch(supervisor, said, env_timeout=10.0)

    def after(seconds, **beats):
        """Looks every half second; those named beat meanwhile."""
        for _ in range(int(2 * seconds)):
            clock.now += 0.5
            for name in beats:
                _cells(supervisor, name)[0][_cells(supervisor, name)[1]] = clock.now
            supervisor.workers.look()
            said.extend(each.blame for each in supervisor.workers.all if each.blame and each.blame not in said)

    return supervisor, said, clock, after


def _watch(supervisor, said, env_timeout):
    config, learner = dataclasses.replace(supervisor.config, env_timeout=env_timeout), supervisor.workers.learner
    arguments = (supervisor.template, supervisor.channel, learner.spec.environment, lambda news: said.append(str(news)))
    supervisor.workers = workers.Workers(config, *arguments)
    for child in supervisor.workers.all:
        child.process, child.started = _Living(), family.time.monotonic()


def _cells(supervisor, name):
    if name == "publisher":
        return supervisor.counters.publisher, Publisher.HEARTBEAT_S
    return supervisor.counters.actors[int(name[-1])], Actor.HEARTBEAT_S


def test_a_slow_import_is_no_hang_and_a_silent_actor_is_one(watched):
    supervisor, said, _, after = watched
    after(family.START_S - 1, actor_1=1, publisher=1)
    assert not said
    after(1, actor_0=1, actor_1=1, publisher=1)
    after(9.5, actor_1=1, publisher=1)
    assert not said
    after(1, actor_1=1, publisher=1)
    assert said == ["no step for 10 s"]
    assert [child.alive() for child in supervisor.workers.actors.children] == [False, True]


def test_a_frozen_publisher_is_replaced_in_the_end(watched):
    _, said, _, after = watched
    after(1, actor_0=1, actor_1=1, publisher=1)
    after(workers.PUBLISHER_S, actor_0=1, actor_1=1)
    assert not said
    after(1, actor_0=1, actor_1=1)
    assert said == ["no sign of life for 30 s"]


def test_nobody_is_blamed_for_the_time_that_the_supervisor_stood_still(watched):
    _, said, clock, after = watched
    after(1, actor_0=1, actor_1=1, publisher=1)
    clock.now += 3600  # Ctrl-Z, and fg
    after(9, publisher=1)
    assert not said


def test_a_short_timeout_blames_nobody_either(watched):
    supervisor, said, clock, after = watched
    _watch(supervisor, said, env_timeout=0.8)
    after(1, actor_0=1, actor_1=1, publisher=1)
    supervisor.workers.look()
    clock.now += 3600  # Ctrl-Z, and fg
    supervisor.workers.look()
    assert not said
    for _ in range(2):
        clock.now += 0.3
        supervisor.workers.look()
    assert [child.blame for child in supervisor.workers.actors.children] == ["no step for 0.8 s"] * 2


def test_an_actor_that_hangs_between_frequent_evaluations_is_found(watched):
    _, said, clock, after = watched
    after(1, actor_0=1, actor_1=1, publisher=1)
    for _ in range(12):
        clock.now += 20  # an evaluation
        after(1, actor_1=1, publisher=1)
    assert said == ["no step for 10 s"]


class _Obedient(_Living):
    """A learner that saves and leaves when it is told to."""

    def __init__(self, supervisor):
        self.control = supervisor.counters.control

    def is_alive(self):
        return not self.control[Control.FINISH]


class _Left(_Living):
    """An actor whose environment could not be made."""

    killed = True


def at_work(supervisor):
    """Every child there in name, and weights up for an evaluation."""
    for child in supervisor.workers.all:
        child.process = _Living()
    supervisor.workers.learner.process = _Obedient(supervisor)
    supervisor.counters.learner[Learner.READY] = 1
    with supervisor.channel.floats.slot(4 * supervisor.template.num_floats, version=1, step=0) as slot:
        supervisor.template.flatten_into(build(supervisor.config), slot.view(np.float32))


def test_an_evaluation_that_raises_is_played_once_more_and_then_left_out(supervised, monkeypatch):
    supervisor, said = supervised
    at_work(supervisor)
    failures = [KeyError("lost")]
    play = evaluator.evaluate

    def evaluate(*args, **kwargs):
        if failures:
            raise failures.pop()
        return play(*args, **kwargs | {"episodes": 1})

    monkeypatch.setattr(evaluator, "evaluate", evaluate)
    assert supervisor._evaluate()
    again = "an evaluation restarts (KeyError: 'lost')"
    assert (len(supervisor.evaluator.entries), said) == (1, [again])
    failures += [KeyError("lost"), KeyError("lost")]
    assert supervisor._evaluate()
    assert (len(supervisor.evaluator.entries), failures) == (1, [])
    assert said == [again, again, "an evaluation failed (KeyError: 'lost'); training continues"]
    failures.append(QuarlError("no such thing"))
    assert supervisor._evaluate()  # of a mistake there is no second try
    assert said[3:] == ["an evaluation failed (no such thing); training continues"]
    failures += [KeyError("lost"), KeyError("lost")]
    with pytest.raises(KeyError, match="lost"):  # of the last one the run is for
        supervisor._evaluate(last=True)


def test_whatever_ends_a_supervisor_lets_the_learner_save(supervised, monkeypatch):
    supervisor, _ = supervised
    at_work(supervisor)
    monkeypatch.setattr(supervisor.children, "start", lambda child: None)

    def tick():
        raise OSError("no space left")

    monkeypatch.setattr(supervisor, "_tick", tick)
    with pytest.raises(OSError, match="no space"):
        next(supervisor.run())
    assert supervisor.counters.control[Control.FINISH] == 1


def test_an_actor_that_has_worked_is_revived_whatever_it_died_of(supervised):
    supervisor, _ = supervised
    at_work(supervisor)
    actor = supervisor.workers.actors.children[0]
    actor.process = _Left()
    actor._result = Result(error="environment 'X-v0' cannot be made: licence server is busy", mistake=QuarlError)
    supervisor.counters.actors[0, Actor.STEPS] = 24_000
    assert supervisor._tick() is None
    assert (supervisor.counters.actors[0, Actor.DEATHS], supervisor.faults.total("actor ", "died")) == (1, 1)
    supervisor.counters.actors[0, Actor.STEPS] = 0
    assert supervisor._tick() == (2, "actor 0: environment 'X-v0' cannot be made: licence server is busy")
    assert supervisor.counters.control[Control.FINISH] == 1  # the learner was told to save


def test_actors_that_get_nowhere_end_the_run_and_one_episode_is_enough(supervised):
    supervisor, said = supervised
    at_work(supervisor)
    actors, log = supervisor.counters.actors, supervisor.config.output / "actor-0.log"
    log.write_text("an environment raised OSError: old\nan environment raised RuntimeError: boom\n")
    actors[:, Actor.STEPS], actors[:, Actor.ERRORS], actors[:, Actor.DEATHS] = 999, (10, 0), (0, 9)
    assert supervisor._tick() is None
    actors[0, Actor.EPISODES], actors[1, Actor.DEATHS] = 1, 10
    assert supervisor._tick() is None
    actors[0, Actor.ERRORS] = 20
    code, why = supervisor._tick()
    assert (code, supervisor.counters.control[Control.FINISH]) == (4, 1)
    assert why.startswith(
        "no actor completed an episode or 1,000 steps in its last ten replacements (RuntimeError: boom);"
    )
    assert said == [f"environment of actor 0 raised 10 times (RuntimeError: boom): replaced; see {log}"]


def test_waiting_for_newer_weights_is_said_once_until_it_is_over(watched):
    supervisor, said, _, after = watched
    everyone = {"actor_0": 1, "actor_1": 1, "publisher": 1}
    for waiting in (True, True, False, False, True):
        for _ in range(6):
            after(0.5, **everyone)
            supervisor.counters.actors[0, Actor.STALE_S] += 0.5 * waiting
    assert len(said) == 2
    assert "--max-staleness" in said[0]


def test_resume_before_the_first_checkpoint_starts_at_the_beginning(tmp_path):
    said: list[str] = []
    (tmp_path / "out").mkdir()
    supervisor = Supervisor(config(tmp_path / "out", resume=True), said.append)
    supervisor.channel.remove()
    assert said == [f"{tmp_path / 'out'} holds no checkpoint yet: the run starts from the beginning"]
    assert not supervisor.config.resume


def test_metrics_of_what_was_not_saved_are_cut_with_half_a_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_rows(path, 5) == []
    lines = [f'{{"timesteps": {steps}, "clock_s": 1.5}}\n' for steps in (0, 5, 6, 4)]
    path.write_text("".join(lines) + "[]\nnot json\n" + lines[0][:9])
    write_rows(path, read_rows(path, 5))
    assert path.read_text() == lines[0] + lines[1] + lines[3]


def test_a_run_that_was_stopped_before_its_first_checkpoint_keeps_its_options(tmp_path):
    first = begun(config(tmp_path, params=("batch_size:16", "gamma:0.8"), **OTHERS))
    (tmp_path / "checkpoint-0000000000.safetensors").unlink()
    found, said = resumed(tmp_path)
    assert found == first
    assert said == [f"{tmp_path} holds no checkpoint yet: the run starts from the beginning"]
    with pytest.raises(QuarlError, match="--seed is 9 here and 3 in"):
        resumed(tmp_path, "--seed", "9")


@pytest.mark.parametrize("words", [(), ("--resume",)])
def test_a_model_that_is_no_run_s_is_not_overwritten(tmp_path, words):
    (tmp_path / "model.zip").touch()
    chosen = parse(["actorq", "-o", str(tmp_path), *words])
    with pytest.raises(QuarlError, match=r"already holds model.zip of something else: use another folder"):
        Supervisor(chosen, print)


def test_a_run_is_not_resumed_to_fewer_steps_than_it_has(tmp_path):
    begun(config(tmp_path))
    write_rows(tmp_path / "metrics.jsonl", [{"timesteps": 1000}])
    with pytest.raises(QuarlError, match=r"beyond -n 500 \(1,000 steps\); resume it with more, as in -n 2000"):
        resumed(tmp_path, "-n", "500")
    assert resumed(tmp_path)[0].n_timesteps == 1000  # perhaps its last evaluation is missing


def begun(chosen):
    """The options of a run that was killed when it had its first checkpoint."""
    supervisor = Supervisor(chosen, print)

    def no_process(child):
        raise OSError("no process can be started")

    supervisor.children.start = no_process
    with pytest.raises(OSError, match="no process"):
        next(supervisor.run())
    (chosen.output / "checkpoint-0000000000.safetensors").touch()
    return supervisor.config


def resumed(folder, *words):
    """The options of the run that these words of a command line go on with, and what is said of them."""
    said: list[str] = []
    chosen = parse(["actorq", "--resume", "-o", str(folder), *words])
    chosen.check()
    supervisor = Supervisor(chosen, said.append)
    supervisor.channel.remove()
    return supervisor.config, said


OTHERS = {"seed": 3, "n_steps": 5, "actor_precision": "int4", "qat": "w4a8", "learner_dtype": "bf16"}


@pytest.mark.slow
def test_a_run_goes_on_with_its_own_options(tmp_path):
    first = begun(config(tmp_path, params=("batch_size:16", "gamma:0.8"), max_staleness=900, **OTHERS))
    found, said = resumed(tmp_path)
    assert found == dataclasses.replace(first, resume=True)
    assert said == [f"resuming to 1,000 environment steps, with the options in {tmp_path / 'args.yml'}"]
    longer, _ = resumed(tmp_path, "-n", "5000", "--actors", "1", "--params", "gamma:0.9")
    assert (longer.n_timesteps, longer.actors, longer.params) == (5000, 1, ("batch_size:16", "gamma:0.9"))
    default, _ = resumed(tmp_path, "-n", "100000")
    assert default.n_timesteps == 100_000
    assert first.max_staleness == 900
    assert resumed(tmp_path, "--max-staleness", "1000")[0].max_staleness == 1000  # the default, and asked for
    assert longer.delay(longer.steps) == first.delay(first.steps) == 500  # of the length that the run had when it began


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "9"], "--seed is 9 here and 3 in .*args.yml; resume without it"),
        (["--seed=0"], "--seed is 0 here and 3 in .*args.yml; resume without it"),
        (["--algo", "td3", "--env", "Pendulum-v1"], "--algo is td3 here and dqn in"),
        (["--n-steps", "2"], "--n-steps is 2 here and 5 in"),
        (["--actor-precision", "int2"], "--actor-precision is int2e8 here and int4 in"),
    ],
)
def test_what_a_run_cannot_change_is_refused_in_one_line(tmp_path, words, message):
    begun(config(tmp_path, **OTHERS))
    with pytest.raises(QuarlError, match=message):
        resumed(tmp_path, *words)


def test_a_run_that_kept_no_options_goes_on_with_those_given(tmp_path):
    begun(config(tmp_path, seed=3))
    (tmp_path / "args.yml").unlink()
    found, said = resumed(tmp_path, "--seed", "5")
    assert found.seed == 5
    assert said == [f"{tmp_path / 'args.yml'} is missing: the run resumes with the options of this command"]


def test_incarnations_go_on_after_resume(tmp_path):
    def first(**options):
        supervisor = Supervisor(config(tmp_path, **options), print)
        supervisor.channel.remove()
        return supervisor.workers.actors.children[0].spec.incarnation

    assert first() == 0
    with poison.rig(tmp_path) as rig:
        rig.train(3)
    assert first(resume=True) >= 1000


def test_what_was_reached_before_a_resume_stays_reached(tmp_path):
    """Evaluations of steps that were not saved are no more."""
    entries = [
        {"clock_s": steps / 10, "timesteps": steps, "updates": 1, "return": value}
        for steps, value in ((100, 1.0), (200, 9.0), (300, 8.0), (400, 9.0))
    ]
    path = tmp_path / "evaluations.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries) + '{"clock_s": 5')

    def picked_up(steps, target):
        supervisor = Supervisor(config(tmp_path, target=target), print)
        supervisor.channel.remove()
        supervisor.counters.learner[Learner.BEGAN_AT] = steps
        supervisor._pick_up()
        return supervisor

    found = picked_up(350, 7.0)
    assert (found.evaluator.reached_s, found.evaluator.entries) == (30.0, entries[:3])
    assert found.counters.control[Control.FINISH] == 1
    assert [json.loads(line) for line in path.read_text().splitlines()] == entries[:3]
    assert picked_up(350, 8.5).evaluator.reached_s is None
    path.write_text("".join(json.dumps(entry | {"last": entry["timesteps"] == 300}) + "\n" for entry in entries))
    assert picked_up(350, 7.0).evaluator.reached_s is None  # the closing one plays the weights of the one before
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    found = picked_up(200, 7.0)
    assert (found.evaluator.reached_s, found.evaluator.entries) == (None, entries[:2])
    assert found.counters.control[Control.FINISH] == 0
    assert not found.evaluator.has_concluded(200)
    found.evaluator.entries[-1]["last"] = True
    assert found.evaluator.has_concluded(200)
    assert not found.evaluator.has_concluded(300)


def test_a_full_disk_costs_rows_and_not_the_run(supervised, monkeypatch):
    supervisor, said = supervised
    path = supervisor.config.output / "metrics.jsonl"
    path.symlink_to("/dev/full")
    for _ in range(2):
        supervisor._log({"clock_s": 1.0})
    line = f"cannot write {path}: No space left on device; training continues"
    assert said == [line]
    path.unlink()
    supervisor._log({"clock_s": 2.0})  # there is room again
    assert json.loads(path.read_text()) == {"clock_s": 2.0}
    path.unlink()
    path.symlink_to("/dev/full")
    supervisor._log({"clock_s": 3.0})
    assert said == [line, line]

    def full(data, path):
        raise QuarlError(f"cannot write {path}: No space left on device; nothing was changed")

    versions = Versions(supervisor.config.output)
    assert versions.next(0) == 1
    monkeypatch.setattr("quarl.actorq.versions.write_bytes", full)
    assert [versions.next(step) for step in range(1, RESERVED + 5)][-1] == RESERVED + 5
    assert Versions(supervisor.config.output).first == RESERVED + 1
    monkeypatch.undo()
    versions.next(0)  # there is room again
    assert Versions(supervisor.config.output).first > RESERVED + 6
    monkeypatch.setattr("quarl.actorq.versions.write_bytes", full)
    with pytest.raises(QuarlError, match="No space left"):
        Versions(supervisor.config.output).next(0)


def test_a_long_run_has_fewer_rows_and_points_of_its_past(supervised):
    supervisor, _ = supervised
    supervisor.config = dataclasses.replace(supervisor.config, track="tensorboard")
    points = []
    supervisor.evaluator.logger.dump = points.append
    for second in range(4000):
        supervisor._log({"clock_s": float(second), "wall_s": float(second), "timesteps": second})
    rows = read_rows(supervisor.config.output / "metrics.jsonl")
    assert rows[0]["timesteps"] == 0
    assert [row["timesteps"] for row in rows[-1400:]] == [*range(2600, 4000)]
    assert len(rows) == 1 + (4000 - 2880) // 4 + 1440 // 2 + 1440
    assert points == [*range(1440), *range(1440, 2880, 2), *range(2880, 4000, 4)]


def test_a_row_of_metrics_that_did_not_fit_leaves_no_half(supervised, monkeypatch):
    supervisor, _ = supervised
    path = supervisor.config.output / "metrics.jsonl"
    supervisor._log({"clock_s": 1.0})

    def half(row, file):
        file.write('{"clock')
        file.flush()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("quarl.files.print", half, raising=False)
    supervisor._log({"clock_s": 2.0})
    monkeypatch.undo()
    supervisor._log({"clock_s": 3.0})
    assert [json.loads(line)["clock_s"] for line in path.read_text().splitlines()] == [1.0, 3.0]


def test_a_last_evaluation_that_raises_twice_is_one_line(supervised, monkeypatch):
    supervisor, _ = supervised
    at_work(supervisor)

    def evaluate(*args, **kwargs):
        raise RuntimeError("simulator exploded")

    monkeypatch.setattr(evaluator, "evaluate", evaluate)
    code, message = supervisor._conclude()
    assert code == 1
    assert message == ("the last evaluation failed (RuntimeError: simulator exploded); model and checkpoint are saved")


def test_without_episodes_nothing_is_evaluated_and_the_policy_is_kept(supervised, monkeypatch):
    supervisor, _ = supervised
    at_work(supervisor)
    supervisor.evaluator.config = dataclasses.replace(supervisor.config, eval_episodes=0)
    monkeypatch.setattr(evaluator, "evaluate", None)
    assert supervisor._conclude() == (0, "")
    assert supervisor.evaluator.entries == []
    assert [path.name for path in supervisor.config.output.glob("policy-*")] == ["policy-fp32.safetensors"]
    assert supervisor._summary(collections.defaultdict(float))["final"] is None


def test_a_learner_that_left_at_once_has_its_evaluations_picked_up_first(supervised, monkeypatch):
    supervisor, _ = supervised
    supervisor.config = dataclasses.replace(supervisor.config, resume=True)
    supervisor.counters.learner[Learner.READY] = supervisor.counters.learner[Learner.DONE] = 1
    order = []
    monkeypatch.setattr(supervisor, "_pick_up", lambda: order.append("evaluations before"))
    monkeypatch.setattr(supervisor, "_catch_up", lambda: order.append("the end"))
    assert supervisor._tick() == (0, "")
    assert order == ["evaluations before", "the end"]


def test_damaged_version_numbers_say_how_to_mend_them(tmp_path):
    (tmp_path / "versions.json").write_text("{")
    with pytest.raises(QuarlError, match=re.escape('write {"reserved": N} into it, N above every "version" in')):
        Versions(tmp_path)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_learner_has_a_core_for_each_of_its_threads(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(Memory, "alone", lambda memory: True)
    supervisor = Supervisor(config(tmp_path, learner_threads=threads, actors=3), print)
    supervisor.channel.remove()
    learner, *actors = (child.spec.cores for child in (supervisor.workers.learner, *supervisor.workers.actors.children))
    assert learner == frozenset(range(threads))
    assert len({*actors, learner}) == min(4, 1 + 4 - threads)
    assert all(len(cores) == 1 for cores in actors)
    monkeypatch.setattr(Memory, "alone", lambda memory: False)  # another run would be on the same cores
    beside = Supervisor(config(tmp_path), print)
    beside.channel.remove()
    assert beside.workers.learner.spec.cores is None


def test_a_finished_run_that_is_resumed_is_finished(tmp_path):
    with poison.rig(tmp_path, n_timesteps=300) as rig:
        while not rig.learner.finished():
            rig.send()
            rig.learner.step()
        rig.learner._save()
    with poison.rig(tmp_path, n_timesteps=300, resume=True) as rig:
        assert rig.learner.finished()
        assert rig.learner.model.num_timesteps == 300


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"env": "MountainCar-v0"}, "holds a run with --env CartPole-v1; resume it with --env CartPole-v1"),
        ({"algo": "ddpg", "env": "Pendulum-v1"}, "holds a run with --algo dqn; resume it with --algo dqn"),
        ({"net_arch": "8,8"}, "resume with the options of the first run, such as --net-arch"),
        ({"qat": "w8a8", "quant_delay": 300}, "was trained with other --qat options"),
    ],
)
def test_resume_with_other_options_is_refused_in_one_line(tmp_path, changed, message):
    params = ("batch_size:16",)
    with poison.rig(tmp_path, params=params):
        pass
    with (
        pytest.raises(QuarlError, match=message),
        poison.rig(tmp_path, params=params, resume=True, **changed),
    ):
        pass


@pytest.mark.slow
def test_resume_for_other_bits_is_refused_though_all_shapes_agree(tmp_path):
    trained = {"qat": "w8a8", "actor_precision": "int8", "quant_delay": 300}
    with poison.rig(tmp_path, **trained) as rig:
        rig.learner.checkpointer.float_updates = 7
        rig.learner._save()
    with poison.rig(tmp_path, resume=True, **trained) as rig:
        assert rig.learner.model.num_timesteps == 0
        assert rig.learner.checkpointer.float_updates == 7
    other = trained | {"qat": "w4a8", "actor_precision": "int4"}
    with (
        pytest.raises(QuarlError, match="was trained with other --qat options"),
        poison.rig(tmp_path, resume=True, **other),
    ):
        pass


def test_a_bound_of_staleness_that_would_stop_the_run_is_refused(tmp_path):
    tight = config(tmp_path, actors=4, params=("batch_size:16", "train_freq:1"))
    model = build(tight)
    limiter_of(config(tmp_path, actors=4, max_staleness=6), model)
    with pytest.raises(QuarlError, match=r"--max-staleness 5 would block this run: .* least 6"):
        limiter_of(config(tmp_path, actors=4, max_staleness=5), model)


@pytest.mark.slow
def test_an_idle_learner_shows_its_newest_weights(tmp_path):
    """Or actors at the bound and a learner without experience would wait for each other for ever."""
    with poison.rig(tmp_path, publish_interval=1000) as rig:
        rig.train(5)
        before = rig.channel.floats.version
        until(lambda: rig.learner.step() or rig.channel.floats.version != before)
        assert rig.channel.floats.pull().step == rig.learner.model._n_updates
        after = rig.channel.floats.version
        for _ in range(2000):
            rig.learner.step()
        assert rig.channel.floats.version == after  # once is enough


class _Fragile:
    """Counts how often it was made."""

    made = 0

    def __init__(self):
        type(self).made += 1

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None):
        return np.zeros(2), {}

    def close(self):
        raise OSError("not even that")


def test_an_environment_is_made_anew_until_nothing_but_errors_comes(monkeypatch):
    monkeypatch.setattr(_Fragile, "made", 0)
    monkeypatch.setattr(Environment, "make", lambda *args, **kwargs: _Fragile())
    cells = np.zeros(len(Actor))
    said: list[str] = []
    found = Environments(Environment.from_file("any"), 1, 0, 0, cells, np.zeros((1, 2), np.float32), said.append)
    found.length[0], found.total[0], found.sequence[0] = 7, 1.0, 7
    found.replace(0, RuntimeError("boom"))
    assert (cells[Actor.ERRORS], cells[Actor.DROPPED]) == (1, 7)
    assert found.sequence[0] > 8  # a gap
    for _ in range(20):  # with a step in between it may go on for ever
        found.sequence[0] += 1
        found.replace(0, RuntimeError("boom"))
    for _ in range(RETRIES - 1):
        found.replace(0, RuntimeError("boom"))
    with pytest.raises(RuntimeError, match="boom"):
        found.replace(0, RuntimeError("boom"))
    assert _Fragile.made == 1 + 1 + 20 + RETRIES - 1
    assert said == ["an environment raised RuntimeError: boom"]  # the first of them all
