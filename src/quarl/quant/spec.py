"""What to quantise and how: precisions ("int8", "w4a8", "fp16") and schemes, parsed without importing numpy."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from quarl.errors import QuarlError

Mode = Literal["dynamic", "static"]
FLOAT_BITS = {"fp32": 32, "fp16": 16, "bf16": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How real weights become codes; the bit-width is not part of it."""

    name: str
    symmetric: bool = True
    """zero_point is 0 and qmin is -qmax; what the integer kernels need of weights."""
    per_channel: bool = True
    """One scale per output channel instead of one per tensor."""
    observer: Literal["minmax", "moving-average", "percentile", "mse"] = "minmax"
    """What chooses the range of the weights; activations in static mode use `activation_observer`."""
    activation_observer: Literal["minmax", "moving-average", "percentile", "mse"] = "minmax"
    rounding: Literal["nearest", "gptq"] = "nearest"
    """gptq: output-aware rounding from calibration observations (Frantar et al. 2023, algorithm 1)."""
    bias_correction: bool = False
    """Subtract the mean output error on the calibration observations from the bias (Nagel et al. 2019, section 4.2)."""
    equalize: float | None = None
    """Balance the extents of a layer's input channels against its weights, to this power (Xiao et al. 2023)."""
    center_scores: bool = False
    """Take the mean out of discrete scores, which no argmax sees, before they are quantised."""
    original: bool = False
    """The 2020 formula: grid anchored at 0, no clipping, up to 2**n + 1 levels; weights only."""

    @property
    def needs_observations(self) -> bool:
        """True when the weights' codes depend on calibration observations."""
        return self.rounding == "gptq" or self.bias_correction or self.equalize is not None


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme(name="default", rounding="gptq", bias_correction=True, equalize=0.5, center_scores=True),
        Scheme(name="naive", per_channel=False),
        Scheme(name="per-channel"),
        Scheme(name="affine", symmetric=False),
        Scheme(name="affine-per-tensor", symmetric=False, per_channel=False),
        Scheme(name="mse", observer="mse"),
        Scheme(name="percentile", observer="percentile"),
        Scheme(name="bias-corrected", bias_correction=True),
        Scheme(name="gptq", rounding="gptq", bias_correction=True),
        Scheme(name="quarl-2020", symmetric=False, per_channel=False, original=True),
    )
}
"""By name. "naive" is what a first attempt does: symmetric, per tensor, min/max, nearest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantSpec:
    """One column of a study: weights and activations of one precision, by one scheme, in one mode."""

    weight_bits: int
    """2..32; ignored where `float_type` is set."""
    activation_bits: int | None
    """2..16; None leaves activations in float32."""
    float_type: Literal["fp32", "fp16", "bf16"] | None = None
    mode: Mode = "dynamic"
    """dynamic: activations quantised per row at run time. static: per tensor, calibrated. Float ones are dynamic."""
    scheme: Scheme = SCHEMES["default"]

    def __post_init__(self) -> None:
        if not 2 <= self.weight_bits <= 32:
            raise QuarlError(f"weight bits must be 2..32, got {self.weight_bits}")
        if self.activation_bits is not None and not 2 <= self.activation_bits <= 16:
            raise QuarlError(f"activation bits must be 2..16, got {self.activation_bits}")
        if self.mode not in ("dynamic", "static"):
            raise QuarlError(f"mode must be dynamic or static, got {self.mode!r}")
        if self.activation_bits is None:  # activations that are not quantised are so in one way only
            object.__setattr__(self, "mode", "dynamic")

    @classmethod
    def parse(cls, text: str | int, *, scheme: str = "default", mode: Mode = "dynamic") -> QuantSpec:
        """The spec that `text` names: fp32, fp16, bf16, 8 or int8, w4a8, w8 (float activations).

        >>> QuantSpec.parse("w4a8").weight_bits
        4
        """
        if scheme not in SCHEMES:
            raise QuarlError(f"unknown scheme {scheme!r}; choose one of {', '.join(SCHEMES)}")
        chosen = SCHEMES[scheme]
        word = str(text).lower()
        if word in FLOAT_BITS:
            return cls(
                weight_bits=FLOAT_BITS[word],
                activation_bits=None,
                float_type=word,  # type: ignore[arg-type]  # the dict's keys are the literal's members
                mode=mode,
                scheme=chosen,
            )
        match = re.fullmatch(r"(?:int)?(\d{1,4})|w(\d{1,4})(?:a(\d{1,4}))?", word)
        if match is None:
            raise QuarlError(f"unknown precision {text!r}; use fp32, fp16, bf16, an integer 2..32, intN or wNaM")
        same, weights, activations = match.groups()
        if same is not None:
            bits, activation_bits = int(same), None if chosen.original else 8
        else:
            bits, activation_bits = int(weights), int(activations) if activations else None
        return cls(weight_bits=bits, activation_bits=activation_bits, mode=mode, scheme=chosen)

    @property
    def needs_observations(self) -> bool:
        """True when codes or grids depend on calibration observations."""
        return self.float_type is None and (self.scheme.needs_observations or self.mode == "static")

    @property
    def precision(self) -> str:
        """The column's name: fp16, int8, or w4a6 where activations are not the usual 8 bits, or the original's none."""
        if self.float_type is not None:
            return self.float_type
        if self.activation_bits == (None if self.scheme.original else 8):
            return f"int{self.weight_bits}"
        return f"w{self.weight_bits}" + (f"a{self.activation_bits}" if self.activation_bits else "")

    def to_json(self) -> dict[str, object]:
        """Plain values for a manifest."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, object]) -> QuantSpec:
        """The inverse of `to_json`; unknown or wrongly typed fields are refused."""
        try:
            fields = dict(data)
            scheme = Scheme(**fields.pop("scheme"))  # type: ignore[arg-type]  # checked by the except below
            spec = cls(scheme=scheme, **fields)  # type: ignore[arg-type]
        except (TypeError, KeyError, AttributeError) as error:
            raise QuarlError(f"the manifest's quantisation spec is malformed: {error}") from None
        for part in (spec, scheme):
            for name, kind in get_type_hints(type(part)).items():
                value = getattr(part, name)
                if not _is_a(value, kind) or not str(value).isprintable():
                    wrong = f"{name} cannot be {str(value)[:60]!r}"
                    raise QuarlError(f"the manifest's quantisation spec is malformed: {wrong}")
        return spec


def _is_a(value: object, kind: Any) -> bool:
    """Whether a value is of an annotated type: a class, a literal or a union."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_args(kind):
        return any(_is_a(value, one) for one in get_args(kind))
    return type(value) in ((int, float) if kind is float else (kind,))


def integer_range(bits: int, *, symmetric: bool = True) -> tuple[int, int]:
    """(qmin, qmax) of signed n-bit codes; symmetric leaves out the lowest code so that -x and x both have one.

    >>> integer_range(8), integer_range(4, symmetric=False)
    ((-127, 127), (-8, 7))
    """
    top = 2 ** (bits - 1) - 1
    return (-top if symmetric else -top - 1), top
