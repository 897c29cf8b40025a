"""The energy cost of a run: joules and grams of CO2, always with the method of measurement.

If the processor's own counters are readable (RAPL), they measure the energy of the whole processor. Otherwise it is
processor time times watts: those that the user states, or codecarbon's estimate. Three parts of codecarbon are used:
its reader of the counters, its estimate, and its table of grams per kilowatt-hour. Its trackers are not: without
counters they attribute the load of the machine to the run, and they lock, write files and may report over the network.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl.energy.sources import JOULES_PER_KWH, cpu_seconds, find
from quarl.errors import QuarlError, note
from quarl.machine import package_folder
from quarl.specs import EnergySpec

__all__ = ["Energy", "Meter", "cpu_seconds", "grams_per_kwh", "meter", "sentence"]
WORLD = "world"
"""Placeholder if no country is given."""
GPUS = Path("/proc/driver/nvidia/gpus")
"""Folder in which Linux shows NVIDIA's GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """The energy cost of a run: `energy` of a --json document."""

    joules: float
    co2_g: float
    method: str
    """Method by which the joules were measured."""
    watts: float | None
    """Watts of a busy core; None if counters were read."""
    cpu_seconds: float
    """Processor time of the run with all its processes."""
    country: str
    """ISO 3166 code of three letters, or `world`."""
    grams_per_kwh: float
    """Grams of CO2 equivalent per kilowatt-hour of that country's electricity."""


@dataclass(slots=True)
class Meter:
    """The energy of a block, which is known after it."""

    cost: Energy | None = None
    """Total of the block; None if nothing is measured."""


@contextlib.contextmanager
def meter(asked: EnergySpec) -> Iterator[Meter]:
    """Yield a meter that counts during the block and has its `cost` afterwards, if that was requested.

    Raises QuarlError before anything runs if codecarbon is missing or does not know the country.
    """
    if not asked.energy:
        yield Meter()
        return
    if (package := package_folder("codecarbon")) is None:
        raise QuarlError("--energy needs an extra: pip install 'quarl[energy]'")
    grams = grams_per_kwh(package, asked.energy_country)
    # a command without --device computes on the processor
    device: str = getattr(asked, "device", "cpu")
    if device not in ("cpu", "auto") or (device == "auto" and GPUS.is_dir()):
        note("--energy measures the processor: the joules of a GPU are not counted")
    source, began, counting = find(asked.energy_watts), cpu_seconds(), Meter()
    try:
        yield counting
    finally:
        joules = source.joules()
        counting.cost = Energy(
            joules=joules,
            co2_g=joules / JOULES_PER_KWH * grams,
            method=source.method,
            watts=source.watts,
            cpu_seconds=cpu_seconds() - began,
            country=asked.energy_country or WORLD,
            grams_per_kwh=grams,
        )
        source.close()


def grams_per_kwh(package: Path, country: str | None) -> float:
    """Return grams of CO2 equivalent per kilowatt-hour, from codecarbon's tables; None means the world's average."""
    tables = package / "data" / "private_infra"
    try:
        if country is None:
            return float(json.loads((tables / "carbon_intensity_per_source.json").read_text())["world_average"])
        countries = json.loads((tables / "global_energy_mix.json").read_text())
        if country in countries:
            return float(countries[country]["carbon_intensity"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise QuarlError(
            f"codecarbon has no data on the electricity of {country or 'the world'} "
            f"({type(error).__name__}: {error}); pip install 'quarl[energy]' installs a release that has"
        ) from None
    raise QuarlError(f"codecarbon has no country {country!r}: --energy-country is an ISO code, such as FRA, DEU or USA")


def sentence(cost: Mapping[str, Any]) -> str:
    """Return an `energy` in words: the figures, and the method of measurement."""
    where = "world average" if cost["country"] == WORLD else cost["country"]
    return (
        f"energy: {cost['joules']:,.0f} J, {cost['co2_g']:.3g} g CO2 "
        f"({cost['method']}; {cost['cpu_seconds']:,.1f} s of processor time; "
        f"{where}, {cost['grams_per_kwh']:.4g} g/kWh)"
    )
