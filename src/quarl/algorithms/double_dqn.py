"""Double DQN (van Hasselt et al. 2016): Stable-Baselines3's DQN with another target."""

from __future__ import annotations

import numpy as np
import torch
from stable_baselines3 import DQN
from torch.nn import functional


class DoubleDQN(DQN):
    """A DQN whose online network chooses the next action and whose target network values it (equation 4)."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Make `gradient_steps` updates on batches from replay."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        assert self.replay_buffer is not None
        losses = []
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            discounts = self.gamma if batch.discounts is None else batch.discounts
            with torch.no_grad():
                chosen = self.q_net(batch.next_observations).argmax(dim=1, keepdim=True)
                following = self.q_net_target(batch.next_observations).gather(1, chosen)
                target = batch.rewards + (1 - batch.dones) * discounts * following
            current = self.q_net(batch.observations).gather(1, batch.actions.long())
            loss = functional.smooth_l1_loss(current, target)
            losses.append(loss.item())
            self.policy.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))
