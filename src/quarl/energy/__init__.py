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

from quarl.energy.sources import JOULES_PER_KWH, Source, cpu_seconds, find
from quarl.errors import QuarlError, note
from quarl.machine import package_folder
from quarl.specs import EnergySpec

__all__ = ["OFF", "Energy", "Meter", "cpu_seconds", "grams_per_kwh", "meter", "sentence"]
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


class Meter:
    """A meter that counts from its creation."""

    def __init__(self, source: Source | None = None, country: str = WORLD, grams: float = 0.0) -> None:
        """Start counting.

        Args:
            source: Source of energy; None measures nothing.
            country: Country of the electricity.
            grams: Grams of CO2 per kilowatt-hour.
        """
        self._source, self._country, self._grams = source, country, grams
        self._began = cpu_seconds() if source else 0.0
        self.cost: Energy | None = None
        """Total once the meter was stopped; None if nothing is measured."""

    @property
    def method(self) -> str | None:
        """Method of measurement; None if nothing is measured."""
        return self._source.method if self._source else None

    def joules(self) -> float | None:
        """Return the joules so far; None if nothing is measured."""
        return self._source.joules() if self._source else None

    def stop(self) -> None:
        """Read the meter for the last time."""
        if self._source is None:
            return
        joules = self._source.joules()
        self.cost = Energy(
            joules=joules,
            co2_g=joules / JOULES_PER_KWH * self._grams,
            method=self._source.method,
            watts=self._source.watts,
            cpu_seconds=cpu_seconds() - self._began,
            country=self._country,
            grams_per_kwh=self._grams,
        )
        self._source.close()


OFF = Meter()
"""A meter that measures nothing."""


@contextlib.contextmanager
def meter(asked: EnergySpec) -> Iterator[Meter]:
    """Yield a meter that counts during the block and has its `cost` afterwards; OFF if none was requested.

    Raises QuarlError before anything runs if codecarbon is missing or does not know the country.
    """
    if not asked.energy:
        yield OFF
        return
    if (package := package_folder("codecarbon")) is None:
        raise QuarlError("--energy needs an extra: pip install 'quarl[energy]'")
    grams = grams_per_kwh(package, asked.energy_country)
    # a command without --device computes on the processor
    device: str = getattr(asked, "device", "cpu")
    if device not in ("cpu", "auto") or (device == "auto" and GPUS.is_dir()):
        note("--energy measures the processor: the joules of a GPU are not counted")
    counting = Meter(find(asked.energy_watts), asked.energy_country or WORLD, grams)
    try:
        yield counting
    finally:
        counting.stop()


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
