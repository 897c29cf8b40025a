"""Verdicts in words."""

from __future__ import annotations

from quarl.report.assessment import assess, listed


def test_verdicts_are_grouped_by_scheme_and_name_the_worst_loss(rows):
    assert assess(rows) == [
        "fp16 is non-inferior to fp32 within 5 %.",
        "int8 and int4 with scheme default are non-inferior to fp32 within 5 %.",
        "int2 with scheme default is inferior to fp32 by more than 5 %; it loses 80 %.",
        "int4 and int2 with scheme default differ from fp32 beyond noise.",
        "int8 with scheme naive is inferior to fp32 by more than 5 %; it loses 15 %.",
        "int8 with scheme naive differs from fp32 beyond noise.",
    ]


def test_a_gain_beyond_noise_is_told_with_the_actions_that_changed(rows):
    """An int8 of an agent that is not a good one can gain: it acts otherwise, and that is no sign of precision."""
    rows[2] |= {"mean": 326.0, "error_pct": -63.0, "agreement": 0.78, "differs": True}
    assert assess(rows[:3]) == [
        "fp16 is non-inferior to fp32 within 5 %.",
        "int8 with scheme default is non-inferior to fp32 within 5 %.",
        "int8 with scheme default differs from fp32 beyond noise; it gains 63 %, and 22 % of its actions changed.",
    ]


def test_what_is_undecided_is_called_so(rows):
    for row in rows[2:4]:
        row |= {"noninferior": False, "verdict": "undecided", "differs": False}
    rows[2]["error_pct"] = None  # fp32's interval contains 0
    assert assess(rows[:4])[1] == "int8 and int4 with scheme default are undecided; int4 loses 2 %."
    assert assess(rows[:3])[1] == "int8 with scheme default is undecided."


def test_what_was_not_shown_of_an_agent_whose_returns_vary_much_is_left_open(rows):
    settled = assess(rows)
    rows.append({**rows[3], "precision": "int3", "noninferior": False, "verdict": "undecided", "differs": False})
    undecided = assess(rows)
    rows[0]["std"] = 31.0
    *same, last = assess(rows)
    assert same == undecided
    assert last.startswith("fp32's returns vary by 16 % of their mean: ")
    assert last.endswith(" episodes leave much open at a margin of 5 %.")
    rows = [row for row in rows if row["verdict"] != "undecided"]
    assert assess(rows) == settled  # nothing is open


def test_a_mean_of_zero_leaves_everything_open(rows):
    rows[0]["mean"] = 0.0
    rows[3] |= {"noninferior": False, "verdict": "undecided"}  # a share of nothing is no margin
    assert assess(rows)[-1] == "fp32's mean return is 0, so a margin of 5 % allows no loss."
    assert "int2 with scheme default is inferior to fp32 by more than 0; it loses 80 %." in assess(rows)


def test_a_few_episodes_get_no_verdict(rows):
    for row in rows:
        row["episodes"] = 9
    assert assess(rows) == ["No verdict: 9 episodes are too few, take 10 or more."]


def test_what_was_simulated_is_said(rows):
    eight = [row for row in rows if row["precision"] == "int8"]
    for row in eight:
        row["measured"] = False
    said = "simulated in float, so returns hold, latency and file size do not."
    assert assess(rows)[-1] == f"int8: {said}"
    rows.append({**eight[0], "scheme": "gptq", "measured": True})
    names = " and ".join(dict.fromkeys(f"int8 with scheme {row['scheme']}" for row in eight))
    assert assess(rows)[-1] == f"{names}: {said}"


def test_words_are_listed_as_in_a_sentence():
    assert [listed(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_what_the_most_episodes_left_open_takes_four_times_as_many_to_halve_its_interval(rows):
    rows[1] |= {"verdict": "undecided", "max_episodes": 400, "episodes": 400}
    # 8 to either side, and the margin 4 off
    rows[1] |= {"difference": -6.0, "difference_low": -14.0, "difference_high": 2.0}
    assert "fp16 has no verdict after 400 episodes; it takes some 1,600." in assess(rows)
    rows[1] |= {"difference_low": -10.0, "difference_high": 50.0}  # the end at the margin counts
    assert "fp16 has no verdict after 400 episodes; it takes some 400." in assess(rows)
    rows[1] |= {"difference": -14.0, "difference_low": -50.0, "difference_high": -2.0}
    assert "fp16 has no verdict after 400 episodes; it takes some 3,600." in assess(rows)
    rows[1] |= {"difference": -10.0}
    assert "fp16 has no verdict after 400 episodes; it takes over a million." in assess(rows)


def test_means_over_different_episodes_stand_beside_fp32_over_the_same_ones(rows):
    before = assess(rows)
    rows[0] |= {"mean": 90.0, "episodes": 120}
    for row in rows[1:]:
        row |= {"mean": 88.0, "difference": -4.0, "episodes": 120}
    assert assess(rows) == before
    rows[1] |= {"episodes": 30}
    said = "Returns are means over different numbers of episodes; over those that both played,"
    assert f"{said} fp16 88.0 and fp32 92.0 (30)." in assess(rows)
