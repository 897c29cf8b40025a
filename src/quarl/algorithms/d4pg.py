"""D4PG: a deterministic actor, trained on the gradient of a critic that predicts the distribution of returns.

Barth-Maron et al. 2018, "Distributed Distributional Deterministic Policy Gradients", without the distribution over
machines (ActorQ's task) and with uniform replay. Everything else is a Stable-Baselines3 off-policy algorithm.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.noise import ActionNoise, NormalActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, ReplayBufferSamples, Schedule
from stable_baselines3.common.utils import get_parameters_by_name, polyak_update
from torch import Tensor, nn

from quarl.algorithms.d4pg_policy import CategoricalCritic, D4PGActor, D4PGCnnPolicy, D4PGPolicy
from quarl.algorithms.d4pg_support import FindsSupport, check_support
from quarl.errors import QuarlError, note

QUARL_2020: dict[str, Any] = {
    "learning_rate": 1e-4,
    "buffer_size": 100_000,
    "learning_starts": 2_000,
    "batch_size": 256,
    "gamma": 0.99,
    "n_steps": 5,
    "target_update_interval": 100,
    "v_min": -150.0,
    "v_max": 150.0,
    "sigma": 1.0,
    "max_grad_norm": 40.0,
    "saturation_penalty": 0.0,
    "policy_kwargs": {"net_arch": {"pi": [2048, 2048, 2048], "qf": [512, 512, 256]}, "activation_fn": nn.Tanh},
}
"""Arguments of D4PG in the original ActorQ (Acme's D4PGLearner), with the actor size of its scripts.

One difference remains: a fresh critic expects a return of 0 (d4pg_policy.FRESH_ATOMS), not a uniform distribution.
"""


class D4PG(FindsSupport):
    """A Stable-Baselines3 model: `D4PG("MlpPolicy", env).learn(100_000)`.

    Args:
        v_min, v_max: Support of returns. It must contain every discounted return, and tightly: the atoms share it.
            Missing ends are found from the rewards before the first update (`d4pg_support`), and move if targets
            leave the support.
        sigma: Standard deviation of Gaussian exploration in actions scaled to [-1, 1], unless `action_noise` is
            given.
        target_update_interval: Updates between two steps of the target networks, each by `tau` (1: a copy).
        max_action_gradient_norm: Maximum norm of each row's dq/da (Acme's dqda_clipping).
        max_grad_norm: Maximum norm of each network's gradient.
        saturation_penalty: Weight of half the square of tanh's input, in the unit of a clipped dq/da. If the critic
            sees little difference, Adam makes full steps of its noise; without the penalty these end in the corners
            of tanh. An action with dq/da of 1 is held at ±0.98 by 0.02.

    The other arguments are those of every off-policy algorithm of Stable-Baselines3. gamma, batch_size, num_atoms, the
    target copies and the two clips are the original's (QUARL_2020); learning_rate, n_steps, sigma and the penalty were
    tried on DM Control, not swept.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"MlpPolicy": D4PGPolicy, "CnnPolicy": D4PGCnnPolicy}
    policy: D4PGPolicy
    actor: D4PGActor
    actor_target: D4PGActor
    critic: CategoricalCritic
    critic_target: CategoricalCritic
    asks: ClassVar[bool] = True
    """True if an update may wait for numbers of its own; an update recorded in a CUDA graph must not."""

    def __init__(
        self,
        policy: str | type[D4PGPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 5e-4,
        buffer_size: int = 1_000_000,
        learning_starts: int = 1_000,
        batch_size: int = 256,
        tau: float = 1.0,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 1,
        gradient_steps: int = 1,
        action_noise: ActionNoise | None = None,
        replay_buffer_class: type[ReplayBuffer] | None = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        n_steps: int = 3,
        v_min: float | None = None,
        v_max: float | None = None,
        num_atoms: int = 51,
        sigma: float = 0.2,
        target_update_interval: int = 100,
        max_action_gradient_norm: float = 1.0,
        max_grad_norm: float = 40.0,
        saturation_penalty: float = 0.02,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        check_support(num_atoms, v_min, v_max)
        if target_update_interval < 1:
            raise QuarlError(f"target_update_interval must be at least 1, got {target_update_interval}")
        super().__init__(
            policy,
            env,
            learning_rate,
            buffer_size,
            learning_starts,
            batch_size,
            tau,
            gamma,
            train_freq,
            gradient_steps,
            action_noise=action_noise,
            replay_buffer_class=replay_buffer_class,
            replay_buffer_kwargs=replay_buffer_kwargs,
            n_steps=n_steps,
            # The policy holds the support, so that it can be saved and built without the algorithm.
            policy_kwargs={**(policy_kwargs or {}), "v_min": v_min, "v_max": v_max, "num_atoms": num_atoms},
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            seed=seed,
            sde_support=False,
            supported_action_spaces=(spaces.Box,),
            support_multi_env=True,
        )
        self.say = note
        self.sigma = sigma
        self.target_update_interval = target_update_interval
        self.max_action_gradient_norm = max_action_gradient_norm
        self.max_grad_norm = max_grad_norm
        self.saturation_penalty = saturation_penalty
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        chosen = {"n_steps": self.n_steps, "gamma": self.gamma}
        if self.replay_buffer_class is NStepReplayBuffer and self.replay_buffer_kwargs == chosen:
            # The base class chose it for a loaded model, and would warn that the user did.
            self.replay_buffer_class = None
        super()._setup_model()
        if self.action_noise is None and self.sigma > 0:
            num_actions = int(np.prod(self.action_space.shape or ()))
            self.action_noise = NormalActionNoise(np.zeros(num_actions), np.full(num_actions, self.sigma))
        self.actor, self.actor_target = self.policy.actor, self.policy.actor_target
        self.critic, self.critic_target = self.policy.critic, self.policy.critic_target
        # Like TD3: statistics that targets copy besides parameters.
        self.actor_batch_norm_stats = get_parameters_by_name(self.actor, ["running_"])
        self.actor_batch_norm_stats_target = get_parameters_by_name(self.actor_target, ["running_"])
        self.critic_batch_norm_stats = get_parameters_by_name(self.critic, ["running_"])
        self.critic_batch_norm_stats_target = get_parameters_by_name(self.critic_target, ["running_"])

    def train(self, gradient_steps: int, batch_size: int = 256) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate([self.actor.optimizer, self.critic.optimizer])
        assert self.replay_buffer is not None
        losses: list[Tensor] = []
        values: list[Tensor] = []
        # also if the weights were reset
        unfit = self.asks and (self._n_updates == 0 or self.critic.support is None)
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            if unfit:
                self.fit_support(batch)
                unfit = False
            losses.append(self._update_critic(batch))
            values.append(self._update_actor(batch.observations))
            self._n_updates += 1
            self.after_update()
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        if losses:
            self.logger.record("train/critic_loss", torch.stack(losses).mean().item())
            self.logger.record("train/value", torch.stack(values).mean().item())

    def after_update(self) -> None:
        """Move the target networks and their support if they are due."""
        if self._n_updates % self.target_update_interval == 0:
            polyak_update(self.actor.parameters(), self.actor_target.parameters(), self.tau)
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
            polyak_update(self.actor_batch_norm_stats, self.actor_batch_norm_stats_target, 1.0)
            polyak_update(self.critic_batch_norm_stats, self.critic_batch_norm_stats_target, 1.0)
            self.widen_support(self._expected)

    def _update_critic(self, batch: ReplayBufferSamples) -> Tensor:
        """Make one step on the cross-entropy of the critic's distribution with the n-step target; return it."""
        # One discount per row if the replay sums n rewards: gamma to the power of the number of summed rewards.
        discounts = self.gamma if batch.discounts is None else batch.discounts
        with torch.no_grad():
            next_actions = self.actor_target(batch.next_observations)
            probabilities = self.critic_target(batch.next_observations, next_actions).softmax(dim=1)
            returns = batch.rewards + (1 - batch.dones) * discounts * self.critic_target.atoms  # [B, num_atoms]
            target = project(returns, probabilities, self.critic.atoms)
            self._expected = (returns * probabilities).sum(dim=1)
        logits = self.critic(batch.observations, batch.actions)
        loss: Tensor = -(target * logits.log_softmax(dim=1)).sum(dim=1).mean()
        self.critic.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self._step(self.critic)
        return loss.detach()

    def _update_actor(self, observations: Tensor) -> Tensor:
        """Make one step of the actions up the critic's clipped gradient; return the critic's mean value before it."""
        before = self.actor.before_tanh(observations)
        actions = before.tanh()
        leaves = actions.detach().requires_grad_()
        values = self.critic.value(observations, leaves)
        # Only the gradient of the actions: the critic's weights would cost as much again, and are not needed.
        (gradient,) = torch.autograd.grad(values.sum(), leaves)
        gradient = clip_rows(gradient, self.max_action_gradient_norm)
        self.actor.optimizer.zero_grad()
        # Adam descends. The second term is the gradient of a penalty that tanh does not flatten.
        torch.autograd.backward(
            [actions, before], [gradient / -len(actions), before.detach() * (self.saturation_penalty / len(actions))]
        )
        self._step(self.actor)
        return values.detach().mean()

    def _step(self, network: D4PGActor | CategoricalCritic) -> None:
        gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        # Rare: otherwise clipping multiplies every gradient, mostly by 1.
        if not self.asks or norm > self.max_grad_norm:
            nn.utils.clip_grads_with_norm_(network.parameters(), self.max_grad_norm, norm)
        network.optimizer.step()

    def _excluded_save_params(self) -> list[str]:
        networks = ["say", "_expected", "actor", "actor_target", "critic", "critic_target"]
        buffers = [f"{name}_batch_norm_stats{of}" for name in ("actor", "critic") for of in ("", "_target")]
        return [*super()._excluded_save_params(), *networks, *buffers]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "actor.optimizer", "critic.optimizer"], []


def project(returns: Tensor, probabilities: Tensor, atoms: Tensor) -> Tensor:
    """Return probabilities [B, K] on evenly spaced `atoms` [K] for a distribution at `returns` [B, K].

    Each probability is shared between the two atoms around its return, in proportion to nearness, which keeps the mean.
    Returns beyond the support count as its ends (Bellemare et al. 2017, algorithm 1).

    Args:
        returns: Returns [B, K].
        probabilities: Probabilities [B, K] of the returns.
        atoms: Atoms [K].
    """
    num_atoms = len(atoms)
    places = ((returns - atoms[0]) * ((num_atoms - 1) / (atoms[-1] - atoms[0]))).clamp(0, num_atoms - 1)
    lower = places.floor().clamp(max=num_atoms - 2)  # the last atom is the upper neighbor at distance 0
    share = places - lower
    below = lower.long()
    projected = torch.zeros_like(probabilities)
    projected.scatter_add_(1, below, probabilities * (1 - share))
    projected.scatter_add_(1, below + 1, probabilities * share)
    return projected


def clip_rows(gradient: Tensor, max_norm: float) -> Tensor:
    """Return the gradient [B, A] with each row shortened to at most `max_norm`."""
    norms: Tensor = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    return gradient / (norms / max_norm).clamp(min=1)
