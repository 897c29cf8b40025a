"""Cells that are played: a policy in one precision, its episodes, its weights, and the worker that holds it."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quarl import engines
from quarl.arrays import Array
from quarl.calibration import Calibrated, quantised
from quarl.config.environment import EnvironmentConfig
from quarl.envs.environment import Environment, in_environment, make
from quarl.envs.names import MODULE_ID, is_same
from quarl.envs.wrappers import wrapper_class
from quarl.errors import QuarlError
from quarl.evaluation import evaluate, record
from quarl.files import write_bytes
from quarl.inert.npz import read_npz
from quarl.inert.zip import read_bytes
from quarl.lab.cells import Cell, Job
from quarl.lab.disturbances import NOISE, PUSH, Disturbance, velocity_deviations
from quarl.lab.source import FILE, check_file
from quarl.policy import artifact
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.policy.operators import as_float32
from quarl.quant.schemes import typed_by_user
from quarl.quant.spec import QuantSpec
from quarl.readers import load

MODULES = ("torch", "quarl.engines.litert", "quarl.engines.reference")
"""Modules loaded before any fork."""
MAX_BATCH = 8
"""Number of episodes played side by side; returns do not depend on it.

More save little for fast steps. For slow steps, more environments no longer fit the processor's cache (PyBullet: 10 to
25 % with 20).
"""
CALIBRATION = "calibration"
VERSION = 1
"""Version of the recordings."""


def returns(policy: QuantizedPolicy, work: Mapping[str, Any], environment: Environment) -> dict[str, Any]:
    """Play the policy and return its scores by episode, with its engine and sizes.

    Args:
        policy: Policy to play.
        work: The cell's work, with episodes, seed and deterministic.
        environment: Environment to play in.

    Returns:
        Fields of the cell's result.
    """
    engine = engines.load_fitting(policy)
    waves = -(-work["episodes"] // MAX_BATCH)
    played = evaluate(
        policy,
        episodes=work["episodes"],
        seed=work["seed"],
        environment=environment,
        engine=engine.name,
        batch=-(-work["episodes"] // waves),
        stochastic=False if work.get("deterministic") else None,
    )
    return {
        "engine": engine.name,
        "measured": played.measured,
        "file_bytes": engine.file_bytes,
        "bits_mean": policy.mean_bits,
        "payload": policy.payload,
        "bytes_packed": len(artifact.to_bytes(policy)),
        "env_steps": played.num_steps,
        **played.by_episode(),
    }


def weights(policy: Policy) -> dict[str, float]:
    """Return the extremes and the standard deviation of all float weights, without biases."""
    flat = np.concatenate([as_float32(op.weight).reshape(-1) for op in policy.linear])
    return {
        "weight_min": float(flat.min()),
        "weight_max": float(flat.max()),
        "weight_std": float(flat.std(dtype=np.float64)),
    }


def calibration(
    policy: Policy, identity: Mapping[str, Any], seed: int, environment: Environment, folder: Path
) -> Array:
    """Return observations of the float policy's own episodes [N, *shape], recorded once for all its cells.

    Args:
        policy: the float policy.
        identity: everything that determines the policy.
        seed: seed of the episodes.
        environment: the environment to play in.
        folder: folder of the study, in which they are kept, whole or not at all.
    """
    determined = json.dumps([VERSION, identity, seed, environment.typed], sort_keys=True)
    path = folder / CALIBRATION / f"{hashlib.sha256(determined.encode()).hexdigest()[:32]}.npz"
    with suppress(QuarlError, KeyError):  # if it is missing or damaged, record it again
        observations = read_npz(read_bytes(path), str(path))["observations"]
        if observations.shape[1:] == policy.observation_shape and observations.dtype == policy.observation_dtype:
            return observations
    observations = record(policy, seed=seed, environment=environment)
    buffer = io.BytesIO()
    np.savez(buffer, observations=observations)
    with suppress(OSError, QuarlError):  # a full disk costs the next run some episodes, and this one nothing
        path.parent.mkdir(exist_ok=True)
        write_bytes(buffer.getvalue(), path)
    return observations


def _spec(cell: Cell) -> QuantSpec:
    """Return the cell's precision, whose scheme the user has typed: its code is imported in this process, too."""
    spec = QuantSpec.from_json(cell.work["spec"])
    typed_by_user(spec.scheme.name)
    return spec


@dataclass(frozen=True, slots=True)
class PolicyWorker:
    """The policy and calibration observations that all cells of an agent and a seed share."""

    calibrated: Calibrated
    environment: Environment
    scales: dict[str, Array] = field(default_factory=dict)
    """Standard deviations on the path by the disturbance that needs them."""

    def prepare(self, cell: Cell) -> None:
        """Quantize here as the cell would, so that later cells find the result."""
        self._environment(cell)
        self.calibrated.prepare(_spec(cell))

    def run(self, cell: Cell) -> dict[str, Any]:
        """Play the policy in the cell's precision, and return the result with statistics of the float weights."""
        policy, code = quantised(self.calibrated, spec := _spec(cell)), spec.scheme.source
        played = returns(policy, cell.work, self._environment(cell))
        return {**played, **weights(self.calibrated.policy), **({"scheme_source": code} if code else {})}

    def _environment(self, cell: Cell) -> Environment:
        """Return the environment with the cell's disturbance, in units of deviations on the float policy's path."""
        levels = cell.work.get("disturbance", {})
        if PUSH in levels and PUSH not in self.scales:
            self.scales[PUSH] = velocity_deviations(self.calibrated.policy, self.environment, cell.seed)
        if NOISE in levels and NOISE not in self.scales:
            seen = np.asarray(self.calibrated.observations)[:, : self.calibrated.policy.seen[0]]  # not the state
            self.scales[NOISE] = np.std(seen, axis=0, dtype=np.float64)
        outside = partial(Disturbance, levels=levels, scales=self.scales)
        return replace(self.environment, outside=outside) if levels else self.environment


def preload(env_ids: Collection[str], wrappers: Collection[str]) -> None:
    """Import modules; the cell that needs a module reports the error if it fails."""
    for module in MODULES:
        importlib.import_module(module)
    for dotted in wrappers:
        with suppress(QuarlError):
            wrapper_class(dotted)
    for env_id in env_ids:
        with suppress(Exception):  # simulators raise exceptions of any type
            make(env_id).close()


def make_worker(job: Job, *, calibrate: bool) -> PolicyWorker:
    """Read the agent, and record or find its calibration observations.

    `job` is that of any of its cells; its precision has no effect.
    """
    agent, env_id, path = job.cell.agent, job.cell.work["env_id"], job.path
    assert agent is not None
    assert path is not None
    check_file(path, agent.identity, agent.normalize)
    options = EnvironmentConfig(**agent.identity.get("environment", {}))
    policy = load.read(path, agent.algo, agent.normalize, options.frame_stack)
    load.refuse_quantized(policy, path)
    trained_on = policy.provenance.env_id
    same = bool(trained_on) and is_same(env_id, trained_on)
    if trained_on and not same and agent.kind != FILE:
        raise QuarlError(f"{path} was trained on {trained_on}, not on {env_id}: correct the study")
    # the environment in a file never names a module
    chosen = None if same and not MODULE_ID.fullmatch(env_id) else env_id
    policy, environment = in_environment(policy, chosen, **options.environment())
    assert environment is not None  # the study names one
    environment.playing(policy)  # forked processes reuse the answer whether episodes need new environments
    seed = job.cell.seed
    observations = calibration(policy, agent.identity, seed, environment, job.study) if calibrate else None
    return PolicyWorker(Calibrated(policy, observations), environment)
