"""Recorded observations in place of an environment, in all verbs that accept them: fidelity, and no return."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import networks
import quarl
from quarl.cli import main
from quarl.policy import artifact
from quarl.policy.graph import as_metadata

GIVEN = ["--observations", "x.csv", "--json", "rows"]


@pytest.fixture
def x(elsewhere):
    """400 observations of a policy that names no environment; the working folder has both."""
    x = networks.saved()
    np.savetxt("x.csv", x, fmt="%.9g", delimiter=",", header=",".join("abcdef"), comments="")
    return x


def rows(tmp_path):
    """The rows of the last command."""
    return json.loads((tmp_path / "rows").read_text())["rows"]


def test_ptq_measures_errors_on_the_last_tenth_alone(x, tmp_path, capsys):
    assert main(["ptq", "policy.quarl", *GIVEN, "--bits", "8", "2", "--mode", "static", "-o", "out"]) == 0
    said = capsys.readouterr().out
    assert "Fidelity, no return: actions are compared with those of fp32 on the last 40 recorded observations" in said
    exact, _, row = rows(tmp_path)
    agent, two = quarl.load("policy.quarl"), quarl.load("out/int2e8.safetensors")
    wanted = agent.quantize("int2e8", mode="static", observations=x[:360])
    assert artifact.to_bytes(two.policy) == artifact.to_bytes(wanted.policy)
    away = np.abs(two.predict(x[360:])[0] - agent.predict(x[360:])[0])
    away /= agent.policy.head.high - agent.policy.head.low
    assert row["error_rms"] == pytest.approx(np.sqrt(np.square(away).mean()), rel=1e-4)
    assert row["error_max"] == pytest.approx(away.max(), rel=1e-4)
    assert row["agreement"] == pytest.approx((away <= 0.01).all(axis=1).mean())
    assert (exact["error_max"], exact["agreement"], exact["observations"]) == (0, 1, 40)
    assert {row[name] for name in ("mean", "verdict", "difference", "returns", "error_pct")} == {None}
    assert [path.name for path in (tmp_path / "out").glob("*.png")] == ["weights.png"]


def test_ptq_in_python_compares_on_an_array(x):
    table = quarl.ptq("policy.quarl", [4], mode="static", observations=x)
    assert [(row.precision, row.mean, row.observations) for row in table] == [("fp32", None, 40), ("int4e8", None, 40)]
    assert "RMS error %" in repr(table)
    assert "return" not in repr(table)
    assert table.verdicts[0].startswith("Fidelity, no return")
    discrete = quarl.ptq(quarl.Agent(networks.dense([6, 8, 3], head="argmax")), 8, observations=x)
    assert (discrete[1].error_rms, discrete[1].agreement >= 0.9) == (None, True)
    with pytest.raises(quarl.QuarlError, match="drop auto and the environment's keywords"):
        quarl.ptq("policy.quarl", observations=x, env_id="CartPole-v1")


def test_budget_shows_errors_beside_the_footprint(x, tmp_path, capsys):
    assert main(["budget", "policy.quarl", "--target", "tflite", "--bits", "int8", *GIVEN]) == 0
    assert "int8: fidelity on the last 40 recorded observations, no return: " in capsys.readouterr().out
    (row,) = rows(tmp_path)
    assert 0 < row["error_rms"] < row["error_max"] < 0.05 <= row["agreement"]


@pytest.mark.parametrize(("value", "said"), [(np.nan, "nan"), (-np.inf, "-inf"), (1e300, "1e+300")])
def test_a_number_that_is_not_finite_is_named_by_its_place(value, said, x, capsys):
    wide = x.astype(np.float64)
    wide[50, 2] = value
    np.save("bad.npy", wide)
    assert main(["budget", "policy.quarl", "--observations", "bad.npy"]) == 2
    assert capsys.readouterr().err == f"quarl: bad.npy, row 51, column 3 is {said}; use finite float32 numbers\n"


def test_export_and_verify_compare_on_the_log(x, tmp_path, capsys):
    assert main(["export", "policy.quarl", *GIVEN, "-o", "out"]) == 0
    assert "fidelity on the last 40 recorded observations, no return: " in capsys.readouterr().out
    wanted = quarl.load("policy.quarl").quantize("int8", mode="static", observations=x[:360])
    assert np.array_equal(quarl.load("out/policy.quarl").predict(x)[0], wanted.predict(x)[0])
    assert main(["verify", "out", "--runtime", "litert", *GIVEN]) == 0
    (row,) = [row for row in rows(tmp_path) if row["check"] == "recorded observations"]
    assert (row["count"], row["result"].startswith("equal")) == (400, True)
    assert main(["verify", "out/policy.tflite", *GIVEN]) == 2
    assert "--observations requires the folder of policy.tflite" in capsys.readouterr().err


@pytest.mark.slow
def test_bench_times_calls_on_the_log(x, tmp_path):
    assert main(["bench", "latency", "policy.quarl", "--bits", "int8", "--runtime", "litert", *GIVEN]) == 0
    assert [row["precision"] for row in rows(tmp_path)] == ["int8"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        *((f"{verb} --observations narrow.csv", "narrow.csv: observation is (40, 5), the policy expects (6,)")
          for verb in ("ptq", "distill", "export", "budget", "bench latency")),
        ("ptq", "name one with --env, or give recorded --observations (env_id, env or observations in Python)"),
        ("ptq --observations x.csv --auto", "--auto conflicts with --observations, because it chooses bits by return"),
        ("ptq --observations x.csv --episodes 5", "--episodes requires an environment, and --observations replaces it"),
        ("ptq --observations policy.quarl", "policy.quarl is not a .npy, .npz or .csv file"),
    ],
)  # fmt: skip
def test_observations_that_do_not_fit_are_one_line(words, line, x, tmp_path, capsys):
    np.savetxt("narrow.csv", np.zeros((40, 5)), delimiter=",")
    verb, *options = words.split()
    where = 1 if verb == "bench" else 0
    assert main([verb, *options[:where], "policy.quarl", *options[where:]]) == 2
    (said,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("quarl: ")]
    assert line in said
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_metadata_of_foreign_files_is_bounded_and_kept_in_the_contract(x):
    joints = ",".join(f"joint_{n}" for n in range(29))
    foreign = [("joint_names", joints), ("\x1b[2J", "a\nb"), ("long", "x" * 10_000), *((n, n) for n in range(100))]
    metadata = as_metadata(foreign)
    assert (len(metadata), metadata["joint_names"], metadata["\\x1b[2J"]) == (32, joints, "a\\nb")
    assert len(metadata["long"]) <= 2000
    policy = quarl.load("policy.quarl").policy
    artifact.write(replace(policy, provenance=replace(policy.provenance, metadata=metadata)), "foreign.quarl")
    contract = quarl.load("foreign.quarl").export("tflite", "out", observations=x)
    assert contract["source"]["metadata"] == metadata
    assert main(["verify", "out", "--runtime", "litert"]) == 0
