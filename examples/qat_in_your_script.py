"""Training for a precision in a Stable-Baselines3 script of your own: python qat_in_your_script.py [--n 50000]

Two lines are QuaRL's: `prepare` adds fake quantization to the policy, and `QuantDelay` activates it at half of the
run. The saved zip is a Stable-Baselines3 agent; `convert` returns the integer policy.
"""

import argparse

from stable_baselines3 import PPO

from quarl import qat

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--n", type=int, default=50_000, help="environment steps")
parser.add_argument("--episodes", type=int, default=100)
options = parser.parse_args()

model = PPO("MlpPolicy", "CartPole-v1", n_steps=512, seed=0)
qat.prepare(model, "w4a8")  # 4-bit weights, 8-bit activations
model.learn(options.n, callback=qat.QuantDelay(0.5))
model.save("cartpole")  # PPO.load("cartpole") restores it, ranges and all

agent = qat.convert(model)
print(f"{agent}: return {agent.evaluate(episodes=options.episodes).returns.mean():.1f}")
agent.save("cartpole-w4a8.quarl")
