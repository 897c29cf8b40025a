"""Precision and scheme of quantization, after training or in it; names are parsed without importing numpy.

int8, w8a8 and 8 are one precision: weights and activations of 8 bits. w8 leaves activations in float32. Below 8 bits a
bare width keeps the first and the last layers at 8: 4 is int4e8, and int4 has 4 bits in all layers. Precisions are
compared by the name in their QuantSpec, such as int8. Trainings for a precision are shown as w8a8, because a study has
a column for each.
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
"""Range of bits that can be trained for."""
OWN = re.compile(r"([\w.]+):([\w-]+)")
"""Name of a scheme of the user's own: its module, and its name there."""
EDGES = "8"
"""Default of --edge-bits, and of a bare width in verbs without it and in Python."""
MIXED = "mixed"
"""Name of every precision whose layers have bits of their own. It cannot be parsed, because it does not list them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A method of turning real weights into codes; the bit width is not part of it."""

    name: str
    symmetric: bool = True
    """zero_point is 0 and qmin is -qmax, as integer kernels require for weights."""
    per_channel: bool = True
    """One scale per output channel instead of one per tensor."""
    observer: Literal["minmax", "percentile", "mse"] = "minmax"
    """Choice of the range of the weights."""
    activation_observer: Literal["minmax"] = "minmax"
    """Choice of the range of activations in static mode; every file and the keys of studies contain it."""
    rounding: Literal["nearest", "gptq"] = "nearest"
    """gptq: output-aware rounding from calibration observations (Frantar et al. 2023, algorithm 1)."""
    bias_correction: bool = False
    """Subtract the mean output error on the calibration observations from the bias (Nagel et al. 2019, section 4.2)."""
    equalize: float | None = None
    """Balance the extents of a layer's input channels against its weights, to this power (Xiao et al. 2023)."""
    center_scores: bool = False
    """Subtract the mean from discrete scores before they are quantized; no argmax depends on it."""
    mid_rise_bits: int = 0
    """Weights of up to this width use a grid without a level at 0 (quant.affine.MID_RISE)."""
    original: bool = False
    """The 2020 formula: grid anchored at 0, no clipping, up to 2**n + 1 levels; weights only."""
    source: str = ""
    """sha256 of the source of the user's function that makes the codes (quant.schemes); empty for QuaRL's schemes."""

    @property
    def needs_observations(self) -> bool:
        """Return True if the weights' codes depend on calibration observations."""
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
"""Schemes by name. "mid-tread" is the default, but with a level at 0 for weights of 2 or 3 bits too; "naive" is the
usual first attempt: symmetric, per tensor, min/max, nearest."""
UNIFORM = ("naive", "quarl-2020")
"""Schemes that reproduce the work of others: all layers have one width, whatever the edges of other schemes have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantSpec:
    """One column of a study: weights and activations of one precision, by one scheme, in one mode."""

    weight_bits: int
    """2..32; ignored if `float_type` is set."""
    activation_bits: int | None
    """2..16; None leaves activations in float32."""
    float_type: Literal["fp32", "fp16", "bf16"] | None = None
    mode: Mode = "dynamic"
    """dynamic: activations quantized per row at run time. static: per tensor, calibrated. Float activations are
    dynamic."""
    scheme: Scheme = SCHEMES["default"]
    edge_bits: int | None = None
    """Bits of the weights in the first and the last layers, 2..32; None: those of the others."""
    layer_bits: tuple[tuple[str, int], ...] = ()
    """(name, bits 2..32) of layers with a width of their own, which precedes all other widths."""
    symmetric_activations: bool = False
    """Grids of activations have zero point 0, which static mode requires. Float activations have no grids."""

    def __post_init__(self) -> None:
        for name, bits in (("weight", self.weight_bits), ("edge", self.edge_bits), *self.layer_bits):
            if bits is not None and not 2 <= bits <= 32:
                raise QuarlError(f"{name} bits must be 2..32, got {bits}")
        if self.activation_bits is not None and not 2 <= self.activation_bits <= 16:
            raise QuarlError(f"activation bits must be 2..16, got {self.activation_bits}")
        if self.mode not in ("dynamic", "static"):
            raise QuarlError(f"mode must be dynamic or static, got {self.mode!r}")
        if self.activation_bits is None:  # float activations have only one mode, and no grids
            object.__setattr__(self, "mode", "dynamic")
            object.__setattr__(self, "symmetric_activations", False)
        elif self.symmetric_activations and self.mode == "dynamic":
            raise QuarlError("symmetric activations require static mode: dynamic mode places a grid for each row")

    def __repr__(self) -> str:
        return f"QuantSpec({self.in_words}, scheme {self.scheme.name})"

    @classmethod
    def parse(
        cls,
        text: str | int,
        *,
        scheme: str = "default",
        mode: Mode = "dynamic",
        edges: str | int | None = None,
        symmetric_activations: bool = False,
    ) -> QuantSpec:
        """Return the spec for a name or a bare width.

        Args:
            text: fp32, fp16, bf16, int8, w4a8, w8 (float activations), int4e8 (edges of 8), or a width, as in 4.
            scheme: Name in SCHEMES, which is never imported here; those in UNIFORM ignore `edges`.
            mode: dynamic or static.
            edges: Least bits of the first and the last layers unless `text` names them, or "same" for one width. None:
                EDGES for a bare width, and one width for a name.
            symmetric_activations: Grids of activations have zero point 0; ignored if activations are float.

        Raises:
            QuarlError: One of them is unknown, or the mode is dynamic with symmetric activations.

        >>> QuantSpec.parse("w4a8", mode="static"), QuantSpec.parse(4).precision
        (QuantSpec(int4 static, scheme default), 'int4e8')
        """
        if scheme not in SCHEMES and (own := OWN.fullmatch(scheme)):
            raise QuarlError(
                f"scheme {scheme!r} is code of a module, which no file can import; if it is yours, type "
                f"--env-module {own[1]}"
            )
        if scheme not in SCHEMES:
            raise QuarlError(
                f"unknown scheme {scheme!r}; choose one of {', '.join(SCHEMES)}, or your own as my_module:my_scheme"
            )
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
            symmetric_activations=symmetric_activations,
        )

    @property
    def mid_rise(self) -> bool:
        """Return whether the weights of any layer use a grid without a level at 0."""
        narrowest = min(self.weight_bits, self.edge_bits or self.weight_bits, *dict(self.layer_bits).values())
        return self.float_type is None and narrowest <= self.scheme.mid_rise_bits

    @property
    def code_bits(self) -> int:
        """Return the bits of the weights' codes in kernels.

        A grid without a level at 0 needs one more, because its codes are odd numbers.
        """
        return self.weight_bits + self.mid_rise

    def of_layer(self, name: str, *, edge: bool) -> QuantSpec:
        """Return the spec of one layer, whose own width is then `weight_bits`.

        edge: the layer is the first or the last.
        """
        bits = self.edge_bits if edge and self.edge_bits is not None else self.weight_bits
        return replace(self, weight_bits=dict(self.layer_bits).get(name, bits), edge_bits=None, layer_bits=())

    @property
    def nearest(self) -> QuantSpec:
        """Return the same spec with weights rounded to nearest, which gives the same operators in less time."""
        return replace(self, scheme=replace(self.scheme, rounding="nearest"))

    @property
    def needs_observations(self) -> bool:
        """Return True if codes or grids depend on calibration observations."""
        return self.float_type is None and (self.scheme.needs_observations or self.mode == "static")

    @property
    def precision(self) -> str:
        """Return the column's name: fp16, int8, int4e8, w4a6, or `MIXED` if layers have bits of their own.

        int4e8 has edges of 8 bits. A name such as w4a6 is used if activations do not have the usual 8 bits, or, in the
        original scheme, none.
        """
        if self.float_type is not None or self.layer_bits:
            return self.float_type or MIXED
        usual = self.activation_bits == (None if self.scheme.original else 8)
        return re.sub(r"w(\d+)(a8)?", r"int\1", _widths(self)) if usual else _widths(self)

    def is_called(self, precision: str | int) -> bool:
        """Return whether the text, parsed by `parse`, is the name of this precision in either mode."""
        return self.precision == QuantSpec.parse(precision, mode=self.mode, edges=self.edge_bits or "same").precision

    @property
    def in_words(self) -> str:
        """Return the precision and, for quantized activations, the mode: int8 dynamic."""
        return self.precision if self.activation_bits is None else f"{self.precision} {self.activations}"

    @property
    def activations(self) -> str:
        """Return the quantization of activations: dynamic, static, or static symmetric."""
        return f"{self.mode} symmetric" if self.symmetric_activations else self.mode

    def to_json(self) -> dict[str, object]:
        """Return literals for a manifest; fields of younger versions are left out if they have no effect."""
        data: dict[str, Any] = dataclasses.asdict(self) | {"layer_bits": dict(self.layer_bits)}
        if not self.mid_rise:
            del data["scheme"]["mid_rise_bits"]
        if not self.scheme.source:
            del data["scheme"]["source"]
        for name in ("edge_bits", "layer_bits", "symmetric_activations"):
            if not data[name]:
                del data[name]
        return data

    @classmethod
    def from_json(cls, data: dict[str, object]) -> QuantSpec:
        """Return the spec that `to_json` wrote; refuse unknown or wrongly typed fields."""
        try:
            fields = dict(data)
            scheme = Scheme(**fields.pop("scheme"))  # type: ignore[arg-type]  # checked by the except below
            layers = tuple(fields.pop("layer_bits", {}).items())  # type: ignore[attr-defined]
            spec = cls(scheme=scheme, layer_bits=layers, **fields)  # type: ignore[arg-type]
            named = replace(scheme, mid_rise_bits=SCHEMES.get(scheme.name, scheme).mid_rise_bits)
            if not (whole := replace(spec, scheme=named)).mid_rise:
                spec, scheme = whole, named  # restore fields that the file left out
        except (TypeError, KeyError, AttributeError) as error:
            raise QuarlError(f"the manifest's quantization spec is malformed: {error}") from None
        for part in (spec, scheme):
            for name, kind in get_type_hints(type(part)).items():
                value = getattr(part, name)
                if not _is_a(value, kind) or not str(value).isprintable():
                    wrong = f"{name} cannot be {str(value)[:60]!r}"
                    raise QuarlError(f"the manifest's quantization spec is malformed: {wrong}")
        return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class QatSpec:
    """The precision that a policy is trained for: the arithmetic of its layers once fake quantization is active."""

    weight_bits: int
    """2..16, for layers without a width from the next three fields."""
    activation_bits: int | None = 8
    """Bits of values between layers, 2..16; None leaves them in float32."""
    edge_bits: int | None = None
    """Bits of the weights in the first and the last layers; None: `weight_bits`."""
    output_bits: int | None = None
    """Bits of the weights in the last layers alone; None: those of the first."""
    mid_rise_bits: int = SCHEMES["default"].mid_rise_bits
    """Widest weights on a grid without a level at 0, as in a Scheme."""
    observation_bits: int | None = None
    """Bits of the observation, which is quantized if activations are.

    None: pixels keep their 8. Vectors have as many bits as integer sums stay exact with, up to 16, and at least those
    of activations.
    """
    critic: bool = False
    """Quantize critics and value networks as well, which are not deployed; image layers in front of an off-policy
    critic stay in float32."""
    skip: tuple[str, ...] = ()
    """Layers left in float32, by their name or the start of it, as in "q_net.q_net.0"."""

    def __post_init__(self) -> None:
        for name in ("weight_bits", "activation_bits", "edge_bits", "output_bits", "observation_bits"):
            bits = getattr(self, name)
            if bits is not None and not SMALLEST <= bits <= LARGEST:
                words = name.replace("_", " ")
                raise QuarlError(f"{words} of quantization-aware training must be {SMALLEST}..{LARGEST}, got {bits}")
        if self.observation_bits is not None and self.activation_bits is None:
            raise QuarlError(
                f"observation bits require activation bits: {self.precision} leaves both in float32; "
                f"{self.precision}a8 quantizes both"
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
        """Return the spec for a name or a bare width.

        Args:
            text: int8, w4a6, w4 (float activations), w4a8e8, or a width, as in 4.
            edges: As in `QuantSpec.parse`.
            output_bits: Bits of the weights in the last layers.
            observation_bits: Bits of the observation.
            mid_tread: Give weights of 2 and 3 bits a level at 0.
            critic: Quantize critics and value networks as well.
            skip: Layers left in float32.

        Raises:
            QuarlError: The text does not name a width that can be trained for.

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
        """Return w4a8; w4 for float activations; w4a8e8 for edges of 8 bits."""
        return _widths(self)

    @property
    def deployed(self) -> QuantSpec:
        """Return the spec of the policy that `qat.quantized_policy` returns."""
        scheme = Scheme(name="qat-minmax", center_scores=True, mid_rise_bits=self.mid_rise_bits)
        return QuantSpec(
            weight_bits=self.weight_bits,
            activation_bits=self.activation_bits,
            mode="static",
            scheme=scheme,
            edge_bits=self.edge_bits,
        )

    def skips(self, layer: str) -> bool:
        """Return whether the layer of that name stays in float32."""
        return any(covers(name, layer) for name in self.skip)

    def bits_of(self, *, edge: bool, last: bool) -> int:
        """Return the bits of a layer's weights. edge: the layer is first or last. last: it is the last one."""
        return (last and self.output_bits) or (edge and self.edge_bits) or self.weight_bits

    def mid_rise(self, bits: int) -> bool:
        """Return whether weights of that width use a grid without a level at 0."""
        return bits <= self.mid_rise_bits

    def to_json(self) -> dict[str, Any]:
        """Return literals for a checkpoint."""
        return {**dataclasses.asdict(self), "skip": list(self.skip)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> QatSpec:
        """Return the spec that `to_json` wrote; older checkpoints have a level at 0 everywhere."""
        try:
            current = without_removed(data, "the checkpoint's quantization-aware training")
            return cls(**{"mid_rise_bits": 0, **current, "skip": tuple(data.get("skip", ()))})
        except TypeError as error:
            raise QuarlError(
                f"the checkpoint's settings of quantization-aware training are malformed: {error}"
            ) from None


def covers(name: str, layer: str) -> bool:
    """Return whether a name in `skip` is that of the layer, or of a module around it."""
    return layer == name or layer.startswith(f"{name}.")


def integer_bits(text: str | int, activations: int | None = 8) -> tuple[int, int | None, int | None] | None:
    """Return the bits (of weights, of activations, of the edges' weights) that 8, int8, w4a6, int4e8 or w4 names.

    activations: bits that go with 8 and int8. None instead of bits: w4 leaves activations float, and without an "e" the
    edges are like other layers. None for any other text.

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
    """Return the bits that --edge-bits selects; None: all layers have one width."""
    if said == "same":
        return None
    text = str(said)
    if not (text.isascii() and text.isdecimal() and 2 <= int(text) <= 16):
        raise QuarlError(f"--edge-bits is {text[:60]!r}; use 2..16, or same for one width in all layers")
    return int(text)


def _least(text: str | int, edges: str | int | None) -> int | None:
    """Return the least bits of edges that the text does not name; None: those of other layers."""
    if edges is None:
        edges = EDGES if str(text).isdecimal() else "same"
    return edge_bits(edges)


def _widths(spec: QuantSpec | QatSpec) -> str:
    parts = (("w", spec.weight_bits), ("a", spec.activation_bits), ("e", spec.edge_bits))
    return "".join(f"{letter}{bits}" for letter, bits in parts if bits)


def _edges(weights: int, apart: int | None, least: int | None) -> int | None:
    """Return the bits of edges, None for those of other layers.

    apart: bits that the name gives the edges. least: minimum if the name gives none.
    """
    bits = max(weights, least or 0) if apart is None else apart
    return None if bits == weights else bits


def _is_a(value: object, kind: Any) -> bool:
    """Return whether a value has an annotated type: a class, a literal, a union or the bits of layers."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:  # (name, bits) pairs; JSON guarantees the names
        return all(type(bits) is int for _, bits in value)  # type: ignore[attr-defined]
    if get_args(kind):
        return any(_is_a(value, member) for member in get_args(kind))
    return type(value) in ((int, float) if kind is float else (kind,))


def integer_range(bits: int, *, symmetric: bool = True) -> tuple[int, int]:
    """Return (qmin, qmax) of signed n-bit codes; symmetric leaves out the lowest code so that -x and x both have one.

    >>> integer_range(8), integer_range(4, symmetric=False)
    ((-127, 127), (-8, 7))
    """
    top = 2 ** (bits - 1) - 1
    return (-top if symmetric else -top - 1), top


EXACT = QuantSpec.parse("fp32")
"""Baseline for comparisons."""
