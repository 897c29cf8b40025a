"""The cost of low precision for an agent of yours: python your_zip.py model.zip [--env CartPole-v1]

Accepts any Stable-Baselines3 zip or RL Zoo folder; without one, it trains a DQN on CartPole. Every precision plays the
same episodes with its own integers. The narrowest one that is non-inferior, within 5 % of the return, is saved.
"""

import argparse

from stable_baselines3 import DQN

import quarl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", nargs="?")
parser.add_argument("--env", default="CartPole-v1", help="its environment, which a bare zip does not name")
parser.add_argument("--episodes", type=int, default=100)
parser.add_argument("--n", type=int, default=50_000, help="steps of the training if no model is named")
options = parser.parse_args()

if options.model is None:
    model = DQN("MlpPolicy", options.env, learning_rate=2.3e-3, train_freq=256, gradient_steps=128, seed=0)
    model.learn(options.n).save("model.zip")

agent = quarl.load(options.model or "model.zip")
table = quarl.ptq(agent, [8, 6, 4], env_id=options.env, episodes=options.episodes)
print(table)
print(*table.verdicts, sep="\n")
kept = ["fp32", *(row.precision for row in table if row.verdict == "non-inferior")]
table.agents[kept[-1]].save("policy.quarl")
print(f"saved policy.quarl: {quarl.load('policy.quarl')}")
