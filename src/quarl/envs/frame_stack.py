"""Frames stacked for one environment: what VecFrameStack and VecTransposeImage of Stable-Baselines3 give."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from quarl.arrays import Array
from quarl.readers.zoo import MAX_FRAMES


class FrameStack(gymnasium.Wrapper[Array, Any, Array, Any]):
    """The last `n_stack` observations as one, oldest first; zeros stand for what was before an episode's start.

    Images are stacked along their channels and come out as [channels, height, width], whatever order they came in;
    everything else is stacked along its last axis. The stack belongs to one environment, so that the last observation
    of an episode is whole without any help from what steps several of them.
    """

    def __init__(self, env: gymnasium.Env[Array, Any], n_stack: int, channels_order: str | None = None) -> None:
        """channels_order: first or last; None: by the smallest axis of an image, last for everything else."""
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box) or not space.shape:
            raise ValueError(f"only a Box with axes can be stacked, not {type(space).__name__}")
        if type(n_stack) is not int or not 1 <= n_stack <= MAX_FRAMES:
            raise ValueError(f"n_stack is {n_stack!r}, not a number from 1 to {MAX_FRAMES}")
        if channels_order not in (None, "first", "last"):
            raise ValueError(f"channels_order is {channels_order!r}; use first or last")
        image = len(space.shape) == 3 and space.dtype == np.uint8 and not space.low.any() and (space.high == 255).all()
        by_shape = image and space.shape.index(min(space.shape)) == 0
        first = by_shape if channels_order is None else channels_order == "first"
        self._transposes = image and not first
        axis = 0 if image or first else -1
        low, high = (np.concatenate([self._ordered(bound)] * n_stack, axis) for bound in (space.low, space.high))
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)
        self._stack: Array = np.zeros(low.shape, space.dtype)
        self._frames: Array = np.moveaxis(self._stack, axis, 0)
        """The same memory, the axis that frames follow each other on in front."""
        self._axis = axis
        self._size = len(self._frames) // n_stack

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._stack[...] = 0
        return self._push(observation), info

    def step(self, action: Any) -> tuple[Array, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._push(observation), reward, terminated, truncated, info

    def _push(self, observation: Array) -> Array:
        """The stack with one more observation; the caller owns it."""
        frames, size = self._frames, self._size
        frames[:-size] = frames[size:]
        frames[-size:] = np.moveaxis(self._ordered(observation), self._axis, 0)
        return self._stack.copy()

    def _ordered(self, image: Array) -> Array:
        return np.transpose(image, (2, 0, 1)) if self._transposes else image
