"""Looks at snapshots: episodes beside the float policy's, or actions on recorded observations that were held out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from quarl import engines, stats
from quarl.arrays import Array
from quarl.calibration import Calibrated, quantize
from quarl.config import DistillConfig
from quarl.envs.environment import Environment, home_of
from quarl.errors import QuarlError
from quarl.evaluation import Evaluation, check_recorded, evaluate, record, sample_size
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.quant.spec import EXACT

HELD_OUT = 10
"""Of so many recorded observations one is held out."""


@dataclass(eq=False)
class Validation:
    """How snapshots of one policy are looked at, in whichever precisions: what is float is played once for all."""

    policy: Policy
    config: DistillConfig
    observations: Array | None = None
    """Recorded ones [N, *shape] in place of an environment: nothing is played."""
    environment: Environment | None = None
    """None: the policy's own."""
    held_out: Array = field(init=False)
    """Of the observations, the last tenth, which is not learned from."""

    def __post_init__(self) -> None:
        given = self.observations
        if given is None and self.environment is None and not self.policy.provenance.env_id:
            raise QuarlError(
                "the policy names no environment: name one with --env ID, or give --observations FILE (env_id, env or "
                "observations in Python)"
            )
        if given is None:
            self.environment = self.environment or home_of(self.policy)
        else:
            check_recorded(given)
            self.observations, self.held_out = np.split(given, [len(given) - len(given) // HELD_OUT])

    @cached_property
    def exact(self) -> Evaluation:
        """Of the float policy."""
        return self.play(quantize(self.policy, EXACT))

    @property
    def no_verdict(self) -> str:
        """Say why no snapshot can have a verdict; empty if one can."""
        if self.observations is not None:
            return "recorded observations have no return"
        if self.config.validation < stats.FEWEST_EPISODES:
            return f"--validation {self.config.validation} is below {stats.FEWEST_EPISODES} episodes"
        return "" if self.exact.returns.mean() else "fp32's mean return is 0, of which no share is a margin"

    def calibrated(self) -> Calibrated:
        """The policy and what it is calibrated on: its own episodes, or a sample of what was recorded."""
        given = self.observations
        if given is None:
            return Calibrated(self.policy, record(self.policy, seed=self.config.seed, environment=self.environment))
        return Calibrated(self.policy, given[:: -(-len(given) // sample_size(self.policy))])

    def look(self, policy: QuantizedPolicy) -> tuple[dict[str, Any], float]:
        """What a snapshot says of this policy, and the seconds that it took."""
        if self.observations is None:
            played, rng = self.play(policy), np.random.default_rng(self.config.seed)
            judged = stats.verdict(self.exact.returns, played.returns, self.config.margin, rng)
            return {"returns": played.returns, "noninferior": judged.noninferior, "error": None}, played.wall_s
        begun = time.monotonic()
        exact, actions = (engines.greedy(each, self.held_out) for each in (quantize(self.policy, EXACT), policy))
        error = float(policy.head.distance(exact, actions).mean(dtype=np.float64))
        return {"returns": np.zeros(0), "noninferior": False, "error": error}, time.monotonic() - begun

    def play(self, policy: QuantizedPolicy, **fresh: int) -> Evaluation:
        """Validation's episodes, or fresh ones, as many and of which seeds as `evaluate` is told."""
        looked = {"episodes": self.config.validation, "stream": "validation"}
        asked: dict[str, Any] = {"seed": self.config.seed, "env": self.environment, **(fresh or looked)}
        return evaluate(policy, **asked, engine=engines.load_fitting(policy).name)
