"""Agents of every kind that Stable-Baselines3, sb3-contrib and Stable-Baselines 2 save, as bytes to begin with.

Some are new and tiny, saved by the libraries themselves; others lie beside the checkout, trained by strangers long ago.
"""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path

from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from supported import ACTIONS, BOX, GOALS, OBSERVATIONS, model

from sb3_archives import unzipped, zipped

MORE = Path(__file__).resolve().parents[4] / "shared" / "agents-more"
OF_CONTRIB = ("trpo", "tqc", "crossq", "ars", "ppo_lstm", "qrdqn", "maskableppo")
SERIALIZED = ("policy_class", "policy_kwargs", "observation_space", "action_space")
"""What of `data` a reader needs of all that JSON cannot hold; mutations of the rest would change nothing."""


def needed(agent: bytes) -> bytes:
    """The zip of Stable-Baselines3 without what no reader looks at, so that mutations meet what it does."""
    members = unzipped(agent)
    data = json.loads(members["data"])
    kept = {key: value for key, value in data.items() if key in SERIALIZED or not isinstance(value, dict | list)}
    return zipped({"data": json.dumps(kept).encode(), "policy.pth": members["policy.pth"]})


@cache
def saved() -> tuple[bytes, ...]:
    """New agents: each algorithm of sb3-contrib, and PPO and SAC in each kind of space that is no plain Box."""
    discrete, her = ACTIONS["`Discrete`"], {"replay_buffer_class": HerReplayBuffer}
    trained = [model(algo, BOX, discrete if algo in OF_CONTRIB[-2:] else BOX) for algo in OF_CONTRIB]
    vectors = {name: space for name, space in OBSERVATIONS.items() if "images" not in name}
    trained += [model("ppo", space, discrete) for name, space in vectors.items() if name != "`Box`"]
    trained += [model("ppo", BOX, ACTIONS[name]) for name in ("`MultiDiscrete`", "`MultiBinary`")]
    trained.append(model("ppo", BOX, spaces.Discrete(3, start=2)))
    trained.append(model("sac", GOALS, BOX, **her))
    files = []
    for each in trained:
        buffer = io.BytesIO()
        each.save(buffer)
        files.append(needed(buffer.getvalue()))
    return tuple(files)


def beside(suffix: str) -> tuple[bytes, ...]:
    """Agents beside the checkout, .zip of Stable-Baselines3 or .pkl of 2; none where there are none."""
    if suffix == ".zip":
        return tuple(needed(path.read_bytes()) for path in sorted((MORE / "sb3").rglob("*.zip")))
    return tuple(path.read_bytes() for path in sorted((MORE / "sb2").glob("*/*.pkl")))
