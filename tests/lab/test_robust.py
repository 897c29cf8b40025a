"""`quarl robust`: disturbances that all precisions meet, verdicts corrected for their number, runs that resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import contracts
import networks
from quarl.calibration import quantize
from quarl.cli import main
from quarl.config import RobustConfig
from quarl.envs.environment import Environment
from quarl.errors import QuarlError
from quarl.evaluation import evaluate, record
from quarl.lab import file
from quarl.lab.commands import robust
from quarl.lab.disturbances import Disturbance
from quarl.lab.plan import plan
from quarl.lab.store import Record, Store
from quarl.policy.graph import Provenance
from quarl.quant.spec import EXACT
from quarl.readers.load import read

Write = Callable[..., Path]


def cell(source: str, precision: str, returns: list[float], state: str = "done") -> Record:
    method, mode = ("fp32", "dynamic") if precision == "fp32" else ("ptq", "static")
    about: Any = {"algo": "dqn", "env_id": "CartPole-v1", "source": source, "method": method, "precision": precision}
    result = {"returns": returns, "measured": True} if state == "done" else {}
    return Record(**about, mode=mode, seed=0, key=f"{source} {precision}", episodes=10, state=state, result=result)


def test_a_precision_holds_as_far_as_no_level_before_fails():
    steady, good = [100.0] * 10, "non-inferior"
    records = [
        *(cell(source, "fp32", steady) for source in ("none", "mass 0.5", "mass 0.8", "mass 2", "mass 4")),
        *(cell(source, "int8", steady) for source in ("none", "mass 0.5")),
        *(cell("mass 0.8", "int8", [50.0] * 10), cell("mass 2", "int8", [97.0] * 10)),
        cell("mass 4", "int8", [], state="todo"),
    ]
    config = RobustConfig(model="m", levels=("mass:0.5,0.8,2,4",))
    rows = {(row.precision, row.level): row for row in robust.rows(config, records, {"mass": 1.0})}
    assert [rows["int8", level].verdict for level in (0.5, 0.8, 1, 2)] == [good, "inferior", good, good]
    assert [rows["int8", level].holds for level in (0.5, 0.8, 1, 2)] == [False, False, True, True]
    assert (rows["fp32", 4.0].verdict, rows["fp32", 4.0].mode, rows["int8", 2.0].mode) == (None, "", "static")


def test_verdicts_are_corrected_for_the_number_of_comparisons():
    exact = np.full(20, 100.0)
    lower = exact - np.tile([0.0, 7.0], 10)
    records = [cell("none", "fp32", exact.tolist()), cell("none", "int8", lower.tolist())]
    config = RobustConfig(model="m", levels=("delay:1",), margin=5.2)
    # Student's 95 % interval with 19 degrees of freedom is ± 1.68, that of one of 40 comparisons ± 3.04
    assert [row.verdict for row in robust.rows(config, records, {"delay": 0.0})] == [None, "non-inferior"]
    more = [*records, *(cell(f"noise {level}", "int8", [], state="todo") for level in range(39))]
    assert [row.verdict for row in robust.rows(config, more, {"delay": 0.0})] == [None, "undecided"]


def test_success_counts_as_much_as_return_and_is_corrected_too():
    steady = [1.0] * 200
    records = [cell(source, precision, steady) for source in ("none", "delay 1") for precision in ("fp32", "int8")]
    for record_, won in zip(records, (200, 200, 200, 150), strict=True):
        record_.result.update({"successes": [at < won for at in range(200)], "lengths": [7] * 200})
    config = RobustConfig(model="m", levels=("delay:1",), episodes=200)
    fp32, _, int8, worse = robust.rows(config, records, {"delay": 0.0})
    assert (fp32.success, fp32.verdict, int8.verdict) == (1.0, None, "non-inferior")
    assert (worse.success, worse.verdict_return, worse.verdict) == (0.75, "non-inferior", "inferior")
    assert (worse.successes.count(True), worse.lengths, int8.success_margin) == (150, [7] * 200, 5.0)
    # without a lost episode 200 show less than 5 points in 40 comparisons at most, which take 199
    for others, word in ((38, "non-inferior"), (60, "undecided")):
        more = [*records[:2], *(cell(f"noise {level}", "int8", [], state="todo") for level in range(others))]
        assert robust.rows(config, more, {"delay": 0.0})[1].verdict == word


def test_a_sweep_of_levels_is_a_study_of_one_policy(tmp_path: Path):
    levels, bits = ("noise:0.5", "length:2,0.5"), ("8", "4", "int8", "fp32")
    config = RobustConfig(model="m", levels=levels, bits=bits, output=tmp_path)
    policy = networks.cartpole()
    robust.artifact.write(quantize(policy, EXACT), tmp_path / robust.POLICY)
    (tmp_path / "study.yml").write_text(yaml.safe_dump(robust.study_document(config, policy)))
    cells = plan(file.read(str(tmp_path / "study.yml")))
    found = {cell.source: cell.work.get("disturbance") for cell in cells}
    assert found.pop("none") is None
    assert found == {"noise 0.5": {"noise": 0.5}, "length 2": {"length": 2.0}, "length 0.5": {"length": 0.5}}
    arms = ["fp32 dynamic", "int8 static", "int4e8 static", "int8 dynamic", "int4e8 dynamic"]
    assert [f"{cell.precision} {cell.mode}" for cell in cells] == 4 * arms
    assert len({cell.key for cell in cells}) == 20
    # an agent of no known algorithm, as from ONNX
    unknown = replace(policy, provenance=Provenance(env_id="CartPole-v1"))
    assert {entry["algo"] for entry in robust.study_document(config, unknown)["policies"]} == {""}


def test_methods_that_train_refuse_a_disturbance(study_file: Write):
    policy = "{algo: dqn, env: CartPole-v1, source: 'zoo:zoo', disturbance: {delay: 1}}"
    path = study_file(policy, "{method: fp32}\n{method: distill, precision: [4]}")
    with pytest.raises(QuarlError, match=r"study.yml, line \d+: distill plays undisturbed episodes"):
        file.read(str(path))
    with pytest.raises(QuarlError, match="algo"):
        file.read(str(study_file("{algo: '', env: CartPole-v1, source: 'zoo:zoo'}", "{method: fp32}")))


@pytest.mark.slow
def test_rows_are_what_evaluation_finds_under_the_same_disturbance(small_agents: Path, tmp_path: Path, capsys: Any):
    said = "--levels noise:1.5 delay:2 --bits 4 --episodes 10 --jobs 2 --seed 3"
    words = ["robust", str(small_agents / "zoo/dqn/CartPole-v1_1"), *said.split(), "-o", str(tmp_path)]
    assert main(words) == 0
    rows = contracts.read(tmp_path / "rows.json")["rows"]
    arms = [("fp32", ""), ("int4e8", "static"), ("int4e8", "dynamic")]
    places = [(row["disturbance"], row["precision"], row["mode"], row["level"]) for row in rows]
    sweeps = [("noise", 1.5), ("delay", 2)]
    assert places == [(name, *arm, at) for name, level in sweeps for arm in arms for at in (0, level)]
    policy = read(small_agents / "zoo/dqn/CartPole-v1_1")
    environment = Environment.typed_by_user("CartPole-v1")
    scales = {"noise": record(policy, seed=3, environment=environment).std(axis=0, dtype=np.float64)}
    noisy = replace(environment, outside=partial(Disturbance, levels={"noise": 1.5}, scales=scales))
    played = evaluate(quantize(policy, EXACT), noisy, episodes=10, seed=3, stochastic=False).returns
    with Store(tmp_path) as store:
        first = store.records()
    (found,) = [each.result["returns"] for each in first if (each.source, each.method) == ("noise 1.5", "fp32")]
    assert found == played.tolist()
    assert "non-inferior to fp32 under the same delay: int4e8 static" in capsys.readouterr().out
    assert all((tmp_path / name).stat().st_size > 5_000 for name in ("noise.png", "delay.png", "report.html"))
    # nothing is measured again, and a new level is
    assert main([*words, "--levels", "noise:1.5,3", "delay:2"]) == 0
    with Store(tmp_path) as store:
        again = [each.seconds for each in store.records()]
    assert (len(again), {*again} >= {each.seconds for each in first}) == (len(first) + 3, True)
