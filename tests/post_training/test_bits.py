"""Bits of each layer, chosen by return: the path of assignments, and what validation and fresh episodes make of it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import networks
import quarl
from quarl.cli import parse
from quarl.envs.environment import Environment, home_of
from quarl.latency import timing
from quarl.policy import artifact
from quarl.policy.graph import ActionHead, Policy, Provenance
from quarl.policy.operators import Dense
from quarl.post_training import layer_bits, measure
from quarl.report import schema, tables
from quarl.specs import PtqSpec
from refusals import refused

pytestmark = pytest.mark.slow

NAMES = st.sampled_from(["first", "hidden", "last"])
ERRORS = st.dictionaries(st.sampled_from([7, 6, 5, 4, 3, 2]), st.floats(0, 1)).map(
    lambda narrower: {8: 0.1, **narrower}
)
CARTPOLE = Provenance(algo="dqn", env_id="CartPole-v1", origin="module")


@given(errors=st.dictionaries(NAMES, ERRORS, min_size=1), sizes=st.integers(1, 1000))
def test_each_step_of_the_path_takes_bytes_from_one_layer_until_all_are_at_their_narrowest(errors, sizes):
    weights = {name: sizes * (place + 1) for place, name in enumerate(errors)}
    points = layer_bits.path(errors, weights)
    assert points[0] == dict.fromkeys(errors, 8)
    assert points[-1] == {name: min(widths) for name, widths in errors.items()}
    totals = [sum(point[name] * weights[name] for name in point) for point in points]
    assert totals == sorted(set(totals), reverse=True)
    for before, after in pairwise(points):
        assert sum(before[name] != after[name] for name in before) == 1


def test_the_bits_that_cost_least_go_first():
    # a byte of "last" at 4 bits costs 1/40, one of "first" 1/400 at 4 and (5 - 1)/200 more from there on
    errors = {"first": {8: 0.0, 4: 1.0, 2: 5.0}, "last": {8: 0.0, 4: 1.0, 2: 1.1}}
    path = [tuple(point.values()) for point in layer_bits.path(errors, {"first": 100, "last": 10})]
    assert path == [(8, 8), (4, 8), (4, 2), (2, 2)]


def cart_pole() -> tuple[Policy, Environment]:
    """A controller that balances CartPole by the difference of two sums, in which what counts is the smaller part; the
    weights of its last layer are 1 or -1, which four levels hold exactly."""
    state, common = np.float32([0.04, 0.21, 1.7, 0.63]), np.float32([9, -9, 9, -9])
    first = Dense("first", ("observation",), np.stack([common + state, common - state]), np.zeros(2, np.float32))
    last = Dense("last", ("first",), np.float32([[-1, 1], [1, -1]]), np.zeros(2, np.float32))
    policy = Policy(observation_shape=(4,), ops=(first, last), head=ActionHead("argmax"), provenance=CARTPOLE)
    return policy, home_of(policy)


def config(**options) -> PtqSpec:
    return PtqSpec(auto=True, episodes=20, **options)


@pytest.fixture(scope="module")
def chosen():
    return layer_bits.choose(*cart_pole(), config())


def test_a_layer_that_actions_depend_on_keeps_its_bits_and_one_that_is_held_exactly_has_two(chosen):
    cells, tried, said = chosen
    assert [cell.row.precision for cell in cells] == ["fp32", "int8", "mixed"]
    mixed = cells[2].row
    assert mixed.bits_of_layers == {"first": 5, "last": 2}
    assert mixed.bits_mean == 4.0
    assert (mixed.mean, mixed.margin_pct, mixed.verdict) == (500, 2.0, "non-inferior")
    fewer = next(row for row in tried if row.bits_of_layers == {"first": 2, "last": 2})
    assert (fewer.seeds, fewer.accepted) == ("validation", False)
    assert fewer.mean < 250
    assert (tried[-1].seeds, tried[-1].bits_of_layers, tried[-1].accepted) == ("evaluation", mixed.bits_of_layers, True)
    assert said[0].startswith("mixed, 4.00 bits a weight and ")
    assert "attempt 1, 20 fresh episodes exclude a loss of 2 %. A larger one passes in at most 2.5 % of" in said[0]
    assert said[1].startswith("first has 5 bits; its action error by bits: ")
    assert said[-1] == "Edges, the first and last layers, hold 100 % of the weights: each bit less saves 1 B."


def test_what_fresh_episodes_reject_gives_way_to_wider_bits_and_other_episodes_and_at_last_to_int8(monkeypatch):
    seeds, measure_all = [], measure.measure

    def rejecting(policy, environment, specs, config, *others):
        seeds.append(config.seed)
        cells = measure_all(policy, environment, specs, config, *others)
        row = replace(cells[-1].row, noninferior=cells[-1].row.precision == "int8")
        return [*cells[:-1], replace(cells[-1], row=row)]

    monkeypatch.setattr(measure, "measure", rejecting)
    cells, tried, said = layer_bits.choose(*cart_pole(), config(seed=7))
    assert [cell.row.precision for cell in cells] == ["fp32", "int8"]
    fresh = [row for row in tried if row.seeds == "evaluation"]
    assert seeds == [7 + attempt for attempt in range(len(fresh))]
    assert [row.accepted for row in fresh] == [False] * (len(fresh) - 1) + [True]
    assert [row.bits_mean for row in fresh] == sorted(row.bits_mean for row in fresh)
    narrower = max((row for row in tried if row.bits_mean < 8), key=lambda row: row.bits_mean)
    layers = " ".join(map(str, narrower.bits_of_layers.values()))
    assert said[1].startswith(
        f"int8 stays, because no assignment of fewer bits was accepted: the nearest, {layers}, differs"
    )
    passes = f"A larger one passes in at most {2.5 * len(fresh):g} % of such searches."
    assert f"in attempt {len(fresh)}, 20 fresh episodes exclude a loss of 2 %. {passes}" in said[0]


def test_latency_is_made_small_with_the_widths_that_have_kernels_and_by_what_was_measured(monkeypatch):
    def timed(loaded, _observations):  # 8 in both layers, 4 in one, which is slower and no choice, and 4 in both
        return [timing.Timing(us_p50=us, us_p99=us) for us in (9.0, 12.0, 7.0)[: len(loaded)]]

    monkeypatch.setattr(layer_bits, "time_engines", timed)
    _, tried, said = layer_bits.choose(*cart_pole(), config(minimize="latency"))
    assert "was chosen from 2 assignments" in said[0]
    assert {width for row in tried for width in row.bits_of_layers.values()} <= {8, 4}


def test_a_loss_that_the_episodes_cannot_show_is_refused_with_how_many_could(tmp_path, capsys):
    head = ActionHead("tanh", low=np.float32([-2]), high=np.float32([2]))
    policy = replace(networks.dense([3, 32, 1]), head=head, provenance=Provenance(env_id="Pendulum-v1"))
    artifact.write(policy, tmp_path / "p.safetensors")
    words = ["--auto", "--max-loss", "0.0001%", "--episodes", "10", "--max-episodes", "20"]
    line = refused(capsys, "ptq", tmp_path / "p.safetensors", *words, "-o", tmp_path / "out")
    assert line.startswith(
        "quarl: --max-loss 0.0001% cannot be shown even for int8: its return differs from fp32's by "
    )
    assert int(line.partition("and about ")[2].partition(" would show")[0].replace(",", "")) > 20
    assert not (tmp_path / "out").exists()


def test_the_verb_leaves_a_policy_with_the_bits_that_its_row_says(tmp_path, chosen):
    artifact.write(cart_pole()[0], tmp_path / "p.safetensors")
    options = ["--auto", "--max-loss", "2%", "--episodes", "20", "-o", "out", "--json", "rows.json"]
    words = ["-m", "quarl", "ptq", "p.safetensors", *options]
    ran = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
    document = json.loads((tmp_path / "rows.json").read_text())
    mixed = document["rows"][-1]
    assert [row["precision"] for row in document["rows"]] == ["fp32", "int8", "mixed"]
    policy = quarl.load(tmp_path / "out" / "mixed.safetensors").policy
    assert policy.bits_of_layers == mixed["bits_of_layers"] == dict(policy.spec.layer_bits)
    tried = json.loads((tmp_path / "out" / "assignments.json").read_text())
    assert tried["command"] == "ptq assignments"
    assert tried["rows"][-1]["bits_of_layers"] == mixed["bits_of_layers"]
    assert "5 2  ptq     evaluation" in ran.stdout
    assert chosen[2][0] in ran.stdout
    assert "mixed with scheme default are non-inferior to fp32 within 2 %." in ran.stdout
    page = (tmp_path / "out" / "report.html").read_text()
    assert "in the order in which they were tried" in page
    assert "--auto" in page
    (repeat,) = [line for line in ran.stdout.splitlines() if line.startswith("repeat: ")]
    assert parse(repeat.split()[2:]).loss_pct == 2.0


def test_python_has_the_same_choice(chosen):
    table = quarl.ptq(quarl.Agent(cart_pole()[0]), auto=True, max_loss=2, episodes=20)
    assert [row.precision for row in table] == ["fp32", "int8", "mixed"]
    assert table[2].bits_of_layers == chosen[0][2].row.bits_of_layers
    assert repr(table.agents["mixed"]).startswith("Agent(dqn CartPole-v1, mixed dynamic, ")


def test_the_table_calls_the_start_of_the_search_so_and_not_rejected(chosen):
    first = schema.fields(chosen[1])[0]
    assert (first["seeds"], first["bits_of_layers"]) == ("validation", {"first": 8, "last": 8})
    others = ({"accepted": True}, {"bits_mean": 7.5}, {"seeds": "evaluation"})
    shown = tables.cells(layer_bits.AssignmentRow, [{**first, "accepted": False, **more} for more in ({}, *others)])
    assert [cells[-1] for cells in shown.rows] == ["start", "yes", "no", "no"]
