"""What a cell measures: a policy in one precision, the episodes that it plays, and how its weights lie."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from quarl import engines
from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.evaluate import evaluate, record
from quarl.files import write_bytes
from quarl.inert.npz import read_npz
from quarl.inert.zip import read_bytes
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.policy.operators import as_float32
from quarl.ptq import Calibrated
from quarl.quant.spec import QuantSpec

MAX_BATCH = 8
"""Episodes played side by side; returns do not depend on it. More save little where a step is quick, and where it is
slow their environments no longer fit the processor's cache (PyBullet: 10 to 25 % with 20)."""
CALIBRATION = "calibration"
VERSION = 1
"""Of the recordings."""


def play(calibrated: Calibrated, spec: QuantSpec, **settings: Any) -> dict[str, Any]:
    """`returns` of the policy quantised to `spec`, and how the weights that were quantised lie."""
    return {**returns(quantised(calibrated, spec), **settings), **weights(calibrated.policy)}


def quantised(calibrated: Calibrated, spec: QuantSpec) -> QuantizedPolicy:
    """The policy in that precision; QuarlError where that would be the policy as it is."""
    policy = calibrated.quantize(spec)
    if policy.coverage == 0:
        raise QuarlError(f"{spec.precision} covers no weight of this policy; nothing would be quantised")
    return policy


def returns(
    policy: QuantizedPolicy, *, episodes: int, seed: int, env_id: str | None, deterministic: bool = False
) -> dict[str, Any]:
    """What the policy scores, episode by episode, and on what it ran."""
    engine = engines.load_fitting(policy)
    waves = -(-episodes // MAX_BATCH)
    played = evaluate(
        policy,
        episodes=episodes,
        seed=seed,
        env_id=env_id,
        engine=engine.name,
        batch=-(-episodes // waves),
        stochastic=False if deterministic else None,
    )
    return {
        "engine": engine.name,
        "measured": played.measured,
        "file_bytes": engine.file_bytes,
        "env_steps": played.num_steps,
        "returns": played.returns.tolist(),
    }


def weights(policy: Policy) -> dict[str, float]:
    """Extremes and standard deviation of all weights together, in float, biases not counted."""
    flat = np.concatenate([as_float32(op.weight).reshape(-1) for op in policy.linear])
    return {
        "weight_min": float(flat.min()),
        "weight_max": float(flat.max()),
        "weight_std": float(flat.std(dtype=np.float64)),
    }


def calibration(policy: Policy, identity: Mapping[str, Any], seed: int, env_id: str | None, folder: Path) -> Array:
    """Observations of the float policy's own episodes [N, *shape], recorded once for all its cells.

    identity: what determines the policy. They are kept under `folder`, whole or not at all.
    """
    asked = json.dumps([VERSION, identity, seed, env_id], sort_keys=True)
    path = folder / CALIBRATION / f"{hashlib.sha256(asked.encode()).hexdigest()[:32]}.npz"
    with suppress(QuarlError, KeyError):  # it is not there, or damaged: recorded anew
        found = read_npz(read_bytes(path), str(path))["observations"]
        if found.shape[1:] == policy.observation_shape and found.dtype == policy.observation_dtype:
            return found
    observations = record(policy, seed=seed, env_id=env_id)
    buffer = io.BytesIO()
    np.savez(buffer, observations=observations)
    with suppress(OSError, QuarlError):  # a full disk costs the next run some episodes, and this one nothing
        path.parent.mkdir(exist_ok=True)
        write_bytes(buffer.getvalue(), path)
    return observations
