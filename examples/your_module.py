"""A network of your own, quantized: python your_module.py [--n 300]

The policy is a plain nn.Module. It learns to damp a pendulum by imitation of a hand-written controller, whose torque
opposes the velocity. QuaRL takes the module and the spaces of its observations and actions. The script supplies its
own calibration observations, so no environment is needed.
"""

import argparse

import gymnasium
import numpy as np
import torch
from torch import nn

import quarl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--n", type=int, default=300, help="gradient steps")
options = parser.parse_args()

env = gymnasium.make("Pendulum-v1")
rng = np.random.default_rng(0)
angles = rng.uniform(-np.pi, np.pi, 4096)
observations = np.stack([np.cos(angles), np.sin(angles), rng.uniform(-8, 8, 4096)], axis=1).astype(np.float32)
torques = np.clip(-4 * observations[:, 1:2] - observations[:, 2:3], -2, 2)

torch.manual_seed(0)
module = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(module.parameters(), 1e-2)
for _ in range(options.n):
    optimizer.zero_grad()
    nn.functional.mse_loss(module(torch.from_numpy(observations)), torch.from_numpy(torques)).backward()
    optimizer.step()

agent = quarl.from_module(module, env.observation_space, env.action_space)
for precision in ("int8", "int4"):
    small = agent.quantize(precision, observations=observations)
    error = np.abs(small.predict(observations)[0] - agent.predict(observations)[0])
    print(f"{small}: torque differs by {error.mean():.4f} in the mean, {error.max():.3f} at most")
    small.save(f"pendulum-{precision}.quarl")
