"""States off the path: in golden vectors, in the note of an export, and in the report of `quarl verify --envelope`."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from test_contract import cartpole
from test_export import agent

from quarl.calibration import quantize
from quarl.cli import main
from quarl.envs import home_of
from quarl.errors import QuarlError
from quarl.evaluation import record
from quarl.export import export, golden, quantised, states
from quarl.export.verification import verify
from quarl.off_path import off_path
from quarl.policy import artifact
from quarl.policy.graph import ActionHead, Policy, Provenance
from quarl.policy.operators import mlp
from quarl.quant.spec import EXACT, QuantSpec

LAYERS = [("a", np.float32([[1, 0], [-1, 0]]), np.zeros(2)), ("b", np.float32([[1, -1]]), np.zeros(1))]


def clipped():
    """The first of two numbers between -1 and 1, in float32, and in static int8 on grids of -0.1 to 0.1."""
    head, home = ActionHead("clip", np.full(1, -1, np.float32), np.ones(1, np.float32)), "MountainCarContinuous-v0"
    ops = tuple(mlp(LAYERS, "relu"))
    policy = Policy(observation_shape=(2,), ops=ops, head=head, provenance=Provenance(env_id=home))
    spec = QuantSpec.parse("int8", scheme="per-channel", mode="static")
    met = np.float32([np.linspace(-0.1, 0.1, 21), np.linspace(-0.1, 0.1, 21)]).T
    return quantize(policy, EXACT), quantize(policy, spec, met)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of CartPole's policy, whose agent lies beside it."""
    root = tmp_path_factory.mktemp("states")
    artifact.write(cartpole(), root / "agent.quarl")
    export(quantised(cartpole(), "tflite"), "tflite", root / "out", source=root / "agent.quarl")
    return root / "out"


TWO, PAIR = ActionHead("argmax"), ActionHead("argmax", segments=(2, 3))
WIDE = ActionHead("clip", np.full(2, -4, np.float32), np.full(2, 4, np.float32))


@pytest.mark.parametrize(
    ("head", "exact", "outputs", "expected"),
    [
        (TWO, [[1, 0], [3, 0], [5, 0], [2, 0]], [[0, 1], [0, 2], [5, 0], [2, 0]], (50, 3 / 2.5)),
        (TWO, [[1, 0], [3, 0]], [[9, 0], [9, 0]], (0, 0)),
        (ActionHead("binary"), [[1, 5], [3, 5]], [[-1, 5], [3, 5]], (50, 1 / 4)),
        (PAIR, [[4, 0, 1, 2, 3], [1, 0, 9, 0, 7]], [[4, 0, 3, 2, 1], [0, 1, 9, 0, 7]], (100, 1 / 1.5)),
        (WIDE, [[1, 0], [5, 0]], [[1, 0], [4, 2]], (12.5, 25)),
    ],
)
def test_errors_are_those_worked_out_by_hand(head, exact, outputs, expected):
    assert states.error_of(head, np.float32(exact), np.float32(outputs)) == pytest.approx(expected)


def test_a_static_policy_saturates_where_its_dynamic_mode_does_not():
    errors = states.compared(*clipped()[::-1], np.float32([[0.1, 0], [-0.5, 0], [0.5, 0]]))
    assert errors["static_largest"] == pytest.approx(20, abs=0.2)
    assert errors["static"] == pytest.approx(20 * np.sqrt(2 / 3), abs=0.2)
    assert errors["dynamic_largest"] < 0.3


def test_golden_vectors_hold_states_off_the_path_before_the_edges(folder):
    policy, vectors = artifact.read(folder / "policy.quarl"), golden.read((folder / "golden.npz").read_bytes(), "file")
    assert (len(vectors.given), vectors.off_path, vectors.edges) == (256 + 64 + 9, 64, 9)
    met = off_path(policy, home_of(policy), "perturbed", count=golden.NUM_RECORDED, min_episodes=3)
    np.testing.assert_array_equal(vectors.observations[256 : 256 + 32], met[::8])


def test_recorded_observations_are_moved_beyond_what_was_calibrated():
    policy, x = agent()
    met, beyond = states.golden_observations(policy, None, None, x, 0, "f32-rne")
    assert met is x
    low, high = policy.box
    assert ((beyond < low) | (beyond > high)).any(axis=1).mean() > 0.2
    with pytest.raises(QuarlError, match="does not name the environment"):
        states.golden_observations(policy, None, None, None, 0, "f32-rne")


def test_an_export_notes_that_static_mode_is_worse_off_the_path(monkeypatch, capsys):
    exact, static = clipped()
    for name in ("off_path", "rollout"):
        monkeypatch.setattr(states, name, lambda *_, **__: np.float32([[-1, 0], [0.05, 0]]))
    for compared_with, noted in ((exact, True), (None, False), (static, False)):
        states.golden_observations(static, compared_with, home_of(exact), None, 0, "f32-rne")
        line = r"the path, the largest error of static mode is 45, that of dynamic mode 0(\.\d+)? % of the range: see"
        assert bool(re.search(line, capsys.readouterr().err)) is noted


def test_the_report_compares_each_kind_of_state_with_fp32_and_dynamic_mode(folder, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(states, "NUM_STATES", 60)
    words = ["verify", str(folder), "--envelope", "--runtime", "litert", "--episodes", "0"]
    assert main([*words, "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    found = {row["check"]: row for row in rows if row["static"] is not None}
    assert [*found] == [f"against fp32: {kind}" for kind in ("path", "perturbed", "starts", "visited*1.5")]
    assert {(row["count"], row["result"]) for row in found.values()} == {(60, "reported")}
    assert "left out: no box: its observations need 8 numbers or fewer, and bounds for each" in capsys.readouterr().out
    exact, policy = quantize(cartpole(), EXACT), artifact.read(folder / "policy.quarl")
    met = record(exact, "fidelity", num=60, environment=home_of(exact))
    path = found["against fp32: path"]
    assert {name: path[name] for name in path if "static" in name or "dynamic" in name} == states.compared(
        policy, exact, met
    )


def test_without_an_environment_only_recorded_states_are_moved_away(tmp_path):
    policy = replace(cartpole(), provenance=Provenance())
    artifact.write(policy, tmp_path / "agent.quarl")
    static, x = agent(policy=policy)
    export(static, "tflite", tmp_path / "out", observations=x, source=tmp_path / "agent.quarl")
    done = list(verify(tmp_path / "out", ["litert"], episodes=0, envelope=True))
    assert [each.check for each in done if "fp32" in getattr(each, "check", "")] == [
        "against fp32: path", "against fp32: visited*1.5"
    ]  # fmt: skip
    assert (
        "left out, because they need an environment: perturbed, starts, box (only recorded states are moved away)"
        in done
    )


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_the_report_refuses_what_has_no_grids_or_no_float_agent(tmp_path, capsys, mode):
    policy, x = agent(mode=mode)
    artifact.write(policy, tmp_path / "agent.quarl")
    export(policy, "tflite", tmp_path / "out", observations=x, source=tmp_path / "agent.quarl")
    for path, line in (
        ("out", f"not int8 {mode} with int8 {mode}: export"),
        ("out/policy.tflite", "requires the folder"),
    ):
        assert main(["verify", str(tmp_path / path), "--envelope", "--episodes", "0"]) == 2
        assert line in capsys.readouterr().err
