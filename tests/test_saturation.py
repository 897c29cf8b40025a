"""Saturation: the ends of grids that count, steps outside the calibrated box, and their shares of episodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

import contracts
import networks
from quarl import saturation
from quarl.calibration import quantize
from quarl.cli import main
from quarl.engines import reference
from quarl.envs.rollout import Episode
from quarl.evaluation import evaluate
from quarl.policy import artifact
from quarl.policy.graph import ActivationGrid, QuantizedPolicy
from quarl.quant.affine import quantize as codes_of
from quarl.quant.spec import QuantSpec
from quarl.saturation import ends, outside, saturated, shares, thinned


def static(policy, x=None) -> QuantizedPolicy:
    """Return the policy in static int8."""
    x = networks.observations(policy, 40) if x is None else x
    return quantize(policy, QuantSpec.parse("int8", mode="static"), x)


@pytest.mark.parametrize(
    ("name", "value", "below"),
    [("relu", "net.0", 1), ("dueling", "norm.relu", 1), ("residual", "sum", 0), ("sliced", "joined.equalized", 0)],
)
def test_ends_before_and_behind_a_relu_count_only_above(name, value, below):
    policy = static(networks.EVERY[name]())
    low, high = policy.grids[value].steps
    assert ends(policy)[value] == (low - below, high)


@pytest.mark.parametrize(
    ("function", "scale", "zero", "lowest", "highest"),
    [
        ("tanh", 2 / 128, 0, -129, 128),  # tanh(2) = 0.964: 1.8 % of the range is left
        ("tanh", 1.9 / 128, 0, -128, 127),  # 2.2 %
        ("tanh", 4 / 256, 64, -193, 63),  # up to tanh(0.98)
        ("sigmoid", 4 / 128, 0, -129, 128),  # 1 / (1 + exp(4)) = 1.8 %
        ("sigmoid", 3.8 / 128, 0, -128, 127),
        ("leaky_relu", 4 / 128, 0, -128, 127),
    ],
)
def test_ends_before_functions_count_where_these_still_change(function, scale, zero, lowest, highest):
    policy = static(networks.dense([5, 16, 3], function))
    policy = replace(policy, grids=policy.grids | {"net.0": ActivationGrid(scale=scale, zero_point=zero)})
    assert ends(policy)["net.0"] == (lowest, highest)
    assert f"net.0.{function}" in policy.grids
    assert f"net.0.{function}" not in ends(policy)


def test_ends_of_bytes_do_not_count():
    assert list(ends(static(networks.convolutional()))) == ["conv.0", "conv.1", "net.0"]


@pytest.mark.parametrize("name", ["relu", "tanh-normalized", "dueling", "residual", "sliced", "padded"])
def test_saturated_finds_the_rows_with_a_code_at_an_end(name):
    policy = networks.EVERY[name]()
    x = networks.observations(policy, 150)
    policy = static(policy, x[:20])
    x = x if x.dtype == np.uint8 else x * np.float32(np.linspace(0, 6, 150)).reshape(-1, *(1,) * (x.ndim - 1))
    values, expected = reference.load(policy, 150).trace(x), np.zeros(150, bool)
    for each, (low, high) in ends(policy).items():
        grid = policy.grids[each]
        for row, numbers in enumerate(codes_of(values[each], grid.qparams)):
            steps = [int(code) - grid.zero_point for code in numbers.flat]
            expected[row] |= min(steps) <= low or max(steps) >= high
    np.testing.assert_array_equal(saturated(policy, x), expected)
    assert 0 < expected.sum() < 150


def test_outside_compares_each_number_with_its_own_ends():
    policy = replace(static(networks.dense([2, 4, 2])), box=(np.float32([-1, 0]), np.float32([1, 0])))
    rows = np.float32([[-1, 0], [1, -0.0], [0, 1e-30], [-1.0000001, 0], [np.nan, 0], [2, 2]])
    assert outside(policy, rows).tolist() == [False, False, True, True, False, True]


def episode(index: int, x, length: int) -> Episode:
    about = {"terminated": True, "success": None, "last_observation": x[-1], "observations": x}
    return Episode(index=index, seed=0, total=0.0, length=length, **about)


def test_shares_weigh_episodes_by_their_steps(monkeypatch):
    monkeypatch.setitem(saturation.MOST, "float32", 8)
    x = np.zeros((100, 2), np.float32)
    policy = replace(static(networks.dense([2, 4, 2]), x + np.float32(1)), box=(x[0], x[0]))
    seen = [thinned(episode(1, x[:25] + np.float32(1e9), 200), 2), thinned(episode(0, x, 800), 2)]
    rows = thinned(episode(0, np.arange(100, dtype=np.float32), 800), 2).observations
    assert rows.tolist() == [12, 37, 62, 87]  # the middles of four parts
    assert thinned(episode(0, rows[:3], 20), 2).observations.tolist() == [12, 37, 62]
    assert shares(policy, seen) == {"saturated": 0.2, "outside": 0.2}
    assert shares(replace(policy, box=None), seen) == {"saturated": 0.2, "outside": None}


def test_eval_reports_the_shares_of_static_policies(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(saturation, "EVERY", {"float32": 1})
    x = networks.observations(networks.cartpole(), 40) / 20
    policy, seen = static(networks.cartpole(), x), []
    evaluate(policy, episodes=3, record=1, progress=lambda each: seen.append(each.observations))
    met = np.concatenate(seen)
    each_of = saturated(policy, met).mean(), outside(policy, met).mean()
    assert 0 < min(each_of) <= max(each_of) < 1
    for each in (policy, replace(policy, box=None), quantize(networks.cartpole(), QuantSpec.parse("int8"), x)):
        artifact.write(each, tmp_path / "policy.quarl")
        words = ["eval", str(tmp_path / "policy.quarl"), "--episodes", "3", "--json", str(tmp_path / "rows.json")]
        assert main(words) == 0
        (row,) = contracts.read(tmp_path / "rows.json")["rows"]
        wanted = each_of[0] if each.grids else None, each_of[1] if each.box else None
        assert (row["saturated"], row["outside"]) == pytest.approx(wanted)
        shown = capsys.readouterr().out
        assert ["saturated %" in shown, "outside %" in shown] == [number is not None for number in wanted]


def test_play_reports_the_shares_of_each_episode(tmp_path, monkeypatch):
    monkeypatch.setattr(CartPoleEnv, "render", lambda self: np.zeros((2, 2, 3), np.uint8))
    monkeypatch.chdir(tmp_path)
    policy = static(networks.cartpole(), 100 * networks.observations(networks.cartpole(), 40))
    artifact.write(replace(policy, box=(np.zeros(4, np.float32), np.zeros(4, np.float32))), "p.quarl")
    words = ["play", "p.quarl", "--episodes", "2", "--max-episode-steps", "9", "--record", "a.gif"]
    assert main([*words, "--json", "rows.json"]) == 0
    rows = contracts.read("rows.json")["rows"]
    assert [(row["outside"], row["saturated"]) for row in rows] == [(1.0, 0.0)] * 2
