"""Fake-quantized models against their integers, on observations of their own rollouts: every algorithm, MLP and CNN.

    python benchmarks/qat_correctness.py [--only ppo-mlp ...]

A row trains a model of 64-64 units (or NatureCNN) until quantization has acted for 1,000 updates and more, converts it,
and plays 10,000 steps. Images are those that LunarLander-v3 is drawn with. Equal actions of a policy that always does
the same would show nothing: training is slow, and a CNN's outputs begin with mean 0 and standard deviation 1. Rows that
are there stay.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import AddRenderObservation, ResizeObservation
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise

from quarl import engines, qat
from quarl.algorithms.d4pg import D4PG
from quarl.policy.graph import QuantizedPolicy
from results import RESULTS, read, write

OBSERVATIONS = 10_000
UPDATES = 1_000
DISCRETE = {"mlp": "LunarLander-v3", "cnn": "LunarLander-v3"}
CONTINUOUS = {"mlp": "Pendulum-v1", "cnn": "LunarLanderContinuous-v3"}
OFF_POLICY = {"learning_starts": 500, "batch_size": 32}
CLASSES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "ppo": (PPO, DISCRETE, {"n_steps": 256, "batch_size": 64}),
    "a2c": (A2C, DISCRETE, {}),
    "dqn": (DQN, DISCRETE, {**OFF_POLICY, "target_update_interval": 500, "train_freq": 1}),
    "ddpg": (DDPG, CONTINUOUS, OFF_POLICY),
    "td3": (TD3, CONTINUOUS, OFF_POLICY),
    "sac": (SAC, CONTINUOUS, OFF_POLICY),
    "d4pg": (D4PG, CONTINUOUS, {**OFF_POLICY, "v_min": -200.0, "v_max": 200.0}),
}
STEPS = {"ppo-cnn": 14 * 1024, "a2c-cnn": 12_000, "ppo-mlp": 50_000, "a2c-mlp": 50_000}
"""Steps of the other algorithms; half of them are before quantization is active."""
OFF_STEPS = 2_600
LEARNING_RATE = {"mlp": 1e-4, "ppo-cnn": 3e-7, "a2c-cnn": 3e-7, "dqn-cnn": 3e-6, "td3-cnn": 1e-8, "cnn": 1e-7}
"""Of rows, or of all others with a network; with a small one and discrete actions, the algorithm's own. Faster, they
end at the bounds, or as one action for everything: features of similar images differ little, so the layer that tells
them apart has large weights."""
DETERMINISTIC = ("ddpg", "td3", "d4pg")
"""Share of random actions in rollouts on images, which nothing else varies."""
LAST = {"ppo": "action_net", "a2c": "action_net", "dqn": "q_net"}
"""Path of the output layer in a policy; actors of continuous actions have actor.mu."""
RANDOM_STEPS = 500
BATCH = 64
MOST_FREQUENT_PCT = 95.0
"""Largest share of one action; above it, equal actions mean little. Continuous ones need a std of 1 % of the range."""


def train(algo: str, network: str, spec: str) -> Any:
    """Return a model whose quantization was active for UPDATES updates."""
    cls, worlds, settings = CLASSES[algo]
    settings = dict(settings)
    env = gymnasium.make(worlds[network], render_mode="rgb_array")
    if network == "cnn":
        env = ResizeObservation(AddRenderObservation(env), (84, 84))
    if network == "cnn" or worlds is CONTINUOUS:
        settings["learning_rate"] = LEARNING_RATE.get(f"{algo}-{network}", LEARNING_RATE[network])
    if algo in ("ddpg", "td3"):
        size = env.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, 0.1))
    if algo not in ("ppo", "a2c"):
        settings["buffer_size"] = 3_000
        if network == "mlp":
            settings["policy_kwargs"] = {"net_arch": [64, 64]}
    steps = STEPS.get(f"{algo}-{network}", OFF_STEPS)
    model = cls("MlpPolicy" if network == "mlp" else "CnnPolicy", env, seed=0, device="cpu", **settings)
    if network == "cnn":
        standardize(model, algo)
    qat.prepare(model, spec)
    return model.learn(steps, callback=qat.QuantDelay(steps // 2))


@torch.no_grad()
def standardize(model: Any, algo: str) -> None:
    """Scale the layer of the outputs to mean 0 and deviation 1 over random actions (Mishkin & Matas 2016, LSUV).

    SB3 begins with outputs of about 0.01 (PPO, A2C) or a bias's choice for every image.
    """
    last = output_layer(model, algo)
    outputs = predicted(model, last, rollout(model, RANDOM_STEPS, 1.0))[1]
    deviation, mean = torch.std_mean(outputs, dim=0)
    last.weight /= deviation[:, None]
    last.bias.sub_(mean).div_(deviation)
    for network in ("q_net", "actor"):
        if hasattr(model.policy, f"{network}_target") and (own := getattr(model.policy, network)) is not None:
            getattr(model.policy, f"{network}_target").load_state_dict(own.state_dict())


def output_layer(model: Any, algo: str) -> torch.nn.Linear:
    """Return the layer whose outputs are scores of actions, or actions before tanh."""
    modules = model.policy.get_submodule(LAST.get(algo, "actor.mu")).modules()
    return [module for module in modules if isinstance(module, torch.nn.Linear)][-1]


def predicted(model: Any, layer: torch.nn.Linear, rows: np.ndarray) -> tuple[np.ndarray, torch.Tensor]:
    """Return the model's own actions, and that layer's outputs [n, out]."""
    outputs: list[torch.Tensor] = []
    hook = layer.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach()))
    batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    actions = np.concatenate([model.predict(batch, deterministic=True)[0] for batch in batches])
    hook.remove()
    return actions, torch.cat(outputs)


def rollout(model: Any, num: int, random_share: float) -> np.ndarray:
    """Return the model's observations from its environment, with that share of random actions."""
    env = model.get_env()
    rng = np.random.default_rng(0)
    row = env.reset()
    rows = np.empty((num, *row.shape[1:]), row.dtype)
    for place in range(num):
        rows[place] = row[0]
        by_chance = rng.random() < random_share
        action = [env.action_space.sample()] if by_chance else model.predict(row, deterministic=False)[0]
        row, *_ = env.step(action)
    return rows


def compare(algo: str, network: str, spec: str) -> dict[str, Any]:
    """Return one row: agreement of the model's own predictions with both engines'."""
    model = train(algo, network, spec)
    rows = rollout(model, OBSERVATIONS, 0.5 if network == "cnn" and algo in DETERMINISTIC else 0.0)
    expected, scores = predicted(model, output_layer(model, algo), rows)
    policy = qat.quantized_policy(model)
    found: dict[str, Any] = {
        "algo": algo,
        "network": network,
        "precision": spec,
        "env_id": model.get_env().get_attr("spec")[0].id,
        "observations": len(rows),
        "updates_quantised": updates_quantised(model),
    }
    for name in ("reference", "litert"):
        outputs = engines.run_all(engines.load(policy, name, batch=BATCH), rows)
        actions = policy.head(outputs)
        if policy.head.kind == "argmax":
            ours = differences(scores.numpy())
            apart = 100 * np.abs(differences(outputs) - ours).max() / np.ptp(ours)
            found[name] = {
                "agreement": float((actions == expected).mean()),
                "max_score_error_pct_of_range": float(apart),
            }
        else:
            span = policy.head.high - policy.head.low
            found[name] = {"max_error_pct_of_range": float(100 * (np.abs(actions - expected) / span).max())}
    return found | variety(expected, policy)


def differences(scores: np.ndarray) -> np.ndarray:
    """Return scores [n, actions] without the common part of a row, which is not deployed."""
    of_rows: np.ndarray = scores - scores.mean(axis=1, keepdims=True, dtype=np.float64)
    return of_rows


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with its requirement: equal actions of a policy that does not always choose the same."""
    varied = row.get("most_frequent_action_pct", 0.0) <= MOST_FREQUENT_PCT and row.get("std_pct_of_range", 100.0) >= 1
    for name in ("reference", "litert"):
        same = row[name].get("agreement", 1.0) >= 0.999 and row[name].get("max_error_pct_of_range", 0.0) <= 1
        row[name]["met"] = same and varied
    return row | {"varied": varied}


def variety(actions: np.ndarray, policy: QuantizedPolicy) -> dict[str, float]:
    """Return the variation of the actions, without which their agreement means little."""
    if policy.head.kind == "argmax":
        return {"most_frequent_action_pct": float(100 * np.bincount(actions).max() / len(actions))}
    return {"std_pct_of_range": float(100 * (actions.std(0) / (policy.head.high - policy.head.low)).max())}


def updates_quantised(model: Any) -> int:
    """Return the updates since quantization is active, which keep pace with environment steps; PPO counts epochs."""
    each = model.n_steps * model.n_envs // model.batch_size if isinstance(model, PPO) else 1
    return int(model._n_updates * each * (1 - qat.switched_at(model) / model.num_timesteps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="rows, as ppo-mlp; default: all")
    parser.add_argument("--precision", default="w4a8")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no row begins")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.monotonic()
    measured = {row["name"]: row for row in read("qat-correctness", "rows", root=options.out)}
    for algo in CLASSES:
        for network in ("mlp", "cnn"):
            if options.only and f"{algo}-{network}" not in options.only:
                continue
            name = f"{algo}-{network}"
            if name not in measured and time.monotonic() - begun < 60 * options.minutes:
                measured[name] = {"name": name, **judged(compare(algo, network, options.precision))}
                write("qat-correctness", "make bench-qat-correctness", root=options.out, rows=[measured[name]])
            if name in measured:
                print(measured[name], flush=True)


if __name__ == "__main__":
    main()
