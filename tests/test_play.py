"""`quarl play`: pictures of what evaluation plays, in a video that is there when all of it is, or on a window."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import imageio.v3
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.registration import EnvSpec, registry

import contracts
import require
from networks import cartpole
from quarl.cli import main
from quarl.commands import play
from quarl.policy import artifact
from refusals import refused

# imageio-ffmpeg leaves its pipes to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore:.*FileIO:pytest.PytestUnraisableExceptionWarning")
SIZE = (44 + 400, 600 + 4 + 600)
"""Pixels of two pictures of CartPole side by side, under their captions."""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A policy in float, in an empty working directory of a machine without a display."""
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("SDL_VIDEODRIVER", "dummy"), ("MUJOCO_GL", "egl")):
        monkeypatch.setenv(name, value)
    artifact.write(cartpole(), tmp_path / "policy.safetensors")
    return "policy.safetensors"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
def test_a_video_has_a_picture_of_each_step_and_of_the_start(file, name):
    assert main(["play", file, "--bits", "4", "--max-episode-steps", "5", "--record", name, "--json", "rows.json"]) == 0
    assert [(row["precision"], row["steps"], row["total"]) for row in contracts.read("rows.json")["rows"]] == [
        ("fp32", 5, 5.0),
        ("int4e8", 5, 5.0),
    ]
    assert imageio.v3.imread(name).shape == (6, *SIZE, 3)
    about = imageio.v3.immeta(name)
    assert about["fps"] == 50 if name == "a.mp4" else about["duration"] == 20  # milliseconds
    assert {path.name for path in Path().iterdir()} == {file, name, "rows.json"}


@pytest.mark.slow
def test_returns_are_those_that_evaluation_finds_with_the_seed(file, monkeypatch):
    monkeypatch.setattr(CartPoleEnv, "render", lambda self: np.zeros((2, 2, 3), np.uint8))
    assert main(["ptq", file, "--bits", "2", "--episodes", "4", "--seed", "5", "-o", "out"]) == 0
    words = ["--seed", "5", "--episodes", "4", "--record", "a.gif", "--json", "rows.json"]
    assert main(["play", file, "--bits", "2e8", *words]) == 0
    rows = json.loads(Path("rows.json").read_text())["rows"]
    for measured in json.loads(Path("out/rows.json").read_text())["rows"]:
        shown = [row["total"] for row in rows if row["precision"] == measured["precision"]]
        assert shown == measured["returns"]
        assert len(set(shown)) > 1
    assert main(["play", "out/int2e8.safetensors", *words]) == 0
    alone = json.loads(Path("rows.json").read_text())["rows"]
    assert alone == [row for row in rows if row["precision"] == "int2e8"]


def test_captions_say_precision_step_and_return(file, monkeypatch):
    said = []
    monkeypatch.setattr(play.ImageDraw.ImageDraw, "text", lambda self, place, text, *look: said.append((place, text)))
    assert main(["play", file, "--bits", "w4a4", "--max-episode-steps", "2", "--record", "a.gif"]) == 0
    assert said == [
        ((8, 4), "fp32\nstep 0, return 0.00"),
        ((612, 4), "w4a4 (simulated)\nstep 0, return 0.00"),
        ((8, 4), "fp32\nstep 1, return 1.00"),
        ((612, 4), "w4a4 (simulated)\nstep 1, return 1.00"),
        ((8, 4), "fp32, ended\nstep 2, return 2.00"),
        ((612, 4), "w4a4 (simulated), ended\nstep 2, return 2.00"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
def test_a_video_that_fails_half_way_leaves_nothing(file, name, capsys, monkeypatch):
    drawn = []

    def draw(self):
        drawn.append(self)
        if len(drawn) == 6:
            raise OSError("No space left on device")
        return np.zeros((400, 600, 3), np.uint8)

    monkeypatch.setattr(CartPoleEnv, "render", draw)
    assert (
        refused(capsys, "play", file, "--record", name)
        == "quarl: CartPole-v1 cannot be rendered here: No space left on device"
    )
    assert [path.name for path in Path().iterdir()] == [file]


@pytest.mark.slow
def test_a_quantised_policy_is_shown_alone_and_that_is_said(file, capsys):
    assert main(["ptq", file, "--bits", "8", "--episodes", "1", "-o", "out"]) == 0
    capsys.readouterr()
    words = ["play", "out/int8.safetensors", "--max-episode-steps", "2", "--record", "a.gif"]
    assert main(words) == 0
    said = "quarl: the file has the policy in int8 alone: it is shown without a float version"
    assert capsys.readouterr().err.splitlines()[-1] == said
    assert imageio.v3.imread("a.gif").shape == (3, 444, 600, 3)
    assert refused(capsys, "play", words[1], "--record", "a.gif", "--bits", "4") == (
        "quarl: --bits applies to float policies, and this one is int8: drop it"
    )


def test_on_a_window_pictures_come_at_the_environment_s_rate(file, monkeypatch):
    pygame = require.module("pygame")
    shown, rates = [], []

    class Clock:
        def tick(self, rate):
            rates.append(rate)

    monkeypatch.setenv("DISPLAY", ":0")  # and SDL's driver without one
    monkeypatch.setattr(pygame.time, "Clock", Clock)
    monkeypatch.setattr(
        pygame.display, "flip", lambda: shown.append(pygame.surfarray.array3d(pygame.display.get_surface()).shape)
    )
    assert main(["play", file, "--max-episode-steps", "2", "--episodes", "2"]) == 0
    assert shown == [(SIZE[1], SIZE[0], 3)] * 6
    assert rates == [50.0] * 6


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "there is no display for a window: add --record play.mp4"),
        (["--record", "a.avi"], "--record a.avi is not a video: use a file name with .mp4 or .gif"),
        (["--record", "missing/none/a.gif", "--bits", "1"], "bits"),
        (["--record", "/proc/a.gif"], "cannot write to /proc: choose a folder that exists or can be made"),
    ],
)
def test_mistakes_are_one_line(file, capsys, words, says):
    assert says in refused(capsys, "play", file, *words)


@pytest.mark.parametrize(("package", "name"), [("imageio", "a.gif"), ("imageio_ffmpeg", "a.mp4"), ("pygame", "a.gif")])
def test_without_a_package_the_pip_line_is_said(file, capsys, monkeypatch, package, name):
    monkeypatch.setitem(sys.modules, package, None)
    assert "pip install 'quarl[video]'" in refused(capsys, "play", file, "--record", name)
    assert [path.name for path in Path().iterdir()] == [file]


def test_an_environment_without_pictures_is_named(file, capsys, monkeypatch):
    class Dark(CartPoleEnv):
        def render(self):
            return None

    monkeypatch.setitem(registry, "Dark-v0", EnvSpec("Dark-v0", Dark, max_episode_steps=10))
    says = refused(capsys, "play", file, "--env", "Dark-v0", "--record", "a.gif")
    assert says == "quarl: Dark-v0 returns no picture (rgb_array): add a render(), or play another one"
    monkeypatch.setattr(Dark, "render", lambda self: 1 / 0)
    says = refused(capsys, "play", file, "--env", "Dark-v0", "--record", "a.gif")
    assert says == "quarl: Dark-v0 cannot be rendered here: division by zero"


@pytest.mark.slow
def test_who_ended_in_what_is_no_number_does_not_stop_the_other(file, monkeypatch):
    class Ends(CartPoleEnv):
        def step(self, action):
            observation, reward, terminated, *rest = super().step(action)
            return np.full_like(observation, np.nan) if terminated else observation, reward, terminated, *rest

    monkeypatch.setitem(registry, "Ends-v0", EnvSpec("Ends-v0", Ends, max_episode_steps=500))
    words = "--env Ends-v0 --bits int2 --scheme mid-tread --seed 2 --episodes 2 --record a.gif --json rows.json"
    assert main(["play", file, *words.split()]) == 0
    rows = json.loads(Path("rows.json").read_text())["rows"]
    assert [(row["precision"], row["steps"]) for row in rows] == [
        *(("fp32", 10), ("int2", 10)),
        *(("fp32", 9), ("int2", 13)),
    ]
    assert imageio.v3.imread("a.gif").shape[0] == (10 + 1) + (13 + 1)


def test_where_only_one_environment_may_live_no_agent_is_shown_as_another(file, capsys, monkeypatch):
    class Single(CartPoleEnv):
        alive = 0

        def __init__(self, **options):
            if Single.alive:
                raise RuntimeError("one at a time")
            super().__init__(**options)
            Single.alive = 1

        def close(self):
            Single.alive = 0

    monkeypatch.setitem(registry, "Lonely-v0", EnvSpec("Lonely-v0", Single, max_episode_steps=10))
    assert main(["play", file, "--env", "Lonely-v0", "--record", "a.gif"]) == 2
    assert "Lonely-v0 allows one instance only" in capsys.readouterr().err.splitlines()[-1]
