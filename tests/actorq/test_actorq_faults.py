"""Faults that runs survive: a tenth of benchmarks/chaos.py on real processes, and the parts that notice them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import chaos_faults  # noqa: E402  # it lies beside the package, in no package of its own
import chaos_kills  # noqa: E402
import chaos_poison  # noqa: E402
from chaos_run import Run  # noqa: E402
from quarl.actorq import watch  # noqa: E402
from quarl.actorq.channel import LocalChannel  # noqa: E402
from quarl.actorq.environments import RETRIES, Environments  # noqa: E402
from quarl.actorq.ledger import Actor, Learner, Publisher  # noqa: E402
from quarl.actorq.memory import Memory  # noqa: E402
from quarl.actorq.pace import Pace  # noqa: E402
from quarl.actorq.segment import segment_dtype  # noqa: E402
from quarl.actorq.supervisor import Supervisor  # noqa: E402
from quarl.algorithms import checkpoint  # noqa: E402
from quarl.config import ActorQConfig  # noqa: E402
from quarl.errors import QuarlError  # noqa: E402


def test_kills_stops_and_errors_lose_nothing_and_duplicate_nothing(tmp_path):
    """One run that is started twice: SIGKILL of its learner ends the first start, Ctrl-C the second."""
    words = ("--actors", "3", "-n", "60000", "--save-replay-buffer", "--save-freq", "200")
    words += ("--max-staleness", str(chaos_kills.BOUND))
    chaos = {"step_s": 0.004, "raise_p": 0.01}
    with Run(tmp_path, *words, chaos=chaos) as run:
        frozen = run.ready().rows()[-1]
        run.send("publisher", signal.SIGSTOP)
        run.until(lambda: "actors wait for newer weights" in run.text(), 30)
        run.until(lambda: run.rows()[-1]["timesteps"] > frozen["timesteps"], 10)  # they have gone on to the bound
        pid = run.send("publisher", signal.SIGKILL)
        run.until(lambda: run.pid("publisher") not in (None, pid), 10)
        run.until(lambda: run.rows()[-1]["published_version"] > frozen["published_version"] + 2, 20)
        assert run.rows()[-1]["staleness_max"] <= chaos_kills.BOUND
        assert [actor["incarnation"] for actor in run.rows()[-1]["actors"]] == [0, 0, 0]
        time.sleep(random.Random(0).uniform(0, 1))
        run.send("learner", signal.SIGKILL)
        assert run.finish(10) == 1
        assert "the learner died (SIGKILL); go on with --resume" in run.text()
        first, saved = run.rows()[-1], checkpoint.load_latest(run.output)
    with Run(tmp_path, *words, "--resume", chaos=chaos) as run:
        again = run.ready().rows()[0]
        assert saved.facts["counters"]["num_timesteps"] <= again["timesteps"]
        assert again["version"] > first["version"]
        before = run.workers("actor-1")
        run.send("actor-1", signal.SIGKILL)
        assert run.back("actor-1", before) < 10  # 5 on a machine that does nothing else: see the benchmark
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.finish(10) == 130
        assert not run.orphans(2.0)
        assert not run.shared_files()
        assert 0 <= run.lost() <= 1
        last = run.rows()[-1]
        assert last["learner"]["duplicates"] == 0
        assert "Traceback" not in run.text()
    found = chaos_faults.links(run.output)
    assert found["rows"] == last["timesteps"]
    assert found["links"] > 0.9 * found["rows"]
    assert found["links_across"] == found["transitions_across"] == 0


def test_a_hang_a_crash_loop_and_a_slow_actor_do_not_hold_the_others_until_they_are_too_few(tmp_path):
    chaos = {"step_s": 0.005, "raises": ["actor 0"], "hangs": {"actor 1": 30}, "slow": {"actor 2": 0.05}}
    words = ("--actors", "4", "-n", "60000", "--env-timeout", "2", "--min-actors", "4")
    with Run(tmp_path, *words, chaos=chaos) as run:
        assert run.finish() == 4
        lines = [line for line in run.text().splitlines() if "cores" not in line]
        assert lines[0].startswith("quarl: actor 1 made no step for 2 s: killed")
        parked = "actor 0 died 5 times in 60 s (RuntimeError: the simulation broke down): parked; see "
        assert lines[1].startswith(f"quarl: {parked}")
        assert lines[2].startswith("quarl: only 3 of 4 actors are left and --min-actors is 4; go on with --resume")
        assert len(lines) == 3
        assert (run.output / "actor-0.log").read_text().count("Traceback") == 5
        hung, successor = sorted(run.counted("actor 1"), key=lambda one: one[2])
        assert successor[2] - hung[3] < 2 + 5  # 2 + 2 on a machine that does nothing else: see the benchmark
        steps = [actor["steps"] for actor in run.rows()[-1]["actors"]]
        assert steps[0] == 0
        assert steps[3] > 4 * steps[2] > 0


def test_children_die_with_a_supervisor_that_is_killed():
    code = (
        "import os, signal, time\n"
        "from quarl.actorq.family import Child, Family\n"
        "if __name__ == '__main__':\n"
        "    family, child = Family(print), Child('actor 7', time.sleep, 3600)\n"
        "    family.start(child)\n"
        "    print(child.process.pid, flush=True)\n"
        "    comm = f'/proc/{child.process.pid}/comm'\n"
        "    while open(comm).read() != 'quarl-actor-7\\n':\n"
        "        time.sleep(0.01)\n"
        "    print('named', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    pid, named = done.stdout.split()
    assert (named, done.returncode) == ("named", -signal.SIGKILL)
    deadline = time.monotonic() + 2
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()


def test_a_learner_without_a_supervisor_saves_and_leaves(tmp_path, monkeypatch):
    with chaos_poison.rig(tmp_path) as rig:
        rig.train(7)
        monkeypatch.setattr(rig.learner, "orphaned", lambda: True)
        rig.learner.run()
        assert rig.ledger.learner[Learner.DONE] == 1
        assert checkpoint.load_latest(tmp_path).updates == rig.learner.model._n_updates


def test_what_is_not_finite_is_neither_published_nor_saved(tmp_path, capsys):
    found = chaos_poison.poisoned(tmp_path, poisons=6)
    assert not found["failed"]
    assert (found["rollbacks"], found["not_finite"], found["saved_not_finite"]) == (6, 0, 0)
    assert found["refused"] > 0
    assert found["published"] > 50


def test_a_second_signal_leaves_at_once():
    code = (
        "import os, signal, time\n"
        "from quarl.interrupt import Interrupts\n"
        "with Interrupts(lambda: print('killed', flush=True)) as interrupts:\n"
        "    assert not interrupts.attempt(lambda: os.kill(os.getpid(), signal.SIGTERM))\n"
        "    assert interrupts.number == signal.SIGTERM\n"
        "    assert not interrupts.attempt(lambda: print('never'))\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "killed\n", "")


def config(output: Path, **changed) -> ActorQConfig:
    chosen = {"actors": 2, "eval_freq": 0, "n_timesteps": 1000, "output": output, "params": ("batch_size:16",)}
    return ActorQConfig(**chosen | changed)


@pytest.fixture
def crew(tmp_path):
    """A supervisor that started nobody, and its ledger."""
    said: list[str] = []
    supervisor = Supervisor(config(tmp_path / "out"), said.append)
    yield supervisor, said
    supervisor.memory.remove()


class _Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


class _Living:
    """What a child's process is to the watch."""

    killed = False

    def is_alive(self):
        return not self.killed

    def kill(self):
        self.killed = True

    def join(self, timeout=None):
        pass


@pytest.fixture
def watched(crew, monkeypatch):
    """A watch over processes that are there in name only, on a clock that is set by hand."""
    supervisor, said = crew
    clock = _Clock()
    monkeypatch.setattr(watch, "time", clock)
    for child in supervisor.crew.all:
        child.process, child.started = _Living(), clock.now
    look = watch.Watch(supervisor.crew, supervisor.ledger, 10.0, said.append)

    def after(seconds, **beats):
        """Looks every half second; those named beat meanwhile."""
        for _ in range(int(2 * seconds)):
            clock.now += 0.5
            for name in beats:
                _cells(supervisor, name)[0][_cells(supervisor, name)[1]] = clock.now
            look.look()

    return supervisor, said, clock, after


def _cells(supervisor, name):
    if name == "publisher":
        return supervisor.ledger.publisher, Publisher.HEARTBEAT_S
    return supervisor.ledger.actors[int(name[-1])], Actor.HEARTBEAT_S


def test_a_slow_import_is_no_hang_and_a_silent_actor_is_one(watched):
    supervisor, said, _, after = watched
    after(watch.START_S - 1, actor_1=1, publisher=1)
    assert not said
    after(1, actor_0=1, actor_1=1, publisher=1)
    after(9.5, actor_1=1, publisher=1)
    assert not said
    after(1, actor_1=1, publisher=1)
    assert said == ["actor 0 made no step for 10 s: killed"]
    assert [child.alive() for child in supervisor.crew.actors] == [False, True]


def test_a_frozen_publisher_is_replaced_in_the_end(watched):
    _, said, _, after = watched
    after(1, actor_0=1, actor_1=1, publisher=1)
    after(watch.PUBLISHER_S, actor_0=1, actor_1=1)
    assert not said
    after(1, actor_0=1, actor_1=1)
    assert said == ["the publisher gave no sign of life for 30 s: killed"]


def test_nobody_is_blamed_for_the_time_that_the_supervisor_stood_still(watched):
    _, said, clock, after = watched
    after(1, actor_0=1, actor_1=1, publisher=1)
    clock.now += 3600  # Ctrl-Z, and fg
    after(9, publisher=1)
    assert not said


def test_waiting_for_newer_weights_is_said_once_until_it_is_over(watched):
    supervisor, said, _, after = watched
    everyone = {"actor_0": 1, "actor_1": 1, "publisher": 1}
    for waiting in (True, True, False, False, True):
        for _ in range(6):
            after(0.5, **everyone)
            supervisor.ledger.actors[0, Actor.STALE_S] += 0.5 * waiting
    assert len(said) == 2
    assert "--max-staleness" in said[0]


def test_resume_before_the_first_checkpoint_starts_at_the_beginning(tmp_path):
    said: list[str] = []
    (tmp_path / "out").mkdir()
    supervisor = Supervisor(config(tmp_path / "out", resume=True), said.append)
    supervisor.memory.remove()
    assert said == [f"{tmp_path / 'out'} holds no checkpoint yet: the run starts at its beginning"]
    assert not supervisor.config.resume


def test_incarnations_go_on_after_resume(tmp_path):
    def first():
        supervisor = Supervisor(config(tmp_path), print)
        supervisor.memory.remove()
        return supervisor.crew.actors[0].spec.incarnation

    assert first() == 0
    with chaos_poison.rig(tmp_path) as rig:
        rig.train(3)
    assert first() >= 1000


def test_a_finished_run_that_is_resumed_is_finished(tmp_path):
    with chaos_poison.rig(tmp_path, n_timesteps=300) as rig:
        while not rig.learner.finished():
            rig.send()
            rig.learner.step()
        rig.learner._save()
    with chaos_poison.rig(tmp_path, n_timesteps=300, resume=True) as rig:
        assert rig.learner.finished()
        assert rig.learner.model.num_timesteps == 300


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"env": "MountainCar-v0"}, "holds a run with --env CartPole-v1; resume it with that"),
        ({"algo": "ddpg", "env": "Pendulum-v1"}, "holds a run with --algo dqn; resume it with that"),
        ({"net_arch": "8,8"}, "resume with the options of the first run, such as --net-arch"),
    ],
)
def test_resume_with_other_options_is_refused_in_one_line(tmp_path, changed, message):
    params = ("batch_size:16",)
    with chaos_poison.rig(tmp_path, params=params):
        pass
    with (
        pytest.raises(QuarlError, match=message) as caught,
        chaos_poison.rig(tmp_path, params=params, resume=True, **changed),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_a_bound_of_staleness_that_would_stop_the_run_is_refused(tmp_path):
    from quarl.actorq.build import build

    tight = config(tmp_path, actors=4, params=("batch_size:16", "train_freq:1"))
    model = build(tight)
    Pace(config(tmp_path, actors=4, max_staleness=6), model)
    with pytest.raises(QuarlError, match=r"--max-staleness 5 would stop this run: .* least 6"):
        Pace(config(tmp_path, actors=4, max_staleness=5), model)


def test_an_idle_learner_shows_its_newest_weights(tmp_path):
    """Or actors at the bound and a learner without experience would wait for each other for ever."""
    with chaos_poison.rig(tmp_path, publish_interval=1000) as rig:
        rig.train(5)
        before = rig.channel.floats.version
        deadline = time.monotonic() + 5
        while rig.channel.floats.version == before and time.monotonic() < deadline:
            rig.learner.step()
        assert rig.channel.floats.pull().step == rig.learner.model._n_updates
        after = rig.channel.floats.version
        for _ in range(2000):
            rig.learner.step()
        assert rig.channel.floats.version == after  # once is enough


def test_the_learner_takes_the_oldest_weights_first_and_serves_equals_in_turn(tmp_path):
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    dtype = segment_dtype(env.observation_space, env.action_space)
    blocks = LocalChannel.blocks(8, dtype, 3, 16)
    memory = Memory.create(blocks)
    try:
        actors = [LocalChannel(memory, 3, i) for i in range(3)]
        for i, versions in enumerate(([5, 5, 9, 9], [7, 7], [5, 5])):
            rows = np.zeros(len(versions), dtype)
            rows["version"], rows["actor"] = versions, i
            assert actors[i].send(rows)
        taken = [
            (int(row["actor"]), int(row["version"])) for rows in LocalChannel(memory, 3).receive(99) for row in rows
        ]
        assert taken == [(0, 5), (0, 5), (2, 5), (2, 5), (1, 7), (1, 7), (0, 9), (0, 9)]
        rows = np.zeros(4, dtype)
        for i in range(3):
            rows["actor"] = i
            assert actors[i].send(rows)
        learner = LocalChannel(memory, 3)
        served = [int(rows["actor"][0]) for _ in range(6) for rows in learner.receive(2)]
        assert served == [0, 1, 2, 0, 1, 2]
    finally:
        memory.remove()


class _Fragile:
    """Raises when it is told to; counts how often it was made."""

    made = 0
    fails = False

    def __init__(self):
        type(self).made += 1

    def reset(self, *, seed=None):
        if self.fails:
            raise RuntimeError("no reset")
        return np.zeros(2), {}

    def close(self):
        raise OSError("not even that")


def test_an_environment_is_made_anew_until_nothing_but_errors_comes(monkeypatch):
    monkeypatch.setattr("quarl.actorq.environments.make", lambda *args, **kwargs: _Fragile())
    cells = np.zeros(len(Actor))
    world = Environments("any", {}, 1, 0, 0, cells)
    world.episode[0], world.sequence[0] = (7, 1.0), 7
    world.replace(0, RuntimeError("boom"))
    assert (cells[Actor.ERRORS], cells[Actor.DROPPED]) == (1, 7)
    assert world.sequence[0] > 8  # a gap
    for _ in range(20):  # with a step in between it may go on for ever
        world.sequence[0] += 1
        world.replace(0, RuntimeError("boom"))
    for _ in range(RETRIES - 1):
        world.replace(0, RuntimeError("boom"))
    with pytest.raises(RuntimeError, match="boom"):
        world.replace(0, RuntimeError("boom"))
