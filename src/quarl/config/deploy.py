"""Options of the verb that fits a policy to a board."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from quarl.config.base import Observations
from quarl.config.trained_policy import NamedModel
from quarl.errors import QuarlError
from quarl.fields import ABOVE_ZERO, QUANTISATION, SOME, Bound, shown
from quarl.quant.spec import QuantSpec

CYCLES = Bound("must be at least 0.5", lambda cycles: 0.5 <= cycles < math.inf)
UNITS = {"": 1, "K": 2**10, "M": 2**20}


@dataclass(frozen=True, kw_only=True)
class BudgetConfig(NamedModel):
    """Show which precisions of a policy fit a small board: flash, RAM and instructions, with their origins."""

    verb: ClassVar[str] = "budget"
    examples = ("quarl budget logs/dqn/CartPole-v1_1 --flash 256K --ram 64K --hz 1000 --mhz 168",)

    bits: Annotated[tuple[str, ...], shown("BITS ..."), QUANTISATION, SOME] = ("int8", "int4e8", "int4")
    """Precisions of a policy that is not quantized: intN, or intNeK for K bits in the first and last layers."""
    observations: Observations = None
    """Recorded observations, .npy, .npz or .csv with a row per step: the table then has the errors of actions on the
    last tenth, and no return.
    """
    target: Annotated[tuple[Literal["c", "tflite"], ...], shown("c|tflite ..."), SOME] = ("c", "tflite")
    """Target: integer-only C, or a file for TFLite Micro."""
    flash: Annotated[str | None, shown("SIZE", default="no bound")] = None
    """Bytes for code and weights, such as 256K (of 1,024 bytes) or 1M."""
    ram: Annotated[str | None, shown("SIZE", default="no bound")] = None
    """Bytes for the stack, or for TFLite Micro's arena."""
    hz: Annotated[float | None, shown("N"), ABOVE_ZERO] = None
    """Actions per second."""
    mhz: Annotated[float | None, shown("N"), ABOVE_ZERO] = None
    """Clock of the board in MHz."""
    cpi: Annotated[float | None, shown("N", default="1 to 1.8"), CYCLES] = None
    """Cycles per instruction, from a measurement on the board. The default is the range of a Cortex-M4, without waits
    for its flash."""

    def check(self) -> None:
        super().check()
        if (self.hz is None) != (self.mhz is None):
            raise QuarlError("--hz and --mhz require each other: actions per second, and the clock")
        self.specs()
        self.bounds()

    def specs(self) -> list[QuantSpec]:
        """Return every precision once, in order."""
        return list(dict.fromkeys(QuantSpec.parse(bits, mode="static") for bits in self.bits))

    def bounds(self) -> tuple[float, float]:
        """Return the maximum bytes of flash and of RAM."""
        return _bytes("--flash", self.flash), _bytes("--ram", self.ram)


def _bytes(option: str, text: str | None) -> float:
    if text is None:
        return math.inf
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]+)?)([KM]?)(?:i?B)?", text, re.IGNORECASE | re.ASCII)
    if match is None or not float(match[1]):
        raise QuarlError(f"{option} is {text[:40]!r}; use bytes above 0, such as 65536, 64K or 1M")
    return float(match[1]) * UNITS[match[2].upper()]
