"""Suites of environments: ids that are known without importing packages, and contexts that mute simulators."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from gymnasium.envs.registration import EnvSpec

from quarl.errors import MissingEnvironmentError
from quarl.processes.muted import muted

ATARI_GAMES = (
    *("adventure", "air_raid", "alien", "amidar", "assault", "asterix", "asteroids", "atlantis", "bank_heist"),
    *("battle_zone", "beam_rider", "berzerk", "bowling", "boxing", "breakout", "carnival", "centipede"),
    *("chopper_command", "crazy_climber", "defender", "demon_attack", "double_dunk", "elevator_action", "enduro"),
    *("fishing_derby", "freeway", "frostbite", "gopher", "gravitar", "hero", "ice_hockey", "jamesbond"),
    *("journey_escape", "kangaroo", "krull", "kung_fu_master", "montezuma_revenge", "ms_pacman", "name_this_game"),
    *("phoenix", "pitfall", "pong", "pooyan", "private_eye", "qbert", "riverraid", "road_runner", "robotank"),
    *("seaquest", "skiing", "solaris", "space_invaders", "star_gunner", "tennis", "time_pilot", "tutankham"),
    *("up_n_down", "venture", "video_pinball", "wizard_of_wor", "yars_revenge", "zaxxon"),
)
"""Games with ids of every family, as ale-py 0.12 names their files."""
LATER_ATARI_GAMES = (
    *("atlantis2", "backgammon", "basic_math", "blackjack", "casino", "crossbow", "darkchambers", "donkey_kong"),
    *("earthworld", "entombed", "et", "flag_capture", "frogger", "galaxian", "hangman", "haunted_house"),
    *("human_cannonball", "kaboom", "keystone_kapers", "king_kong", "klax", "koolaid", "laser_gates"),
    *("lost_luggage", "mario_bros", "miniature_golf", "mr_do", "othello", "pacman", "pitfall2", "sir_lancelot"),
    *("space_war", "superman", "surround", "tetris", "tic_tac_toe_3d", "trondead", "turmoil", "video_checkers"),
    *("video_chess", "video_cube", "word_zapper"),
)
"""Games with only an ALE/X-v5 id."""
ATARI_FAMILIES = ("{}NoFrameskip-v0", "{}NoFrameskip-v4", "{}-v0", "{}-v4")
"""Ids of the older families.

v0 repeats the previous action with probability 0.25, v4 never does. Those without NoFrameskip skip two to four frames
at random.
"""
BULLET_ROBOTS = (
    *("InvertedPendulum", "InvertedDoublePendulum", "InvertedPendulumSwingup", "Reacher", "Pusher", "Thrower"),
    *("Walker2D", "HalfCheetah", "Ant", "Hopper", "Humanoid", "HumanoidFlagrun", "HumanoidFlagrunHarder"),
)
ROBOTICS = (
    *(f"Fetch{task}{{}}-v4" for task in ("Reach", "Push", "Slide", "PickAndPlace")),
    *("HandReach{}-v3", "HandManipulateBlock{}-v1", "HandManipulateEgg{}-v1", "HandManipulatePen{}-v1"),
    *(f"PointMaze_{maze}{{}}-v3" for maze in ("Open", "UMaze", "Medium", "Large")),
    *(f"AntMaze_{maze}{{}}-v5" for maze in ("Open", "UMaze", "Medium", "Large")),
)
"""Tasks with a goal of Gymnasium-Robotics 1.4, each also with a dense reward; it registers variants of them too."""
PANDA_TASKS = ("Reach", "Push", "Slide", "PickAndPlace", "Stack", "Flip")
PREFIX = "dm_control/"
DOMAINS: Mapping[str, tuple[str, ...]] = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}
"""The tasks of each domain in dm_control 1.0.50."""
TASKS: Mapping[str, tuple[str, str]] = {
    f"{PREFIX}{domain}-{task}-v0": (domain, task) for domain, tasks in DOMAINS.items() for task in tasks
}
"""(domain, task) by id in shimmy's form."""


@contextmanager
def mujoco_muted() -> Iterator[None]:
    """Drop MuJoCo's warnings in the block.

    Current versions report deprecated attributes in gymnasium's own models, on stderr and in a file in the working
    directory.
    """
    mujoco: Any = importlib.import_module("mujoco")  # an extra, and it ships no annotations

    saved = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(saved)


@contextmanager
def robotics_muted() -> Iterator[None]:
    """Import Gymnasium-Robotics silently, and let it read joints as current versions of MuJoCo define them.

    It looks for a joint's type, a number, among members of MuJoCo's enumeration, which no longer equal numpy's numbers.
    """
    mujoco: Any = importlib.import_module("mujoco")
    with muted():
        joints: Any = importlib.import_module("gymnasium_robotics.utils.mujoco_utils")  # an extra
    types = SimpleNamespace(**{name: int(kind) for name, kind in mujoco.mjtJoint.__members__.items()})
    joints.mujoco = SimpleNamespace(**{**vars(mujoco), "mjtJoint": types})
    with mujoco_muted():
        yield


@contextmanager
def dm_control_muted() -> Iterator[None]:
    """Import DM Control without a renderer, and drop MuJoCo's warnings in the block.

    It looks for a renderer during its import, and GLFW warns without a display. A choice that the user made with
    MUJOCO_GL is kept; otherwise the variable is set for this import only.
    """
    importlib.import_module("mujoco")  # it reads the variable too: its own renderers do not change
    chosen = "MUJOCO_GL" in os.environ
    if not chosen:
        os.environ["MUJOCO_GL"] = "disable"
    try:
        importlib.import_module("dm_control.suite")  # it installs a handler that prints MuJoCo's warnings
    finally:
        if not chosen:
            os.environ.pop("MUJOCO_GL", None)
    with mujoco_muted():
        yield


@contextmanager
def atari_muted() -> Iterator[None]:
    """Let the emulator print only errors from here on; otherwise every new one prints its name and version."""
    ale: Any = importlib.import_module("ale_py")  # an extra
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)
    yield


@dataclass(frozen=True, slots=True)
class Suite:
    """A family of environments in an optional package."""

    extra: str
    """Name of the extra in `pip install 'quarl[extra]'`."""
    package: str
    """Prefix of the modules that contain its environments."""
    distribution: str
    """Name of the package in pip."""
    example: str
    """An id as an example of its environments."""
    muted: Callable[[], AbstractContextManager[object]] = nullcontext
    """Context that mutes its simulator while an environment is imported and made."""
    prints_at_reset: bool = False
    """True if its simulator also prints at the first reset, which must then happen inside `muted`."""
    ids: tuple[str, ...] = ()
    """Ids known before anything is imported; empty for the suites that gymnasium registers itself."""


def _atari_ids() -> tuple[str, ...]:
    """Return PongNoFrameskip-v4 and its older variants, and ALE/Pong-v5, which skips 4 frames and repeats actions."""
    # tic_tac_toe_3d becomes TicTacToe3D
    older, later = ([game.title().replace("_", "") for game in games] for games in (ATARI_GAMES, LATER_ATARI_GAMES))
    families = (family.format(game) for game in older for family in ATARI_FAMILIES)
    return (*families, *(f"ALE/{game}-v5" for game in (*older, *later)))


ATARI = Suite("atari", "ale_py", "ale-py", "PongNoFrameskip-v4", atari_muted, ids=_atari_ids())
SUITES = (
    Suite("box2d", "gymnasium.envs.box2d", "box2d", "LunarLander-v3"),
    Suite("mujoco", "gymnasium.envs.mujoco", "mujoco", "HalfCheetah-v5", mujoco_muted),
    ATARI,
    Suite(
        "pybullet",
        "pybullet_envs_gymnasium",
        "pybullet-envs-gymnasium",
        "HalfCheetahBulletEnv-v0",
        muted,  # it prints its build time, and "argv[0]=" for each client
        prints_at_reset=True,
        ids=tuple(f"{robot}BulletEnv-v0" for robot in BULLET_ROBOTS),
    ),
    Suite(
        "robotics",
        "gymnasium_robotics",
        "gymnasium-robotics",
        "FetchReach-v4",
        robotics_muted,
        ids=tuple(task.format(reward) for task in ROBOTICS for reward in ("", "Dense")),
    ),
    Suite(
        "panda",
        "panda_gym",
        "panda-gym",
        "PandaReach-v3",
        muted,
        ids=tuple(f"Panda{task}{kind}-v3" for task in PANDA_TASKS for kind in ("", "Dense", "Joints", "JointsDense")),
    ),
    Suite(
        "dm-control",
        "quarl.envs.dm_control",
        "dm-control",
        "dm_control/cheetah-run-v0",
        dm_control_muted,
        ids=tuple(TASKS),
    ),
)
"""All suites, one per row."""
LISTED: Mapping[str, Suite] = {env_id: suite for suite in SUITES for env_id in suite.ids}
"""The suite of each known id."""


def modern(env_id: str) -> str:
    """Return the current id of a "suite,name" of the 2020 code, known or not; other names unchanged.

    A domain may contain underscores as its tasks do, so the longest known domain that begins the name is used.

    >>> modern("dm_control,ball_in_cup_catch"), modern("gym,CartPole-v1")
    ('dm_control/ball_in_cup-catch-v0', 'CartPole-v1')
    """
    suite, _, name = env_id.partition(",")
    if suite == "gym" and name:
        return name
    if suite == "dm_control" and name:
        domain = max((each for each in DOMAINS if name.startswith(f"{each}_")), key=len, default="")
        return f"{PREFIX}{domain}-{name[len(domain) + 1 :]}-v0" if domain else f"{PREFIX}{name}-v0"
    return env_id


def suite_of(spec: EnvSpec, among: Iterable[Suite] = SUITES) -> Suite | None:
    """Return the optional suite of an environment; None if it needs no further package."""
    place = spec.entry_point
    return next((suite for suite in among if isinstance(place, str) and place.startswith(suite.package)), None)


def missing_extra(env_id: str, suite: Suite) -> MissingEnvironmentError:
    """Return the error to raise if a suite's package is not installed."""
    return MissingEnvironmentError(f"environment {env_id!r} needs an extra: pip install 'quarl[{suite.extra}]'")


def is_tombstone(spec: EnvSpec) -> bool:
    # gymnasium keeps the ids of removed versions, with functions of its own that only raise; robotics keeps mujoco-py's
    dead = callable(spec.entry_point) and getattr(spec.entry_point, "__module__", "") == "gymnasium.envs"
    return dead or ":MujocoPy" in str(spec.entry_point)
