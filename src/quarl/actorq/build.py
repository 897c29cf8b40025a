"""The learner's model: a Stable-Baselines3 algorithm that is fed by actors instead of its own environment.

The module also builds the rate limiter that keeps the learner and its actors together.
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
"""Hyper-parameter with the critic's hidden layers; Stable-Baselines3 has it inside policy_kwargs."""
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
"""Hyper-parameters of the original's DQN learner; those of its D4PG are in quarl.algorithms.d4pg.

The original also clipped rewards to [-1, 1] and used 0.95 for one of the five bootstrap discounts.
"""


def recalled(config: ActorQConfig) -> Recalled:
    """Return the environment data that the run's model needs; the environment itself is created and closed here."""
    return Recalled(environment_of(config).make, config.seed)


def build(config: ActorQConfig, environment: Recalled | None = None) -> OffPolicyAlgorithm:
    """Return a new, seeded model with an empty replay; `environment` is the result of `recalled`, if available."""
    # Resolve the hyper-parameters.
    cls, parameters, critic = hyperparameters(config)
    defaults = inspect.signature(cls.__init__).parameters
    gamma = float(parameters.get("gamma", defaults["gamma"].default))
    n_steps = int(parameters.pop("n_steps", defaults["n_steps"].default))
    if config.algo == "sac" and parameters.get("target_update_interval", 1) != 1:
        # SAC counts updates within a round of gradient_steps; here each update is a round of its own
        raise QuarlError(
            "--params target_update_interval: in actorq, SAC's target network moves at every update; use a smaller tau"
        )
    # Create the environment stand-in and the network arguments.
    env: VecEnv = DummyVecEnv([lambda: environment or recalled(config)])
    env = VecNormalize(env, gamma=gamma) if config.normalize else env
    policy_kwargs = dict(parameters.pop("policy_kwargs", {}))
    if arch := _net_arch(config, critic, policy_kwargs.get("net_arch")):
        policy_kwargs["net_arch"] = arch
    if policy_kwargs.get("optimizer_class", Adam) is Adam:
        # The fused optimizer makes one pass over the weights instead of a dozen: the step is memory-bound, and takes a
        # third of a wide learner's update.
        policy_kwargs.setdefault("optimizer_kwargs", {"fused": True})
    space, where = env.observation_space, "observation space"
    image = isinstance(space, spaces.Box) and observation_box(from_live(space, where), where).is_image
    # Construct the learner.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is ignored because a custom `replay_buffer_class`")
        model: OffPolicyAlgorithm = make_learner(
            config.algo,
            config.env,
            cls,
            "CnnPolicy" if image else "MlpPolicy",
            env,
            steps=config.steps,
            device=config.device,
            seed=config.seed,
            policy_kwargs=policy_kwargs,
            replay_buffer_class=SegmentReplay,
            replay_buffer_kwargs={"n_steps": n_steps, "gamma": gamma},
            **parameters,
        )
    model.n_steps = n_steps  # later training of the saved model uses these n_steps, without the actors' replay
    freq: Any = model.train_freq
    if freq.unit is TrainFrequencyUnit.EPISODE and model.gradient_steps > 0:
        raise QuarlError(
            f"--params train_freq: {model.gradient_steps} updates per episode are not a fixed ratio; "
            "use steps, as in train_freq:1, or set gradient_steps:-1"
        )
    if (spec := config.spec()) is not None:
        qat.prepare(model, spec)
    return model


def samples_per_insert(model: OffPolicyAlgorithm) -> float:
    """Return the ratio that follows from the algorithm's train_freq, gradient_steps and batch_size."""
    freq: Any = model.train_freq
    steps = model.gradient_steps if model.gradient_steps > 0 else freq.frequency
    return float(model.batch_size * steps / freq.frequency)


def limiter_of(config: ActorQConfig, model: OffPolicyAlgorithm) -> RateLimiter:
    """Return the rate limiter of the model's learner.

    Raises QuarlError if the learner would never update, or if actors would wait forever.
    """
    freq: Any = model.train_freq
    steps: int = freq.frequency
    starts, batch_size = model.learning_starts, model.batch_size
    ratio = config.samples_per_insert or samples_per_insert(model)
    at_once = model.gradient_steps if model.gradient_steps > 0 else steps
    # Rounds and their start follow Stable-Baselines3: between two rounds DQN's target network moves.
    limiter = RateLimiter(
        ratio,
        batch_size,
        starts // steps * steps,
        config.error_buffer,
        updates_at_once=at_once,
        inserts_at_once=config.num_envs,
    )
    # Refuse a run that ends before its first update.
    if not config.resume and not config.plan:
        if config.steps <= starts:
            raise no_update(starts, config.steps, "learning_starts")
        if config.steps < (first := limiter.inserts_wanted()):
            raise no_update(first - 1, config.steps, "train_freq or learning_starts")
    # Every actor may be one step ahead of its view of the others, and a round of updates cannot be halved.
    promised = ratio / batch_size
    least = math.floor(config.num_actors * config.num_envs * promised) + at_once + 1
    if config.max_staleness < least:
        raise QuarlError(
            f"--max-staleness {config.max_staleness} would block this run: {promised:g} updates for "
            f"every step of {config.actors} x {config.envs_per_actor} environments require at least {least}"
        )
    return limiter


def hyperparameters(config: ActorQConfig) -> tuple[Any, dict[str, Any], Any]:
    """Return the learner's class, its constructor arguments, and the critic's hidden layers (None for the default).

    Explicit hyper-parameters override those of the preset. Raises QuarlError for an unknown argument.
    """
    chosen = _preset(config.algo) if config.preset == "quarl-2020" else {}
    given = {k: v for k, v in config.hyperparameters().items() if v is not None and k not in OF_ENVIRONMENT}
    # Refuse parameters that actorq replaces.
    if config.algo == "d4pg" and "sigma" in given:
        raise QuarlError("--params sigma is not supported by actorq, whose actors explore: use --sigma")
    if "replay_buffer_kwargs" in given:
        raise QuarlError("--params replay_buffer_kwargs is not supported: actorq has its own replay buffer")
    if given.get("gradient_steps") == 0:
        raise QuarlError(NO_UPDATES)
    # Merge the preset, dedicated options and --params.
    chosen |= {name: value for name in GIVEN_ONCE if (value := getattr(config, name)) is not None}
    chosen |= (parameters := arguments(given, "--params"))
    if (config.net_arch is not None or CRITIC in parameters) and "net_arch" in (parameters.get("policy_kwargs") or {}):
        raise QuarlError(
            f"net_arch in --params policy_kwargs conflicts with {'--net-arch' if config.net_arch else CRITIC}: set the "
            f"layers with --net-arch and --params {CRITIC}:[...], or with policy_kwargs alone"
        )
    critic = None if config.algo == "dqn" else chosen.pop(CRITIC, None)
    return *constructor(config.algo, chosen), critic


def _preset(algo: str) -> dict[str, Any]:
    if algo == "dqn":
        return dict(DQN_2020)
    if algo == "d4pg":
        from quarl.algorithms.d4pg import QUARL_2020  # a local import: the other learners need not load D4PG

        return {**QUARL_2020, "train_freq": 16}  # the samples per insert of the original scripts
    raise QuarlError(f"--preset quarl-2020 is not available for {algo}, only for dqn and d4pg")


def _net_arch(config: ActorQConfig, critic: Any, preset: Any) -> Any:
    """Return the layers of policy and critic: explicit ones, else the preset's, else the algorithm's default."""
    hidden = config.hidden()
    if config.algo == "dqn":
        return hidden
    if hidden is None and critic is None:
        return None
    default = {"sac": [256, 256], "d4pg": [256, 256, 256]}.get(config.algo, [400, 300])
    default_critic = [512, 512, 256] if config.algo == "d4pg" else default
    layers = {"pi": default, "qf": default_critic} | (preset if isinstance(preset, dict) else {})
    return {"pi": hidden or layers["pi"], "qf": critic or layers["qf"]}
