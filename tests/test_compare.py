"""Agents against a baseline: known answers, hand numbers, refusals, and error rates of verdicts on measured returns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from scipy.stats import binom

import contracts
import quarl
from quarl import qat, stats
from quarl.cli import main
from quarl.errors import QuarlError
from quarl.judging import fewest, looks, sequential_verdict, verdicts
from refusals import refused

ROOT = Path(__file__).resolve().parents[1]
FLOAT = ROOT / "src/quarl/commands/CartPole-v1.quarl"
GAINS = [0.04, 0.21, 1.7, 0.63]
"""A linear controller of CartPole. It balances in 8 bits; a naive 2 bits leave only the angle, and it falls."""
SHORT = {"episodes": 80, "max_episode_steps": 120}


@pytest.fixture(scope="module")
def agent() -> quarl.Agent:
    layer = torch.nn.Linear(4, 2, bias=False)
    layer.weight.data = torch.tensor([[-gain for gain in GAINS], GAINS])
    made = quarl.from_module(layer, observation=(4,), head=gymnasium.spaces.Discrete(2))
    return placed(made, env_id="CartPole-v1")


@pytest.fixture(scope="module")
def states() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32) * [0.5, 0.5, 0.1, 0.5]


def placed(agent, **changes):
    """The agent as it would be if its file named another environment."""
    return quarl.Agent(replace(agent.policy, provenance=replace(agent.policy.provenance, **changes)))


def test_equal_agents_are_non_inferior_and_a_broken_one_is_inferior(agent):
    arms = {"broken": agent.quantize(2, scheme="naive"), "again": agent, "fp32": agent}
    table = quarl.compare(arms, "fp32", **SHORT)
    base, broken, again = table
    assert (base.verdict, base.difference, base.improvement) == (None, None, None)
    assert (again.verdict, again.difference, again.improvement, again.differs) == ("non-inferior", 0.0, 0.5, False)
    assert again.difference_low < 0 < again.difference_high
    assert (broken.verdict, broken.differs, broken.mean < 100) == ("inferior", True, True)
    assert broken.returns == agent.quantize(2, scheme="naive").evaluate(**SHORT).returns.tolist()
    assert table.verdicts == ["Non-inferior to fp32 within 5 %: again.", "Inferior to fp32 by more than 5 %: broken."]
    assert "2 agents against fp32 on CartPole-v1" in repr(table)


def test_arms_of_every_kind_play_the_same_episodes_as_alone(agent, states, tmp_path):
    small = agent.quantize("int8", mode="static", observations=states)
    small.export("tflite", tmp_path / "exported", observations=states)
    small.save(tmp_path / "int8.safetensors")
    told = {"episodes": 4, "max_episode_steps": 30, "seed": 3}
    agent.save(tmp_path / "float.quarl")
    paths = {"float": str(tmp_path / "float.quarl"), "artifact": tmp_path / "int8.safetensors"}
    paths |= {"folder": tmp_path / "exported", "file": tmp_path / "exported/policy.tflite", "live": small}
    table = quarl.compare(paths, **told)
    assert table[0].returns == agent.evaluate(**told).returns.tolist()
    alone = small.evaluate(**told).returns.tolist()
    assert [row.returns for row in table][1:] == [alone] * 4
    assert table[2].bytes == (tmp_path / "exported/policy.tflite").stat().st_size
    assert set(table.agents) == {"float", "artifact", "live"}
    assert table.verdicts == [
        "No agent can be called non-inferior with fewer than 88 episodes: 4 agents against float at a margin of 5 %."
    ]


def test_recorded_observations_compare_actions_on_the_last_tenth(agent, states):
    arms = {"fp32": agent, "again": agent, "broken": agent.quantize(2, scheme="naive")}
    base, again, broken = quarl.compare(arms, observations=states)
    assert (base.agreement, again.agreement, base.observations, base.episodes) == (1.0, 1.0, 20, 0)
    expected = agent.predict(states[-20:])[0] == arms["broken"].predict(states[-20:])[0]
    assert broken.agreement == expected.mean() < 1
    assert again.verdict is again.mean is again.returns is None
    with pytest.raises(QuarlError, match="observations replace an environment"):
        quarl.compare(arms, observations=states, env_id="CartPole-v1")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env_id": "CartPole-v0"}, "other plays CartPole-v0, the baseline fp32 CartPole-v1"),
        ({"env_kwargs": {"sutton_barto_reward": True}}, "other plays CartPole-v1, sutton_barto_reward=True, the base"),
        ({"max_episode_steps": 99}, "episodes of at most 99 steps, the baseline fp32 CartPole-v1:"),
        ({"wrappers": (("gymnasium.wrappers.ClipReward", {}),)}, "other plays CartPole-v1, ClipReward, the baseline"),
        ({"stochastic": True}, "other has sampled actions, the baseline fp32 deterministic actions"),
    ],
)
def test_environments_and_determinism_that_differ_are_refused(agent, changes, words):
    with pytest.raises(QuarlError, match="compare agents that agree") as raised:
        quarl.compare({"fp32": agent, "other": placed(agent, **changes)}, episodes=2)
    assert words in str(raised.value)


def test_an_agent_without_an_environment_plays_the_baselines(agent):
    nowhere = placed(agent, env_id="", env_kwargs={}, wrappers=(), max_episode_steps=None)
    base, other = quarl.compare({"fp32": agent, "other": nowhere}, episodes=3)
    assert base.returns == other.returns
    with pytest.raises(QuarlError, match="name one with --env"):
        quarl.compare({"fp32": nowhere, "other": agent}, episodes=3)


def test_other_action_spaces_and_unknown_names_are_refused(agent):
    head = replace(agent.policy.head, start=1)
    other = quarl.Agent(replace(agent.policy, head=head))
    with pytest.raises(QuarlError, match="other has the actions 2 discrete ones from 1, the baseline fp32 the actions"):
        quarl.compare({"fp32": agent, "other": other}, episodes=2)
    for wrong, words in ((None, "two or more"), ([agent, agent], "by name"), ({"a": agent}, "two or more")):
        with pytest.raises(QuarlError, match=words):
            quarl.compare(wrong)
    with pytest.raises(QuarlError, match=r"baseline 'fp33' is not one of fp32 and other; did you mean 'fp32'\?"):
        quarl.compare({"fp32": agent, "other": agent}, "fp33")


def test_the_command_writes_rows_and_a_figure_and_repeats_itself(agent, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, each in (("float", agent), ("broken", agent.quantize(2, scheme="naive"))):
        placed(each, max_episode_steps=120).save(f"{name}.quarl")
    words = ["compare", "float.quarl", "again=float.quarl", "broken.quarl", "--baseline", "again", "--seed", "2"]
    assert (
        main([*words, "--episodes", "auto", "--json", "rows.json", "--figure-format", "png", "pdf", "-o", "out"]) == 0
    )
    document, shown = contracts.read(tmp_path / "rows.json"), capsys.readouterr().out
    assert [row["arm"] for row in document["rows"]] == ["again", "float.quarl", "broken.quarl"]
    assert [row["episodes"] for row in document["rows"]] == [120, 120, 30]  # 74 at least, at the third analysis
    assert [row["verdict"] for row in document["rows"]] == [None, "non-inferior", "inferior"]
    assert (tmp_path / "out/comparison.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out/comparison.pdf").read_bytes().startswith(b"%PDF")
    options = "--json rows.json --figure-format png pdf --seed 2 --baseline again"
    assert f"repeat: quarl {' '.join(words[:4])} {options}" in shown
    assert rf"\texttt{{quarl {' '.join(words[:4])} " in (tmp_path / "out/tables.tex").read_text()
    assert (tmp_path / "out/returns.csv").read_text().count("\n") == 1 + 120 + 120 + 30
    assert main([*words, "--episodes", "2", "--figure-format", "svg", "-o", "out"]) == 0
    said = capsys.readouterr().out
    assert "replaced in out: comparison.json, returns.csv, tables.tex\n" in said
    assert "kept in out, of an earlier run and not of this one: comparison.pdf, comparison.png\n" in said
    (tmp_path / "out/rows.json").write_text('{"model": "again"}')
    line = "out holds results of again: choose another -o, or remove them"
    assert line in refused(capsys, *words, "--episodes", 2, "-o", "out")
    np.save("states.npy", np.zeros((50, 4), np.float32))
    assert main(["compare", "float.quarl", "broken.quarl", "--observations", "states.npy", "-o", "actions"]) == 0
    assert {path.name for path in (tmp_path / "actions").iterdir()} == {"comparison.json", "tables.tex"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([FLOAT, FLOAT], "two agents have the same name"),
        ([f"a={FLOAT}", "a=other.zip"], "two agents have the same name"),
        ([FLOAT, f"={FLOAT}"], "an agent has an empty name: give it one, as in int8=PATH"),
        ([FLOAT, "missing.zip"], "no file missing.zip"),
        ([FLOAT], "two or more agents"),
        ([f"a={FLOAT}", f"b={FLOAT}", "--episodes", 1], "--episodes must be at least 2"),
        ([f"a={FLOAT}", f"b={FLOAT}", "--episodes", "auto", "--margin", 0.5], "cannot show a loss below 0.5 %"),
        ([f"a={FLOAT}", f"b={FLOAT}", "--observations", "x.npy", "--workers", 2], "--workers requires an environment"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, "compare", *words)


def test_probability_of_improvement_by_hand():
    # (2 > 1, 2 > 1.5, 2 < 3), (4 > all three), (1 = 1, 1 < 1.5, 1 < 3): 2 + 3 + 1/2 of 9
    interval = stats.improvement_interval([1, 1.5, 3], np.array([2, 4, 1]), np.random.default_rng(0))
    assert interval.point == pytest.approx(5.5 / 9)
    assert interval.low < interval.point < interval.high
    x, y = np.random.default_rng(1).integers(0, 9, size=(2, 50)).astype(float)
    pairs = (y[:, None] > x).mean() + (y[:, None] == x).mean() / 2
    assert stats.improvement_interval(x, y, np.random.default_rng(0)).point == pytest.approx(pairs)


def test_holm_rejects_as_its_steps_by_hand():
    # 0.005 < 0.05 / 4, then 0.015 < 0.05 / 3, then 0.03 > 0.05 / 2: the last two stay, though 0.04 < 0.05
    p = (0.015, 0.04, 0.03, 0.005)
    assert stats.holm([lambda k, each=each: each <= 0.05 / k for each in p]) == [3, 2, 2, 4]
    assert stats.holm([lambda k: True] * 3) == [3, 3, 3]


def judged(returns, times, successes=None):
    """Verdicts on the arms after the first, which is their baseline."""
    played = [SimpleNamespace(returns=each, successes=None) for each in returns]
    for arm, won in zip(played, successes or (), strict=bool(successes)):
        arm.successes = won
    return verdicts(played, 5, 5, times, corrected=True)


def test_one_arm_has_the_verdict_of_a_sequential_test_and_more_arms_wider_intervals():
    rng = np.random.default_rng(3)
    base = rng.normal(100, 10, 100)
    arms = [base + rng.normal(shift, 10, 100) for shift in (0, -3, -20)]
    (alone,) = judged([base, arms[1]], (100,))
    assert alone == sequential_verdict(base, arms[1], 5, (100,))
    near, middle, far = judged([base, *arms], (100,))
    assert (near.verdict, far.verdict) == ("non-inferior", "inferior")
    # one other has gone in either direction
    assert middle.difference == sequential_verdict(base, arms[1], 5, (100,), 2).difference
    assert middle.difference.low < alone.difference.low < alone.difference.high < middle.difference.high


def test_more_arms_need_more_episodes_without_a_fall():
    # (1 - 0.05)^n below 1 / (20 arms)
    assert [fewest(5, arms) for arms in (1, 2, 4, 10)] == [60, 74, 88, 107]
    assert all(0.95 ** fewest(5, arms) < 0.05 / arms for arms in range(1, 50))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You are probably loading a DQN model")
def test_trained_and_distilled_arms_have_the_known_answers(agents):
    """PTQ, QAT and distillation of one agent, each fine at 8 and 4 bits; a naive 2 bits, which falls at once."""
    from stable_baselines3 import DQN

    path = agents / "sb3/dqn/CartPole-v1_1/CartPole-v1.zip"
    env = gymnasium.make("CartPole-v1")
    known = {"observation_space": env.observation_space, "action_space": env.action_space}
    known |= {"learning_rate": 1e-8, **dict.fromkeys(("lr_schedule", "exploration_schedule"), lambda left: 1e-8)}
    model = DQN.load(path, env=env, custom_objects=known | {"learning_starts": 100})
    qat.prepare(model, "int8")
    model.learn(600, callback=qat.QuantDelay(300))
    float_ = quarl.load(path)
    arms = {"float": float_, "ptq": float_.quantize(8, env_id="CartPole-v1"), "qat": qat.convert(model)}
    arms["distilled"] = float_.distill(4, rounds=2, env_id="CartPole-v1").agent
    arms["broken"] = float_.quantize(2, scheme="naive")
    table = quarl.compare(arms, env_id="CartPole-v1")
    found = {row.arm: row.verdict for row in table}
    assert found == {"float": None, "broken": "inferior"} | dict.fromkeys(("ptq", "qat", "distilled"), "non-inferior")


def measured() -> dict[str, dict[str, np.ndarray]]:
    """Returns in fp32 and int8 by agent, of results/ptq."""
    rows = [
        json.loads(line)
        for file in (ROOT / "results/ptq").glob("*/rows.jsonl")
        for line in file.read_text().splitlines()
    ]
    agents: dict[str, dict[str, np.ndarray]] = {}
    for row in rows:
        if row.get("scheme") == "default" and row.get("mode") == "dynamic" and row.get("returns"):
            agents.setdefault(row["name"], {})[row["precision"]] = np.array(row["returns"])
    return agents


@pytest.mark.slow
def test_several_arms_that_lose_five_points_of_success_are_rarely_called_non_inferior():
    """Their returns are those of the baseline, so only successes decide."""
    rng, wrong, runs, n = np.random.default_rng(0), 0, 1_500, 400
    returns = [np.linspace(99, 101, n)] * 4
    for _ in range(runs):
        base = rng.random(n) < 0.9
        arms = [np.where(rng.random(n) < 0.1, rng.random(n) < 0.4, base) for _ in range(3)]  # 85 % of each succeed
        wrong += any(each.noninferior for each in judged(returns, (n,), [base, *arms]))
    assert 0 < wrong <= binom.ppf(0.999, runs, 0.025)  # 6.5 % without the correction


@pytest.mark.slow
@pytest.mark.parametrize("times", [(100,), looks(400, 5, 3)], ids=["fixed", "auto"])
def test_several_arms_that_lose_the_margin_are_rarely_called_non_inferior(times):
    """Three arms with the differences that int8 had, moved to a loss of the margin: any non-inferior one is wrong."""
    rng, wrong, runs = np.random.default_rng(0), 0, 0
    for returns in measured().values():
        fp32, loss = returns["fp32"], returns["int8"] - returns["fp32"]
        scale = abs(fp32.mean())
        if loss.std() > 1e-3 * scale:
            for _ in range(40):
                picked = rng.integers(fp32.size, size=times[-1])
                moved = [loss[rng.integers(fp32.size, size=times[-1])] - loss.mean() - 0.05 * scale for _ in range(3)]
                arms = [fp32[picked], *(fp32[picked] + each for each in moved)]
                ends = [[arm[:n] for arm in arms] for n in times]
                wrong += any(each.noninferior for end in ends for each in judged(end, times))
                runs += 1
    assert runs >= 400
    assert wrong <= binom.ppf(0.999, runs, 0.035)  # the bar of results/verdicts.md for one arm
