"""The plan: the product of a study, what is n/a in it, keys that change with what they stand for, and workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quarl.errors import QuarlError
from quarl.lab import file, play
from quarl.lab.cells import Cell
from quarl.lab.plan import plan
from quarl.lab.source import check_file, digest
from quarl.readers import hub

DQN = "{algo: dqn, env: CartPole-v1, source: 'zoo:zoo'}"
FP32 = "{method: fp32}"
UNREADABLE = (
    "the observation space is Discrete, but training needs a Box: agents of Stable-Baselines3 that observe a Discrete "
    "can be read, quantized and evaluated"
)
Write = Callable[..., Path]


def cells(path: Path, seed: int | None = None) -> list[Cell]:
    return plan(file.read(str(path)), seed)


def names(found: list[Cell]) -> list[tuple[str, str, str, int]]:
    return [(cell.method, cell.precision, cell.scheme, cell.seed) for cell in found]


def test_cells_are_the_product_and_float_formats_stand_once(study_file: Write):
    ptq = "{method: ptq, precision: [fp16, 8, 4], scheme: [default, naive]}"
    found = cells(study_file(DQN, f"{FP32}\n{ptq}", "seeds: [0, 1]"))
    expected = [("fp32", "fp32", "default"), ("ptq", "fp16", "default")]
    expected += [("ptq", name, "default") for name in ("int8", "int4e8")]
    expected += [("ptq", name, "naive") for name in ("int8", "int4")]
    assert names(found) == [(*cell, seed) for seed in (0, 1) for cell in expected]
    assert len({cell.key for cell in found}) == len(found)
    assert names(cells(study_file(DQN, FP32), seed=5)) == [("fp32", "fp32", "default", 5)]


def test_edges_have_8_bits_unless_the_file_says_otherwise(study_file: Write):
    trained = "{algo: dqn, env: CartPole-v1, source: train, n_timesteps: 100}"
    methods = "{{method: ptq, precision: [4, int3e6]{0}}}\n{{method: qat, precision: [2, 8]{0}}}"
    wider = cells(study_file(trained, f"{FP32}\n{methods.format('')}"))
    assert [cell.precision for cell in wider[2:]] == ["int4e8", "int3e6", "w2a8e8", "w8a8"]
    same = cells(study_file(trained, f"{FP32}\n{methods.format(', edge_bits: same')}"))
    assert [cell.precision for cell in same[2:]] == ["int4", "int3e6", "w2a8", "w8a8"]
    assert [cell.work.get("mid_rise") for cell in same[4:]] == [True, None]
    actors = cells(study_file(trained, f"{FP32}\n{{method: actorq, precision: [int4, int8, w3a8e5]}}"))
    assert [cell.precision for cell in actors[2:]] == ["int4e8", "int8", "int3e5"]
    assert [cell.work["precision"] for cell in actors[2:]] == ["int4e8", "int8", "int3e5"]
    four = cells(study_file(trained, f"{FP32}\n{methods.format(', edge_bits: 4')}"))
    assert [cell.precision for cell in four[2:]] == ["int4", "int3e6", "w2a8e4", "w8a8"]
    with pytest.raises(QuarlError, match=r"edge-bits is 'wide'; use 2\.\.16, or same"):
        cells(study_file(trained, f"{FP32}\n{methods.format(', edge_bits: wide')}"))


def test_a_training_stands_before_the_cells_that_need_it(study_file: Write):
    found = cells(study_file("{algo: ppo, env: CartPole-v1, source: train, n_timesteps: 100}", FP32))
    training, exact = found
    assert (training.method, exact.needs, training.needs) == ("train", training.key, "")
    assert training.work["n_timesteps"] == 100
    assert training.work["tuned"]["n_envs"] == 8  # RL Zoo's


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("{algo: ddpg, env: CartPole-v1, source: train}", "ddpg needs a continuous action space"),
        ("{algo: dqn, env: Pendulum-v1, source: 'zoo:zoo'}", "dqn needs a discrete action space"),
        ("{algo: dqn, env: FrozenLake-v1, source: train}", UNREADABLE),
        ("{algo: dqn, env: CartPole-v1, na: 'budget: too dear'}", "budget: too dear"),
        ("{algo: dqn, env: Acrobot-v1, source: 'zoo:zoo', na: 'budget: too dear'}", "budget: too dear"),
    ],
)
def test_what_cannot_be_measured_is_a_cell_that_says_why(policy: str, said: str, study_file: Write):
    found = cells(study_file(f"{policy}\n{DQN}", f"{FP32}\n{{method: ptq, precision: [8, 4]}}"))
    assert [cell.na for cell in found] == [said] * 3 + [""] * 3
    assert len({cell.key for cell in found}) == 6


def test_the_first_source_that_is_at_hand_is_taken(study_file: Write):
    policy = "{{algo: {}, env: {}, source: ['zoo:nowhere', 'zoo:zoo', train]}}"
    policies = "\n".join(policy.format(*pair) for pair in (("dqn", "CartPole-v1"), ("dqn", "Acrobot-v1")))
    assert [cell.source for cell in cells(study_file(policies, FP32))] == ["zoo:zoo", "train", "train"]


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        ("{algo: dqn, env: CartPol-v1, source: train}", r"line 6: unknown environment.*'CartPole-v1'\?"),
        ("{algo: ppo, env: Point-v0, source: train}", "line 6: .* your own with --env-module module"),
        (
            "{algo: ppo, env: 'my:Point-v0', source: train}",
            "line 6: .* name a module, as in --env-module my",
        ),
        ("{algo: dqn, env: Acrobot-v1, source: 'zoo:zoo'}", r"line 6: no agent for Acrobot-v1.*--agents"),
        ("{algo: dqn, env: CartPole-v1, source: 'zoo:nowhere'}", r"line 6: cannot list .*nowhere.*--agents"),
        (f"{DQN}\n{DQN}", r"line 7: dqn CartPole-v1 fp32 seed 0 from zoo:zoo is the same cell as one of line 6"),
        (
            "{algo: dqn, env: CartPole-v1, source: train}\n{algo: dqn, env: 'gym,CartPole-v1', source: train}",
            "line 7: .* is the same cell as one of line 6",
        ),
        (
            "{algo: dqn, env: CartPole-v1, source: train, params: {lerning_rate: 1e-3}}",
            "line 6: DQN has no hyper-parameter 'lerning_rate'; did you mean 'learning_rate'",
        ),
        (
            "{algo: dqn, env: CartPole-v1, source: train, params: {gamma: 2}}",
            "line 6: DQN's gamma is '2', not a number from 0 to 1",
        ),
    ],
)
def test_what_nothing_can_make_sense_of_names_its_line(policies: str, said: str, study_file: Write):
    with pytest.raises(QuarlError, match=said):
        cells(study_file(policies, FP32))


def test_quantisation_aware_cells_start_from_scratch_or_from_the_agent(study_file: Write):
    policies = """
{algo: a2c, env: CartPole-v1, source: train, n_timesteps: 1000}
{algo: dqn, env: CartPole-v1, source: 'zoo:zoo'}
{algo: a2c, env: CartPole-v1, source: 'zoo:zoo', n_timesteps: 5000}
"""
    scratch = cells(study_file(policies, f"{FP32}\n{{method: qat, precision: 8}}"))
    found = [cell for cell in scratch if cell.method == "qat"]
    assert [cell.work.get("n_timesteps") for cell in found] == [1000, None, None]
    assert ["fine_tune" in cell.na for cell in found] == [False, True, True]
    tuned = cells(study_file(policies, f"{FP32}\n{{method: qat, precision: 8, fine_tune: 0.1}}"))
    found = [cell for cell in tuned if cell.method == "qat"]
    assert [cell.work.get("n_timesteps") for cell in found] == [100, None, 500]
    assert ["length is not known" in cell.na for cell in found] == [False, True, False]
    assert [bool(cell.needs) for cell in found] == [True, False, False]
    assert all(cell.precision == "w8a8" for cell in found)


def test_actorq_cells_take_options_of_the_verb_and_on_policy_ones_are_n_a(study_file: Write):
    policies = """
{algo: dqn, env: CartPole-v1, source: train, n_timesteps: 900, actorq: {target: 475, params: {gamma: 0.9}}}
{algo: ppo, env: CartPole-v1, source: train}
"""
    method = "{method: actorq, precision: [int8, fp32], actors: 1, params: {learning_starts: 100}}"
    dqn, exact, ppo, _ = cells(study_file(policies, method))
    assert (dqn.precision, exact.precision, dqn.needs) == ("int8", "fp32", "")
    assert dqn.work["options"] == {
        "n_timesteps": 900,
        "actors": 1,
        "target": 475,
        "params": {"learning_starts": 100, "gamma": 0.9},
    }
    assert "on-policy" in ppo.na
    both = policies.replace("n_timesteps: 900,", "name: mine, n_timesteps: 900,")
    both = both.replace("n_timesteps: 900,", "n_timesteps: 900, params: {batch_size: 64, gamma: 0.8},")
    named = cells(study_file(both, method.replace("actors: 1,", "actors: 1, batch_size: 128,")))[0]
    assert (dqn.source, named.source) == ("actorq", "mine")
    assert named.work["options"]["batch_size"] == 128  # what is said of actorq goes before what is of all trainings
    assert named.work["options"]["params"] == {"learning_starts": 100, "gamma": 0.9}
    with pytest.raises(QuarlError, match="unknown key 'actor' of actorq; did you mean 'actors'"):
        cells(study_file(policies, method.replace("actors", "actor")))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("params: [1]", r"study\.yml, line 6: params must be values by name, got '\[1\]'"),
        ("engine: nope", "line 6: .*--engine is 'nope'; use litert or torch"),
        ("device: gpu", "line 6: .*--device is 'gpu'"),
        ("actors: two", "line 6: --actors is 'two'; use a whole number"),
        ("resume: 1", "line 6: unknown key 'resume'"),
        ("normalize: 1", "line 6: --normalize is '1'; use true or false"),
    ],
)
def test_options_of_actorq_are_checked_before_anything_runs(options: str, said: str, study_file: Write):
    policy = f"{{algo: dqn, env: CartPole-v1, source: train, n_timesteps: 900, actorq: {{{options}}}}}"
    with pytest.raises(QuarlError, match=said):
        cells(study_file(policy, "{method: actorq, precision: 8}"))


def test_an_agent_of_actorq_is_its_own_and_trained_once(study_file: Write):
    policy = "{{algo: dqn, env: CartPole-v1, source: {}, actorq: {{{}}}}}"
    twice = "\n".join(policy.format(source, "actors: 1") for source in ("train", "'zoo:zoo'"))
    method = "{method: actorq, precision: 8}"
    found = cells(study_file(twice, f"{FP32}\n{method}"))
    assert [(cell.method, cell.source) for cell in found] == [
        *(("train", "train"), ("fp32", "train")),
        *(("actorq", "actorq"), ("fp32", "zoo:zoo")),
    ]
    other = twice.replace("'zoo:zoo', actorq: {actors: 1}", "'zoo:zoo', actorq: {actors: 2}")
    with pytest.raises(QuarlError, match=r"line 7: .* would have the same name in tables as another of line 6"):
        cells(study_file(other, method))
    with pytest.raises(QuarlError, match=r"line 7: .* is the same cell as one of line 6"):
        cells(study_file("\n".join([policy.format("train", "")] * 2), method))


@pytest.mark.parametrize(
    ("methods", "seeds", "said"),
    [
        (
            f"{FP32}\n{{method: ptq, precision: [8, int8]}}\n{{method: ptq, precision: int8}}",
            "[0]",
            "line 10: .* is asked for here and in line 9",
        ),
        (f"{FP32}\n{{method: qat, precision: [8, w8a8], fine_tune: 0.1}}", "[0]", "line 9: .* is asked for twice"),
        (FP32, "[0, 0]", "line 8: .* fp32 seed 0 is asked for twice; keep one"),
    ],
)
def test_what_is_asked_for_twice_names_the_method_s_line(methods: str, seeds: str, said: str, study_file: Write):
    policy = f"{{algo: dqn, env: CartPole-v1, source: 'zoo:zoo', seeds: {seeds}, n_timesteps: 9000}}"
    with pytest.raises(QuarlError, match=said):
        cells(study_file(policy, methods))


def test_a_key_changes_with_everything_that_a_result_depends_on(study_file: Write, small_agents: Path, tmp_path: Path):
    ptq = "{method: ptq, precision: 8}"
    keys = {cells(study_file(DQN, f"{FP32}\n{ptq}"))[1].key}
    keys.add(cells(study_file(DQN.replace("'}", "', episodes: 9}"), f"{FP32}\n{ptq}"))[1].key)
    keys.add(cells(study_file(DQN, f"{FP32}\n{ptq}"), seed=1)[1].key)
    keys.add(cells(study_file(DQN, f"{FP32}\n{ptq.replace('8', '7')}"))[1].key)
    keys.add(cells(study_file(DQN, f"{FP32}\n{ptq.replace('8}', '8, scheme: naive}')}"))[1].key)
    keys.add(cells(study_file(DQN, f"{FP32}\n{ptq.replace('8}', '8, mode: static}')}"))[1].key)
    other = tmp_path / "zoo" / "dqn" / "CartPole-v1_1"
    other.mkdir(parents=True)
    agent = (small_agents / "zoo/dqn/CartPole-v1_1/CartPole-v1.zip").read_bytes()
    (other / "CartPole-v1.zip").write_bytes(agent + b"another file")
    path = study_file(DQN, f"{FP32}\n{ptq}")
    keys.add(plan(file.read(str(path), tmp_path))[1].key)
    assert len(keys) == 7
    (other / "CartPole-v1.zip").write_bytes(agent)
    assert plan(file.read(str(path), tmp_path))[1].key == cells(path)[1].key  # where it lies does not matter


@pytest.mark.parametrize("beside", ["ppo-Env-v0_vecnormalize.pkl", "vec_normalize.pkl"])
def test_an_agent_is_its_own_statistics_too(tmp_path: Path, beside: str):
    agent = tmp_path / "ppo-Env-v0.zip"
    agent.write_bytes(b"agent")
    alone = digest(agent)
    (tmp_path / beside).write_bytes(b"statistics")
    assert digest(agent) != alone
    with pytest.raises(QuarlError, match="is another file than when the study was planned: repeat the command"):
        check_file(agent, {"sha256": alone}, None)


def test_an_agent_of_the_hub_is_the_files_of_one_commit(
    study_file: Write, small_agents: Path, committed: Callable[[str, bytes], None]
):
    agent = (small_agents / "zoo/dqn/CartPole-v1_1/CartPole-v1.zip").read_bytes()
    path = study_file(DQN.replace("zoo:zoo", "hub:org/dqn-CartPole-v1"), FP32)
    found = []
    for commit, data in (("a" * 40, agent), ("b" * 40, agent + b"trained on")):
        committed(commit, data)
        hub.fetch.cache_clear()  # what a new run does
        found += cells(path)
    hub.fetch.cache_clear()
    assert found[0].key != found[1].key
    for cell, data in zip(found, (agent, agent + b"trained on"), strict=True):
        assert cell.agent is not None
        assert cell.agent.path is not None
        assert (cell.agent.path.read_bytes(), cell.source) == (data, "hub:org/dqn-CartPole-v1")


@pytest.mark.usefixtures("committed")
def test_a_hub_out_of_reach_never_makes_another_agent_of_it(study_file: Write):
    with pytest.raises(QuarlError, match=r"line 6: cannot fetch org/absent from the hub"):
        cells(study_file(DQN.replace("'zoo:zoo'", "['hub:org/absent', train]"), FP32))


def test_how_it_is_judged_and_bounded_is_in_no_key(study_file: Write):
    one = cells(study_file(DQN, FP32, "margin: 5\nlimits: {minutes: 1}"))
    other = cells(study_file(DQN, FP32, "margin: 9\nlimits: {minutes: 3}"))
    assert [cell.key for cell in one] == [cell.key for cell in other]


def test_preload_leaves_what_close_raises_to_the_cells(monkeypatch: pytest.MonkeyPatch):
    class Env:
        def close(self) -> None:
            raise OSError("no")

    made: list[str] = []

    def make(env_id: str) -> Any:
        made.append(env_id)
        return Env()

    monkeypatch.setattr(play, "make", make)
    play.preload(["a", "b"], [])
    assert made == ["a", "b"]
