"""Hyper-parameters of a run, each resolved once: what is typed, over the resumed run's, the agent's or the tuned ones.

As a config.yml spells them they are interpreted: what a learner and its environments are made of.
Everything in them is data. Schedules and noise are made from numbers, and a class is one of those that stand here.
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
from quarl.envs.environment import Environment
from quarl.envs.names import is_atari
from quarl.envs.options import OF_ENVIRONMENT, EnvironmentOptions, described
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
    """How a learner and its environments are made, and how long it learns."""

    n_timesteps: int
    n_envs: int
    policy: str | None
    """None: by the kind of observation."""
    environment: EnvironmentOptions
    """How environments are made."""
    normalize: Mapping[str, Any] | None
    """Arguments of VecNormalize; None: no normalization."""
    noise: tuple[str, float] | None
    """Kind and standard deviation of the noise on actions, scaled to [-1, 1]."""
    arguments: Mapping[str, Any]
    """Everything else, for the learner's constructor."""


class RunOptions:
    """Everything that a run is told, each thing once. Files have been read, and none written."""

    def __init__(self, config: TrainConfig, say: Callable[[str], None]) -> None:
        """say: hears what was chosen for the user."""
        typed, given = Environment.typed_by_user(config.env), config.hyperparameters()
        path, atari = config.trained_agent, is_atari(typed.env_id)
        self.agent = None if path is None else TrainedAgent(path, config.algo, config.normalize, config.frame_stack)
        self.folder = RunFolder.latest(config.folder, config.algo, typed.env_id) if config.resume else None
        """That of a run which goes on."""
        # hyper-parameters: the run's, or tuned ones with the trained agent's architecture; over them those given
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
        # over both the verb's own options; the zoo's scripts take what is there for set
        written |= {name: getattr(config, name) or written.get(name) for name in ("n_timesteps", "n_envs")}
        written = EnvironmentOptions.said(config).over(written)
        self.has_changed = config.resume and any(written.get(name) != before.get(name) for name in written)
        """Whether it goes on with other options than it began with, which no single command repeats."""
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
    """The options that the run in the folder began with."""
    options = folder.read_args()
    if isinstance(agent := options.get("trained_agent"), str):
        options["trained_agent"] = Path(agent)
    kwargs = options.get("env_kwargs")
    return {**options, "env_kwargs": spelled(kwargs) if isinstance(kwargs, dict) else ()}


def interpret(written: Mapping[str, Any], where: Path) -> Recipe:
    """The recipe that `written` spells; `where` names its file in errors."""
    left = {name: value for name, value in written.items() if value is not None}
    for name in OURS:
        if name in left:
            raise QuarlError(f"{where}: {name} is no hyper-parameter; options of quarl train say such things")
    for name in CODE:
        if left.pop(name, None):
            raise UnsupportedError(f"{where}: {name} names code of the zoo, which is not run; drop it with {name}:None")
    policy = left.pop("policy", None)
    if policy is not None and policy not in POLICIES:
        raise UnsupportedError(f"{where}: policy {str(policy)[:60]!r} is not supported; {' and '.join(POLICIES)} are")
    environment, stack = EnvironmentOptions.written(left, where), left.get("frame_stack", 0)
    kind, std = left.pop("noise_type", None), left.pop("noise_std", None)
    normalize = _normalize(left.pop("normalize", False), left.get("gamma"), where)
    if stack and normalize is not None and normalize.get("norm_obs", True):
        raise UnsupportedError(
            f"{where}: frames are stacked as they are, not normalised; drop frame_stack with frame_stack:0, or write "
            "normalize:dict(norm_obs=False)"
        )
    n_timesteps = _count(left.pop("n_timesteps", 0), "n_timesteps", where)
    n_envs = _count(left.pop("n_envs", 1), "n_envs", where)
    if n_envs > MAX_ENVIRONMENTS:
        raise QuarlError(f"{where}: n_envs is {n_envs:,}, more than {MAX_ENVIRONMENTS:,}")
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
    """VecNormalize's arguments, with the learner's discount where it is among the hyper-parameters."""
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
