"""What a sweep says of a policy's actions."""

from __future__ import annotations

import numpy as np
import pytest

from quarl.experiments.precisions import agreement
from quarl.policy.graph import ActionHead, Policy
from quarl.policy.operators import Dense


@pytest.mark.parametrize("bound", [2.0, np.inf])
def test_actions_agree_within_a_percent_of_their_range_bounded_or_not(bound: float) -> None:
    low, high = np.full(2, -bound, np.float32), np.full(2, bound, np.float32)
    layer = Dense("out", ("observation",), np.eye(2, dtype=np.float32), np.zeros(2, np.float32))
    policy = Policy(observation_shape=(2,), ops=(layer,), head=ActionHead("clip", low=low, high=high))
    exact = np.array([[-2.0, -2.0], [2.0, 2.0], [0.0, 0.0], [1.0, -1.0]], np.float32)
    assert agreement(policy, exact, exact + np.float32(0.039)) == 1.0
    assert agreement(policy, exact, exact + np.float32([0.039, 0.041])) == 0.0
    assert agreement(policy, exact, -exact) == 0.25
