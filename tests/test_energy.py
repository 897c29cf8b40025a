"""Energy: processor time of whole families, counters that come around, and figures that say how they were found."""

from __future__ import annotations

import json
import multiprocessing
import re
import socket
import time

import pytest

import contracts
import require
from quarl import energy
from quarl.cli import main, parse
from quarl.config import PtqConfig, TrainConfig
from quarl.energy.sources import Counters, ProcessorTime
from quarl.errors import QuarlError
from quarl.report import schema
from quarl.runs.outcome import TrainRow
from waiting import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("elsewhere")]  # codecarbon asks for GPUs by programs

TINY = "train --algo a2c -n 64 --eval-freq 0 --eval-episodes 2"

require.package("codecarbon")


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def tables(folder, **countries):
    """codecarbon's folder, as far as it is read."""
    data = folder / "data" / "private_infra"
    data.mkdir(parents=True)
    (data / "carbon_intensity_per_source.json").write_text(json.dumps({"world_average": 400}))
    known = {code: {"carbon_intensity": grams} for code, grams in countries.items()}
    (data / "global_energy_mix.json").write_text(json.dumps(known))
    return folder


# how much


def test_living_and_killed_children_count():
    before = energy.cpu_seconds()
    child = multiprocessing.get_context("spawn").Process(target=burn, args=(2 * PATIENCE_S,))
    child.start()
    try:
        until(lambda: energy.cpu_seconds() - before >= 0.5)
        living = energy.cpu_seconds() - before
    finally:
        child.kill()
        child.join()
    assert living >= 0.5
    assert energy.cpu_seconds() - before >= living - 0.05


def test_joules_are_watts_times_processor_time():
    source = ProcessorTime(20.0, "stated")
    burn(0.1)
    found = source.joules()
    assert found >= 2.0
    time.sleep(0.2)  # a sleeping process costs nothing
    assert source.joules() - found < 2.0
    assert (source.watts, source.method) == (20.0, "CPU time × 20 W a core, stated")


def counter(folder, microjoules, most=1_000_000_000):
    package = folder / "intel-rapl:0"
    package.mkdir(parents=True, exist_ok=True)
    (package / "name").write_text("package-0\n")
    (package / "max_energy_range_uj").write_text(f"{most}\n")
    (package / "energy_uj").write_text(f"{microjoules}\n")


def test_counters_are_read_and_may_come_around(tmp_path):
    folder = tmp_path / "counters" / "powercap"
    counter(folder, 900_000_000)
    source = Counters.find(folder)
    assert source is not None
    try:
        counter(folder, 950_000_000)
        assert source.joules() == pytest.approx(50.0, rel=1e-4)
        counter(folder, 25_000_000)  # 50 J to the end, and 25 J more
        assert source.joules() == pytest.approx(125.0, rel=1e-4)
        assert (source.watts, source.method) == (None, "RAPL of the whole processor")
    finally:
        source.close()


def test_without_counters_there_is_no_such_source(tmp_path):
    (tmp_path / "powercap").mkdir()
    assert Counters.find(tmp_path / "powercap") is None
    assert Counters.find(tmp_path / "nowhere") is None


def test_grams_are_the_country_s_or_the_world_s(tmp_path):
    folder = tables(tmp_path, FRA=56.0)
    assert energy.grams_per_kwh(folder, None) == 400.0
    assert energy.grams_per_kwh(folder, "FRA") == 56.0
    with pytest.raises(QuarlError, match="no country 'fra': --energy-country is an ISO code"):
        energy.grams_per_kwh(folder, "fra")
    with pytest.raises(QuarlError, match="has no data on the electricity of the world"):
        energy.grams_per_kwh(tmp_path / "nowhere", None)


def test_codecarbon_s_own_tables_are_read():
    for country in (None, "FRA", "USA"):
        with energy.meter(PtqConfig(energy=True, energy_watts=1.0, energy_country=country)) as meter:
            burn(0.01)
        assert 10 < meter.cost.grams_per_kwh < 1000
        assert meter.cost.country == (country or "world")
        assert meter.cost.co2_g == pytest.approx(meter.cost.joules / 3.6e6 * meter.cost.grams_per_kwh)


def test_the_guess_needs_no_network_and_leaves_no_file(tmp_path, no_network):
    with energy.meter(PtqConfig(energy=True)) as meter:
        burn(0.1)
    assert re.fullmatch(
        r"CPU time × [\d.]+ W a core, codecarbon's guess|RAPL of the whole processor", meter.cost.method
    )
    assert meter.cost.joules > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("device", "gpus", "lines"), [("cpu", 1, 0), ("auto", 0, 0), ("auto", 1, 1), ("cuda", 0, 1)])
def test_a_run_that_may_use_a_gpu_reports_that_it_is_not_counted(device, gpus, lines, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(energy, "GPUS", tmp_path if gpus else tmp_path / "nowhere")
    with energy.meter(TrainConfig(energy=True, energy_watts=1.0, device=device)):
        assert capsys.readouterr().err.count("the joules of a GPU are not counted") == lines


def test_what_is_not_asked_for_is_not_measured():
    with energy.meter(PtqConfig()) as meter:
        burn(0.01)
    assert meter.cost is None
    assert "energy" not in schema.document(TrainRow, [], energy=None)


# said


def test_a_training_says_what_it_cost_and_how_that_was_found(tmp_path, capsys, no_network):
    words = [*TINY.split(), "--energy", "--energy-watts", "12.5", "--energy-country", "FRA", "--json", "row.json"]
    assert main(words) == 0
    cost = contracts.read(tmp_path / "row.json")["energy"]
    assert cost["method"] == "CPU time × 12.5 W a core, stated"
    assert (cost["watts"], cost["country"]) == (12.5, "FRA")
    assert cost["joules"] == pytest.approx(12.5 * cost["cpu_seconds"], rel=0.05)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("energy: "))
    assert cost["method"] in line
    assert "FRA" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "row.json"]
    assert main([*TINY.split(), "--resume", "-n", "128"]) == 0  # its energy was that session's business


def test_a_document_s_energy_has_the_contract_s_keys():
    cost = energy.Energy(
        joules=1.0, co2_g=2.0, method="m", watts=None, cpu_seconds=3.0, country="world", grams_per_kwh=4.0
    )
    document = schema.document(TrainRow, [], energy=cost)
    contracts.check(json.loads(schema.to_text(document)))
    with pytest.raises(ValueError, match="energy: method is None"):
        contracts.check({**document, "energy": {**document["energy"], "method": None}})
    assert energy.sentence(document["energy"]) == (
        "energy: 1 J, 2 g CO2 (m; 3.0 s of processor time; world average, 4 g/kWh)"
    )


# mistakes


@pytest.mark.parametrize("verb", ["ptq a.zip", "train", "sweep", "actorq", "bench latency"])
def test_every_verb_that_trains_or_measures_has_the_options(verb):
    config = parse([*verb.split(), "--energy", "--energy-watts", "5", "--energy-country", "USA"])
    assert (config.energy, config.energy_watts, config.energy_country) == (True, 5.0, "USA")
    assert parse(config.command_line().split()[1:]) == config
