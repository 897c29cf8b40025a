"""What a run that says auto gets: from given rates by hand, and from real ones."""

from __future__ import annotations

import contextlib

import pytest

from quarl.actorq import auto, throughput_plan
from quarl.actorq.auto import chosen
from quarl.actorq.supervisor import Supervisor
from quarl.actorq.throughput_plan import Rates, Step
from quarl.cli import parse
from quarl.config import ActorQConfig
from quarl.errors import QuarlError
from quarl.runs.folder import RunFolder


def timed(monkeypatch, *rates, then=None):
    """`chosen` for an actor that makes so many steps/s with 1, 2, 4 ... environments: width, and its last line."""

    def given(config):
        yield from zip(auto.WIDTHS, rates, strict=False)
        if then is not None:
            raise then
        assert len(rates) == len(auto.WIDTHS), "one width too many was timed"

    monkeypatch.setattr(auto, "_rates", given)
    said: list[str] = []
    return chosen(ActorQConfig(envs_per_actor="auto"), said.append).envs_per_actor, said[-1]


def test_the_fewest_environments_are_taken_from_which_steps_grow_by_no_tenth(monkeypatch):
    width, line = timed(monkeypatch, 1000.0, 1800.0, 3000.0, 3200.0, 3290.0)
    assert width == 4
    assert line == (
        "--envs-per-actor auto: 4, for steps/s of 1,000 with 1, 1,800 with 2, 3,000 with 4, 3,200 with 8, "
        "3,290 with 16; neither 8 nor 16 is 1.1 times as fast"
    )
    assert timed(monkeypatch, 1000.0, 1090.0, 1050.0)[0] == 1


def test_one_slow_moment_does_not_end_the_search(monkeypatch):
    assert timed(monkeypatch, 1000.0, 700.0, 3000.0, 3100.0, 3000.0)[0] == 4


def test_where_steps_grow_to_the_last_the_last_is_taken_and_said_to_be_it(monkeypatch):
    width, line = timed(monkeypatch, *(1000.0 * 2**i for i in range(7)))
    assert width == 64
    assert line.endswith("64,000 with 64; no more than 64 are tried")


def test_a_width_that_the_run_may_not_have_ends_the_search_and_the_line_says_why(monkeypatch):
    refusal = QuarlError("--max-staleness 7 would block this run")
    assert timed(monkeypatch, 1000.0, 2000.0, then=refusal) == (
        2,
        "--envs-per-actor auto: 2, for steps/s of 1,000 with 1, 2,000 with 2; --max-staleness 7 would block this run",
    )
    with pytest.raises(QuarlError, match="would block this run"):  # nor would one environment run
        timed(monkeypatch, then=refusal)


def cores(monkeypatch, number, work=1.0):
    """Let the machine have so many cores; a step of 1 ms works on one for this share, and updates take no time."""

    def measured(config, arms, seconds):
        assert (config.num_actors, config.num_envs, arms) == (1, 1, [("int8", "litert")])
        return Rates(batch_size=1, samples_per_insert=1, learner_s=1e-6, steps=(Step(arms[0], 1e-3, 0, 0, 0, work),))

    monkeypatch.setattr(throughput_plan, "measure", measured)
    monkeypatch.setattr(throughput_plan, "usable_cores", lambda: number)


@pytest.mark.parametrize(("number", "threads", "actors"), [(8, 1, 7), (8, 3, 5), (2, 2, 1), (1, 1, 1)])
def test_actors_have_the_cores_that_the_learner_leaves_and_one_is_the_least(monkeypatch, number, threads, actors):
    cores(monkeypatch, number)
    said: list[str] = []
    config = chosen(parse(["actorq", "--actors", "auto", "--learner-threads", str(threads)]), said.append)
    assert config.actors == actors
    assert said[-1].startswith(f"--actors auto: {actors}, of {number} core")
    assert "actors" in config.typed
    assert f"--actors {actors}" in config.command_line()


@pytest.mark.parametrize(("work", "actors"), [(0.1, 10), (0.001, 64)])
def test_actors_of_an_environment_that_waits_outnumber_the_cores(monkeypatch, work, actors):
    cores(monkeypatch, 2, work)
    said: list[str] = []
    assert chosen(ActorQConfig(actors="auto"), said.append).actors == actors
    assert said[-1].startswith(f"--actors auto: {actors}, because the environment waits")


def test_more_actors_than_auto_comes_to_cannot_be_asked_for(monkeypatch):
    cores(monkeypatch, 2)
    with pytest.raises(QuarlError, match="--min-actors 3 is more than --actors 1"):
        chosen(ActorQConfig(actors="auto", min_actors=3), print)


def test_a_run_that_goes_on_keeps_what_it_had_and_measures_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(auto, "throughput_plan", None)
    RunFolder(tmp_path).describe(ActorQConfig(actors=3, envs_per_actor=8))
    said: list[str] = []
    going_on = ActorQConfig(actors="auto", envs_per_actor="auto", resume=True, output=tmp_path)
    config = chosen(going_on, said.append)
    assert (config.actors, config.envs_per_actor) == (3, 8)
    assert said == ["--actors auto: 3, as the run had", "--envs-per-actor auto: 8, as the run had"]


def test_a_run_that_would_be_overwritten_is_refused_before_anything_is_timed(monkeypatch, tmp_path):
    monkeypatch.setattr(auto, "_rates", None)
    monkeypatch.setattr(RunFolder, "checkpoints", lambda folder: ["checkpoint"])
    with pytest.raises(QuarlError, match=r"holds a run .* --resume"):
        Supervisor(chosen(ActorQConfig(envs_per_actor="auto", output=tmp_path), pytest.fail), print)


def test_numbers_stay_and_nothing_is_said_of_them():
    config = ActorQConfig(actors=5, envs_per_actor=2)
    assert chosen(config, pytest.fail) == config
    with pytest.raises(QuarlError, match="--envs-per-actor must be at least 1, got 0"):
        ActorQConfig(envs_per_actor=0).check()
    with pytest.raises(QuarlError, match="--actors is 'many'"):
        ActorQConfig(actors="many").check()
    with pytest.raises(QuarlError, match=r"--nice must be 0\.\.19, got -1"):
        ActorQConfig(nice=-1).check()


@pytest.mark.slow
def test_real_actors_are_timed_until_the_limiter_refuses_more(monkeypatch, tmp_path):
    """At one update a step, weights of two actors of 2 environments may be 4 updates apart, and a round of 1 more."""
    monkeypatch.setattr(auto, "SECONDS", 0.1)
    params = ("train_freq:1", "buffer_size:1000")
    config = ActorQConfig(actors=2, net_arch="16,16", params=params, preset="none", max_staleness=5)
    with contextlib.closing(auto._rates(config)) as timed:
        width, rate = next(timed)
        assert width == 1
        assert rate > 100
        with pytest.raises(QuarlError, match="--max-staleness 5 would block this run"):
            next(timed)


def test_auto_is_typed_where_a_number_could_be():
    config = parse(["actorq", "--actors", "auto", "--envs-per-actor=auto"])
    assert (config.actors, config.envs_per_actor) == ("auto", "auto")
    config = parse(["actorq", "--actors", "1e1", "--envs-per-actor", "3"])
    assert (config.actors, config.envs_per_actor) == (10, 3)
