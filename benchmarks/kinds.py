"""Tasks with a known best return in spaces that no suite has, and an agent that chooses only allowed actions.

rl_zoo3.train --gym-packages kinds --env Identity-v0 …    trains on the first; MODULE:ID names it to quarl
python benchmarks/kinds.py FOLDER                         trains MaskablePPO, which RL Zoo does not, on the second
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
from sb3_contrib import MaskablePPO

from quarl.envs.suites import robotics_muted


class MaskedCliff(CliffWalkingEnv):
    """Cliff walking, whose masks leave out the steps that leave the board or fall from the cliff.

    Masks matter: without them an early policy falls at nearly every step along the cliff, for -100 each.
    """

    def action_masks(self) -> np.ndarray:
        """Return bool [4]: the moves that end on another field, without a fall."""
        moves = self.P[int(self.s)]
        return np.array([next_s != self.s and reward > -100 for ((_, next_s, reward, _),) in moves.values()])


gym.register("Identity-v0", "stable_baselines3.common.envs:IdentityEnvMultiDiscrete", kwargs={"dim": 5})
gym.register("MaskedCliff-v0", lambda **options: MaskedCliff(**options), max_episode_steps=200)

# robotics' environments are mended as QuaRL's own `make` mends them, for what trains on them elsewhere
with robotics_muted():
    importlib.import_module("gymnasium_robotics")

if __name__ == "__main__":
    environment = gym.make("MaskedCliff-v0")
    model = MaskablePPO("MlpPolicy", environment, n_steps=256, batch_size=256, seed=0, device="cpu")
    model.learn(30_000)
    model.save(Path(sys.argv[1]) / "maskableppo" / "MaskedCliff-v0_1" / "MaskedCliff-v0.zip")
