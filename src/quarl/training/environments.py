"""The environments that a learner steps itself."""

from __future__ import annotations

from typing import Any

import gymnasium
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from quarl.envs import make
from quarl.envs.wrappers import wrap
from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.actor import DQN, LAYOUTS
from quarl.policy.spaces import Box, Discrete, action_head, from_live, observation_box
from quarl.training.hyperparameters import Recipe

CONTINUOUS = "ppo, a2c, ddpg, td3, sac or d4pg"
DISCRETE = "ppo, a2c or dqn"


def make_environments(env_id: str, recipe: Recipe) -> VecEnv:
    """`recipe.n_envs` environments side by side, as the zoo wraps them: returns are counted inside its wrappers."""

    def one() -> gymnasium.Env[Any, Any]:
        env = make(env_id, env_kwargs=recipe.env_kwargs, trusted=True)
        return wrap(Monitor(env), recipe.wrappers)

    env: VecEnv = DummyVecEnv([one] * recipe.n_envs)
    if recipe.normalize is None:
        return env
    try:
        return VecNormalize(env, **recipe.normalize)
    except (TypeError, ValueError, AssertionError) as error:
        env.close()
        raise QuarlError(f"normalize is {dict(recipe.normalize)}: {str(error).partition(chr(10))[0]}") from None


def check_spaces(algo: str, env_id: str, env: VecEnv) -> Box:
    """The observations' space; refuses what the algorithm cannot learn in, or what no exported policy can read."""
    observed = from_live(env.observation_space, f"the observation space of {env_id}")
    actions = from_live(env.action_space, f"the action space of {env_id}")
    layout = LAYOUTS[algo]
    if layout is DQN and isinstance(actions, Box):
        raise UnsupportedError(f"{algo} on {env_id} is n/a: its actions are continuous; use {CONTINUOUS}")
    if layout.tanh and isinstance(actions, Discrete):
        raise UnsupportedError(f"{algo} on {env_id} is n/a: its actions are discrete; use {DISCRETE}")
    action_head(actions, f"the action space of {env_id}", squashed=layout.tanh)
    return observation_box(observed, f"the observation space of {env_id}")
