"""Exploration: the actions chosen from a policy's outputs, and the ladder of exploration rates over the actors."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from quarl.arrays import Array
from quarl.errors import UnsupportedError
from quarl.policy.graph import LOG_STD_RANGE, ActionHead

EPSILON_POWER = 7.0
"""Alpha of Ape-X's epsilon ladder (Horgan et al. 2018, section 4.1)."""
NOISE_ROWS = 512


def ladder(kind: str, num_actors: int, sigma: float) -> list[float]:
    """Return the rung of each actor.

    argmax: the power of DQN's epsilon, 1 to 1 + 7 (Ape-X); epsilon itself follows Stable-Baselines3's schedule. tanh:
    the standard deviation of the noise in the scaled action space, sigma / N to sigma (QuaRL's actors spread it over
    0.0 to 0.2). gaussian: 1, because SAC's actors sample the learner's own distribution.

    Args:
        kind: Kind of the action head.
        num_actors: Number of actors N.
        sigma: Largest standard deviation.
    """
    last = max(num_actors - 1, 1)
    if kind == "argmax":
        return [1 + EPSILON_POWER * i / last for i in range(num_actors)]
    if kind == "tanh":
        return [sigma * (i + 1) / num_actors for i in range(num_actors)]
    if kind == "gaussian":
        return [1.0] * num_actors
    raise UnsupportedError(f"no exploration is defined for a {kind} action head")


class Explorer:
    """Converter of network outputs [E, n] to environment actions and to the actions that replay stores."""

    def __init__(
        self, head: ActionHead, action_space: spaces.Space[Any], rung: float, rng: np.random.Generator
    ) -> None:
        """Prepare exploration in one action space.

        Args:
            head: Action head of the policy.
            action_space: Action space of the environment.
            rung: The actor's rung of the ladder.
            rng: Generator of all random numbers.
        """
        self.kind, self.rung, self._rng = head.kind, rung, rng
        if isinstance(action_space, spaces.Discrete):
            self._start, self._num, self._dtype = int(action_space.start), int(action_space.n), action_space.dtype
            self._draws: list[float] = []
        else:
            assert isinstance(action_space, spaces.Box)
            self._low = action_space.low
            self._half = np.float32(0.5) * (action_space.high - action_space.low)
            unit = (self._low == -1).all() and (action_space.high == 1).all()
            self._is_scaled = bool(unit) and self._low.dtype == np.float32
            self._noise: Array = np.zeros((0, *action_space.shape), np.float32)
            self._drawn = 0

    def act(self, outputs: Array, epsilon: float) -> tuple[Any, Array]:
        """Return environment actions and stored actions [E, ...]; `epsilon` is DQN's, before this actor's power."""
        if self.kind == "argmax":
            chosen = outputs.argmax(axis=1) + self._start
            threshold = epsilon**self.rung
            for row, draw in enumerate(self._next_draws(len(chosen))):
                if draw < threshold:
                    chosen[row] = self._start + self._rng.integers(self._num)
            return chosen, chosen
        if self.kind == "gaussian":
            mean, log_std = np.split(outputs, 2, axis=1)
            noise = self._rng.standard_normal(mean.shape, np.float32)
            return self._unscaled(np.tanh(mean + np.exp(np.clip(log_std, *LOG_STD_RANGE)) * noise))
        scaled = np.tanh(outputs.reshape(len(outputs), *self._low.shape))
        if self.rung:
            scaled += self._next_noise(len(scaled))
            np.maximum(scaled, -1, out=scaled)
            np.minimum(scaled, 1, out=scaled)
        return self._unscaled(scaled)

    def _next_draws(self, num: int) -> list[float]:
        """Return uniform numbers in [0, 1) as Python floats, drawn in batches."""
        if len(self._draws) < num:
            self._draws = self._rng.random(max(NOISE_ROWS, num)).tolist()
        draws = self._draws[-num:]
        del self._draws[-num:]
        return draws

    def _next_noise(self, num: int) -> Array:
        """Return Gaussian noise [num, A], drawn in batches because one draw costs more than its numbers."""
        if self._drawn + num > len(self._noise):
            shape = (max(NOISE_ROWS, num), *self._low.shape)
            self._noise = np.float32(self.rung) * self._rng.standard_normal(shape, np.float32)
            self._drawn = 0
        self._drawn += num
        return self._noise[self._drawn - num : self._drawn]

    def random(self, num: int) -> tuple[Any, Array]:
        """Return uniform actions for `num` environments, as Stable-Baselines3 plays before learning starts."""
        if self.kind == "argmax":
            chosen = (self._start + self._rng.integers(self._num, size=num)).astype(self._dtype)
            return chosen, chosen
        return self._unscaled(self._rng.uniform(-1, 1, (num, *self._low.shape)).astype(np.float32))

    def _unscaled(self, scaled: Array) -> tuple[Array, Array]:
        scaled = scaled.reshape(len(scaled), *self._low.shape)
        if self._is_scaled:
            return scaled.copy(), scaled  # a copy: an environment may change its actions
        return self._low + (scaled + np.float32(1)) * self._half, scaled
