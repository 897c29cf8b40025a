"""Latency: who is timed on what, and the rows that come out."""

from __future__ import annotations

import gc
import itertools
import logging

import numpy as np
import pytest

import contracts
import networks as small
from quarl import engines
from quarl.calibration import quantize
from quarl.errors import QuarlError
from quarl.latency import network_latency, networks, timing
from quarl.quant.spec import QuantSpec
from quarl.report import schema


class Clock:
    """A clock that only engines move."""

    def __init__(self):
        self.now = 0

    def read(self):
        return self.now


class Fake:
    """An engine that takes the nanoseconds it is told, and remembers what it was given."""

    measured, file_bytes = True, 7

    def __init__(self, clock, name, costs, batch=1):
        self.clock, self.name, self.batch = clock, name, batch
        self.costs = itertools.cycle(costs)
        self.seen = []

    def run(self, observations):
        assert not gc.isenabled() or not self.seen  # only preparing may be interrupted
        self.seen.append(observations)
        self.clock.now += next(self.costs)
        return observations


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(timing.time, "perf_counter_ns", made.read)
    return made


@pytest.fixture
def no_collection():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_timings_are_the_percentiles_of_the_calls(clock):
    steady, jumpy = Fake(clock, "a", [2_000]), Fake(clock, "b", [1_000] * 49 + [90_000])
    timings = timing.time_engines([steady, jumpy], np.zeros((8, 3), np.float32), seconds=0.01)
    assert timings[0] == timing.Timing(2.0, 2.0, 0.0)
    assert (timings[1].us_p50, timings[1].us_p99) == (1.0, 90.0)
    assert timings[1].us_jitter == pytest.approx(2 * 89 / 50, abs=0.05)  # up by 89 and down again, once in 50 calls


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(("count", "batches"), [(10, {(0, 1, 2, 3), (4, 5, 6, 7)}), (3, {(0, 1, 2, 0)})])
def test_every_observation_passes_by_in_whole_batches_and_few_are_repeated(clock, count, batches):
    engine = Fake(clock, "a", [1_000], batch=4)
    timing.time_engines([engine], np.arange(count, dtype=np.float32).reshape(count, 1), seconds=0.001)
    assert {tuple(rows[:, 0]) for rows in engine.seen} == batches


def test_engines_take_turns_and_garbage_collection_comes_back(clock):
    order, collecting = [], []

    class Named(Fake):
        def run(self, observations):
            order.append(self.name)
            collecting.append(gc.isenabled())
            self.clock.now += 1_000
            return observations

    pair = [Named(clock, name, [1]) for name in "ab"]
    timing.time_engines(pair, np.zeros((8, 3), np.float32), seconds=0.0001)
    blocks = [name for name, _ in itertools.groupby(order)]
    assert len(blocks) > timing.ROUNDS
    prepared = collecting.index(False)
    assert not any(collecting[prepared:])
    assert len({*order[:prepared]}) == 2
    assert len(order) - prepared > timing.ROUNDS * 2
    assert gc.isenabled()


def test_no_observations_are_refused():
    with pytest.raises(QuarlError, match="recorded observations"):
        timing.time_engines([], np.zeros((0, 3)))


def test_rows_keep_the_contract_and_the_order():
    tiny = networks.Network(name="8-8", observation_shape=(5,), hidden=(8, 8), num_actions=2)
    columns = [("torch", "fp32"), ("onnx", "int8"), ("onnx", network_latency.PER_TENSOR)]
    rows = network_latency.measure([tiny], batches=(1, 3), columns=columns, seconds=0.002)
    contracts.check(schema.document(network_latency.LatencyRow, rows, seed=0))
    assert [(row.batch, row.engine, row.precision) for row in rows] == [
        (b, *column) for b in (1, 3) for column in columns
    ]
    assert all(0 < row.us_p50 <= row.us_p99 and row.bytes > 0 for row in rows)


def test_few_bits_between_layers_of_8_are_loaded_in_places_of_4():
    tiny = networks.Network(name="64-64", observation_shape=(6,), hidden=(64, 64), num_actions=2)
    rows = network_latency.measure([tiny], batches=(1,), columns=network_latency.COLUMNS, seconds=0.002)
    size = {row.precision: row.bytes for row in rows if row.engine == "litert"}
    assert size["int4e8"] - size["int4"] == (64 * 6 + 2 * 64) // 2  # 4 more bits in the first and the last layer
    assert size["int8"] - size["int4e8"] == 64 * 64 // 2
    assert size["int4e8"] == size["int3e8"] == size["int2e8"]


def test_networks_have_the_sizes_they_are_known_by():
    sizes = {network.name: networks.build(network).num_weights for network in networks.STANDARD}
    assert sizes == {
        "64-64": 8 * 64 + 64 * 64 + 64 * 4,
        "256-256": 17 * 256 + 256 * 256 + 256 * 6,
        "400-300": 26 * 400 + 400 * 300 + 300 * 6,
        "4096-512-1024": 26 * 4096 + 4096 * 512 + 512 * 1024 + 1024 * 25,
        "2048-2048-2048": 17 * 2048 + 2 * 2048 * 2048 + 2048 * 6,
        "nature-cnn": 4 * 32 * 64 + 32 * 64 * 16 + 64 * 64 * 9 + 3136 * 512 + 512 * 6,
    }


def test_widths_name_a_standard_network_or_a_new_one():
    assert networks.with_hidden((400, 300)) is networks.STANDARD[2]
    assert networks.with_hidden((512,)).observation_shape == (17,)
    assert networks.with_hidden((3, 4)).name == "3-4"


@pytest.mark.parametrize(("number", "dtype"), [(0, np.float32), (-1, np.uint8)])
def test_observations_fit_the_policy_and_are_repeatable(number, dtype):
    policy = networks.build(networks.STANDARD[number])
    first, again, other = (networks.observations(policy, num=5, seed=seed) for seed in (0, 0, 1))
    assert (first.shape, first.dtype) == ((5, *policy.observation_shape), dtype)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_onnx_runtimes_own_tool_comes_close_and_says_nothing(caplog, capfd):
    policy = small.convolutional()
    x = small.observations(policy, 4)
    exact = quantize(policy, QuantSpec.parse("fp32"))
    with caplog.at_level(logging.DEBUG):
        engine = network_latency.by_onnxruntime(exact, 4)
    wanted = engines.load(exact, "reference", batch=4).run(x)
    np.testing.assert_allclose(engine.run(x), wanted, atol=0.05 * np.abs(wanted).max())
    assert engine.file_bytes < engines.load(exact, "onnx").file_bytes
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert capfd.readouterr() == ("", "")
