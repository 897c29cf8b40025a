"""Arguments, wrappers, frames and limits: what is given replaces what files say, and nothing lasts for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray
from zeros import linear

import require
from quarl.calibration import quantize
from quarl.engines import load
from quarl.envs import Environment, home_of, in_environment, make
from quarl.envs.bound import LONGEST, longest
from quarl.envs.environment import PREPROCESSED, described
from quarl.envs.options import EnvironmentOptions
from quarl.envs.rollout import TOLD, Play, play
from quarl.errors import QuarlError, note_once
from quarl.evaluation import evaluate, record
from quarl.policy.artifact import from_bytes, to_bytes
from quarl.policy.graph import Policy
from quarl.quant.spec import QuantSpec
from quarl.readers.zoo import VEC_FRAME_STACK

Array = NDArray[Any]
SKIP = "stable_baselines3.common.atari_wrappers.MaxAndSkipEnv"
LIMIT = "gymnasium.wrappers.TimeLimit"


class Endless(gymnasium.Env[Array, int]):
    """Counts its steps, all environments together."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        Endless.steps += 1
        return np.zeros(1, np.float32), 1.0, False, False, {}


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(gymnasium.registry, "Endless-v0", EnvSpec("Endless-v0", Endless))
    return "Endless-v0"


def test_what_is_given_replaces_and_the_rest_stays() -> None:
    stack = (VEC_FRAME_STACK, {"n_stack": 4})
    policy = linear((4,), env_id="CartPole-v1", env_kwargs={"a": 1, "b": 2}, wrappers=((SKIP, {"skip": 2}), stack))
    options: Any = {"env_kwargs": {"b": 3}, "wrappers": ["TimeLimit:max_episode_steps=7"]}
    found = in_environment(policy, **options)[0].provenance
    assert found.env_kwargs == {"a": 1, "b": 3}
    assert found.wrappers == ((LIMIT, {"max_episode_steps": 7}), stack)
    assert found.max_episode_steps is None
    assert in_environment(policy, frame_stack=2)[0].provenance.wrappers[1][1] == {"n_stack": 2}
    assert in_environment(policy, wrappers=["none"], frame_stack=1)[0].provenance.wrappers == ()
    assert in_environment(policy)[0] is policy
    assert described(found) == ("CartPole-v1, a=1, b=3, TimeLimit(max_episode_steps=7), VecFrameStack(n_stack=4)")
    pong = Environment.typed_by_user("Pong-v4", EnvironmentOptions.of(**options))
    assert described(pong) == "Pong-v4, b=3, TimeLimit(max_episode_steps=7)"
    images = linear(PREPROCESSED, env_id="Mine-v0")  # not known, and so not taken for a game
    assert in_environment(images)[0] is images


def test_another_environment_gets_what_is_given_and_nothing_of_the_files_arguments() -> None:
    policy = linear((4,), env_id="CartPole-v1", env_kwargs={"a": 1}, max_episode_steps=9)
    found = in_environment(policy, "Acrobot-v1", env_kwargs={"b": 3})[0].provenance
    assert (found.env_id, found.env_kwargs, found.max_episode_steps) == ("Acrobot-v1", {"b": 3}, None)
    mine = replace(policy, provenance=replace(policy.provenance, env_id="Mine-v0"))
    assert in_environment(mine, "module:Mine-v0")[0].provenance.env_kwargs == {"a": 1}


def test_hyper_parameters_are_written_in_rl_zoos_words() -> None:
    options = EnvironmentOptions.of({"b": 3}, [(LIMIT, {"max_episode_steps": 7})], 4, 100)
    assert options.over({"gamma": 0.9, "env_kwargs": "dict(a=1, b=2)", "env_wrapper": SKIP, "frame_stack": 2}) == {
        "gamma": 0.9,
        "env_kwargs": {"a": 1, "b": 3, "max_episode_steps": 100},
        "env_wrapper": [{LIMIT: {"max_episode_steps": 7}}],
        "frame_stack": 4,
    }
    assert EnvironmentOptions().over({"env_wrapper": SKIP}) == {"env_wrapper": SKIP}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"wrappers": ["Nothing"]}, "wrapper 'Nothing' is not supported; known ones: ActionSmoothingWrapper, AtariWra"),
        ({"wrappers": ["TimeLimit:7"]}, "'TimeLimit:7' is not NAME:K=V"),
        ({"frame_stack": 0}, "frame_stack is '0', not a number from 1"),
        ({"max_episode_steps": -1}, "max_episode_steps is '-1', not a whole number from 1"),
        ({"env_kwargs": "a:1"}, "not values by name"),
    ],
)
def test_options_that_mean_nothing_are_one_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(QuarlError, match=line):
        EnvironmentOptions.of(**options)


def test_frames_of_an_atari_agent_tell_its_preprocessing(capsys: pytest.CaptureFixture[str]) -> None:
    require.module("ale_py")
    note_once.cache_clear()
    policy = linear(PREPROCESSED, 6)
    for options, env_id in ({}, "ALE/Pong-v5"), ({"frame_stack": 4}, "PongNoFrameskip-v4"):
        found, environment = in_environment(policy, env_id, **options)
        assert environment is not None
        assert [name.rpartition(".")[2] for name, _ in found.provenance.wrappers] == ["AtariWrapper", "VecFrameStack"]
        environment.make_for(found).close()
        said = f"quarl: uint8 (4, 84, 84) on {env_id} is Stable-Baselines3's preprocessing: AtariWrapper and 4 frames\n"
        assert capsys.readouterr().err == said
    own, _ = in_environment(policy, "PongNoFrameskip-v4", wrappers=["WarpFrame"])
    with pytest.raises(QuarlError, match="they are 4 frames of it: --frame-stack 4"):
        home_of(own, "PongNoFrameskip-v4").make_for(own)
    assert in_environment(policy, "CartPole-v1")[0].provenance.wrappers == ()


@pytest.mark.parametrize(
    ("env_id", "shape", "frames"),
    [("CartPole-v1", (12,), 3), ("CartPole-v1", (13,), 0), ("PongNoFrameskip-v4", (6, 210, 160), 2)],
)
def test_a_refusal_says_how_many_frames_would_fit(env_id: str, shape: tuple[int, ...], frames: int) -> None:
    if "Pong" in env_id:
        require.module("ale_py")
    line = f"they are {frames} frames of it: --frame-stack {frames}" if frames else "--env-kwargs, --wrapper"
    with pytest.raises(QuarlError, match=line):
        home_of(linear(shape, 2), env_id).make_for(linear(shape, 2))
    stacked = in_environment(linear(shape, 6 if "Pong" in env_id else 2), env_id, frame_stack=frames or 1)[0]
    if frames:
        home_of(stacked, env_id).make_for(stacked).close()


def test_the_limit_is_the_environments() -> None:
    policy, _ = in_environment(linear((4,)), "CartPole-v1", max_episode_steps=7)
    spec = home_of(policy, "CartPole-v1").make_for(policy).spec
    assert spec is not None
    assert spec.max_episode_steps == 7
    spec = make("CartPole-v1", env_kwargs={"max_episode_steps": 8}).spec  # RL Zoo's files have it there
    assert spec is not None
    assert spec.max_episode_steps == 8


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "wrappers", "line"),
    [
        ("CartPole-v1", {"max_episode_steps": -1}, (), "max_episode_steps is '-1', not a whole number from 1"),
        ("CartPole-v1", {"max_episode_steps": 1e3}, (), "max_episode_steps is '1000.0', not a whole"),
        ("CartPole-v1", {"a": [1.0, float("nan")]}, (), "environment 'CartPole-v1': a is NaN"),
        ("HalfCheetah-v5", {"frame_skip": 2 * 10**9}, (), "frame_skip is 2,000,000,000, more than 1,000"),
        ("ALE/Pong-v5", {"frameskip": [2, 10**9]}, (), "frameskip is 1,000,000,000, more than 1,000"),
        ("CartPole-v1", {}, ((SKIP, {"skip": 10**12}),), "skip is 1,000,000,000,000, more than 1,000"),
        ("CartPole-v1", {}, (("rl_zoo3.wrappers.HistoryWrapper", {"horizon": 10**9}),), "horizon is 1,000,000,000"),
        ("CartPole-v1", {}, (("gymnasium.wrappers.ResizeObservation", {"shape": [10**6, 9]}),), "shape is 1,000,000"),
    ],
)
def test_numbers_with_which_a_step_would_last_for_ever_are_refused(
    env_id: str, env_kwargs: dict[str, Any], wrappers: Any, line: str
) -> None:
    require.module("rl_zoo3")
    with pytest.raises(QuarlError, match=line):
        make(env_id, env_kwargs=env_kwargs, wrappers=wrappers)


def test_a_file_does_not_lengthen_episodes_and_a_user_does() -> None:
    assert longest(None, None) == longest(LONGEST, None) == LONGEST
    assert longest(10**12, 10**12) == 10**12
    assert longest(200_000, None, 200_000) == 200_000
    with pytest.raises(
        QuarlError, match=r"max_episode_steps is 1,000,000,000,000: episodes of more than 120,000 steps"
    ):
        longest(10**12, None, 500)


def test_a_policy_remembers_how_long_the_user_lets_it_play_and_its_file_does_not() -> None:
    policy = linear((4,), env_id="CartPole-v1")
    told, home = in_environment(policy, max_episode_steps=200_000)
    assert home is not None
    assert home.playing(told)["bound"] == home_of(told).playing(told)["bound"] == 200_000
    assert home_of(in_environment(told, frame_stack=1)[0]).playing(told)["bound"] == 200_000
    exact = quantize(told, QuantSpec.parse("fp32"))
    assert len(record(exact, engine=load(exact), num=5)) == 5
    assert evaluate(exact, episodes=1).num_steps < 20
    with pytest.raises(QuarlError, match="max_episode_steps is 200,000: episodes of more than 120,000 steps"):
        home_of(from_bytes(to_bytes(told), "saved")).playing(told)


def first_episode(policy: Policy, make_env: Any, bound: int) -> list[Any]:
    """The one that is played, of the first action alone."""
    told = Play(policy=policy, make=make_env, batch=1, stream="evaluation", seed=0, fresh=False, bound=bound)
    return list(play(told, lambda x: np.zeros((len(x), 2), np.float32), [0]))


def test_steps_count_inside_wrappers_and_an_endless_episode_is_told_early(
    endless: str, capsys: pytest.CaptureFixture[str]
) -> None:
    note_once.cache_clear()
    policy = linear((1,), env_id=endless, wrappers=((SKIP, {"skip": 10}),))

    def episodes(policy: Policy, bound: int) -> list[Any]:
        return first_episode(policy, lambda: home_of(policy).make_for(policy, bound), bound)

    Endless.steps = 0
    with pytest.raises(QuarlError, match=r"not ended after 3,000 steps: give the environment a time limit with --max"):
        episodes(policy, 3_000)
    assert Endless.steps == 3_000  # 300 of the wrapper's
    assert capsys.readouterr().err == ""
    with pytest.raises(QuarlError, match="not ended after 2,000 steps"):
        episodes(replace(policy, provenance=replace(policy.provenance, wrappers=())), 2_000)
    said = capsys.readouterr().err
    assert said.startswith(f"quarl: episodes of Endless-v0 have no time limit, and one is longer than {TOLD:,} steps")
    assert said.count("\n") == 1
    limited = replace(policy.provenance, max_episode_steps=1_500)
    (episode,) = episodes(replace(policy, provenance=limited), 3_000)
    assert (episode.total, episode.length, episode.terminated) == (1_500.0, 150, False)
    (episode,) = episodes(replace(policy, provenance=replace(limited, wrappers=())), 1_500)  # just so long
    assert (episode.length, episode.terminated) == (1_500, False)
    assert capsys.readouterr().err == ""


def test_an_episode_that_ends_by_itself_after_a_thousand_steps_is_not_told_of(
    endless: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Ends(gymnasium.Wrapper[Any, Any, Any, Any]):
        """As DM Control's tasks, which truncate and whose spec says nothing of it."""

        num = 0

        def step(self, action: Any) -> Any:
            self.num += 1
            observation, reward, terminated, _, info = self.env.step(action)
            return observation, reward, terminated, self.num == TOLD, info

    note_once.cache_clear()
    policy = linear((1,), env_id=endless)
    (episode,) = first_episode(policy, lambda: Ends(home_of(policy).make_for(policy)), 3_000)
    assert episode.length == TOLD
    assert capsys.readouterr().err == ""
