"""VecNormalize's statistics in a learner whose environments are in other processes."""

from __future__ import annotations

import numpy as np
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from quarl.arrays import Array


class Statistics:
    """Updates the model's VecNormalize with the segments that come in, as its own `step` would have done."""

    def __init__(self, model: OffPolicyAlgorithm) -> None:
        normalize = model.get_vec_normalize_env()
        assert normalize is not None
        self.normalize = normalize
        self._returns: dict[tuple[int, int], tuple[tuple[int, int], float]] = {}
        """By actor and environment: incarnation and sequence of the step that follows, discounted return before it."""

    def update(self, rows: Array) -> None:
        """Observations and discounted returns of one actor's rows, in their order."""
        if self.normalize.norm_obs:
            self.normalize.obs_rms.update(rows["observation"].astype(np.float64))
        returns = np.empty(len(rows))
        for i, row in enumerate(rows):
            stream = (int(row["actor"]), int(row["environment"]))
            incarnation, sequence = int(row["incarnation"]), int(row["sequence"])
            following, before = self._returns.get(stream, (None, 0.0))
            goes_on = following == (incarnation, sequence)  # else steps are missing: no return crosses a gap
            returns[i] = (before if goes_on else 0.0) * self.normalize.gamma + row["reward"]
            after = 0.0 if row["terminated"] or row["truncated"] else float(returns[i])
            self._returns[stream] = (incarnation, sequence + 1), after
        if self.normalize.norm_reward:
            self.normalize.ret_rms.update(returns)
