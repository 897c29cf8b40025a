"""Construction of a seeded learner and its environments from a recipe, before any training."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import ActionNoise, NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from quarl import qat
from quarl.algorithms.learners import constructor, make_learner
from quarl.algorithms.precision import Precision
from quarl.config import TrainConfig
from quarl.envs.bound import LONGEST, is_limited
from quarl.envs.checked import Checked, held
from quarl.envs.environment import Environment
from quarl.envs.spaces import fits, fitting
from quarl.envs.suites import suite_of
from quarl.errors import QuarlError, UnsupportedError, note
from quarl.readers.plain_spaces import Box, from_live, observation_box
from quarl.runs.hyperparameters import Recipe, RunOptions
from quarl.runs.trained_agent import act_before_learning
from quarl.specs import LEARNERS

Say = Callable[[str], None]


def make_environments(environment: Environment, recipe: Recipe, say: Say = lambda line: None) -> VecEnv:
    """Make `recipe.n_envs` environments side by side, as the zoo wraps them: returns are counted inside its wrappers.

    Args:
        environment: the environment.
        recipe: how many of them, and how they are normalized.
        say: hears of an environment without a time limit.

    Returns:
        The vector environment.

    Raises:
        QuarlError: The environment cannot be made or normalized.
    """
    env = DummyVecEnv([lambda: Checked(environment.make(inside=(Monitor,)))] * recipe.n_envs)
    _tell_of_no_limit(env.envs[0], say)
    if recipe.normalize is None:
        return env
    try:
        return VecNormalize(env, **recipe.normalize)
    except (TypeError, ValueError, AssertionError) as error:
        env.close()
        raise QuarlError(f"normalize is {dict(recipe.normalize)}: {str(error).partition(chr(10))[0]}") from None


def check_environment(algo: str, environment: Environment, learners: Sequence[str] = LEARNERS) -> None:
    """Make the environment and run `check_spaces` on it."""
    with held(environment.make) as env:
        check_spaces(algo, environment.asked, env, learners)
        _tell_of_no_limit(env, note)


def _tell_of_no_limit(env: gymnasium.Env[Any, Any], say: Say) -> None:
    """Print a note if no time limit ends an episode; all tasks of the suites have one."""
    if env.spec is not None and not is_limited(env.spec) and suite_of(env.spec) is None:
        say(
            f"{env.spec.id} has no time limit: an episode that does not end by itself lasts for the whole training, "
            f"and in an evaluation it is an error after {LONGEST:,} steps; --max-episode-steps sets a limit"
        )


def check_spaces(
    algo: str, env_id: str, env: VecEnv | gymnasium.Env[Any, Any], learners: Sequence[str] = LEARNERS
) -> Box:
    """Return the observation space.

    Args:
        algo: Algorithm that would learn in the environment.
        env_id: Name of the environment, for messages.
        env: The environment.
        learners: Algorithms of the verb; others that fit are advised for `quarl train`.

    Returns:
        The observation space as a box.

    Raises:
        UnsupportedError: The algorithm cannot learn in the environment, or an exported policy cannot read its
            observations.
    """
    observed = from_live(env.observation_space, f"the observation space of {env_id}")
    if (reason := fits(algo, env.action_space)) is not None:
        fit = fitting(env.action_space)
        others = [name for name in fit if name in learners] or [f"quarl train --algo {name}" for name in fit]
        advice = f"; use {' or '.join(filter(None, (', '.join(others[:-1]), others[-1])))}" if others else ""
        raise UnsupportedError(f"{algo} on {env_id} is n/a: {reason}{advice}")
    return observation_box(observed, f"the observation space of {env_id}")


def build(options: RunOptions, env: VecEnv, say: Callable[[str], None], *, images: bool) -> BaseAlgorithm:
    """Return the model, prepared for its precisions; it starts from the trained agent if there is one.

    Args:
        options: Options of the run.
        env: Environments of the learner.
        say: Receives a line for each warning of Stable-Baselines3.
        images: True if observations are images.

    Returns:
        The model.

    Raises:
        QuarlError: An option does not fit the algorithm.
    """
    config, recipe = options.config, options.recipe
    cls, arguments = constructor(config.algo, recipe.arguments)
    if recipe.noise is not None:
        if "action_noise" not in inspect.signature(cls.__init__).parameters:
            raise QuarlError(f"{config.algo} takes no action noise; drop it with --params noise_type:None")
        arguments["action_noise"] = _noise(*recipe.noise, env)
    if "policy_kwargs" in arguments:
        arguments["policy_kwargs"] = dict(arguments["policy_kwargs"])  # Stable-Baselines3 modifies it
        kwargs = arguments["policy_kwargs"]
        if config.algo == "a2c" and "optimizer_kwargs" in kwargs and "optimizer_class" not in kwargs:
            # Stable-Baselines3 would silently replace them with its own
            raise QuarlError(
                "a2c ignores optimizer_kwargs without an optimizer_class: add optimizer_class=RMSprop to policy_kwargs"
            )
    # the learner, with its warnings as lines
    policy = recipe.policy or ("CnnPolicy" if images else "MlpPolicy")
    device = "cpu" if config.device == "auto" and not images else config.device
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model: BaseAlgorithm = make_learner(
            config.algo,
            config.env,
            cls,
            policy,
            env,
            steps=recipe.n_timesteps,
            device=device,
            seed=config.seed,
            **arguments,
        )
    for warning in warned:
        if issubclass(warning.category, UserWarning):
            say(str(warning.message).partition("\n")[0].rstrip(","))
    # weights of the trained agent, then fake quantization
    if options.agent is not None:
        options.agent.give(model)
    elif config.trained_agent is not None and isinstance(model, OffPolicyAlgorithm):
        act_before_learning(model)
    if (spec := config.spec()) is not None:
        qat.prepare(model, spec)
    _learn_in(model, config)
    return model


def _learn_in(model: BaseAlgorithm, config: TrainConfig) -> None:
    """Make the model's updates run in the configuration's precision."""
    precision = Precision.of(model, config.learner_dtype)
    plain: Any = model.train  # type: ignore[attr-defined]  # all algorithms have it; the base class does not

    def train(*args: Any, **kwargs: Any) -> None:
        with precision.update():
            plain(*args, **kwargs)

    vars(model)["train"] = train


def _noise(kind: str, std: float, env: VecEnv) -> ActionNoise:
    size = int(np.prod(env.action_space.shape or ()))
    cls = NormalActionNoise if kind == "normal" else OrnsteinUhlenbeckActionNoise
    return cls(mean=np.zeros(size), sigma=std * np.ones(size))
