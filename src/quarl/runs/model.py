"""The learner: a Stable-Baselines3 model made of a recipe, seeded; nothing has been trained."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import ActionNoise, NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from quarl import qat
from quarl.algorithms.learners import constructor, make
from quarl.algorithms.precision import Precision
from quarl.config import TrainConfig
from quarl.errors import QuarlError
from quarl.runs.hyperparameters import RunOptions
from quarl.runs.trained_agent import act_before_learning


def build(options: RunOptions, env: VecEnv, say: Callable[[str], None], *, images: bool) -> BaseAlgorithm:
    """The model, which starts from the trained agent if there is one, prepared for its precisions."""
    config, recipe = options.config, options.recipe
    cls, arguments = constructor(config.algo, recipe.arguments)
    if recipe.noise is not None:
        if "action_noise" not in inspect.signature(cls.__init__).parameters:
            raise QuarlError(f"{config.algo} takes no action noise; drop it with --params noise_type:None")
        arguments["action_noise"] = _noise(*recipe.noise, env)
    if "policy_kwargs" in arguments:
        arguments["policy_kwargs"] = dict(arguments["policy_kwargs"])  # Stable-Baselines3 adds to it
        kwargs = arguments["policy_kwargs"]
        if config.algo == "a2c" and "optimizer_kwargs" in kwargs and "optimizer_class" not in kwargs:
            # Stable-Baselines3 puts its own in their place, and says nothing
            raise QuarlError(
                "a2c ignores optimizer_kwargs without an optimizer_class: add optimizer_class=RMSprop to policy_kwargs"
            )
    policy = recipe.policy or ("CnnPolicy" if images else "MlpPolicy")
    device = "cpu" if config.device == "auto" and not images else config.device
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model: BaseAlgorithm = make(config, cls, policy, env, steps=recipe.n_timesteps, device=device, **arguments)
    for warning in warned:
        if issubclass(warning.category, UserWarning):
            say(str(warning.message).partition("\n")[0].rstrip(","))
    if options.agent is not None:
        options.agent.give(model)
    elif config.trained_agent is not None and isinstance(model, OffPolicyAlgorithm):
        act_before_learning(model)
    if (spec := config.spec()) is not None:
        qat.prepare(model, spec)
    _learn_in(model, config)
    return model


def _learn_in(model: BaseAlgorithm, config: TrainConfig) -> None:
    """Makes the model's updates run in the configuration's precision."""
    precision = Precision.of(model, config.learner_dtype)
    plain: Any = model.train  # type: ignore[attr-defined]  # every algorithm has it, the base class does not say so

    def train(*args: Any, **kwargs: Any) -> None:
        with precision.update():
            plain(*args, **kwargs)

    vars(model)["train"] = train


def _noise(kind: str, std: float, env: VecEnv) -> ActionNoise:
    size = int(np.prod(env.action_space.shape or ()))
    cls = NormalActionNoise if kind == "normal" else OrnsteinUhlenbeckActionNoise
    return cls(mean=np.zeros(size), sigma=std * np.ones(size))
