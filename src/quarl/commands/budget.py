"""`quarl budget`: the precisions of a policy that fit a small board."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from quarl import formats
from quarl.commands import model, terminal
from quarl.config import BudgetConfig, PtqConfig
from quarl.errors import QuarlError
from quarl.export.footprint import footprint
from quarl.judging import fidelity_on
from quarl.latency.file_latency import in_precisions
from quarl.policy.artifact import CHOICES
from quarl.policy.graph import is_quantized
from quarl.readers import find, load
from quarl.rows import Column, ErrorMax, ErrorRms, Precision, Row

NOTHING_FITS = 3
"""The exit code if no precision fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow(Row):
    """One precision as one target."""

    command = "budget"
    target: Annotated[str, Column("target")]
    precision: Precision
    flash: Annotated[int, Column("flash", formats.size)]
    """Bytes of code and weights; for tflite, of the file without the interpreter."""
    ram: Annotated[int, Column("RAM", formats.size)]
    """Bytes of the stack, or of TFLite Micro's arena."""
    macs: Annotated[int, Column("MACs", "{:,}".format)]
    """Products of weights and activations in one action."""
    instructions: Annotated[int | None, Column("instructions", formats.count)]
    """Instructions of one action; null if they are unknown."""
    cycles: Annotated[float | None, Column("cycles %", formats.percent, optional=True)]
    """Share of --mhz that --hz actions per second take, at one instruction per cycle.
    Boards that wait for their flash take more."""
    error_rms: ErrorRms = None
    error_max: ErrorMax = None
    agreement: Annotated[float | None, Column("agree %", formats.percent, optional=True)] = None
    """Share of held-out observations with the same action as in fp32, within 1 % of the range; null without any."""
    fits: Annotated[bool | None, Column("fits", lambda fits: {True: "yes", False: "no", None: "unknown"}[fits])]
    """True if it is within all given bounds; null if only the unknown instructions decide."""
    how: Annotated[str, Column("how", caption="{}")]
    """Source of the numbers."""


def run(config: BudgetConfig) -> int | None:
    """Print a row for each target and precision; return NOTHING_FITS if none fits."""
    (flash, ram), rows, said = config.bounds(), list[BudgetRow](), dict[str, None]()
    exact = load.read(find.named(config.model, config.folder), **config.stated())
    recorded = model.observations(config.observations, exact)
    errors: dict[str, Any] = {}
    for policy in in_precisions(exact, config.specs(), recorded=recorded):
        if recorded is not None and not is_quantized(exact):
            errors, fidelity = fidelity_on(exact, policy, recorded)
            said[f"{policy.spec.precision}: {fidelity}"] = None
        for target in config.target:
            try:
                takes = footprint(policy, target)
            except QuarlError as error:
                said[f"{target} {policy.spec.precision}: {error}"] = None
                continue
            cycles: float | None = None
            fits: bool | None = takes.flash <= flash and takes.ram <= ram
            if config.hz and config.mhz:
                cycles = takes.instructions and takes.instructions * config.hz / (1e6 * config.mhz)
                fits = fits and (None if cycles is None else cycles <= 1)
            name = policy.spec.precision
            rows.append(BudgetRow(target=target, precision=name, cycles=cycles, fits=fits, **errors, **asdict(takes)))
    if not rows:
        raise QuarlError(next(iter(said)))
    fitting = ", ".join(f"{row.precision} as {row.target}" for row in rows if row.fits)
    about = f"Fits: {fitting}." if fitting else "Nothing fits; use fewer bits or a smaller network."
    named = shlex.join([*config.model, *(["-f", str(config.folder)] if config.folder else [])])
    same = {name: getattr(config, name) for name in ("model", "folder", *CHOICES)}
    loss = f"To measure the return at each precision: {PtqConfig(**same, mode='static').command_line()}"
    terminal.tell(config, BudgetRow, rows, "Footprint of one policy", *said, about, loss, model=named)
    return None if fitting else NOTHING_FITS
