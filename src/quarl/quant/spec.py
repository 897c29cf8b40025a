"""What to quantize and how, after training or in it: precisions and schemes, parsed without importing numpy.

int8, w8a8 and 8 are one precision: weights and activations of 8 bits. w8 leaves activations in float32. Below 8 bits a
bare width keeps the first and the last layers at 8: 4 is int4e8, and int4 has 4 bits in all layers. Precisions are
compared by what a QuantSpec calls them, int8; trainings for one are shown as w8a8: a study has a column for each.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from quarl.errors import QuarlError
from quarl.removed import without_removed

Mode = Literal["dynamic", "static"]
FLOAT_BITS = {"fp32": 32, "fp16": 16, "bf16": 16}
SMALLEST, LARGEST = 2, 16
"""Bits that are trained for."""
EDGES = "8"
"""Default of --edge-bits, and of a bare width in verbs without it and in Python."""
MIXED = "mixed"
"""Every precision whose layers have bits of their own is called so, which does not say which: it cannot be parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How real weights become codes; the bit-width is not part of it."""

    name: str
    symmetric: bool = True
    """zero_point is 0 and qmin is -qmax; what the integer kernels need of weights."""
    per_channel: bool = True
    """One scale per output channel instead of one per tensor."""
    observer: Literal["minmax", "percentile", "mse"] = "minmax"
    """What chooses the range of the weights."""
    activation_observer: Literal["minmax"] = "minmax"
    """And of activations in static mode; it stands in every file, and in the keys of studies."""
    rounding: Literal["nearest", "gptq"] = "nearest"
    """gptq: output-aware rounding from calibration observations (Frantar et al. 2023, algorithm 1)."""
    bias_correction: bool = False
    """Subtract the mean output error on the calibration observations from the bias (Nagel et al. 2019, section 4.2)."""
    equalize: float | None = None
    """Balance the extents of a layer's input channels against its weights, to this power (Xiao et al. 2023)."""
    center_scores: bool = False
    """Take the mean out of discrete scores, which no argmax sees, before they are quantized."""
    mid_rise_bits: int = 0
    """Weights of up to so many bits lie on a grid without a level at 0 (quant.affine.MID_RISE)."""
    original: bool = False
    """The 2020 formula: grid anchored at 0, no clipping, up to 2**n + 1 levels; weights only."""

    @property
    def needs_observations(self) -> bool:
        """True when the weights' codes depend on calibration observations."""
        return self.rounding == "gptq" or self.bias_correction or self.equalize is not None


_DEFAULT = Scheme(
    name="default", rounding="gptq", bias_correction=True, equalize=0.5, center_scores=True, mid_rise_bits=3
)
SCHEMES = {
    scheme.name: scheme
    for scheme in (
        _DEFAULT,
        dataclasses.replace(_DEFAULT, name="mid-tread", mid_rise_bits=0),
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
"""By name. "mid-tread" is the default with a level at 0 where weights have 2 or 3 bits, too; "naive" is what a first
attempt does: symmetric, per tensor, min/max, nearest."""
UNIFORM = ("naive", "quarl-2020")
"""Schemes that stand for what others did: all layers have one width, whatever the others' edges have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantSpec:
    """One column of a study: weights and activations of one precision, by one scheme, in one mode."""

    weight_bits: int
    """2..32; ignored where `float_type` is set."""
    activation_bits: int | None
    """2..16; None leaves activations in float32."""
    float_type: Literal["fp32", "fp16", "bf16"] | None = None
    mode: Mode = "dynamic"
    """dynamic: activations quantized per row at run time. static: per tensor, calibrated. Float ones are dynamic."""
    scheme: Scheme = SCHEMES["default"]
    edge_bits: int | None = None
    """2..32, of the weights of the first and the last layers; None: as of the others."""
    layer_bits: tuple[tuple[str, int], ...] = ()
    """(name, bits 2..32) of layers whose weights have a width of their own, whatever others have."""

    def __post_init__(self) -> None:
        for name, bits in (("weight", self.weight_bits), ("edge", self.edge_bits), *self.layer_bits):
            if bits is not None and not 2 <= bits <= 32:
                raise QuarlError(f"{name} bits must be 2..32, got {bits}")
        if self.activation_bits is not None and not 2 <= self.activation_bits <= 16:
            raise QuarlError(f"activation bits must be 2..16, got {self.activation_bits}")
        if self.mode not in ("dynamic", "static"):
            raise QuarlError(f"mode must be dynamic or static, got {self.mode!r}")
        if self.activation_bits is None:  # activations that are not quantized are so in one way only
            object.__setattr__(self, "mode", "dynamic")

    def __repr__(self) -> str:
        return f"QuantSpec({self.in_words}, scheme {self.scheme.name})"

    @classmethod
    def parse(
        cls, text: str | int, *, scheme: str = "default", mode: Mode = "dynamic", edges: str | int | None = None
    ) -> QuantSpec:
        """Return the spec that a name or a bare width stands for.

        Args:
            text: fp32, fp16, bf16, int8, w4a8, w8 (float activations), int4e8 (edges of 8), or a width, as in 4.
            scheme: Name in SCHEMES; those in UNIFORM ignore `edges`.
            mode: dynamic or static.
            edges: Least bits of the first and the last layers unless `text` names them, or "same" for one width.
                None: EDGES of a bare width, and one width of a name.

        Raises:
            QuarlError: An argument is none of these.

        >>> QuantSpec.parse("w4a8", mode="static"), QuantSpec.parse(4).precision
        (QuantSpec(int4 static, scheme default), 'int4e8')
        """
        if scheme not in SCHEMES:
            raise QuarlError(f"unknown scheme {scheme!r}; choose one of {', '.join(SCHEMES)}")
        chosen, word, least = SCHEMES[scheme], str(text).lower(), _least(text, edges)
        float_type: Any = word if word in FLOAT_BITS else None
        bits = (FLOAT_BITS[word], None, None) if float_type else integer_bits(word, None if chosen.original else 8)
        if bits is None:
            raise QuarlError(f"unknown precision {text!r}; use fp32, fp16, bf16, an integer 2..32, intN, wNaM, intNeK")
        weights, activations, apart = bits
        keeps = float_type is not None or scheme in UNIFORM
        return cls(
            weight_bits=weights,
            activation_bits=activations,
            float_type=float_type,
            mode=mode,
            scheme=chosen,
            edge_bits=_edges(weights, apart, None if keeps else least),
        )

    @property
    def mid_rise(self) -> bool:
        """Whether weights of any layer lie on a grid without a level at 0."""
        narrowest = min(self.weight_bits, self.edge_bits or self.weight_bits, *dict(self.layer_bits).values())
        return self.float_type is None and narrowest <= self.scheme.mid_rise_bits

    @property
    def code_bits(self) -> int:
        """Bits of the weights' codes as kernels take them: odd numbers where the grid has no level at 0."""
        return self.weight_bits + self.mid_rise

    def of_layer(self, name: str, *, edge: bool) -> QuantSpec:
        """What a layer is quantized by: its own width is then `weight_bits`. edge: whether it is first or last."""
        bits = self.edge_bits if edge and self.edge_bits is not None else self.weight_bits
        return replace(self, weight_bits=dict(self.layer_bits).get(name, bits), edge_bits=None, layer_bits=())

    @property
    def needs_observations(self) -> bool:
        """True when codes or grids depend on calibration observations."""
        return self.float_type is None and (self.scheme.needs_observations or self.mode == "static")

    @property
    def precision(self) -> str:
        """The column's name: fp16, int8, int4e8 where edges have 8 bits, or w4a6 where activations are not the usual 8
        bits, or the original's none; `MIXED` where layers have bits of their own."""
        if self.float_type is not None or self.layer_bits:
            return self.float_type or MIXED
        usual = self.activation_bits == (None if self.scheme.original else 8)
        return re.sub(r"w(\d+)(a8)?", r"int\1", _widths(self)) if usual else _widths(self)

    def is_called(self, precision: str | int) -> bool:
        """Return whether the text, as `parse` takes it, is this precision's name, in either mode."""
        return self.precision == QuantSpec.parse(precision, mode=self.mode, edges=self.edge_bits or "same").precision

    @property
    def in_words(self) -> str:
        """The precision, with the mode where activations are quantized: int8 dynamic."""
        return self.precision if self.activation_bits is None else f"{self.precision} {self.mode}"

    def to_json(self) -> dict[str, object]:
        """Plain values for a manifest; what younger versions added is left out where it adds nothing."""
        data: dict[str, Any] = dataclasses.asdict(self) | {"layer_bits": dict(self.layer_bits)}
        if not self.mid_rise:
            del data["scheme"]["mid_rise_bits"]
        for name in ("edge_bits", "layer_bits"):
            if not data[name]:
                del data[name]
        return data

    @classmethod
    def from_json(cls, data: dict[str, object]) -> QuantSpec:
        """The inverse of `to_json`; unknown or wrongly typed fields are refused."""
        try:
            fields = dict(data)
            scheme = Scheme(**fields.pop("scheme"))  # type: ignore[arg-type]  # checked by the except below
            layers = tuple(fields.pop("layer_bits", {}).items())  # type: ignore[attr-defined]
            spec = cls(scheme=scheme, layer_bits=layers, **fields)  # type: ignore[arg-type]
            named = replace(scheme, mid_rise_bits=SCHEMES.get(scheme.name, scheme).mid_rise_bits)
            if not (whole := replace(spec, scheme=named)).mid_rise:
                spec, scheme = whole, named  # as it was before its file left out what adds nothing
        except (TypeError, KeyError, AttributeError) as error:
            raise QuarlError(f"the manifest's quantisation spec is malformed: {error}") from None
        for part in (spec, scheme):
            for name, kind in get_type_hints(type(part)).items():
                value = getattr(part, name)
                if not _is_a(value, kind) or not str(value).isprintable():
                    wrong = f"{name} cannot be {str(value)[:60]!r}"
                    raise QuarlError(f"the manifest's quantisation spec is malformed: {wrong}")
        return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class QatSpec:
    """The precision that a policy is trained for: what its layers compute with once fake quantization is active."""

    weight_bits: int
    """2..16, of layers that have no other by the next three."""
    activation_bits: int | None = 8
    """2..16, of what lies between layers; None leaves it in float32."""
    edge_bits: int | None = None
    """Of the weights of the first and the last layers; None: `weight_bits`."""
    output_bits: int | None = None
    """Of the weights of the last layers alone; None: as of the first."""
    mid_rise_bits: int = SCHEMES["default"].mid_rise_bits
    """As of a Scheme."""
    observation_bits: int | None = None
    """None: pixels keep their 8, vectors as many as integer sums stay exact with, up to 16, and those of activations at
    least. The observation is quantized where activations are."""
    critic: bool = False
    """Quantize critics and value networks as well, which are not deployed; what reads images in front of an off-policy
    critic stays in float32."""
    skip: tuple[str, ...] = ()
    """Layers left in float32, by their name or the start of it, as in "q_net.q_net.0"."""

    def __post_init__(self) -> None:
        for name in ("weight_bits", "activation_bits", "edge_bits", "output_bits", "observation_bits"):
            bits = getattr(self, name)
            if bits is not None and not SMALLEST <= bits <= LARGEST:
                words = name.replace("_", " ")
                raise QuarlError(f"{words} of quantisation-aware training must be {SMALLEST}..{LARGEST}, got {bits}")
        if self.observation_bits is not None and self.activation_bits is None:
            raise QuarlError(
                f"observation bits need activation bits: {self.precision} leaves both in float32; "
                f"{self.precision}a8 quantises both"
            )

    @classmethod
    def parse(
        cls,
        text: str | int,
        *,
        edges: str | int | None = None,
        output_bits: int | None = None,
        observation_bits: int | None = None,
        mid_tread: bool = False,
        critic: bool = False,
        skip: tuple[str, ...] = (),
    ) -> QatSpec:
        """Return the spec that a name or a bare width stands for.

        Args:
            text: int8, w4a6, w4 (float activations), w4a8e8, or a width, as in 4.
            edges: As in `QuantSpec.parse`.
            output_bits: As the field.
            observation_bits: As the field.
            mid_tread: Whether weights of 2 and 3 bits have a level at 0.
            critic: As the field.
            skip: As the field.

        Raises:
            QuarlError: The text names no width that can be trained for.

        >>> QatSpec.parse("w4a8").precision, QatSpec.parse(3).precision
        ('w4a8', 'w3a8e8')
        """
        bits = integer_bits(text)
        if bits is None:
            raise QuarlError(f"unknown precision {text!r} to train for; use an integer 2..16, intN, wNaM or wNaMeK")
        weights, activations, apart = bits
        return cls(
            weight_bits=weights,
            activation_bits=activations,
            edge_bits=_edges(weights, apart, _least(text, edges)),
            mid_rise_bits=0 if mid_tread else SCHEMES["default"].mid_rise_bits,
            output_bits=output_bits,
            observation_bits=observation_bits,
            critic=critic,
            skip=skip,
        )

    @property
    def precision(self) -> str:
        """w4a8; w4 where activations are float; w4a8e8 where edges have 8 bits."""
        return _widths(self)

    @property
    def deployed(self) -> QuantSpec:
        """The spec of the policy that `qat.quantized_policy` makes."""
        scheme = Scheme(name="qat-minmax", center_scores=True, mid_rise_bits=self.mid_rise_bits)
        return QuantSpec(
            weight_bits=self.weight_bits,
            activation_bits=self.activation_bits,
            mode="static",
            scheme=scheme,
            edge_bits=self.edge_bits,
        )

    def skips(self, layer: str) -> bool:
        """Whether the layer of that name stays in float32."""
        return any(covers(name, layer) for name in self.skip)

    def bits_of(self, *, edge: bool, last: bool) -> int:
        """Bits of the weights of a layer; edge: whether it is first or last."""
        return (last and self.output_bits) or (edge and self.edge_bits) or self.weight_bits

    def mid_rise(self, bits: int) -> bool:
        """Whether weights of so many bits lie on a grid without a level at 0."""
        return bits <= self.mid_rise_bits

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return {**dataclasses.asdict(self), "skip": list(self.skip)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> QatSpec:
        """The inverse of `to_json`; checkpoints of before have a level at 0 everywhere."""
        try:
            current = without_removed(data, "the checkpoint's quantization-aware training")
            return cls(**{"mid_rise_bits": 0, **current, "skip": tuple(data.get("skip", ()))})
        except TypeError as error:
            raise QuarlError(
                f"the checkpoint's settings of quantisation-aware training are malformed: {error}"
            ) from None


def covers(name: str, layer: str) -> bool:
    """Whether a name in `skip` is that of the layer, or of a module around it."""
    return layer == name or layer.startswith(f"{name}.")


def integer_bits(text: str | int, activations: int | None = 8) -> tuple[int, int | None, int | None] | None:
    """(bits of weights, of activations, of the edges' weights) that 8, int8, w4a6, int4e8 or w4 names.

    activations: bits that go with 8 and int8; w4 leaves them float, which is None, as are edges like other layers. None
    for any other text.

    >>> integer_bits("int4"), integer_bits("w4a8e6"), integer_bits("w4"), integer_bits("fp16")
    ((4, 8, None), (4, 8, 6), (4, None, None), None)
    """
    match = re.fullmatch(
        r"(?:(?:int)?([0-9]{1,4})|w([0-9]{1,4})(?:a([0-9]{1,4}))?)(?:e([0-9]{1,4}))?", str(text).lower()
    )
    if match is None:
        return None
    both, weights, apart, edges = (int(digits) if digits else None for digits in match.groups())
    return (weights, apart, edges) if weights is not None else (both or 0, activations, edges)


def edge_bits(said: str | int) -> int | None:
    """The bits that --edge-bits says; None: all layers have one width."""
    if said == "same":
        return None
    text = str(said)
    if not (text.isascii() and text.isdecimal() and 2 <= int(text) <= 16):
        raise QuarlError(f"--edge-bits is {text[:60]!r}; use 2..16, or same for one width in all layers")
    return int(text)


def _least(text: str | int, edges: str | int | None) -> int | None:
    """Return the least bits of edges that the text leaves open; None: as of other layers."""
    if edges is None:
        edges = EDGES if str(text).isdecimal() else "same"
    return edge_bits(edges)


def _widths(spec: QuantSpec | QatSpec) -> str:
    parts = (("w", spec.weight_bits), ("a", spec.activation_bits), ("e", spec.edge_bits))
    return "".join(f"{letter}{bits}" for letter, bits in parts if bits)


def _edges(weights: int, apart: int | None, least: int | None) -> int | None:
    """Bits of edges of which a word says `apart`; least: at least so many where it says none. None: as of others."""
    bits = max(weights, least or 0) if apart is None else apart
    return None if bits == weights else bits


def _is_a(value: object, kind: Any) -> bool:
    """Whether a value is of an annotated type: a class, a literal, a union or the bits of layers."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:  # of names, which JSON has as such, and bits
        return all(type(bits) is int for _, bits in value)  # type: ignore[attr-defined]
    if get_args(kind):
        return any(_is_a(value, member) for member in get_args(kind))
    return type(value) in ((int, float) if kind is float else (kind,))


def integer_range(bits: int, *, symmetric: bool = True) -> tuple[int, int]:
    """(qmin, qmax) of signed n-bit codes; symmetric leaves out the lowest code so that -x and x both have one.

    >>> integer_range(8), integer_range(4, symmetric=False)
    ((-127, 127), (-8, 7))
    """
    top = 2 ** (bits - 1) - 1
    return (-top if symmetric else -top - 1), top


EXACT = QuantSpec.parse("fp32")
"""What the others are compared with."""
