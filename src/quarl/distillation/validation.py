"""Evaluation of snapshots: episodes compared with the float policy's, or actions on held-out observations."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from quarl import engines, stats
from quarl.arrays import Array
from quarl.calibration import Calibrated, quantize
from quarl.envelope import met_in
from quarl.envs.environment import Environment, home_of
from quarl.evaluation import Evaluation, carry, evaluate, sample, split_by_time
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.quant.spec import EXACT
from quarl.specs import PATH, DistillSpec


@dataclass(eq=False)
class Validation:
    """Evaluation of one policy's snapshots in any number of precisions; the float policy is played once for all."""

    policy: Policy
    recipe: DistillSpec
    observations: Array | None = None
    """Recorded observations [N, *shape] in place of an environment; nothing is played."""
    environment: Environment | None = None
    """Environment to play in; None means the policy's own."""
    envelope: str | Array = PATH
    """States that grids cover, as in `quarl.envelope.met_in`."""
    held_out: Array = field(init=False)
    """The last tenth of the observations, which is not used for training."""

    def __post_init__(self) -> None:
        if self.observations is None:
            self.environment = self.environment or home_of(self.policy, recordable=True)
        else:
            self.observations, self.held_out = split_by_time(self.observations)

    @cached_property
    def exact(self) -> Evaluation:
        """Evaluation of the float policy."""
        return self.play(quantize(self.policy, EXACT))

    @property
    def no_verdict(self) -> str:
        """The reason that no snapshot can have a verdict; empty if one can."""
        if self.observations is not None:
            return "recorded observations have no return"
        if self.recipe.validation < stats.FEWEST_EPISODES:
            return f"--validation {self.recipe.validation} is below {stats.FEWEST_EPISODES} episodes"
        return "" if self.exact.returns.mean() else "fp32's mean return is 0, so a relative margin is undefined"

    def calibrated(self) -> Calibrated:
        """Return the policy with its calibration: on its own episodes, or on a sample of the recorded observations."""
        given = None if self.observations is None else sample(self.policy, self.observations)
        about: Any = {"recorded": given, "seed": self.recipe.seed}
        return Calibrated(self.policy, met_in(self.envelope, self.policy, self.environment, **about))

    def look(self, policy: QuantizedPolicy) -> tuple[dict[str, Any], float]:
        """Return a snapshot's fields for this policy, and the duration in seconds."""
        if self.observations is None:
            played, rng = self.play(policy), np.random.default_rng(self.recipe.seed)
            judged = stats.verdict(self.exact.returns, played.returns, self.recipe.margin, rng)
            return {"returns": played.returns, "noninferior": judged.noninferior, "error": None}, played.wall_s
        begun = time.monotonic()
        both = quantize(self.policy, EXACT), policy
        exact, actions = (engines.greedy(each, carry(each, self.held_out)) for each in both)
        error = float(policy.head.distance(exact, actions).mean(dtype=np.float64))
        return {"returns": np.zeros(0), "noninferior": False, "error": error}, time.monotonic() - begun

    def play(self, policy: QuantizedPolicy, **fresh: int) -> Evaluation:
        """Play validation's episodes, or fresh ones with the number and seed given as keywords of `evaluate`."""
        looked = {"episodes": self.recipe.validation, "stream": "validation"}
        asked: dict[str, Any] = {"seed": self.recipe.seed, "environment": self.environment, **(fresh or looked)}
        return evaluate(policy, **asked, engine=engines.load_fitting(policy).name)
