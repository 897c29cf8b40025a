"""The environment of a live Stable-Baselines3 model: how another one like it is made."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gymnasium import Env, Wrapper
from gymnasium.envs.registration import registry
from gymnasium.wrappers import TimeLimit

from quarl.readers.zoo import VEC_FRAME_STACK

WATCHING = ("Monitor", "RecordEpisodeStatistics", "AtariWrapper")
"""Wrappers that change nothing; AtariWrapper's work is that of those inside it."""
PACKAGES = ("stable_baselines3.common.atari_wrappers", "gymnasium.wrappers", "sb3_contrib.common.wrappers", "rl_zoo3.")
"""Where wrappers lie that an environment can be made with, if they are known by name."""


def environment(model: Any, say: Callable[[str], None]) -> dict[str, Any]:
    """Fields of its Provenance: id, arguments, wrappers and time limit, as far as they are not the registered ones.

    None of them where the model has no environment, and where that cannot be made again, whose reason is said.
    """
    try:
        return {} if model.get_env() is None else _described(model.get_env())
    except ValueError as error:
        say(
            f"the policy does not know its environment, for {error}: name one that is made alike with env_id and the "
            "options of evaluate, or register it as it is"
        )
        return {}


def _described(env: Any) -> dict[str, Any]:
    """As `environment`; ValueError says why there is none."""
    from stable_baselines3.common import vec_env as sb3  # here: modules without SB3 models need not load it

    spec, stacks = env.get_attr("spec", [0])[0], list[tuple[str, dict[str, Any]]]()
    harmless = (sb3.VecNormalize, sb3.VecTransposeImage, sb3.VecMonitor, sb3.VecCheckNan, sb3.VecVideoRecorder)
    while isinstance(env, sb3.VecEnvWrapper):
        if type(env) is sb3.VecFrameStack:
            order = "first" if env.stacked_obs.channels_first else "last"
            stacks.insert(0, (VEC_FRAME_STACK, {"n_stack": env.stacked_obs.n_stack, "channels_order": order}))
        elif type(env) not in harmless:
            raise ValueError(f"{type(env).__name__} is around it")
        env = env.venv
    registered = registry.get(spec.id) if spec is not None else None
    if spec is None or registered is None:
        raise ValueError("it is not registered with Gymnasium")
    wrappers = []
    for added in spec.additional_wrappers[len(registered.additional_wrappers) :]:
        module, _, name = added.entry_point.partition(":")
        if module.startswith("quarl."):
            return {}  # whoever trains here knows it better
        if name not in WATCHING:
            if not module.startswith(PACKAGES):
                raise ValueError(f"{name} of {module} is around it")
            arguments = (
                _arguments(env, getattr(importlib.import_module(module), name))
                if added.kwargs is None
                else added.kwargs
            )
            wrappers.append((f"{module}.{name}", _plain(arguments, name)))
    kwargs = {k: v for k, v in _plain(spec.kwargs, spec.id).items() if k != "render_mode"}
    limits = list(_limits(env.envs[0])) if isinstance(env, sb3.DummyVecEnv) else [spec.max_episode_steps]
    limit = min(limits, default=None)
    if limit is None and registered.max_episode_steps is not None:
        raise ValueError("its time limit was taken off")
    return {
        "env_id": spec.id,
        "env_kwargs": {k: v for k, v in kwargs.items() if k not in registered.kwargs or registered.kwargs[k] != v},
        "wrappers": (*wrappers, *stacks),
        "max_episode_steps": None if limit == registered.max_episode_steps else limit,
    }


def _limits(env: Env[Any, Any]) -> Iterator[int]:
    while isinstance(env, Wrapper):
        if isinstance(env, TimeLimit):
            yield env._max_episode_steps
        env = env.env


def _arguments(env: Any, cls: type[Any]) -> dict[str, Any]:
    """Those of a wrapper that keeps each under its name, as Stable-Baselines3's and RL Zoo's do."""
    names = list(inspect.signature(cls).parameters)[1:]
    kept = {name: held for name in names for held in (name, f"_{name}") if env.has_attr(held)}
    if missing := [name for name in names if name not in kept]:
        raise ValueError(f"{cls.__name__} does not tell its {missing[0]}")
    return {name: env.get_attr(held, [0])[0] for name, held in kept.items()}


def _plain(arguments: Mapping[str, Any], of: str) -> dict[str, Any]:
    for name, value in arguments.items():
        try:
            json.dumps(value)
        except TypeError:
            raise ValueError(f"the argument {name} of {of} is no plain value") from None
    return dict(arguments)
