"""Environments as users write them, with what goes wrong in them: simulators of which one may live, faults, threads."""

from __future__ import annotations

import fcntl
import os
import sys
import threading

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import register


class Line(gymnasium.Env):
    """Stay near the middle of a line; `fault_at` is the step of a life at which something goes wrong."""

    def __init__(self, render_mode=None, fault_at=40):
        self.observation_space = spaces.Box(-10, 10, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.fault_at, self.lived = fault_at, 0

    def seen(self):
        return np.array([self.x, 0.5], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-1, 1))
        return self.seen(), {}

    def step(self, action):
        assert np.isfinite(action).all(), "an action that is no number"
        self.lived += 1
        self.x = float(np.clip(self.x + 0.1 * float(action[0]), -10, 10))
        return self.seen(), -abs(self.x - 0.5), False, False, {}

    @property
    def is_faulty(self):
        return self.lived >= self.fault_at


class Raising(Line):
    def step(self, action):
        if self.is_faulty:
            raise ConnectionError("simulator connection lost")
        return super().step(action)


class Exiting(Line):
    def step(self, action):
        if self.is_faulty:
            sys.exit("no licence")
        return super().step(action)


class ExitingAtReset(Line):
    def reset(self, *, seed=None, options=None):
        sys.exit(3)


class ExitingWhenMade(Line):
    def __init__(self, **kwargs):
        sys.exit(3)


class NanObservation(Line):
    def seen(self):
        return np.array([np.nan if self.is_faulty else self.x, 0.5], np.float32)


class InfiniteReward(Line):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return (observation, float("inf") if self.is_faulty else reward, *rest)


class ArrayReward(Line):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return (observation, np.array([reward], np.float32), *rest)


class OldStep(Line):
    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, info


class OldReset(Line):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class Unseeded(Line):
    def reset(self):
        return super().reset()


class Listing(Line):
    def seen(self):
        return [self.x, 0.5]


class Doubles(Line):
    def seen(self):
        return np.array([self.x, 0.5])


class Short(Line):
    """Numpy would repeat the number."""

    def seen(self):
        return np.array([self.x], np.float32)


class ShortLater(Line):
    def seen(self):
        return np.array([self.x, 0.5][: 1 if self.lived else 2], np.float32)


class Fractions(Line):
    """Floats where its space says bytes."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(0, 255, (2,), np.uint8)

    def seen(self):
        return np.array([abs(self.x), 0.5], np.float32)


class NanAtTheEnd(Line):
    """As MuJoCo's tasks end where their state is lost: nobody acts on what is seen last."""

    def step(self, action):
        observation, reward, *_ = super().step(action)
        lost = self.lived % 20 == 0
        return np.full(2, np.nan, np.float32) if lost else observation, reward, lost, False, {}


class Single(Line):
    """One at a time, as a simulator on a fixed port."""

    lives = False

    def __init__(self, **kwargs):
        if Single.lives:
            raise OSError("Address already in use: port 3101")
        Single.lives = True
        super().__init__(**kwargs)

    def close(self):
        Single.lives = False


class SingleWorld(Line):
    """One at a time, which a second one hears at its first reset only."""

    at_work = None

    def reset(self, *, seed=None, options=None):
        if SingleWorld.at_work not in (None, self):
            raise OSError("the robot is in use")
        SingleWorld.at_work = self
        return super().reset(seed=seed)

    def close(self):
        if SingleWorld.at_work is self:
            SingleWorld.at_work = None


class Device(Line):
    """One at a time on the whole machine, as hardware and what listens on a port: DEVICE is a file that it locks.

    With the thread of a bridge, which is no daemon, and which close() does not stop.
    """

    def __init__(self, **kwargs):
        self.file = open(os.environ["DEVICE"], "a")  # noqa: SIM115  # it stays open as long as the environment does
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.close()
            raise
        super().__init__(**kwargs)
        threading.Thread(target=threading.Event().wait, name="bridge").start()

    def close(self):
        self.file.close()


class Unclosable(Line):
    def close(self):
        raise RuntimeError("already closed")


class Unlimited(Line):
    pass


class Images(gymnasium.Env):
    """Frames as Atari's are preprocessed, all black."""

    observation_space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.black = np.zeros((4, 84, 84), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.black, {}

    def step(self, action):
        return self.black, 1.0, False, False, {}


STEPS = 50
"""Of an episode."""
for one in (Line, Images, *Line.__subclasses__()):
    register(f"{one.__name__}-v0", entry_point=one, max_episode_steps=None if one is Unlimited else STEPS)
