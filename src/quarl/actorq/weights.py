"""Template: a learner's network, extracted once; afterwards its weights travel as one flat float32 vector."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from quarl.arrays import Array
from quarl.errors import UnsupportedError
from quarl.policy.graph import ActivationGrid, Policy
from quarl.policy.grids import trained_rules
from quarl.policy.operators import Conv2d, Dense, LayerNorm, Normalize, Op, Shape
from quarl.quant.spec import QuantSpec
from quarl.readers.normalizer import NAME as STATISTICS

if TYPE_CHECKING:
    import torch  # only needed with a model: a publisher has none, and restarts faster without torch


@dataclass(frozen=True, slots=True)
class Place:
    """The position of one array of the policy in the vector."""

    op: str
    field: str
    start: int
    shape: Shape
    parts: int
    """Number of float32 parts: 2 for float64 statistics (a number and the rest that it leaves out), else 1."""

    @property
    def stop(self) -> int:
        return self.start + self.parts * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Trained:
    """The target of quantization-aware training; the grids themselves change, and are part of the vector."""

    spec: QuantSpec
    bits: Mapping[str, int]
    """Weight bits of each layer."""
    values: tuple[str, ...]
    """Names of the values that have grids."""

    @property
    def num_floats(self) -> int:
        """Numbers in the vector: a flag for active grids, then scale, zero point and bits of each grid."""
        return 1 + 3 * len(self.values)


class Template:
    """A Policy and the vector [num_floats] of everything in it that training changes; pickled for the publisher."""

    def __init__(self, model: Any) -> None:
        """Extract the policy from a live Stable-Baselines3 model; for SAC, both networks of its distribution."""
        from quarl import qat
        from quarl.readers.extract import from_model

        # no messages: the players report preprocessing, and the learner's own environment is a remembered one
        self.initial = from_model(model, distribution=True, say=lambda line: None)
        """Policy at the time of extraction."""
        parameters = dict(model.policy.named_parameters(remove_duplicate=False))
        self.places: list[Place] = []
        start = 0
        for op in self.initial.ops:
            for field in _live(op, parameters):
                array: Array = getattr(op, field)
                self.places.append(Place(op.name, field, start, array.shape, array.dtype.itemsize // 4))
                start = self.places[-1].stop
        self.trained: Trained | None = None
        if (spec := qat.spec_of(model)) is not None:
            bits = qat.layer_bits(model, self.initial)
            self.trained = Trained(spec.deployed, bits, tuple(trained_rules(self.initial, spec.skips)))
        self.num_floats = start + (self.trained.num_floats if self.trained else 0)

    def flatten_into(self, model: Any, out: Array) -> None:
        """Copy the model's current weights into `out` [num_floats], float32 and contiguous."""
        import torch

        from quarl import qat

        assert out.shape == (self.num_floats,)
        assert out.dtype == np.float32
        # Copy the arrays.
        target = torch.from_numpy(out)
        with torch.no_grad():
            for place in self.places:
                if place.op != STATISTICS:
                    parameter = model.policy.get_parameter(f"{place.op}.{place.field}")
                    target[place.start : place.stop].view(place.shape).copy_(parameter)
                    continue
                # float64 statistics as two float32 numbers each, which keeps 48 bits of them
                statistics = model.get_vec_normalize_env().obs_rms
                exact = np.asarray(statistics.mean if place.field == "mean" else statistics.var, np.float64)
                both = out[place.start : place.stop].reshape(2, *place.shape)
                both[0] = exact
                both[1] = exact - both[0]
        # Append the trained grids.
        if self.trained is None:
            return
        behind = out[self.num_floats - self.trained.num_floats :]
        behind[:] = 0
        if qat.is_ready(model):
            grids = qat.trained_grids(model, self.initial)
            behind[0] = 1
            in_order = [grids[name] for name in self.trained.values]
            behind[1:] = [part for grid in in_order for part in (grid.scale, grid.zero_point, grid.bits)]

    def grids(self, flat: Array) -> dict[str, ActivationGrid] | None:
        """Return the trained grids in the vector; None if quantization is not active in training."""
        if self.trained is None:
            return None
        active, *numbers = flat[self.num_floats - self.trained.num_floats :].tolist()
        triples = zip(self.trained.values, numbers[::3], numbers[1::3], numbers[2::3], strict=True)
        grids = {name: ActivationGrid(scale=a, zero_point=int(b), bits=int(c)) for name, a, b, c in triples}
        return grids if active else None

    def policy(self, flat: Array) -> Policy:
        """Return the policy with the weights of `flat` [num_floats], which it views: `flat` must not change afterwards.

        Raises QuarlError that names the layer if a number is not finite.
        """
        assert flat.shape == (self.num_floats,)
        assert flat.dtype == np.float32
        arrays: dict[str, dict[str, Any]] = {}
        for place in self.places:
            part = flat[place.start : place.stop].reshape(*(place.parts,) * (place.parts > 1), *place.shape)
            arrays.setdefault(place.op, {})[place.field] = part if place.parts == 1 else part.sum(0, np.float64)
        return replace(self.initial, ops=tuple(replace(op, **arrays.get(op.name, {})) for op in self.initial.ops))


def _live(op: Op, parameters: dict[str, torch.nn.Parameter]) -> Iterable[str]:
    """Yield the names of the operator's arrays that training changes."""
    if op.name == STATISTICS and isinstance(op, Normalize):
        yield from ("mean", "variance")
    elif isinstance(op, Dense | Conv2d | LayerNorm):
        for field in ("weight", "bias"):
            parameter = parameters.get(f"{op.name}.{field}")
            if parameter is not None and tuple(parameter.shape) == getattr(op, field).shape:
                yield field
            elif field == "weight" or op.bias.any():  # a layer without a bias has constant zeros
                raise UnsupportedError(
                    f"the {field} of layer {op.name!r} is not a parameter of the policy, so training cannot update it"
                )
