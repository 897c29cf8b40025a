"""Quantized actors on an environment of your own: python actorq_on_your_environment.py [--n 20000]

Importing this file registers the environment. Actors and learner import it, each in a process of its own: hence the
name MODULE:ID, and `if __name__ == "__main__"` around the code that only the first process runs.
"""

import argparse

import gymnasium
import numpy as np

import quarl


class Tracking(gymnasium.Env[np.ndarray, np.int64]):
    """A point that is pushed left or right toward a target; 100 steps, each costs the distance."""

    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-2, 2, 2).astype(np.float32)  # position and target
        return self.state.copy(), {}

    def step(self, action):
        self.state[0] = np.clip(self.state[0] + (0.2 if action else -0.2), -10, 10)
        return self.state.copy(), -float(abs(self.state[0] - self.state[1])), False, False, {}


if "Tracking-v0" not in gymnasium.registry:
    gymnasium.register("Tracking-v0", Tracking, max_episode_steps=100)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20_000, help="environment steps")
    options = {"n_timesteps": parser.parse_args().n, "params": {"learning_starts": 500}, "output": "run"}
    print(quarl.actorq("actorq_on_your_environment:Tracking-v0", actors=1, **options).summary.final)
