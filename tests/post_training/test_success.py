"""Successes in `quarl.ptq`: an agent whose return holds while its success falls, known by hand."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import gymnasium
import numpy as np
import pytest

import quarl
from quarl import judging
from quarl.evaluation import Evaluation
from quarl.policy.graph import ActionHead, Policy
from quarl.policy.operators import Dense
from quarl.report import schema, tables

SHARE = 0.72
"""Weight that two bits round to 1: of pairs x, y of the unit square 14 % have SHARE y < x < y, and change sides."""


class Sides(gymnasium.Env[Any, Any]):
    """One step whose reward is always 1, and a success if the action says on which side of a line the point is."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.point = self.np_random.random(2, dtype=np.float32)
        return self.point, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        x, y = self.point
        return self.point, 1.0, True, False, {"is_success": bool(action == (x > np.float32(SHARE) * y))}


class SaysOnlySuccess(Sides):
    """Its last step has `is_success` only if it is one."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *about, info = super().step(action)
        return (*about, {name: won for name, won in info.items() if won})  # type: ignore[return-value]


def float_agent() -> quarl.Agent:
    layer = Dense("net", ("observation",), np.float32([[0, 0], [1, -SHARE]]), np.zeros(2, np.float32))
    return quarl.Agent(Policy(observation_shape=(2,), ops=(layer,), head=ActionHead("argmax")))


def table(**options: Any) -> quarl.PtqTable:
    return quarl.ptq(float_agent(), [8, 2], scheme="naive", edge_bits="same", env=Sides(), **options)


def test_the_headline_is_the_worse_verdict_of_return_and_success() -> None:
    found = table(episodes=400)
    exact, eight, two = found
    assert (exact.success, exact.drop, exact.verdict_success, exact.mean) == (1.0, None, None, 1.0)
    assert two.success == pytest.approx(0.86, abs=3 * math.sqrt(0.86 * 0.14 / 400))
    assert two.drop == pytest.approx(1 - two.success)
    assert (two.error_pct, two.verdict_return, two.verdict_success) == (0.0, "non-inferior", "inferior")
    assert (two.verdict, two.noninferior, two.success_margin) == ("inferior", False, 5.0)
    assert (eight.verdict, eight.verdict_return, eight.verdict_success) == ("non-inferior",) * 3
    shown = tables.cells(type(two), schema.fields(found.rows))
    assert "inferior (return non-inferior, success inferior)" in shown.rows[2]
    assert "non-inferior (return and success)" in shown.rows[1]
    assert "success margin 5 points" in shown.caption
    assert found.verdicts == [
        "int8 with scheme naive is non-inferior to fp32 within 5 % of return and 5 points of success.",
        "int2 with scheme naive is inferior to fp32 by more than 5 % of return or 5 points of success.",
    ]
    assert table(episodes=400, success_margin=30)[2].verdict == "non-inferior"


def test_too_few_episodes_for_a_verdict_on_success_are_named_in_a_line() -> None:
    found = table(episodes=72)
    assert (found[1].verdict_return, found[1].verdict) == ("non-inferior", "undecided")
    line = "int8: 72 episodes cannot show that it loses fewer than 5 points of success"
    assert f"{line}; even without a difference it takes 73." in found.verdicts


def test_interim_analyses_go_on_until_success_is_decided_too() -> None:
    exact, eight, two = table(episodes="auto")
    # 60 episodes decide on the return, whose differences are all 0
    assert (eight.verdict, two.verdict) == ("non-inferior", "inferior")
    assert exact.episodes == max(eight.episodes, two.episodes)
    assert min(eight.episodes, two.episodes) > 60


def test_a_comparison_shows_both_verdicts_and_names_both_margins() -> None:
    agent = float_agent()
    arms = {"base": agent, "fp32": agent, "two": agent.quantize("int2", scheme="naive")}
    found = quarl.compare(arms, episodes=400, env=Sides())
    assert (found[2].verdict_return, found[2].verdict_success) == ("non-inferior", "inferior")
    shown = tables.cells(type(found[2]), schema.fields(found.rows))
    assert "non-inferior (return and success)" in shown.rows[1]
    assert "inferior (return non-inferior, success inferior)" in shown.rows[2]
    assert found.verdicts == [
        "Non-inferior to base within 5 % of return and 5 points of success: fp32.",
        "Inferior to base by more than 5 % of return or 5 points of success: two.",
    ]
    few = quarl.compare({"base": agent, "fp32": agent}, episodes=72, env=Sides()).verdicts
    assert few == [
        "fp32: 72 episodes cannot show that it loses fewer than 5 points of success; even without a difference it "
        "takes 73."
    ]


def test_an_episode_without_a_report_of_success_counts_as_failed_and_a_line_says_so(capsys: Any) -> None:
    asked: Any = {"scheme": "naive", "edge_bits": "same", "episodes": 100}
    exact, two = quarl.ptq(float_agent(), [2], env=SaysOnlySuccess(), **asked)
    plain = quarl.ptq(float_agent(), [2], env=Sides(), **asked)[1]
    assert exact.success == 1.0
    assert two.success == plain.success < 1
    assert (two.verdict, two.successes) == (plain.verdict, plain.successes)
    won = sum(two.successes or ())
    assert f"reports is_success in {won} of 100 episodes: the others count as failed" in capsys.readouterr().err


def test_an_agent_without_any_report_of_success_fails_where_another_has_one() -> None:
    reports = Evaluation(**dict.fromkeys(field.name for field in fields(Evaluation)))
    silent = replace(reports, returns=np.ones(4), lengths=np.ones(4), seeds=np.ones(4), wall_s=0.0, engine_s=0.0)
    reports = replace(silent, successes=np.array([True, True, False, True]))
    fp32, q = judging.successes_of(reports, silent) or (None, None)
    assert (fp32.tolist(), q.tolist()) == ([True, True, False, True], [False] * 4)
    assert silent.then(reports).successes.tolist() == [False] * 4 + [True, True, False, True]
    assert silent.then(silent).successes is None
