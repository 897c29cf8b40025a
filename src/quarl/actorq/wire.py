"""The wire format of actors: the artifact of a quantized policy, with bit-packed codes, compressed on request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import zstandard

from quarl.actorq.weights import Trained
from quarl.arrays import Array
from quarl.calibration import quantize
from quarl.engines.numpy_operators import as_float, unfold
from quarl.errors import QuarlError
from quarl.policy import artifact
from quarl.policy.container import Bytes
from quarl.policy.graph import ActivationGrid, Policy, QuantizedPolicy, edge_layers
from quarl.policy.operators import Linear, Op, QuantizedTensor, as_float32
from quarl.policy.rewrite import Balance, balances, center_scores, centered, columns, in_order, scores
from quarl.policy.trained import on_grids
from quarl.quant import affine
from quarl.quant.affine import TINY, choose_qparams
from quarl.quant.packing import storage_dtype
from quarl.quant.spec import FLOAT_BITS, LARGEST, QuantSpec, Scheme, integer_range

SCHEME = Scheme(name="actorq", bias_correction=True, equalize=0.5, center_scores=True)
REFRESH_INTERVAL = 20
"""Publishes between two measurements on observations; a measurement takes a few times as long as a publish."""
AT_ONCE = 2**17
"""Weights that are scaled, rounded and stored together: one pass over memory instead of six."""
COMPRESSED = b"\x28\xb5\x2f\xfd"
"""Magic number of a Zstandard frame (RFC 8878); as an artifact's header length, it would be 4 GB."""
LEVEL = 1
"""Compression level; codes are noise to a compressor, and higher levels gain nothing."""
MAX_BYTES = 2**30
"""Maximum bytes of an artifact: a frame of a few bytes can claim any size."""
WHERE = "the published policy"


class Quantizer:
    """A quantizer for every publish: n-bit codes in one pass over the weights, or narrower floats.

    Codes are rounded to nearest, with a scale for each channel.

    Post-training quantization fits codes to calibration observations, which takes seconds at a million weights. Most of
    its gain over plain rounding comes from two of its parts, which are cheap once their statistics are known. One is
    the set of factors that balance the channels of each layer's input; they keep the actions for any weights. The other
    is the mean input of each layer, whose product with the rounding errors belongs into the bias (Nagel et al. 2019,
    section 4.2). Both are measured every REFRESH_INTERVAL publishes, and used in between.
    """

    def __init__(self, spec: QuantSpec) -> None:
        self.spec = spec
        self._balances: list[Balance] = []
        self._means: dict[str, Array] = {}
        self._age = 0

    @property
    def wants_observations(self) -> bool:
        """True if the next call would use observations; otherwise they may be left out."""
        return self.spec.scheme.needs_observations and (not self._means or self._age >= REFRESH_INTERVAL)

    def __call__(self, policy: Policy, observations: Array | None = None) -> QuantizedPolicy:
        """Return the quantized policy; `observations` is a raw sample [N, *shape] of the actors' recent ones."""
        if self.spec.float_type is not None:
            return quantize(policy, self.spec)
        # Measure on observations, or reuse the last measurement.
        if self.wants_observations and observations is not None and len(observations):
            self._refresh(policy, observations)
            self._age = 0
        self._age += 1
        divided = {balance.chain: balance.scale for balance in self._balances}
        inserted = {balance.source: balance.inserted for balance in self._balances if balance.chain is None}
        multiplied = {name: balance for balance in self._balances for name in balance.consumers}
        # Quantize the layers, and insert operators that divide if no layer can.
        ops: dict[str, Op] = {}
        edges = edge_layers(policy)
        for op in policy.ops:
            if isinstance(op, Linear):
                bits = self.spec.of_layer(op.name, edge=op.name in edges).weight_bits
                balance = multiplied.get(op.name)
                source = op.inputs if balance is None or balance.chain else (inserted[balance.source].name,)
                multiply = None if balance is None else balance.scale
                coded = self._layer(policy, op, bits, multiply, divided.get(op.name))
                ops[op.name] = replace(coded, inputs=source)
            else:
                ops[op.name] = op
        return QuantizedPolicy.of(policy, in_order(policy, ops, inserted), self.spec, {})

    def _refresh(self, policy: Policy, observations: Array) -> None:
        values, scheme = as_float(policy, observations), self.spec.scheme
        if scheme.equalize is not None:
            self._balances = balances(
                center_scores(policy) if scheme.center_scores else policy, values, scheme.equalize
            )
        scales = {name: balance.scale for balance in self._balances for name in balance.consumers}
        for op in policy.linear:
            rows = unfold(op, values[op.inputs[0]])
            mean = rows.reshape(-1, rows.shape[-1]).mean(axis=0, dtype=np.float64)
            factor = _of_columns(op, scales.get(op.name))
            self._means[op.name] = (mean if factor is None else mean / factor).astype(np.float32)

    def _layer(self, policy: Policy, op: Linear, bits: int, multiply: Array | None, divide: Array | None) -> Linear:
        """Return the layer in codes.

        multiply: factor of each input channel. divide: divisor of each output channel, which changes no code.
        """
        scheme, last = self.spec.scheme, scores(policy)
        if scheme.center_scores and last is not None and op is last:
            op = centered(last)
        # Prepare the factor and mean of each column.
        weight = as_float32(op.weight).reshape(op.weight.shape[0], -1)
        factor = _of_columns(op, multiply)
        mean = self._means.get(op.name) if scheme.bias_correction else None
        codes = np.empty(weight.shape, storage_dtype(*integer_range(bits)))
        scale, error = np.empty(len(weight), np.float32), np.zeros(len(weight), np.float32)
        wide = np.float64 if bits > 16 else np.float32  # above 16 bits float32 cannot represent a code
        # Round blocks of rows.
        num = max(1, AT_ONCE // weight.shape[1])
        for start in range(0, len(weight), num):
            block = slice(start, start + num)
            rows = weight[block] if factor is None else weight[block] * factor
            high = np.maximum(rows.max(axis=1, keepdims=True), -rows.min(axis=1, keepdims=True))
            q = choose_qparams(-high, high, bits, symmetric=True)
            rounded = affine.quantize(rows.astype(wide, copy=False), q)
            codes[block], scale[block] = rounded, q.scale[:, 0]
            if mean is not None:
                error[block] = rows @ mean - (rounded @ mean) * q.scale[:, 0]
        # Correct the bias by the mean rounding error, and divide.
        bias = op.bias + error
        if divide is not None:
            scale, bias = np.maximum(scale / divide, TINY).astype(np.float32), (bias / divide).astype(np.float32)
        tensor = QuantizedTensor(codes.reshape(op.weight.shape), scale, np.zeros(len(scale), np.int32), bits)
        return replace(op, weight=tensor, bias=bias)


def _of_columns(op: Linear, scale: Array | None) -> Array | None:
    """Return the factor of each column of the weight as a matrix, float32 [K]."""
    if scale is None:
        return None
    spread = columns(op, scale)
    return np.repeat(spread, int(np.prod(op.weight.shape[2:]))).astype(np.float32)


class Packer:
    """A packer from policies to bytes, for consecutive policies of the same learner."""

    def __init__(
        self,
        actor_precision: str,
        comm_bits: int | None = None,
        weight_compress: Literal["none", "zstd"] = "none",
        scheme: Scheme = SCHEME,
    ) -> None:
        """Prepare the quantizer and the compressor.

        Args:
            actor_precision: Precision of the actors' computation: fp32, fp16 or int8 to int2.
            comm_bits: Bits of a weight on the wire, 2 to 32 (16 is fp16, 32 float32); at most those of the computation.
            weight_compress: Compression of the bytes.
            scheme: Quantization scheme.
        """
        self.spec = wire_spec(actor_precision, comm_bits, scheme)
        self._compressor = zstandard.ZstdCompressor(level=LEVEL) if weight_compress == "zstd" else None
        self.quantize = Quantizer(self.spec)

    def quantize_trained(
        self, policy: Policy, trained: Trained, grids: Mapping[str, ActivationGrid]
    ) -> QuantizedPolicy:
        """Quantize a policy trained with quantization, on its trained grids.

        Args:
            policy: Policy with float weights.
            trained: Target of the training.
            grids: Activation grid of each value.
        """
        return on_grids(policy, trained.spec, bits=trained.bits, grids=grids)

    def pack(self, policy: Policy, observations: Array | None = None) -> bytes:
        """Quantize the policy and return its bytes."""
        return self.to_bytes(self.quantize(policy, observations))

    def to_bytes(self, quantized: QuantizedPolicy) -> bytes:
        """Return the bytes that `unpack` reads."""
        data = artifact.to_bytes(quantized)
        return data if self._compressor is None else self._compressor.compress(data)


def wire_spec(actor_precision: str, comm_bits: int | None = None, scheme: Scheme = SCHEME) -> QuantSpec:
    """Return the spec of weights on the way to actors of this precision, with the total rounding.

    Integer actors run the received codes, with fewer bits if fewer arrive. Float actors convert codes to float32
    numbers. Half floats stay half floats, since runtimes widen them when they load.

    Args:
        actor_precision: Precision of the actors' computation.
        comm_bits: Bits of a weight on the wire; None means those of the computation.
        scheme: Quantization scheme.
    """
    compute = QuantSpec.parse(actor_precision, scheme="per-channel")
    most = FLOAT_BITS[compute.float_type] if compute.float_type else compute.weight_bits
    bits = most if comm_bits is None else min(comm_bits, most)
    if compute.float_type is not None and bits in (16, 32):
        return QuantSpec.parse("fp16" if bits == 16 else "fp32", scheme="per-channel")
    edges = compute.edge_bits and min(compute.edge_bits, comm_bits or LARGEST)
    return replace(
        compute, weight_bits=bits, float_type=None, scheme=scheme, edge_bits=None if edges == bits else edges
    )


def unpack(data: Bytes | Array, limit_bytes: int = MAX_BYTES, *, checked: bool = False) -> QuantizedPolicy:
    """Return the policy for the actor's engine: codes for integer computation, else real numbers.

    Args:
        data: Bytes from `Packer`; the policy's arrays are views of them.
        limit_bytes: Maximum size after decompression.
        checked: As in `artifact.from_bytes`.

    Raises:
        QuarlError: If the bytes are damaged or would unpack to more than `limit_bytes`.
    """
    view: Bytes = memoryview(data.data if isinstance(data, np.ndarray) else data).cast("B")
    if bytes(view[: len(COMPRESSED)]) == COMPRESSED:
        view = _decompressed(view, limit_bytes)
    policy = artifact.from_bytes(view, WHERE, checked=checked)
    if not isinstance(policy, QuantizedPolicy):
        raise QuarlError(f"{WHERE} is not quantized; the publisher sends another format")
    if policy.spec.activation_bits is None and policy.spec.float_type is None:
        return quantize(policy, QuantSpec.parse("fp32", scheme="per-channel"))
    return policy


def _decompressed(view: Bytes, limit_bytes: int) -> bytes:
    try:
        size = zstandard.frame_content_size(view)
        if not 0 <= size <= limit_bytes:
            raise QuarlError(f"{WHERE} would unpack to {size:,} bytes, more than {limit_bytes:,}; it is damaged")
        return zstandard.ZstdDecompressor().decompress(view, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise QuarlError(f"{WHERE} is not a valid Zstandard frame ({error}); it is damaged") from None
