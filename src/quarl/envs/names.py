"""Environment ids: current versions of retired ones, the nearest known id, and the registration of each."""

from __future__ import annotations

import difflib
import importlib
import re
import warnings

from gymnasium.envs.registration import EnvSpec, registry

from quarl.envs.suites import ATARI, LISTED, TASKS, is_tombstone, missing_extra, modern, suite_of
from quarl.errors import MissingEnvironmentError, QuarlError, own_module

MODULE_ID = re.compile(r"[\w.]+:[^:,]+")
"""gymnasium's form of an id whose environment a module of the user registers."""
LQR_STEPS = 1000
"""Time limit of lqr in steps: it ends only when its state has come to rest, which a policy may never reach.

The other tasks of DM Control end themselves after the same number of steps.
"""


def resolve(env_id: str, *, typed: str = "--env {module}:{name}") -> str:
    """Return the current id: env_id itself, or the newest version if env_id is a retired one (LunarLander-v2).

    The forms of the 2020 code, "gym,CartPole-v1" and "dm_control,cheetah_run", are accepted too. Nothing is imported:
    gymnasium's "module:Name-v0" is refused, because importing executes code. `Environment.typed_by_user` accepts it.

    Args:
        env_id: The id.
        typed: Template of the option with which the caller's user names an environment of their own.

    Returns:
        The current id.

    Raises:
        MissingEnvironmentError: The id is unknown (the nearest known one is suggested), or it names a module.
    """
    if MODULE_ID.fullmatch(env_id):
        raise MissingEnvironmentError(
            f"unknown environment {env_id!r}: only a typed id may name a module, as in {_typed(typed, env_id)}"
        )
    asked = modern(env_id)
    living = {*LISTED, *(name for name, spec in registry.items() if not is_tombstone(spec))}
    if asked in living:
        return asked
    name, version = _split(asked)
    newest = max((v for n, v in map(_split, living) if n == name), default=-1)
    if version < newest:
        return f"{name}-v{newest}"
    raise MissingEnvironmentError(f"unknown environment {env_id!r}{_suggestion(asked, living, typed)}")


def is_same(env_id: str, saved: str) -> bool:
    """Return True if `env_id`, typed by the user, is the environment `saved` in a file.

    The file's id may lack the module or be an older version.
    """
    if saved.rpartition(":")[2] == env_id.rpartition(":")[2]:
        return True
    try:
        return resolve(env_id) == resolve(saved)
    except QuarlError:
        return False


def of_module(module: str, env_id: str) -> str:
    """Return module:env_id if the module, which is imported here, registers the environment.

    The user typed the module. Environments of gymnasium and of the suites keep their ids.
    """
    own_module(module, f"{module}:{env_id}", MissingEnvironmentError)
    spec = registry.get(env_id)
    if spec is None or is_tombstone(spec) or env_id in LISTED:
        return env_id
    theirs = suite_of(spec) is not None or str(spec.entry_point).startswith("gymnasium.")
    return env_id if theirs else f"{module}:{env_id}"


def find(env_id: str) -> EnvSpec:
    """Return the registration of a current id, after importing its suite or the user's module."""
    if MODULE_ID.fullmatch(env_id):
        module, name = env_id.split(":")
        own_module(module, env_id, MissingEnvironmentError)
        if name not in registry:
            raise QuarlError(f"module {module!r} registers no environment {name!r}; call gymnasium.register in it")
        return registry[name]
    if env_id in TASKS:
        # not the registry's: shimmy registers environments of the same names there, with other observations
        domain, task = TASKS[env_id]
        limit = LQR_STEPS if domain == "lqr" else None
        kwargs = {"domain": domain, "task": task}
        return EnvSpec(env_id, "quarl.envs.dm_control:SuiteEnv", max_episode_steps=limit, kwargs=kwargs)
    if env_id not in registry and (suite := LISTED.get(env_id)):
        try:
            with suite.muted(), warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                importlib.import_module(suite.package)
        except ImportError:
            raise missing_extra(env_id, suite) from None
    return registry[env_id]


def is_atari(env_id: str) -> bool:
    """Return True if a current id is a game of Atari; an id with a module must have been typed by the user."""
    return LISTED.get(env_id) is ATARI or suite_of(find(env_id)) is ATARI


def _split(env_id: str) -> tuple[str, int]:
    """Split "CartPole-v1" into ("CartPole", 1); the version is -1 if there is none."""
    match = re.fullmatch(r"(.+)-v([0-9]{1,9})", env_id)
    return (match[1], int(match[2])) if match else (env_id, -1)


def _suggestion(env_id: str, living: set[str], typed: str) -> str:
    """Return a suggestion for an unknown id.

    It is the nearest id of the same kind, or the way to name an own environment: Point-v0 is not a typo of Pong-v0.
    """
    spelt = {living_id.rpartition("/")[2].casefold(): living_id for living_id in sorted(living)}
    spelt |= {living_id.casefold(): living_id for living_id in sorted(living)}
    name = _split(env_id.casefold())[0]
    near = difflib.get_close_matches(name, {_split(living_id)[0] for living_id in spelt}, n=9, cutoff=0.85)
    # MyCartPole-v0 is an environment of the user's own
    alike = [
        living_id
        for living_id in spelt
        if (other := _split(living_id)[0]) in near and (other == name or not name.endswith(other))
    ]
    nearest = difflib.get_close_matches(env_id.casefold(), alike, n=1, cutoff=0)
    if nearest:
        return f"; did you mean {spelt[nearest[0]]!r}?"
    module = "rl_zoo3.import_envs" if "NoVel-v" in env_id else "module"  # RL Zoo's tasks without velocities
    example = _typed(typed, f"{module}:{env_id}")
    return f"; it is in no suite that QuaRL supports; name an environment of your own with {example}"


def _typed(words: str, env_id: str) -> str:
    module, _, name = env_id.partition(":")
    return words.format(module=module, name=name)
