"""What quantisation-aware training simulates: bits and kinds of ranges, parsed without importing numpy."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Literal

from quarl.errors import QuarlError
from quarl.quant.spec import QuantSpec, Scheme

Ranges = Literal["minmax", "lsq"]
SMALLEST, LARGEST = 2, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class QatSpec:
    """The precision that a policy is trained for: what its layers compute with once fake quantisation is active."""

    weight_bits: int
    """2..16, of every layer but the last ones where `output_bits` is given."""
    activation_bits: int | None = 8
    """2..16, of what lies between layers; None leaves it in float32."""
    output_bits: int | None = None
    """Of the weights of the last layers; None: `weight_bits`."""
    observation_bits: int | None = None
    """None: pixels keep their 8, vectors as many as integer sums stay exact with, up to 16, and those of activations at
    least. The observation is quantised where activations are."""
    symmetric: bool = True
    """Of weights; the grids of activations are affine."""
    per_channel: bool = True
    """One scale for each output channel of a weight instead of one per tensor."""
    ranges: Ranges = "minmax"
    """minmax: weights by their extent, activations by a moving average of it. lsq: steps learned with the weights."""
    critic: bool = False
    """Quantise critics and value networks as well, which are not deployed; what reads images in front of an off-policy
    critic stays in float32."""
    skip: tuple[str, ...] = ()
    """Layers left in float32, by their name or the start of it, as in "q_net.q_net.0"."""

    def __post_init__(self) -> None:
        for name in ("weight_bits", "activation_bits", "output_bits", "observation_bits"):
            bits = getattr(self, name)
            if bits is not None and not SMALLEST <= bits <= LARGEST:
                words = name.replace("_", " ")
                raise QuarlError(f"{words} of quantisation-aware training must be {SMALLEST}..{LARGEST}, got {bits}")
        if self.observation_bits is not None and self.activation_bits is None:
            raise QuarlError(
                f"observation bits need activation bits: {self.precision} leaves both in float32; "
                f"{self.precision}a8 quantises both"
            )
        if self.ranges not in ("minmax", "lsq"):
            raise QuarlError(f"ranges are minmax or lsq, got {self.ranges!r}")
        if self.ranges == "lsq" and not self.symmetric:
            raise QuarlError("lsq learns the steps of symmetric weights; drop affine, or use ranges minmax")
        if self.ranges == "lsq" and not self.per_channel:
            raise QuarlError("lsq learns a step for each output channel; drop per_tensor, or use ranges minmax")

    @classmethod
    def parse(
        cls,
        text: str | int,
        *,
        output_bits: int | None = None,
        observation_bits: int | None = None,
        ranges: Ranges = "minmax",
        affine: bool = False,
        per_tensor: bool = False,
        critic: bool = False,
        skip: tuple[str, ...] = (),
    ) -> QatSpec:
        """The spec that `text` names: 8 or int8 (activations of 8 bits), w4a6, w4 (float activations).

        >>> QatSpec.parse("w4a8").precision, QatSpec.parse(3).precision
        ('w4a8', 'w3a8')
        """
        match = re.fullmatch(r"(?:int)?(\d{1,4})|w(\d{1,4})(?:a(\d{1,4}))?", str(text).lower())
        if match is None:
            raise QuarlError(f"unknown precision {text!r} to train for; use an integer 2..16, intN or wNaM")
        same, weights, activations = match.groups()
        return cls(
            weight_bits=int(same or weights),
            activation_bits=8 if same else int(activations) if activations else None,
            output_bits=output_bits,
            observation_bits=observation_bits,
            symmetric=not affine,
            per_channel=not per_tensor,
            ranges=ranges,
            critic=critic,
            skip=skip,
        )

    @property
    def precision(self) -> str:
        """w4a8; w4 where activations are float."""
        return f"w{self.weight_bits}" + (f"a{self.activation_bits}" if self.activation_bits else "")

    @property
    def deployed(self) -> QuantSpec:
        """The spec of the policy that `qat.quantized_policy` makes."""
        name = f"qat-{self.ranges}"
        scheme = Scheme(name=name, symmetric=self.symmetric, per_channel=self.per_channel, center_scores=True)
        return QuantSpec(
            weight_bits=self.weight_bits, activation_bits=self.activation_bits, mode="static", scheme=scheme
        )

    def skips(self, layer: str) -> bool:
        """Whether the layer of that name stays in float32."""
        return any(covers(name, layer) for name in self.skip)

    def bits_of(self, *, last: bool) -> int:
        """Bits of the weights of a layer."""
        return self.output_bits if last and self.output_bits is not None else self.weight_bits

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return {**dataclasses.asdict(self), "skip": list(self.skip)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> QatSpec:
        """The inverse of `to_json`."""
        try:
            return cls(**{**data, "skip": tuple(data.get("skip", ()))})
        except TypeError as error:
            raise QuarlError(
                f"the checkpoint's settings of quantisation-aware training are malformed: {error}"
            ) from None


def covers(name: str, layer: str) -> bool:
    """Whether a name in `skip` is that of the layer, or of a module around it."""
    return layer == name or layer.startswith(f"{name}.")
