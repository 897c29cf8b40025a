"""A Policy of a live Stable-Baselines3 model, or of any nn.Module over the operator set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from quarl.errors import QuarlError, UnsupportedError, note_once
from quarl.policy.graph import ActionHead, Policy, Provenance
from quarl.policy.operators import OBSERVATION, Normalize, Op
from quarl.readers.actor import LAYOUTS, ON_POLICY
from quarl.readers.live import environment
from quarl.readers.normalizer import check_shape, from_vecnormalize
from quarl.readers.spaces import Box, action_head, from_live, observation_box
from quarl.readers.trace import evaluating, trace
from quarl.readers.zoo import samples_actions

PROBES = 8
"""Random observations on which a model's own `predict` must agree with the network that was extracted."""


def from_module(
    module: nn.Module,
    observation_shape: tuple[int, ...],
    *,
    head: ActionHead,
    observation_dtype: Literal["float32", "uint8"] = "float32",
    provenance: Provenance | None = None,
) -> Policy:
    """The policy that `module` computes: one output row for each observation of `observation_shape`.

    Raises UnsupportedError naming the first operator outside the set and the module that calls it.
    """
    ops = trace(module, observation_shape, observation_dtype, OBSERVATION)
    return Policy(
        observation_shape=tuple(observation_shape),
        observation_dtype=observation_dtype,
        ops=tuple(ops),
        head=head,
        provenance=provenance or Provenance(origin="module"),
    )


def from_model(model: Any, *, distribution: bool = False, say: Callable[[str], None] = note_once) -> Policy:
    """The policy of a live SB3 PPO, A2C, DQN, DDPG, TD3, SAC or D4PG model, with the statistics of its VecNormalize.

    Everything is copied: training may go on. Operators have the names that the zip reader gives them.

    distribution: the output of SAC is the mean and the log_std of its Gaussian, so that its actions can be sampled; the
    greedy ones stay the same. Other algorithms have no network for it and come out as ever. say: hears why the policy
    does not know the model's environment.
    """
    algo = algorithm(model)
    policy = model.policy
    gaussian = distribution and algo == "sac"
    if gaussian and model.use_sde:
        raise UnsupportedError("the noise of gSDE depends on more than its actor's output; train with use_sde=False")
    observed = observation_box(from_live(policy.observation_space, "observation_space"), "observation_space")
    actions = from_live(policy.action_space, "action_space")
    normalize = _normalize(model)
    ops: list[Op] = []
    if normalize is not None:
        check_shape(normalize, observed.low.shape)
        ops.append(normalize)
    actor = _Actor(policy, algo, gaussian=gaussian)
    source = ops[-1].name if ops else OBSERVATION
    # Names are relative to the policy, as in its state dict, not to the wrapper around it.
    ops += trace(actor, observed.low.shape, observed.observation_dtype, source, named_by=policy)
    log_std = None
    if LAYOUTS[algo] is ON_POLICY and isinstance(actions, Box) and not model.use_sde:
        log_std = policy.log_std.detach().to("cpu", torch.float32, copy=True).numpy()
    head = action_head(actions, "action_space", squashed=policy.squash_output, log_std=log_std)
    if gaussian:
        head = replace(head, kind="gaussian")
    home = environment(model, say)
    extracted = Policy(
        observation_shape=observed.low.shape,
        observation_dtype=observed.observation_dtype,
        ops=tuple(ops),
        head=head,
        provenance=Provenance(
            algo=algo,
            statistics="" if normalize is None else "the model's VecNormalize",
            stochastic=samples_actions(algo, home.get("env_id", "")),
            origin="sb3-live",
            **home,
        ),
    )
    _check_predict(model, actor, head, observed)
    return extracted


def algorithm(model: Any) -> str:
    """The algorithm of SB3, or of this package, that the model is, or is derived from."""
    for cls in type(model).__mro__:
        name = cls.__name__.lower()
        if cls.__module__.startswith(("stable_baselines3.", "quarl.algorithms.")) and name in LAYOUTS:
            return name
    raise UnsupportedError(
        f"{type(model).__name__} is not a PPO, A2C, DQN, DDPG, TD3, SAC or D4PG model; "
        "give its network to from_module, with an action head"
    )


class _Actor(nn.Module):
    """The deterministic way from a (normalised) observation to the network's output, before any tanh of the head."""

    def __init__(self, policy: Any, algo: str, *, gaussian: bool) -> None:
        super().__init__()
        self.gaussian = gaussian
        self.policy = policy
        self.layout = LAYOUTS[algo]
        self.algo = algo

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        from stable_baselines3.common.policies import BaseModel  # here: modules without SB3 models need not load it

        policy: Any = self.policy
        output: torch.Tensor
        if self.algo == "dqn":
            output = policy.q_net(observation)
        elif self.algo == "sac":  # its distribution code cannot be exported; this is its mode
            actor = policy.actor
            features = actor.extract_features(observation, actor.features_extractor)
            latent = actor.latent_pi(features)
            output = actor.mu(latent)
            if self.gaussian:  # the clamp of log_std is the head's part
                output = torch.cat([output, actor.log_std(latent)], dim=1)
        elif self.layout is ON_POLICY:
            # The base class's method: the override warns and returns a pair where the extractor is not shared.
            features = BaseModel.extract_features(policy, observation, policy.pi_features_extractor)
            output = policy.action_net(policy.mlp_extractor.forward_actor(features))
        else:
            *layers, tanh = policy.actor.mu
            assert isinstance(tanh, torch.nn.Tanh)  # the head's part
            output = policy.actor.extract_features(observation, policy.actor.features_extractor)
            for layer in layers:
                output = layer(output)
        return output


def _check_predict(model: Any, actor: _Actor, head: ActionHead, observed: Box) -> None:
    """Refuses a policy whose class does more than its networks: a subclass may override anything."""
    rng = np.random.default_rng(0)
    shape = (PROBES, *observed.low.shape)
    images = observed.observation_dtype == "uint8"
    rows = rng.integers(0, 256, shape, np.uint8) if images else rng.standard_normal(shape).astype(np.float32)
    with evaluating(model.policy), torch.no_grad():
        expected, _ = model.policy.predict(rows, deterministic=True)
        output = actor(torch.as_tensor(rows, device=model.device)).cpu().numpy()
    if head.kind == "argmax" and output.shape[1:] != (int(model.action_space.n),):
        raise QuarlError(f"the network scores {output.shape[1:]} actions, the action space has {model.action_space.n}")
    if not np.allclose(head(output), expected, rtol=1e-4, atol=1e-4):
        raise UnsupportedError(
            f"{type(model.policy).__name__}.predict does not do what its networks compute; "
            "give the module that does to from_module, with an action head"
        )


def _normalize(model: Any) -> Normalize | None:
    """The operator of the model's VecNormalize; UnsupportedError where several normalise one after the other."""
    from stable_baselines3.common.vec_env import VecNormalize  # here: modules without SB3 models need not load it

    operators, env = [], model.get_env()
    while env is not None:
        operator = from_vecnormalize(env) if isinstance(env, VecNormalize) else None
        operators += [] if operator is None else [operator]
        env = getattr(env, "venv", None)
    if len(operators) > 1:
        raise UnsupportedError("observations pass several VecNormalize; a policy has the statistics of one")
    return operators[0] if operators else None
