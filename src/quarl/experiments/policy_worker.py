"""What a worker of a study holds: one policy with its calibration observations, played in one precision by each job."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl.config.environment import EnvironmentConfig
from quarl.envs import make
from quarl.envs.names import MODULE_ID, is_same
from quarl.envs.options import EnvironmentOptions
from quarl.envs.wrappers import wrapper_class
from quarl.errors import QuarlError
from quarl.evaluate import played_on
from quarl.experiments.play import calibration, play
from quarl.experiments.source import check_file
from quarl.policy.graph import is_quantized
from quarl.ptq import Calibrated
from quarl.quant.spec import QuantSpec
from quarl.readers import load

MODULES = ("torch", "quarl.engines.litert", "quarl.engines.reference")
"""Loaded before anything is forked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What a worker begins with."""

    path: Path
    """The agent's file."""
    algo: str
    """What the file is said to hold; empty where nothing is said."""
    env_id: str
    """The living one."""
    identity: Mapping[str, Any]
    seed: int
    folder: Path
    """The study's."""
    calibrate: bool
    normalize: str | None = None
    """The statistics with which the agent observed, or none; None: what lies beside it."""
    transfers: bool = False
    """Whether it may be an agent of another environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayJob:
    """What a cell asks of a worker."""

    spec: QuantSpec
    episodes: int
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class PolicyWorker:
    """What all cells of a policy share."""

    calibrated: Calibrated
    seed: int
    env_id: str | None
    """None: the policy says which."""

    def prepare(self, job: PlayJob) -> None:
        """Quantises here what the cell would, where those after it find it too."""
        self.calibrated.prepare(job.spec)

    def run(self, job: PlayJob) -> dict[str, Any]:
        """The policy in the cell's precision, played."""
        settings = {"episodes": job.episodes, "seed": self.seed, "deterministic": job.deterministic}
        return play(self.calibrated, job.spec, env_id=self.env_id, **settings)


def preload(env_ids: Collection[str], wrappers: Collection[str]) -> None:
    """Imports; what cannot be imported, made or closed is said by the cell that needs it."""
    for module in MODULES:
        importlib.import_module(module)
    for dotted in wrappers:
        with contextlib.suppress(QuarlError):
            wrapper_class(dotted)
    for env_id in env_ids:
        with contextlib.suppress(Exception):  # whatever a simulator raises
            make(env_id).close()


def make_worker(spec: WorkerSpec) -> PolicyWorker:
    """Reads the agent, and records its calibration observations or finds them."""
    path = spec.path
    check_file(path, spec.identity, spec.normalize)
    policy = load.read(path, spec.algo, spec.normalize)
    if is_quantized(policy):
        raise QuarlError(f"{path} is quantised already ({policy.spec.precision}); give the float policy")
    trained_on = policy.provenance.env_id
    same = bool(trained_on) and is_same(spec.env_id, trained_on)
    if trained_on and not same and not spec.transfers:
        raise QuarlError(f"{path} was trained on {trained_on}, not on {spec.env_id}: correct the study")
    # what a file says of its environment names no module
    env_id = None if same and not MODULE_ID.fullmatch(spec.env_id) else spec.env_id
    told = EnvironmentConfig(**spec.identity.get("environment", {}))
    policy = EnvironmentOptions.said(told).at_home(policy, env_id)
    played_on(policy, env_id)
    if not spec.calibrate:
        return PolicyWorker(Calibrated(policy), spec.seed, env_id)
    observations = calibration(policy, spec.identity, spec.seed, env_id, spec.folder)
    return PolicyWorker(Calibrated(policy, observations), spec.seed, env_id)
