"""What a sweep says of a policy's actions, and how long it plays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quarl.evaluation import Evaluation
from quarl.judging import fidelity, judged, successes_of, until_judged
from quarl.policy.graph import ActionHead, Policy
from quarl.policy.operators import Dense
from quarl.stats import drop_interval


@pytest.mark.parametrize("bound", [2.0, np.inf])
def test_actions_agree_within_a_percent_of_their_range_bounded_or_not(bound: float) -> None:
    low, high = np.full(2, -bound, np.float32), np.full(2, bound, np.float32)
    layer = Dense("out", ("observation",), np.eye(2, dtype=np.float32), np.zeros(2, np.float32))
    policy = Policy(observation_shape=(2,), ops=(layer,), head=ActionHead("clip", low=low, high=high))
    exact = np.array([[-2.0, -2.0], [2.0, 2.0], [0.0, 0.0], [1.0, -1.0]], np.float32)
    assert fidelity(policy, exact, exact + np.float32(0.039))["agreement"] == 1.0
    assert fidelity(policy, exact, exact + np.float32([0.039, 0.041]))["agreement"] == 0.0
    assert fidelity(policy, exact, -exact)["agreement"] == 0.25


def test_each_precision_is_played_until_its_verdict_and_fp32_as_far_as_the_farthest() -> None:
    asked: list[tuple[int, int, int]] = []

    def play(loss: float, policy: int):
        def episodes(episodes: int, first: int = 0) -> Evaluation:
            asked.append((policy, first, episodes))
            returns = np.full(episodes, 100.0 - loss)
            about = {"env_id": "E", "engine": "e", "measured": True, "stochastic": False, "seed": 0}
            counts = {"lengths": returns, "seeds": first + np.arange(episodes), "wall_s": 1.0, "engine_s": 1.0}
            return Evaluation(returns=returns, successes=returns > 50, **about, **counts)

        return episodes

    looks = (30, 60, 120)
    played = until_judged([play(loss, policy) for policy, loss in enumerate((0.0, 90.0, 0.0, 5.0))], looks, 5.0)
    # 60 equal episodes show that the return holds, and not that 5 points of success do
    assert [len(each.returns) for each in played] == [120, 30, 120, 120]
    assert sorted(asked) == sorted(
        [
            *((policy, 0, 30) for policy in range(4)),
            *((policy, 30, 30) for policy in (0, 2, 3)),
            *((policy, 60, 60) for policy in (0, 2, 3)),
        ]
    )
    assert played[0].seeds.tolist() == list(range(120))
    # 90 less is no success: all that fp32 wins of the 30 episodes that both were played
    assert [each.success.point for each in played] == [1.0, 0.0, 1.0, 1.0]
    pairs = [successes_of(played[0], each) for each in played]
    assert [pair and drop_interval(*pair).point for pair in pairs] == [None, 1.0, 0.0, 0.0]
    none = replace(played[0], successes=None)
    assert (played[0].then(none).success.point, none.then(none).success) == (0.5, None)
    row = judged(played[2].returns[:60], played[0].returns[:60], 5.0, 0, looks)
    assert (row["episodes"], row["max_episodes"], row["verdict"]) == (60, 120, "non-inferior")
    assert judged(played[2].returns[:60], played[0].returns[:60], 5.0, 0)["max_episodes"] is None
    row = judged(played[2].returns[:60], played[0].returns[:60], 5.0, 0, looks, (pairs[2][0][:60], pairs[2][1][:60]))
    assert (row["verdict"], row["verdict_return"], row["verdict_success"]) == ("undecided", "non-inferior", "undecided")
