"""Latency of files: what is timed on what, the memory that a file adds, and that no slower precision is recommended."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import contracts
import quarl
from networks import dense
from quarl.cli import main
from quarl.latency import file_latency, memory, network_latency, timing
from quarl.policy import artifact
from refusals import refused

ROW = network_latency.LatencyRow(
    network="a", batch=1, engine="litert", precision="fp32", us_p50=10.0, us_p99=11.0, us_jitter=0.1, bytes=9
)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A folder with a policy of 900 x 900 weights as policy.quarl, exact.tflite and, exported, onnx/policy.onnx."""
    folder = tmp_path_factory.mktemp("wide")
    policy = dense([4, 900, 900, 2])
    artifact.write(policy, folder / "policy.quarl")
    agent = quarl.Agent(policy)
    agent.save(folder / "exact.tflite")
    observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    agent.export("onnx", folder / "onnx", precision="int8", observations=observations)
    return folder


def test_a_precision_that_is_not_faster_than_fp32_is_named_and_never_recommended():
    slower = replace(ROW, precision="int8", us_p50=9.9)
    assert file_latency.verdicts([ROW, slower]) == [
        "a in int8 is not faster than fp32 on litert: 9.9 \u00b5s, fp32 10.0 \u00b5s."
    ]
    faster = replace(ROW, precision="int4e8", us_p50=4.0)
    assert file_latency.verdicts([ROW, slower, faster])[1:] == [
        "Fastest against its fp32 on litert: a in int4e8, 2.50 times as fast."
    ]


def test_each_engine_and_network_is_compared_with_its_own_fp32():
    rows = [
        ROW,
        replace(ROW, precision="int8", us_p50=5.0),
        replace(ROW, engine="ort", us_p50=2.0),
        replace(ROW, engine="ort", precision="int8", us_p50=5.0),
        replace(ROW, network="b", engine="tract", precision="int4"),
    ]
    assert file_latency.verdicts(rows) == [
        "Fastest against its fp32 on litert: a in int8, 2.00 times as fast.",
        "a in int8 is not faster than fp32 on ort: 5.0 \u00b5s, fp32 2.0 \u00b5s.",
        "b in int4 on tract: no fp32 beside it, so nothing is recommended.",
    ]
    with_another = [*rows[:2], replace(ROW, network="b"), replace(ROW, network="c", precision="int4")]
    assert file_latency.verdicts(with_another)[-2:] == [
        "c in int4 on litert: no fp32 beside it, so nothing is recommended.",  # of which of the two it might be
        "Fastest against its fp32 on litert: a in int8, 2.00 times as fast.",
    ]


@pytest.mark.slow
def test_a_model_and_a_file_are_timed_in_the_runtimes_that_they_are_for(wide, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(timing, "ROUNDS", 2)
    monkeypatch.chdir(tmp_path)
    words = ["bench", "latency", str(wide / "policy.quarl"), str(wide / "onnx" / "policy.onnx"), "--bits", "fp32", "8"]
    assert main([*words, "--json", "rows.json"]) == 0
    rows = contracts.read(tmp_path / "rows.json")["rows"]
    assert [(row["network"], row["engine"], row["precision"]) for row in rows] == [
        ("policy", "litert", "fp32"),
        ("policy", "ort", "fp32"),
        ("policy", "litert", "int8"),
        ("policy", "ort", "int8"),
        (str(wide / "onnx" / "policy.onnx"), "ort", "int8"),
    ]
    assert rows[-1]["bytes"] == (wide / "onnx" / "policy.onnx").stat().st_size
    exact, _, codes = (row["bytes_added"] for row in rows[:3])
    assert exact > max(2 * 900 * 900, codes)  # Linux counts pages to some 64 a thread; int8 has a byte a weight
    assert "fp32 on litert" in capsys.readouterr().out


def test_a_quantised_policy_is_timed_as_it_is(tmp_path):
    policy = dense([4, 8, 2])
    observations = np.zeros((16, 4), np.float32)
    quantized = quarl.Agent(policy).quantize("int4", observations=observations).policy
    assert list(file_latency.in_precisions(quantized, [])) == [quantized]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("policy.quarl --widths 8", "--widths and MODEL are mutually exclusive"),
        ("--bits 8", "--bits requires a MODEL"),
        ("nowhere.tflite", "no file nowhere.tflite"),
        ("exact.tflite", "exact.tflite holds no contract"),
        ("policy.quarl --bits int5 --runtime tflm", "tflm"),
        ("policy.quarl --runtime c", "--runtime"),
    ],
)
def test_what_cannot_be_timed_is_one_line(words, said, wide, monkeypatch, capsys):
    monkeypatch.chdir(wide)
    assert said in refused(capsys, "bench", "latency", *words.split())


@pytest.mark.slow
def test_a_file_that_brings_its_process_down_is_one_line(wide, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CHILD", "import os; os.abort()")
    file = memory.File(wide / "exact.tflite", "litert")
    with pytest.raises(quarl.QuarlError, match=r"exact\.tflite cannot be called in litert: exit code -6"):
        memory.bytes_added(file, file, np.zeros((1, 4), np.float32))
