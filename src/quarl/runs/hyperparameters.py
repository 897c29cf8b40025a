"""Hyper-parameters of a run, each resolved once.

Typed values take precedence over those of the resumed run, of the agent, and over the tuned ones. They are interpreted
as in the zoo's config.yml, which describes how a learner and its environments are made.
All of them are data: schedules and noise are built from numbers, and classes come from the lists in this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quarl.algorithms import tuned
from quarl.algorithms.zoo_arguments import CODE, OURS, arguments, whole
from quarl.config import TrainConfig
from quarl.config.environment import spelled
from quarl.config.learner_options import completed
from quarl.envs.bound import LIMIT, longest
from quarl.envs.environment import Environment, described
from quarl.envs.names import is_atari
from quarl.envs.options import OF_ENVIRONMENT, EnvironmentOptions
from quarl.errors import QuarlError, UnsupportedError
from quarl.inert.yaml import read_yaml
from quarl.readers.zoo import vecnormalize_options
from quarl.runs.folder import RunFolder
from quarl.runs.trained_agent import TrainedAgent

POLICIES = ("MlpPolicy", "CnnPolicy")
NOISES = ("normal", "ornstein-uhlenbeck")
MAX_ENVIRONMENTS = 1024


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Construction of a learner and its environments, and the length of training."""

    n_timesteps: int
    n_envs: int
    policy: str | None
    """Policy class; None selects one by the kind of observation."""
    environment: EnvironmentOptions
    """Options of the environments."""
    normalize: Mapping[str, Any] | None
    """Arguments of VecNormalize; None disables normalization."""
    noise: tuple[str, float] | None
    """Kind and standard deviation of the noise on actions, scaled to [-1, 1]."""
    arguments: Mapping[str, Any]
    """All other arguments of the learner's constructor."""


class RunOptions:
    """All options of a run, each resolved once. Files have been read and none written."""

    def __init__(self, config: TrainConfig, say: Callable[[str], None]) -> None:
        """Resolve the options; `say` receives a line for each choice made for the user."""
        typed, given = Environment.typed_by_user(config.env), config.hyperparameters()
        path, atari = config.trained_agent, is_atari(typed.env_id)
        self.agent = None if path is None else TrainedAgent(path, config.algo, config.normalize, config.frame_stack)
        self.folder = RunFolder.latest(config.folder, config.algo, typed.env_id) if config.resume else None
        """Folder of the run to resume; None for a new run."""
        # hyper-parameters: the resumed run's, or tuned ones with the trained agent's architecture; typed values
        # override both
        before: dict[str, Any] = {}
        if self.folder is not None:
            config = completed(config, _saved(self.folder), self.folder.options)
            before = read_yaml(self.folder.hyperparameters)
            written = before | given
        else:
            defaults = tuned.read(config.algo, typed.env_id, atari=atari)
            say(f"hyper-parameters: {defaults.origin}")
            adapted = self.agent and self.agent.adapt(defaults.written, given, say)
            written = adapted or defaults.written | given
        # the command's own options override both; the zoo's scripts treat a present key as set
        written |= {name: getattr(config, name) or written.get(name) for name in ("n_timesteps", "n_envs")}
        written = EnvironmentOptions.of(**config.environment()).over(written)
        self.has_changed = config.resume and any(written.get(name) != before.get(name) for name in written)
        """True if a resumed run's options differ from those it began with, so that no single command repeats it."""
        self.written = {name: value for name, value in written.items() if value is not None}
        where = Path("hyper-parameters") if self.folder is None else self.folder.hyperparameters
        self.recipe = recipe = interpret(self.written, where)
        longest(recipe.environment.env_kwargs.get(LIMIT), config.max_episode_steps)
        environment = Environment.typed_by_user(config.env, recipe.environment)
        self.environment = replace(environment, longest=config.max_episode_steps)
        if self.folder is None and atari:
            say(f"a game of Atari: {described(self.environment)}")
        delay = config.delay(recipe.n_timesteps)
        self.config = replace(config, n_timesteps=recipe.n_timesteps, quant_delay=delay)


def _saved(folder: RunFolder) -> dict[str, Any]:
    """Return the options that the run in the folder began with."""
    options = folder.read_args()
    if isinstance(agent := options.get("trained_agent"), str):
        options["trained_agent"] = Path(agent)
    kwargs = options.get("env_kwargs")
    return {**options, "env_kwargs": spelled(kwargs) if isinstance(kwargs, dict) else ()}


def interpret(written: Mapping[str, Any], where: Path) -> Recipe:
    """Return the recipe that `written` describes; errors name the file `where`."""
    left = {name: value for name, value in written.items() if value is not None}
    for name in OURS:
        if name in left:
            raise QuarlError(f"{where}: {name} is not a hyper-parameter; use the options of quarl train instead")
    for name in CODE:
        if left.pop(name, None):
            raise UnsupportedError(f"{where}: {name} refers to code of the zoo, which is not run; drop it: {name}:None")
    policy = left.pop("policy", None)
    if policy is not None and policy not in POLICIES:
        raise UnsupportedError(f"{where}: policy {str(policy)[:60]!r} is not supported; {' and '.join(POLICIES)} are")
    n_timesteps = _count(left.pop("n_timesteps", 0), "n_timesteps", where)
    n_envs = _count(left.pop("n_envs", 1), "n_envs", where)
    if n_envs > MAX_ENVIRONMENTS:
        raise QuarlError(f"{where}: n_envs is {n_envs:,}, more than {MAX_ENVIRONMENTS:,}")
    # environments: wrappers, stacked frames, normalization
    kind, std = left.pop("noise_type", None), left.pop("noise_std", None)
    normalize = _normalize(left.pop("normalize", False), left.get("gamma"), where)
    environment = EnvironmentOptions.written(left, where)
    if left.get("frame_stack", 0) and normalize is not None and normalize.get("norm_obs", True):
        raise UnsupportedError(
            f"{where}: frames are stacked as they are, not normalized; drop frame_stack with frame_stack:0, or write "
            "normalize:dict(norm_obs=False)"
        )
    # all remaining values are arguments of the learner
    return Recipe(
        n_timesteps=n_timesteps,
        n_envs=n_envs,
        policy=policy,
        environment=environment,
        normalize=normalize,
        noise=_noise(kind, std, where),
        arguments=arguments({name: value for name, value in left.items() if name not in OF_ENVIRONMENT}, where),
    )


def _normalize(value: Any, gamma: Any, where: Path) -> Mapping[str, Any] | None:
    """Return VecNormalize's arguments, with the learner's discount if the hyper-parameters have one."""
    if not value:
        return None
    return {**vecnormalize_options(value, where), **({} if gamma is None else {"gamma": gamma})}


def _noise(kind: Any, std: Any, where: Path) -> tuple[str, float] | None:
    if kind is None:
        return None
    if kind not in NOISES:
        raise QuarlError(f"{where}: noise_type is {str(kind)[:60]!r}; use {' or '.join(NOISES)}")
    if isinstance(std, bool) or not isinstance(std, int | float) or not 0 <= std < math.inf:
        raise QuarlError(f"{where}: noise_std is {str(std)[:60]!r}, not a standard deviation")
    return kind, float(std)


def _count(value: Any, name: str, where: Path) -> int:
    if not whole(value, 1) or value >= 2**53:
        raise QuarlError(f"{where}: {name} is {str(value)[:60]!r}, not a whole number from 1 on")
    return int(value)
