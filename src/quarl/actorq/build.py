"""The learner's model: a Stable-Baselines3 algorithm that is fed by actors instead of an environment of its own.

And the limiter that keeps it and its actors together.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import TrainFrequencyUnit
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize
from torch.optim import Adam

from quarl import qat
from quarl.actorq.environments import environment_of
from quarl.actorq.limiter import RateLimiter
from quarl.actorq.replay import SegmentReplay
from quarl.algorithms.clocks import NO_UPDATES, no_update
from quarl.algorithms.learners import DOUBLE, constructor, make_learner
from quarl.algorithms.zoo_arguments import arguments
from quarl.config import ActorQConfig
from quarl.config.actorq import GIVEN_ONCE
from quarl.envs.checked import Recalled
from quarl.envs.options import OF_ENVIRONMENT
from quarl.errors import QuarlError
from quarl.readers.plain_spaces import from_live, observation_box

CRITIC = "qf_arch"
"""The hyper-parameter that names the critic's hidden layers; Stable-Baselines3 has it inside policy_kwargs."""
DQN_2020: Mapping[str, Any] = {
    "learning_rate": 1e-3,
    "batch_size": 256,
    "learning_starts": 100_000,
    "buffer_size": 200_000,
    "train_freq": 16,  # samples per insert, at its batch of 256
    "target_update_interval": 1_600,  # 100 updates
    "n_steps": 5,
    "gamma": 0.99,
    DOUBLE: True,
    "max_grad_norm": 1e9,  # no clipping
    "policy_kwargs": {"net_arch": [2048, 2048, 2048], "activation_fn": torch.nn.Tanh},
}
"""Hyper-parameters of the original's DQN learner, which also clipped rewards to [-1, 1] and had 0.95 for one of the
five discounts of what it bootstrapped from; its D4PG's lie with D4PG."""


def recalled(config: ActorQConfig) -> Recalled:
    """Return what the run's model needs of its environment, which is made and closed for it."""
    return Recalled(environment_of(config).make, config.seed)


def build(config: ActorQConfig, environment: Recalled | None = None) -> OffPolicyAlgorithm:
    """The model, its replay empty, seeded; nothing has been trained. environment: `recalled`, if it is at hand."""
    cls, parameters, critic = hyperparameters(config)
    defaults = inspect.signature(cls.__init__).parameters
    gamma = float(parameters.get("gamma", defaults["gamma"].default))
    n_steps = int(parameters.pop("n_steps", defaults["n_steps"].default))
    if config.algo == "sac" and parameters.get("target_update_interval", 1) != 1:
        # it counts updates within a round of gradient_steps, and here each is a round of its own
        raise QuarlError(
            "--params target_update_interval: SAC's target network moves at every update of actorq; give a smaller tau"
        )
    env: VecEnv = DummyVecEnv([lambda: environment or recalled(config)])
    env = VecNormalize(env, gamma=gamma) if config.normalize else env
    policy_kwargs = dict(parameters.pop("policy_kwargs", {}))
    if arch := _net_arch(config, critic, policy_kwargs.get("net_arch")):
        policy_kwargs["net_arch"] = arch
    if policy_kwargs.get("optimizer_class", Adam) is Adam:
        # One pass over the weights instead of a dozen: it is bound by memory, and a third of a wide learner's update.
        policy_kwargs.setdefault("optimizer_kwargs", {"fused": True})
    space, where = env.observation_space, "observation space"
    image = isinstance(space, spaces.Box) and observation_box(from_live(space, where), where).is_image
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is ignored because a custom `replay_buffer_class`")
        model: OffPolicyAlgorithm = make_learner(
            config,
            cls,
            "CnnPolicy" if image else "MlpPolicy",
            env,
            steps=config.steps,
            device=config.device,
            policy_kwargs=policy_kwargs,
            replay_buffer_class=SegmentReplay,
            replay_buffer_kwargs={"n_steps": n_steps, "gamma": gamma},
            **parameters,
        )
    model.n_steps = n_steps  # whoever trains the saved model on has these, without the actors' replay
    freq: Any = model.train_freq
    if freq.unit is TrainFrequencyUnit.EPISODE and model.gradient_steps > 0:
        raise QuarlError(
            f"--params train_freq: {model.gradient_steps} updates an episode are no ratio that actors could keep; "
            "count steps, as in train_freq:1, or set gradient_steps:-1"
        )
    if (spec := config.spec()) is not None:
        qat.prepare(model, spec)
    return model


def samples_per_insert(model: OffPolicyAlgorithm) -> float:
    """The ratio that the algorithm's own train_freq, gradient_steps and batch_size make."""
    freq: Any = model.train_freq
    steps = model.gradient_steps if model.gradient_steps > 0 else freq.frequency
    return float(model.batch_size * steps / freq.frequency)


def limiter_of(config: ActorQConfig, model: OffPolicyAlgorithm) -> RateLimiter:
    """The limiter of the model's learner; QuarlError where it would never update, or actors would wait for ever."""
    freq: Any = model.train_freq
    steps: int = freq.frequency
    starts, batch_size = model.learning_starts, model.batch_size
    ratio = config.samples_per_insert or samples_per_insert(model)
    at_once = model.gradient_steps if model.gradient_steps > 0 else steps
    # Rounds and their first one are Stable-Baselines3's: between two rounds DQN's target network moves.
    limiter = RateLimiter(
        ratio,
        batch_size,
        starts // steps * steps,
        config.error_buffer,
        updates_at_once=at_once,
        inserts_at_once=config.num_envs,
    )
    if not config.resume and not config.plan:
        if config.steps <= starts:
            raise no_update(starts, config.steps, "learning_starts")
        if config.steps < (first := limiter.inserts_wanted()):
            raise no_update(first - 1, config.steps, "train_freq or learning_starts")
    # Every actor may be one step ahead of what it knew of the others, and a round of updates cannot be halved.
    promised = ratio / batch_size
    least = math.floor(config.num_actors * config.num_envs * promised) + at_once + 1
    if config.max_staleness < least:
        raise QuarlError(
            f"--max-staleness {config.max_staleness} would stop this run: {promised:g} updates for "
            f"every step of {config.actors} x {config.envs_per_actor} environments need at least {least}"
        )
    return limiter


def hyperparameters(config: ActorQConfig) -> tuple[Any, dict[str, Any], Any]:
    """The learner's class, arguments of its constructor and hidden layers of its critic, None for its own.

    The preset's hyper-parameters are below those that were given. QuarlError where there is no such argument.
    """
    chosen = _preset(config.algo) if config.preset == "quarl-2020" else {}
    given = {k: v for k, v in config.hyperparameters().items() if v is not None and k not in OF_ENVIRONMENT}
    if config.algo == "d4pg" and "sigma" in given:
        raise QuarlError("--params sigma is of a D4PG that explores itself: actors do, by --sigma")
    if "replay_buffer_kwargs" in given:
        raise QuarlError("--params replay_buffer_kwargs is of Stable-Baselines3's own replay, not of actorq's")
    if given.get("gradient_steps") == 0:
        raise QuarlError(NO_UPDATES)
    chosen |= {name: value for name in GIVEN_ONCE if (value := getattr(config, name)) is not None}
    chosen |= (parameters := arguments(given, "--params"))
    if (config.net_arch is not None or CRITIC in parameters) and "net_arch" in (parameters.get("policy_kwargs") or {}):
        raise QuarlError(
            f"--params policy_kwargs has a net_arch, and so has {'--net-arch' if config.net_arch else CRITIC}: give "
            f"layers by --net-arch and --params {CRITIC}:[...], or by policy_kwargs alone"
        )
    critic = None if config.algo == "dqn" else chosen.pop(CRITIC, None)
    return *constructor(config.algo, chosen), critic


def _preset(algo: str) -> dict[str, Any]:
    if algo == "dqn":
        return dict(DQN_2020)
    if algo == "d4pg":
        from quarl.algorithms.d4pg import QUARL_2020  # here: the other learners need not load it

        return {**QUARL_2020, "train_freq": 16}  # the samples per insert of its scripts
    raise QuarlError(f"the original had no {algo}: preset quarl-2020 is for dqn and d4pg")


def _net_arch(config: ActorQConfig, critic: Any, preset: Any) -> Any:
    """Layers of the policy and of the critic as they were given, else the preset's, else the algorithm's own."""
    hidden = config.hidden()
    if config.algo == "dqn":
        return hidden
    if hidden is None and critic is None:
        return None
    default = {"sac": [256, 256], "d4pg": [256, 256, 256]}.get(config.algo, [400, 300])
    default_critic = [512, 512, 256] if config.algo == "d4pg" else default
    layers = {"pi": default, "qf": default_critic} | (preset if isinstance(preset, dict) else {})
    return {"pi": hidden or layers["pi"], "qf": critic or layers["qf"]}
