"""`quarl.ptq`: the rows of the verb of that name, as an object in Python."""

from __future__ import annotations

import dataclasses
import html
import json
import pickle
import re
import sys

import pytest

import networks
import quarl
from quarl.cli import main
from quarl.latency.timing import Timing
from quarl.post_training.measure import PtqRow
from quarl.post_training.table import PtqTable


@pytest.fixture(scope="module")
def table(agents) -> PtqTable:
    """The DQN of CartPole in fp32, 8 and 2 bits, 20 episodes each; latencies are those of the machine."""
    return quarl.ptq(agents / "sb3" / "dqn" / "CartPole-v1_1", [8, "w2a8"], episodes=20)


@pytest.mark.slow
def test_the_table_is_the_one_that_the_verb_prints_and_its_rows_are_those_of_the_file(
    agents, tmp_path, monkeypatch, capsys
):
    clock = "quarl.post_training.measure.time_engines"
    monkeypatch.setattr(clock, lambda loaded, *_: [Timing(us_p50=2.0, us_p99=3.0) for _ in loaded])
    model = str(agents / "sb3" / "ppo" / "CartPole-v1_1")
    table = quarl.ptq(
        model, [8, 3], episodes=12, seed=4, mode="static", margin=10, scheme="naive", max_episode_steps=90
    )
    words = "--bits 8 3 --episodes 12 --seed 4 --mode static --margin 10 --scheme naive --max-episode-steps 90"
    assert main(["ptq", model, *words.split(), "-o", str(tmp_path / "out")]) == 0
    printed = "\n".join(map(str.rstrip, capsys.readouterr().out.splitlines()))
    assert repr(table) in printed
    assert "\n".join(table.verdicts) in printed
    rows = json.loads((tmp_path / "out" / "rows.json").read_text())["rows"]
    assert [row["precision"] for row in rows] == ["fp32", "int8", "int3"]
    assert table.to_pandas().to_dict("records") == rows
    assert [*table] == [PtqRow(**row) for row in rows]


@pytest.mark.slow
def test_a_table_is_a_sequence_of_rows_with_the_agents_that_they_measure(table, tmp_path):
    assert (len(table), [row.precision for row in table], table[-1].precision) == (
        3,
        ["fp32", "int8", "int2e8"],
        "int2e8",
    )
    assert [each.policy.spec.precision for each in table.agents.values()] == ["fp32", "int8", "int2e8"]
    assert table.agents["int2e8"].evaluate(episodes=20).returns.tolist() == table[2].returns
    assert table.verdicts[0] == "int8 with scheme default is non-inferior to fp32 within 5 %."
    assert "int2e8 with scheme default is inferior to fp32 by more than 5 %; it loses 4" in table.verdicts[1]
    assert "mean=500.0" in repr(table[0])
    assert "returns" not in repr(table[0])
    assert repr(pickle.loads(pickle.dumps(table))) == repr(table)


def test_nothing_is_written_and_no_bar_is_drawn_where_there_is_no_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    quarl.ptq(quarl.Agent(networks.dense([4, 8, 2])), 8, episodes=1, env_id="CartPole-v1", max_episode_steps=5)
    assert (list(tmp_path.iterdir()), capsys.readouterr()) == ([], ("", ""))


def test_pandas_is_only_needed_where_it_is_asked_for(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert "int8" in repr(table)
    with pytest.raises(quarl.QuarlError, match=r"^to_pandas needs pandas: pip install 'quarl\[report\]'$"):
        table.to_pandas()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"bits": [8]}, "ptq has no keyword 'bits'; did you mean 'precisions'?"),
        ({"env": "CartPole-v1"}, "env is a str, not a gymnasium.Env; an id is given as env_id"),
        ({"episodes": 0}, "episodes must be at least 1, got 0"),
        ({"episodes": "5"}, "episodes is '5'; use a whole number"),
        ({"seed": -1}, r"seed must be between 0 and 2\*\*32 - 1, got -1"),
        ({"margin": 200}, "margin is a percentage between 0 and 100, got 200"),
        ({"scheme": "best"}, "unknown scheme 'best'; choose one of default, mid-tread, naive"),
        ({"scheme": "pow2"}, "or your own as my_module:my_scheme"),
        ({"edge_bits": "wide"}, r"edge_bits is 'wide'; use 2\.\.16, or same"),
        ({"precisions": []}, "precisions requires at least one value, got none"),
    ],
)
def test_a_careless_table_is_told_the_right_keyword_before_anything_is_played(options, line, monkeypatch):
    monkeypatch.setattr("quarl.post_training.measure.record", None)
    with pytest.raises(quarl.QuarlError, match=line):
        quarl.ptq(quarl.Agent(networks.dense([4, 2])), **options)


def test_only_a_float_policy_is_quantised():
    agent = quarl.Agent(networks.dense([4, 2])).quantize("fp16")
    with pytest.raises(quarl.QuarlError, match="this policy is fp16 already; measure the fp32 one"):
        quarl.ptq(agent)


def test_a_notebook_shows_the_same_cells_in_its_own_colours_and_no_name_becomes_markup(table):
    shown = table._repr_html_()
    cells = [html.unescape(cell) for cell in re.findall(r"<td [^>]*>([^<]+)</td>", shown)]
    printed = [re.split(r" {2,}", line) for line in repr(table).splitlines() if line.startswith((" fp32", " int"))]
    assert cells == [cell.strip() for line in printed for cell in line if cell.strip()]
    assert "<strong>dqn on CartPole-v1</strong>" in shown
    assert set(re.findall(r'style="([^"]*)"', shown)) == {
        "color: inherit",
        "caption-side: bottom; text-align: left",
        "text-align: left",
        "text-align: right",
    }
    renamed = dataclasses.replace(table, title="<script>alert(1)</script>")
    assert "<script" not in renamed._repr_html_()
