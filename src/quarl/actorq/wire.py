"""What travels to actors: the artefact of a quantised policy, its codes packed to their bits, compressed on request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import zstandard

from quarl.actorq.quantizer import SCHEME, Quantizer
from quarl.actorq.weights import Trained
from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.policy import artifact
from quarl.policy.container import Bytes
from quarl.policy.graph import ActivationGrid, Policy, QuantizedPolicy
from quarl.ptq import on_grids, quantize
from quarl.quant.spec import FLOAT_BITS, QuantSpec, Scheme

COMPRESSED = b"\x28\xb5\x2f\xfd"
"""The magic number of a Zstandard frame (RFC 8878); as the length of an artefact's header it would be 4 GB."""
LEVEL = 1
"""Codes are noise to a compressor: higher levels find no more in them."""
MAX_BYTES = 2**30
"""Of an artefact: a frame of a few bytes can claim any size."""
WHERE = "the published policy"


class Packer:
    """Policies to bytes, one after the other from the same learner."""

    def __init__(
        self,
        actor_precision: str,
        comm_bits: int | None = None,
        weight_compress: Literal["none", "zstd"] = "none",
        scheme: Scheme = SCHEME,
    ) -> None:
        """actor_precision: what actors compute in, fp32, fp16 or int8 to int2.

        comm_bits: of a weight on the wire, 2 to 32 (16 is fp16, 32 float32); never more than actors compute with.
        """
        self.spec = wire_spec(actor_precision, comm_bits, scheme)
        self._compressor = zstandard.ZstdCompressor(level=LEVEL) if weight_compress == "zstd" else None
        self._quantizer = Quantizer(self.spec) if self.spec.float_type is None else None

    @property
    def wants_observations(self) -> bool:
        """True when the next `quantize` or `pack` would look at observations; otherwise they may be left out."""
        return self._quantizer is not None and self._quantizer.wants_observations

    def quantize(self, policy: Policy, observations: Array | None = None) -> QuantizedPolicy:
        """What actors are to act with; observations: a recent raw sample [N, *shape], if there is one."""
        return quantize(policy, self.spec) if self._quantizer is None else self._quantizer(policy, observations)

    def quantize_trained(
        self, policy: Policy, trained: Trained, grids: Mapping[str, ActivationGrid]
    ) -> QuantizedPolicy:
        """The same for a policy that is trained with quantisation, on the grids that training has come to."""
        return on_grids(policy, trained.spec, bits=trained.bits, grids=grids, scales={})

    def pack(self, policy: Policy, observations: Array | None = None) -> bytes:
        """`quantize`, as bytes."""
        return self.to_bytes(self.quantize(policy, observations))

    def to_bytes(self, quantized: QuantizedPolicy) -> bytes:
        """What `unpack` takes."""
        data = artifact.to_bytes(quantized)
        return data if self._compressor is None else self._compressor.compress(data)


def wire_spec(actor_precision: str, comm_bits: int | None = None, scheme: Scheme = SCHEME) -> QuantSpec:
    """How weights travel to actors of this precision, and how far they are rounded in all.

    Integer actors run the codes that arrive, of fewer bits where fewer arrive. Float actors turn codes into float32
    numbers again; half floats stay what they are, since runtimes widen them when they load.
    """
    compute = QuantSpec.parse(actor_precision, scheme="per-channel")
    most = FLOAT_BITS[compute.float_type] if compute.float_type else compute.weight_bits
    bits = most if comm_bits is None else min(comm_bits, most)
    if compute.float_type is not None and bits in (16, 32):
        return QuantSpec.parse("fp16" if bits == 16 else "fp32", scheme="per-channel")
    return replace(compute, weight_bits=bits, float_type=None, scheme=scheme)


def unpack(data: Bytes | Array, limit_bytes: int = MAX_BYTES, *, checked: bool = False) -> QuantizedPolicy:
    """The policy for the actor's engine: codes where it computes with integers, else real numbers.

    Its arrays are views of `data`; checked: as for `artifact.from_bytes`. Raises QuarlError for bytes that are damaged
    or would unpack to more than `limit_bytes`.
    """
    view: Bytes = memoryview(data.data if isinstance(data, np.ndarray) else data).cast("B")
    if bytes(view[: len(COMPRESSED)]) == COMPRESSED:
        view = _decompressed(view, limit_bytes)
    policy = artifact.from_bytes(view, WHERE, checked=checked)
    if not isinstance(policy, QuantizedPolicy):
        raise QuarlError(f"{WHERE} is not quantised; the publisher sends another format")
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
        raise QuarlError(f"{WHERE} is no sound Zstandard frame ({error}); it is damaged") from None
