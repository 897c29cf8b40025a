"""Environment ids: the suite an id belongs to, what a retired version is called today, and the nearest known id."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from gymnasium.envs.registration import EnvSpec, registry

from quarl.envs import atari_games
from quarl.envs.quiet import atari_muted, descriptors_muted, dm_control_muted, mujoco_muted
from quarl.envs.suite_tasks import TASKS, modern
from quarl.errors import QuarlError


@dataclass(frozen=True, slots=True)
class Suite:
    """A family of environments that an optional package brings."""

    extra: str
    """The name in `pip install 'quarl[extra]'`."""
    package: str
    """The modules its environments live in start with this."""
    distribution: str
    """What pip calls the package that brings it."""
    example: str
    """An id that stands for the others."""
    muted: Callable[[], AbstractContextManager[None]] = nullcontext
    """Keeps quiet what its simulator prints while an environment is imported and made."""
    prints_at_reset: bool = False
    """Its simulator also prints at the first reset, which must then be made inside `muted`."""
    ids: tuple[str, ...] = ()
    """Known here, so that an id is understood before anything is imported. Empty for the suites that gymnasium
    registers itself."""


ATARI = Suite("atari", "ale_py", "ale-py", "PongNoFrameskip-v4", atari_muted, ids=atari_games.ids())
SUITES = (
    Suite("box2d", "gymnasium.envs.box2d", "box2d", "LunarLander-v3"),
    Suite("mujoco", "gymnasium.envs.mujoco", "mujoco", "HalfCheetah-v5", mujoco_muted),
    ATARI,
    Suite(
        "pybullet",
        "pybullet_envs_gymnasium",
        "pybullet-envs-gymnasium",
        "HalfCheetahBulletEnv-v0",
        descriptors_muted,
        prints_at_reset=True,
        ids=(
            "InvertedPendulumBulletEnv-v0",
            "InvertedDoublePendulumBulletEnv-v0",
            "InvertedPendulumSwingupBulletEnv-v0",
            "ReacherBulletEnv-v0",
            "PusherBulletEnv-v0",
            "ThrowerBulletEnv-v0",
            "Walker2DBulletEnv-v0",
            "HalfCheetahBulletEnv-v0",
            "AntBulletEnv-v0",
            "HopperBulletEnv-v0",
            "HumanoidBulletEnv-v0",
            "HumanoidFlagrunBulletEnv-v0",
            "HumanoidFlagrunHarderBulletEnv-v0",
        ),
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
"""Another suite is another row."""
MODULE_ID = re.compile(r"[\w.]+:[^:,]+")
"""gymnasium's spelling of an environment that a module of the user's registers."""
LQR_STEPS = 1000
"""lqr ends only where its state has come to rest; a policy that never brings it there would play for ever. The other
tasks of DM Control end themselves, after as many steps."""


def resolve(env_id: str, *, trusted: bool = False, typed: str = "--env {module}:{name}") -> str:
    """The living id: env_id itself, or the newest version where env_id names a retired one (LunarLander-v2).

    The spellings of the 2020 code, "gym,CartPole-v1" and "dm_control,cheetah_run", are understood too. Nothing is
    imported. Raises QuarlError with the nearest known id for any other name.

    trusted: the user typed it. Then it may be gymnasium's "module:Name-v0", whose module registers the name when it is
    imported; an id out of a model file may not, for importing is executing.
    typed: what the caller's user plays an environment of their own by.
    """
    if MODULE_ID.fullmatch(env_id):
        if trusted:
            return env_id
        raise QuarlError(
            f"unknown environment {env_id!r}: only your own words may name a module, as in {_typed(typed, env_id)}"
        )
    asked = modern(env_id)
    if (asked in registry and not is_tombstone(registry[asked])) or any(asked in suite.ids for suite in SUITES):
        return asked
    living = {known for known, spec in registry.items() if not is_tombstone(spec)}
    living.update(known for suite in SUITES for known in suite.ids)
    name, version = _split(asked)
    newest = max((v for n, v in map(_split, living) if n == name), default=-1)
    if version < newest:
        return f"{name}-v{newest}"
    raise QuarlError(f"unknown environment {env_id!r}{_suggestion(asked, living, typed)}")


def is_same(env_id: str, saved: str) -> bool:
    """Whether `env_id`, which the user typed, is the environment that a file calls `saved`, perhaps without its module
    or by an older version."""
    if saved.rpartition(":")[2] == env_id.rpartition(":")[2]:
        return True
    try:
        return resolve(env_id, trusted=True) == resolve(saved)
    except QuarlError:
        return False


def of_module(module: str, env_id: str) -> str:
    """module:env_id where the module, which the user typed and which is imported here, registers the environment.

    Environments of gymnasium and of the suites stay as they are called.
    """
    _import(module, f"{module}:{env_id}")
    spec = registry.get(env_id)
    if spec is None or is_tombstone(spec) or any(env_id in suite.ids for suite in SUITES):
        return env_id
    theirs = suite_of(spec) is not None or str(spec.entry_point).startswith("gymnasium.")
    return env_id if theirs else f"{module}:{env_id}"


def find(env_id: str) -> EnvSpec:
    """The registration of a living id, after importing the suite or the user's module that brings it."""
    if MODULE_ID.fullmatch(env_id):
        module, name = env_id.split(":")
        _import(module, env_id)
        if name not in registry:
            raise QuarlError(f"module {module!r} registers no environment {name!r}; call gymnasium.register in it")
        return registry[name]
    if env_id in TASKS:
        # never the registry's: shimmy registers environments of the same names there, with other observations
        domain, task = TASKS[env_id]
        limit = LQR_STEPS if domain == "lqr" else None
        kwargs = {"domain": domain, "task": task}
        return EnvSpec(env_id, "quarl.envs.dm_control:SuiteEnv", max_episode_steps=limit, kwargs=kwargs)
    for suite in SUITES:
        if env_id in suite.ids and env_id not in registry:
            try:
                with suite.muted(), warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)
                    importlib.import_module(suite.package)
            except ImportError:
                raise missing_extra(env_id, suite) from None
    return registry[env_id]


def _import(module: str, env_id: str) -> None:
    """Imports the user's own module, which registers environments; it may lie in the working directory."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever the user's code raises
        reason = str(error).partition("\n")[0]
        raise QuarlError(f"cannot import {module!r} for {env_id}: {type(error).__name__}: {reason}") from error


def suite_of(spec: EnvSpec) -> Suite | None:
    """The optional suite an environment comes from; None for those that need nothing more."""
    if not isinstance(spec.entry_point, str):
        return None
    return next((suite for suite in SUITES if spec.entry_point.startswith(suite.package)), None)


def is_atari(env_id: str) -> bool:
    """Whether a living id, which the user typed where it names a module, is of a game of Atari."""
    return suite_of(find(env_id)) is ATARI


def missing_extra(env_id: str, suite: Suite) -> QuarlError:
    """What to raise where a suite's package is not installed."""
    return QuarlError(f"environment {env_id!r} needs an extra: pip install 'quarl[{suite.extra}]'")


def is_tombstone(spec: EnvSpec) -> bool:
    # gymnasium keeps the ids of dead versions, with functions of its own that only raise
    return callable(spec.entry_point) and getattr(spec.entry_point, "__module__", "") == "gymnasium.envs"


def _split(env_id: str) -> tuple[str, int]:
    """("CartPole", 1) of "CartPole-v1"; version -1 where there is none."""
    match = re.fullmatch(r"(.+)-v(\d{1,9})", env_id)
    return (match[1], int(match[2])) if match else (env_id, -1)


def _suggestion(env_id: str, living: set[str], typed: str) -> str:
    """A near name of the same kind, else what is known: Point-v0 is no slip of the pen for Pong-v0."""
    spelt = {known.rpartition("/")[2].casefold(): known for known in sorted(living)}
    spelt |= {known.casefold(): known for known in sorted(living)}
    name = _split(env_id.casefold())[0]
    near = difflib.get_close_matches(name, {_split(known)[0] for known in spelt}, n=9, cutoff=0.85)
    # MyCartPole-v0 is an environment of the user's own
    alike = [
        known for known in spelt if (other := _split(known)[0]) in near and (other == name or not name.endswith(other))
    ]
    nearest = difflib.get_close_matches(env_id.casefold(), alike, n=1, cutoff=0)
    if nearest:
        return f"; did you mean {spelt[nearest[0]]!r}?"
    own = _typed(typed, f"module:{env_id}")
    return f"; it is in no suite that is known here; an environment of your own is {own}"


def _typed(words: str, env_id: str) -> str:
    module, _, name = env_id.partition(":")
    return words.format(module=module, name=name)
