"""The large drone policy, distilled: python benchmarks/drone.py TEACHER.zip STUDENT.zip

A student of 4096-512-1024 learns the actions of a PPO agent on quarl/Quadrotor-v0 by DAgger (Ross et al. 2011): on
states that the teacher reaches, then on those that it reaches itself, with a little noise on the actions of both.
"""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from quarl.envs import make

ROUNDS, STATES, UPDATES, BATCH, NOISE = 3, 20_000, 500, 256, 0.1


def states(agent: PPO, env: VecEnv, rng: np.random.Generator) -> torch.Tensor:
    """Return observations [STATES, 18] of its episodes."""
    observation, met = env.reset(), []
    for _ in range(STATES // env.num_envs):
        met.append(observation)
        action = agent.predict(observation, deterministic=True)[0]
        observation = env.step(action + rng.normal(0, NOISE, action.shape))[0]
    return torch.as_tensor(np.concatenate(met))


def main(teacher: str, student: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng, env = np.random.default_rng(0), DummyVecEnv([partial(make, "quarl/Quadrotor-v0")] * 16)
    env.seed(0)
    expert, layers = PPO.load(teacher, device="cpu"), {"pi": [4096, 512, 1024], "vf": []}
    learner = PPO("MlpPolicy", env, policy_kwargs={"net_arch": layers, "activation_fn": torch.nn.ReLU}, device="cpu")
    optimizer = torch.optim.Adam(learner.policy.parameters(), 3e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ROUNDS * UPDATES)
    seen = torch.empty(0, 18)
    for number in range(ROUNDS):
        seen = torch.cat([seen, states(learner if number else expert, env, rng)])
        for _ in range(UPDATES):
            batch = seen[torch.randint(len(seen), (BATCH,))]
            with torch.no_grad():
                wanted = expert.policy.get_distribution(batch).mode().clamp(-1, 1)  # in the drone's own precision
            loss = torch.nn.functional.mse_loss(learner.policy.get_distribution(batch).mode(), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"round {number + 1}: {len(seen):,} states, loss {loss.item():.5f}", flush=True)
    learner.save(student, exclude=["policy.optimizer"])


if __name__ == "__main__":
    main(*sys.argv[1:])
