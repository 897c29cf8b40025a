"""`quarl play`: an agent in float and quantized, side by side, in a window or a video."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from quarl import engines, formats, saturation
from quarl.arrays import Array
from quarl.calibration import Calibrated, quantised
from quarl.commands import model, terminal
from quarl.config import PlayConfig
from quarl.engines import Engine
from quarl.envs.checked import held, name_of
from quarl.envs.environment import Environment, home_of
from quarl.envs.rollout import Play, play
from quarl.errors import RAISED, QuarlError, first_line
from quarl.evaluation import record
from quarl.files import write_bytes
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.quant.spec import EXACT, QuantSpec
from quarl.report.style import INK, PAPER
from quarl.rows import Column, EngineName, Measured, Outside, Precision, Row, Saturated, Steps

Show = Callable[[Array], None]
"""Function that shows a picture, uint8 [H, W, 3]."""
NARROWEST = 320
"""Smallest width in pixels, which a caption needs; smaller pictures are enlarged by whole numbers."""
CAPTION, GAP = 44, 4
"""Pixels above a picture, for two lines of text, and between two pictures."""
Player = tuple[QuantizedPolicy, Engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayRow(Row):
    """One episode in one precision."""

    command = "play"
    precision: Precision
    engine: EngineName
    measured: Measured
    episode: Annotated[int, Column("episode")]
    """Number of the episode from 0; it starts the same as in `quarl eval` with the same seed."""
    total: Annotated[float, Column("return", formats.number)]
    """Sum of rewards."""
    steps: Steps
    saturated: Saturated
    outside: Outside


class Filmed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with the contents of the caption over its pictures."""

    total, steps, over = 0.0, 0, False

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.total, self.steps, self.over = self.total + float(reward), self.steps + 1, terminated or truncated
        return observation, reward, terminated, truncated, info

    def picture(self) -> Image.Image:
        """Return the rendered picture, at least NARROWEST wide."""
        name = name_of(self.env)
        try:
            picture = np.asarray(self.env.render())
        except gymnasium.error.DependencyNotInstalled:
            raise QuarlError(f"drawing {name} needs an extra: pip install 'quarl[video]'") from None
        except RAISED as error:  # simulators without a display raise exceptions of any type
            raise QuarlError(f"{name} cannot be rendered here: {first_line(error)}") from None
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise QuarlError(f"{name} returns no picture (rgb_array): add a render(), or play another one")
        times = -(-NARROWEST // picture.shape[1])
        return Image.fromarray(picture.repeat(times, 0).repeat(times, 1))


def run(config: PlayConfig) -> None:
    """Play and show the episodes, and print a row for each episode and precision."""
    if sys.platform not in ("darwin", "win32") and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        if config.record is None:
            raise QuarlError("there is no display for a window: add --record play.mp4")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # before they are imported
        os.environ.setdefault("MUJOCO_GL", "egl")
    policy, environment = model.at_home(model.read(config), config)
    environment = environment or home_of(policy)
    players = [(each, engines.load_fitting(each)) for each in _policies(policy, environment, config)]
    env_id, where = environment.env_id, environment.playing(policy)
    where |= {"make": partial(where["make"], render_mode="rgb_array"), "stochastic": policy.provenance.stochastic}
    setting = Play(policy=policy, batch=len(players), stream="evaluation", seed=config.seed, **where)
    with held(setting.make) as env:
        rate = float(env.metadata.get("render_fps") or 30)  # the default of gymnasium is 30, too
    rows = []
    with _window(rate) if config.record is None else _video(config.record, rate) as show:
        for episode in range(config.episodes):
            stages, shares = _play(setting, players, episode, show)
            for (player, engine), shown in zip(players, stages, strict=True):
                ran: Any = {"precision": player.spec.precision, "engine": engine.name, "measured": engine.measured}
                rows.append(PlayRow(episode=episode, total=shown.total, steps=shown.steps, **ran, **shares))
    said = [] if config.record is None else ["", f"video: {config.record}"]
    title = policy.provenance.title(env_id)
    algo, path = policy.provenance.algo, str(model.locate(config))
    terminal.tell(config, PlayRow, rows, title, *said, model=path, algo=algo, env_id=env_id, seed=config.seed)


def _policies(policy: Policy, environment: Environment, config: PlayConfig) -> list[QuantizedPolicy]:
    """Return the policy in float and quantized; a quantized policy alone."""
    if isinstance(policy, QuantizedPolicy):
        config.refuse(("bits", "scheme"), f"applies to float policies, and this one is {policy.spec.precision}")
        terminal.note(f"the file has the policy in {policy.spec.precision} alone: it is shown without a float version")
        return [policy]
    spec = QuantSpec.parse(config.bits, scheme=config.scheme)
    observations = record(policy, seed=config.seed, environment=environment) if spec.needs_observations else None
    return [quantised(Calibrated(policy, observations), each) for each in (EXACT, spec)]


def _play(setting: Play, players: Sequence[Player], episode: int, show: Show) -> tuple[list[Filmed], dict[str, Any]]:
    """Play the episode with all players in step from the same start.

    Return each player's environment, and the shares of steps that saturate. Two players have no static grids.
    """
    stages: list[Filmed] = []

    def make() -> Filmed:
        stages.append(Filmed(setting.make()))
        return stages[-1]

    def act(observations: Array) -> Array:
        if len(stages) < len(players):
            raise QuarlError(f"{name_of(stages[0])} allows one instance only: play the files of quarl ptq one by one")
        show(_picture(players, stages))
        seen = observations.copy()
        # zeros replace the observation of a finished episode, which may be NaN
        seen[[stage.over for stage in stages]] = 0
        pairs = zip(players, seen[:, None], strict=True)
        return np.concatenate([engines.sound(player, x, engine.run(x)) for (player, engine), x in pairs])

    filmed, seen = replace(setting, make=make, record=saturation.interval(players[0][0])), []
    for ended, finished in enumerate(play(filmed, act, [episode] * len(players)), 1):
        seen.append(saturation.thinned(finished, 1))
        if ended == len(players):
            show(_picture(players, stages))
    return stages, saturation.shares(players[0][0], seen)


def _picture(players: Sequence[Player], stages: Sequence[Filmed]) -> Array:
    """Return the environments side by side under their captions, uint8 [H, W, 3], with even sides as videos require."""
    pictures = [stage.picture() for stage in stages]
    width = sum(picture.width + GAP for picture in pictures) - GAP
    height = max(picture.height for picture in pictures) + CAPTION
    canvas = Image.new("RGB", (width + width % 2, height + height % 2), INK)
    font = ImageFont.truetype(Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), 15)
    left = 0
    for (player, engine), stage, picture in zip(players, stages, pictures, strict=True):
        about = f"{player.spec.precision}{'' if engine.measured else ' (simulated)'}{', ended' if stage.over else ''}"
        text = f"{about}\nstep {stage.steps:,}, return {formats.number(stage.total)}"
        ImageDraw.Draw(canvas).text((left + 8, 4), text, PAPER, font)
        canvas.paste(picture, (left, CAPTION))
        left += picture.width + GAP
    return np.asarray(canvas)


@contextmanager
def _window(rate: float) -> Iterator[Show]:
    """Yield a function that shows that many pictures per second; closing the window ends the program."""
    pygame: Any = importlib.import_module("pygame")
    clock = pygame.time.Clock()

    def show(picture: Array) -> None:
        pygame.display.init()  # some environments close it with themselves
        surface = pygame.display.get_surface() or pygame.display.set_mode(picture.shape[1::-1])
        surface.blit(pygame.surfarray.make_surface(picture.swapaxes(0, 1)), (0, 0))
        pygame.display.flip()
        clock.tick(rate)
        if pygame.event.get(pygame.QUIT):
            raise KeyboardInterrupt

    try:
        yield show
    finally:
        pygame.display.quit()


@contextmanager
def _video(file: Path, rate: float) -> Iterator[Show]:
    """Encode pictures as a video in memory, and write its file at the end."""
    buffer = io.BytesIO()
    imageio: Any = importlib.import_module("imageio.v2")
    options = {"duration": 1000 / rate, "loop": 0} if file.suffix == ".gif" else {"fps": rate, "macro_block_size": 2}
    try:
        with imageio.get_writer(buffer, file.suffix, **options) as writer:
            yield writer.append_data
    except OSError as error:  # raised for the encoder's own temporary file
        raise QuarlError(f"cannot write {file}: {first_line(error)}; choose a folder with free space") from None
    write_bytes(buffer.getvalue(), file)
