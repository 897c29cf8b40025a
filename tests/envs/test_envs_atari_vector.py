"""Atari in the emulator's own threads beside the plain way: what is said to be equal is, and the rest is small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray
from stable_baselines3.common.atari_wrappers import ClipRewardEnv, EpisodicLifeEnv, MaxAndSkipEnv, WarpFrame
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

import require
from quarl.envs import Environment, make
from quarl.envs.wrappers import FrameStack
from quarl.errors import QuarlError
from quarl.runs.hyperparameters import Recipe, interpret
from quarl.runs.new_model import make_environments

require.module("ale_py")
cv2 = require.module("cv2")

Array = NDArray[Any]
ATARI = "stable_baselines3.common.atari_wrappers.AtariWrapper"
FIRE = 1


def recipe(n_envs: int = 2, stack: int = 4, env_kwargs: Any = None, **wrapper: Any) -> Recipe:
    entries = {"n_timesteps": 1, "n_envs": n_envs, "env_wrapper": [{ATARI: wrapper}], "frame_stack": stack}
    return interpret(entries | {"env_kwargs": env_kwargs or {}}, Path("ppo.yml"))


def native(env_id: str, n_envs: int = 2, **wrapper: Any) -> Any:
    return vector(env_id, recipe(n_envs, **wrapper), "native")


def vector(env_id: str, asked: Recipe, *more: Any) -> Any:
    return make_environments(Environment.from_file(env_id, asked.environment), asked, *more)


class Fired(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Begins as the threads begin a game where they make no no-ops: FIRE for one frame."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.env.reset(seed=seed)
        observation, _, _, _, info = self.env.step(FIRE)
        return observation, info


def plain(env_id: str, *, clip: bool = True) -> gymnasium.Env[Any, Any]:
    """AtariWrapper's own parts around such a beginning, in their order."""
    env = WarpFrame(EpisodicLifeEnv(MaxAndSkipEnv(Fired(make(env_id)), 4)))
    return FrameStack(ClipRewardEnv(env) if clip else env, 4)


def played(env: Any, steps: int, seed: int = 0) -> list[tuple[Array, float, bool]]:
    """First observation, then what each of the steps gave for the first environment; random actions."""
    rng = np.random.default_rng(seed)
    env.seed(7)
    trace = [(env.reset()[0], 0.0, False)]
    for _ in range(steps):
        actions = np.full(env.num_envs, rng.integers(env.action_space.n))
        observations, rewards, dones, infos = env.step(actions)
        shown = infos[0].get("terminal_observation", observations[0])
        trace.append((shown, float(rewards[0]), bool(dones[0])))
        if dones[0]:
            break
    return trace


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["PongNoFrameskip-v4", "BreakoutNoFrameskip-v4", "SeaquestNoFrameskip-v4"])
def test_rewards_and_ends_are_equal_and_pixels_differ_under_moving_sprites_only(env_id: str):
    ours = played(native(env_id, noop_max=0), 300)
    reference = played(DummyVecEnv([lambda: plain(env_id)]), 300)
    assert len(ours) == len(reference) > 20
    assert [entry[1:] for entry in ours] == [entry[1:] for entry in reference]
    mine, theirs = (np.stack([shown for shown, _, _ in trace]).astype(int) for trace in (ours, reference))
    assert mine.shape == theirs.shape == (len(ours), 4, 84, 84)
    # the last frame of a life or game shows nothing that counts
    apart = np.abs(mine - theirs)[:-1]
    assert np.mean(apart > 1) < 0.01
    assert apart[0].max() <= 1  # a still picture
    assert (mine == 0).all(axis=(2, 3)).tolist() == (theirs == 0).all(axis=(2, 3)).tolist()


@pytest.mark.slow
def test_the_resize_is_that_of_the_plain_way():
    """By area, of the emulator's own grey, as its documentation says."""
    bare = Fired(make("PongNoFrameskip-v4", env_kwargs={"obs_type": "grayscale"}))
    grey, _ = bare.reset(seed=0)
    expected = cv2.resize(grey, (84, 84), interpolation=cv2.INTER_AREA)
    assert np.abs(native("PongNoFrameskip-v4", noop_max=0).reset()[0, -1].astype(int) - expected).max() <= 1


@pytest.mark.slow
def test_a_lost_life_ends_an_episode_and_the_game_goes_on():
    env = native("SeaquestNoFrameskip-v4", n_envs=3)
    env.seed(1)
    env.reset()
    rng = np.random.default_rng(2)
    lives, games = np.zeros(3, int), np.zeros(3, int)
    points = np.zeros(3)
    for _ in range(1500):
        observations, _, dones, infos = env.step(rng.integers(18, size=3))
        for k in np.flatnonzero(dones):
            lives[k] += 1
            last = infos[k]["terminal_observation"]
            assert last.shape == (4, 84, 84)
            assert not observations[k, :3].any()  # nothing is seen of the life before
            assert observations[k, 3].any()
            assert not infos[k]["TimeLimit.truncated"]
            if "episode" in infos[k]:
                games[k] += 1
                points[k] += infos[k]["episode"]["r"]
                assert infos[k]["episode"]["l"] > 100
            else:
                assert np.array_equal(last[3], observations[k, 3])  # it is the same picture
        if games.min() > 0:
            break
    assert (games > 0).all()
    assert (lives >= 4 * games).all()
    assert (points % 20 == 0).all()  # raw points: Seaquest pays by the twenty
    assert points.max() > 0


@pytest.mark.slow
def test_a_game_cut_by_its_time_limit_shows_its_own_last_observation():
    limit = recipe(env_kwargs={"max_num_frames_per_episode": 41}, noop_max=0)
    cut, whole = vector("PongNoFrameskip-v4", limit, "native"), native("PongNoFrameskip-v4", noop_max=0)
    for env in (cut, whole):
        env.seed(4)
        env.reset()
    for step in range(1, 11):
        actions = np.array([step % 6, 3])
        (observations, _, dones, infos), (shown, _, _, _) = cut.step(actions), whole.step(actions)
    # one frame at the start, and ten times four
    assert dones.tolist() == [True, True]
    for k in range(2):
        assert infos[k]["TimeLimit.truncated"]
        assert np.array_equal(infos[k]["terminal_observation"], shown[k])
        assert not observations[k, :3].any()
        assert "episode" in infos[k]
    assert not cut.step(np.zeros(2, int))[2].any()


def test_a_still_game_of_one_loses_a_life_and_then_meets_its_limit():
    """The ball that FIRE serves is lost after 24 steps, as in the plain way; the next one waits until the limit."""
    limit = recipe(1, env_kwargs={"max_num_frames_per_episode": 161}, noop_max=0)
    env = vector("BreakoutNoFrameskip-v4", limit, "native")
    assert not env.reset()[0, :3].any()
    steps = [env.step(np.zeros(1, int)) for _ in range(41)]
    assert {k + 1: steps[k][3][0]["TimeLimit.truncated"] for k in range(41) if steps[k][2][0]} == {24: False, 40: True}
    for observations, _, _, (info,) in (steps[23], steps[39]):
        assert info["terminal_observation"].any(axis=(1, 2)).all()
        assert observations[0].any(axis=(1, 2)).tolist() == [False] * 3 + [True]
    assert "episode" not in steps[23][3][0]  # the game goes on
    assert {name: steps[39][3][0]["episode"][name] for name in "rl"} == {"r": 0.0, "l": 160}
    assert np.array_equal(steps[23][3][0]["terminal_observation"][3], steps[23][0][0, 3])
    assert [env.env_is_wrapped(kind)[0] for kind in (Monitor, FrameStack)] == [True, False]
    for asked in (lambda: env.get_attr("ale"), lambda: env.set_attr("ale", 1), lambda: env.env_method("ale")):
        with pytest.raises(AttributeError, match=r"games in threads have no \w+ 'ale' of their own"):
            asked()
    env.close()


@pytest.mark.slow
def test_equal_seeds_give_equal_games_whatever_the_threads_do():
    traces = [played(native("PongNoFrameskip-v4", n_envs=4), 60) for _ in range(2)]
    for one, other in zip(*traces, strict=True):
        assert np.array_equal(one[0], other[0])
        assert one[1:] == other[1:]


@pytest.mark.slow
def test_auto_is_native_where_it_plays_the_same_game():
    def kind(env_id: str, n_envs: int, **wrapper: Any) -> str:
        said: list[str] = []
        env = vector(env_id, recipe(n_envs, **wrapper), "auto", said.append)
        env.close()
        assert len(said) == (type(env).__name__ == "NativeAtari")
        return type(env).__name__

    assert kind("PongNoFrameskip-v4", 2) == "NativeAtari"
    assert kind("ALE/Pong-v5", 3) == "NativeAtari"
    assert kind("PongNoFrameskip-v4", 1) == "DummyVecEnv"
    assert kind("BreakoutNoFrameskip-v4", 2) == "DummyVecEnv"  # its lives wait for FIRE
    assert kind("BreakoutNoFrameskip-v4", 2, terminal_on_life_loss=False) == "NativeAtari"
    assert kind("PongNoFrameskip-v4", 2, action_repeat_probability=0.1) == "DummyVecEnv"


@pytest.mark.parametrize(
    ("env_id", "entries", "said"),
    [
        ("CartPole-v1", {}, "CartPole-v1 is not an Atari game"),
        ("PongNoFrameskip-v4", {}, "not none"),
        ("PongNoFrameskip-v4", {"env_wrapper": [ATARI]}, "not AtariWrapper"),
        (
            "PongNoFrameskip-v4",
            {"env_wrapper": [{ATARI: {"size": 84}}], "frame_stack": 4},
            "AtariWrapper has no .* size",
        ),
        (
            "PongNoFrameskip-v4",
            {"env_wrapper": [ATARI], "frame_stack": 4, "env_kwargs": {"mode": 1}},
            "does not support mode",
        ),
    ],
)
def test_native_says_in_one_line_what_it_cannot(env_id: str, entries: dict[str, Any], said: str):
    with pytest.raises(QuarlError, match=said) as caught:
        vector(env_id, interpret({"n_timesteps": 1} | entries, Path("x")), "native")
    assert str(caught.value).startswith("--vec-env native: ")
    assert str(caught.value).endswith("; use --vec-env dummy")
