"""`quarl budget`: the precisions of a policy that fit a small board."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from quarl import formats
from quarl.commands import model, terminal
from quarl.config import BudgetConfig, PtqConfig
from quarl.errors import QuarlError
from quarl.export.footprint import CPI, ESTIMATE, footprint
from quarl.judging import fidelity_on
from quarl.latency.file_latency import in_precisions
from quarl.policy.artifact import CHOICES
from quarl.policy.graph import QuantizedPolicy, edge_weights, is_quantized
from quarl.readers import find, load
from quarl.rows import Column, ErrorMax, ErrorRms, Precision, Row

SMALL = "The columns of -Os are for smaller code by gcc -Os; fits is for -O2."
NOTHING_FITS = 3
"""The exit code if no precision is known to fit."""
FRAME = (
    "RAM of c is the stack of an action, which copies floats, and the state of a policy with a memory. An exception "
    "pushes 32 bytes on a Cortex-M, 104 with the FPU's registers, and its handler has a stack of its own."
)


def _size(size: int | None) -> str:
    return "unknown" if size is None else formats.size(size)


def _cycles(low: float | None, high: float | None) -> str:
    return _range("{:,}".format, low, high)


def _load(low: float | None, high: float | None) -> str:
    return _range(lambda share: f"{100 * share:.1f}", low, high)


def _range(text: Callable[[float], str], *ends: float | None) -> str:
    """Return the ends of a range as text, once if they are equal; blank for None."""
    return " – ".join(dict.fromkeys(text(end) for end in ends if end is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow(Row):
    """One precision as one target."""

    command = "budget"
    target: Annotated[str, Column("target")]
    precision: Precision
    flash: Annotated[int | None, Column("flash", _size)]
    """Bytes of code and weights; for tflite, of the file without the interpreter. Null if they are unknown."""
    ram: Annotated[int | None, Column("RAM", _size)]
    """Bytes of the stack with the state of a memory, or of TFLite Micro's arena; null if they are unknown."""
    macs: Annotated[int, Column("MACs", "{:,}".format)]
    """Products of weights and activations in one action."""
    instructions: Annotated[int | None, Column("instructions", formats.count)]
    """Instructions of one action; null if they are unknown."""
    flash_os: Annotated[int | None, Column("flash -Os", formats.size, optional=True)] = None
    """The same three for code that the compiler makes small with -Os in place of -O2; null for tflite, or unknown."""
    ram_os: Annotated[int | None, Column("RAM -Os", formats.size, optional=True)] = None
    instructions_os: Annotated[int | None, Column("instructions -Os", formats.count, optional=True)] = None
    cycles_low: Annotated[int | None, Column("cycles", _cycles, of=("cycles_low", "cycles_high"), optional=True)]
    """Fewest cycles of one action: instructions by --cpi, or by the ends of its default; null if they are unknown.
    Estimated instructions widen the range by their error."""
    cycles_high: int | None
    load_low: Annotated[float | None, Column("time %", _load, of=("load_low", "load_high"), optional=True)]
    """Share of the time between two actions at --hz that an action takes at --mhz; null without them."""
    load_high: float | None
    error_rms: ErrorRms = None
    error_max: ErrorMax = None
    agreement: Annotated[float | None, Column("agree %", formats.percent, optional=True)] = None
    """Share of held-out observations with the same action as in fp32, within 1 % of the range; null without any."""
    fits: Annotated[bool | None, Column("fits", lambda fits: {True: "yes", False: "no", None: "unknown"}[fits])]
    """True if it is within all given bounds; null if an unknown number decides, or a range of time that is partly
    within."""
    how: Annotated[str, Column("how", caption="{}")]
    """Source of the numbers."""


def run(config: BudgetConfig) -> int | None:
    """Print a row for each target and precision; return NOTHING_FITS if none fits."""
    rows, edged, said = list[BudgetRow](), list[QuantizedPolicy](), dict[str, None]()
    exact = load.read(find.named(config.model, config.folder), **config.stated())
    recorded = model.observations(config.observations, exact)
    errors: dict[str, Any] = {}
    for policy in in_precisions(exact, config.specs(), recorded=recorded):
        if recorded is not None and not is_quantized(exact):
            errors, fidelity = fidelity_on(exact, policy, recorded)
            said[f"{policy.spec.precision}: {fidelity}"] = None
        for target in config.target:
            try:
                rows.append(_row(config, policy, target, errors))
            except QuarlError as error:
                said[f"{target} {policy.spec.precision}: {error}"] = None
        if policy.spec.edge_bits:
            edged.append(policy)
    if not rows:
        raise QuarlError(next(iter(said)))
    said |= dict.fromkeys(_cost_of_edges(policy, rows) for policy in edged)
    fitting = ", ".join(f"{row.precision} as {row.target}" for row in rows if row.fits)
    unknown = "Nothing is known to fit." if any(row.fits is None for row in rows) else ""
    about = f"Fits: {fitting}." if fitting else unknown or "Nothing fits; use fewer bits or a smaller network."
    named = shlex.join([*config.model, *(["-f", str(config.folder)] if config.folder else [])])
    same = {name: getattr(config, name) for name in ("model", "folder", *CHOICES)}
    same |= {"bits": tuple(dict.fromkeys(row.precision for row in rows)), "mode": "static", "edge_bits": "same"}
    ptq = PtqConfig(**same, env=None if exact.provenance.env_id else "ENV")
    loss = [] if is_quantized(exact) else [f"To measure the return at each precision: {ptq.command_line()}"]
    frame = [FRAME] if any(row.target == "c" for row in rows) else []
    frame += [SMALL] if any(row.flash_os for row in rows) else []
    terminal.tell(config, BudgetRow, rows, "Footprint of one policy", *frame, *said, about, *loss, model=named)
    return None if fitting else NOTHING_FITS


def _row(config: BudgetConfig, policy: QuantizedPolicy, target: str, errors: Mapping[str, Any]) -> BudgetRow:
    """Return the row of a policy as a target.

    Args:
        config: The command's options.
        policy: The policy.
        target: Target, "c" or "tflite".
        errors: Fields about the errors of its actions.
    """
    takes, (flash, ram) = footprint(policy, target, small=True), config.bounds()
    ends: dict[str, Any] = {}
    error = ESTIMATE if takes.flash is None else 0
    low, high = (config.cpi, config.cpi) if config.cpi else CPI
    rate = config.hz / (1e6 * config.mhz) if config.hz and config.mhz else None
    for end, cpi in (("low", low * (1 - error)), ("high", high * (1 + error))):
        cycles = None if takes.instructions is None else round(takes.instructions * cpi)
        ends[f"cycles_{end}"] = cycles
        ends[f"load_{end}"] = None if cycles is None or rate is None else cycles * rate
    within = (
        _within(takes.flash, takes.flash, flash),
        _within(takes.ram, takes.ram, ram),
        _within(ends["load_low"], ends["load_high"], 1 if config.hz else math.inf),
    )
    fits = False if False in within else None if None in within else True
    return BudgetRow(target=target, precision=policy.spec.precision, fits=fits, **ends, **errors, **asdict(takes))


def _within(low: float | None, high: float | None, bound: float) -> bool | None:
    """Return whether a number between two ends is at most the bound; None if it is unknown."""
    if bound == math.inf or (high is not None and high <= bound):
        return True
    return None if low is None or low <= bound else False


def _cost_of_edges(policy: QuantizedPolicy, rows: Sequence[BudgetRow]) -> str:
    """Return a sentence about the weights in edges that are wider than other layers."""
    spec, edges = policy.spec, edge_weights(policy)
    assert spec.edge_bits is not None
    flash, even = {row.precision: row.flash for row in rows if row.target == "c"}, replace(spec, edge_bits=None)
    wide, narrow, extra = flash.get(spec.precision), flash.get(even.precision), spec.edge_bits - spec.weight_bits
    of_weights = f"{formats.size(edges * extra // 8)} of weights"
    return (
        f"{spec.precision}: edges of {spec.edge_bits} bits hold {formats.percent(edges / policy.num_weights)} % of the "
        f"weights: --bits {even.precision} saves "
        + (f"{formats.size(wide - narrow)} of flash as c" if wide and narrow else of_weights)
    )
