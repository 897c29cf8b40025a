"""Data that quantization-aware training saves of a network, and its conversion to integers.

It is plain data: the plan of each network is in the policy's arguments, its ranges are among the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, note_once
from quarl.policy import artifact
from quarl.policy.fit import nearest
from quarl.policy.graph import ActivationGrid, Policy, QuantizedPolicy
from quarl.policy.grids import least_scales, origin, trained_rules, wide_grid
from quarl.policy.operators import Linear, Op
from quarl.policy.rewrite import center_scores
from quarl.quant.affine import choose_qparams
from quarl.quant.spec import LARGEST, SMALLEST, QatSpec, QuantSpec

KEY = "qat"
"""Argument of a policy class that holds the spec and the plans; also the key in a model's `policy_kwargs`."""
TRAINED_RANGES = "qat_ranges"
"""Module that quantization-aware training adds to a network, and part of the names of its parameters."""
ACTING = ("q_net", "actor", "")
"""Names of the networks that choose actions: of off-policy algorithms, and "" for the whole policy of on-policy
ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One quantizer of activations: in front of a layer, or behind it."""

    bits: int
    row: int = -1
    """Row in the table of ranges; -1 for a fixed grid."""
    scale: float = 1.0
    """Scale of a fixed grid; the next field is its zero point."""
    zero_point: int = 0
    wide: bool = False
    """The grid has more than 8 bits and covers an observation: see policy.grids.wide_grid."""
    relu: bool = False
    """Values below 0 do not count, because a ReLU drops them."""
    observes: bool = True
    """False if another site of the same row has already seen the value."""

    @property
    def fixed(self) -> ActivationGrid:
        """Return the grid of a site that has no range."""
        return ActivationGrid(scale=self.scale, zero_point=self.zero_point, bits=self.bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """One layer: the bits of its weight, and its quantizers of activations."""

    path: str
    """Path of the layer inside its network."""
    bits: int
    before: Site | None = None
    behind: Site | None = None
    source: Site | None = None
    """Site whose grid the layer's input has, even if another layer set it."""
    feeds: tuple[str, ...] = ()
    """Paths of the layers that read this one's output behind a ReLU, if there are no other readers: see qat.balance."""
    scores: bool = False
    """An argmax over its outputs chooses the action: see fake_quantization.common_part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """The layers of one network and the number of their ranges."""

    layers: tuple[LayerPlan, ...]
    rows: int

    @property
    def site_of_row(self) -> dict[int, Site]:
        """Return the quantizer of each row in the table of ranges."""
        sites = [site for layer in self.layers for site in (layer.before, layer.behind) if site is not None]
        return {site.row: site for site in sites if site.row >= 0}

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NetworkPlan:
        """Return the plan that `to_json` wrote; raise QuarlError for anything else."""
        try:
            layers = tuple(
                LayerPlan(
                    path=layer["path"],
                    bits=layer["bits"],
                    **{
                        name: None if layer[name] is None else Site(**layer[name])
                        for name in ("before", "behind", "source")
                    },
                    feeds=tuple(layer["feeds"]),
                    scores=bool(layer["scores"]),
                )
                for layer in data["layers"]
            )
            return cls(layers=layers, rows=int(data["rows"]))
        except (KeyError, TypeError) as error:
            raise QuarlError(f"the checkpoint's plan of quantization-aware training is malformed: {error}") from None


def is_prepared(state: Iterable[str]) -> bool:
    """Return whether parameters of these names belong to a network prepared for quantization-aware training."""
    return any(TRAINED_RANGES in name.split(".") for name in state)


def as_trained(policy: Policy, qat: Any, state: Mapping[str, Array], name: str) -> Policy:
    """Return the policy in the integers it was trained for, or unchanged if quantization is not yet active in it.

    Args:
        policy: The float policy with these parameters; its layers have their names.
        qat: The entry `KEY` of the policy's arguments: {"spec": ..., "networks": {name: plan}}.
        state: The parameters by name, ranges included.
        name: Name of the model in the note on stderr.

    Raises:
        QuarlError: The plan is missing or malformed, or training has not seen a value whose range is needed.
    """
    try:
        spec = QatSpec.from_json(qat["spec"])
        network = next(network for network in ACTING if network in qat["networks"])
        plan = NetworkPlan.from_json(qat["networks"][network])
        prefix = f"{network}." if network else ""
        ranges, switched_at = (state[f"{prefix}{TRAINED_RANGES}.{part}"] for part in ("running_range", "switched_at"))
        if not float(switched_at) >= 0:
            note_once(f"{name} is prepared for {spec.precision}, but its delay is not over: it acts in float32")
            return policy
        # Every layer needs a plan, and every range a valid width.
        layers = {prefix + layer.path: layer for layer in plan.layers}
        if not all(op.name in layers or spec.skips(op.name) for op in policy.linear) or not all(
            site.bits in range(SMALLEST, LARGEST + 1) for site in plan.site_of_row.values()
        ):
            raise ValueError("invalid bits, or a layer without a plan")
        grids = row_grids(plan.site_of_row, ranges.reshape(plan.rows, 2).tolist())
        integers = on_grids(
            policy,
            spec.deployed,
            bits={layer: each.bits for layer, each in layers.items()},
            grids=trained_grids(policy, spec, layers, lambda site: site.fixed if site.row < 0 else grids.get(site.row)),
        )
        artifact.from_bytes(artifact.to_bytes(integers), "its integers")  # refuses numbers that no saved policy has
    except (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError):
        raise QuarlError(
            "it was prepared for quantization-aware training, and its plan is missing or malformed: load it with "
            "Stable-Baselines3, convert it with quarl.qat.convert(model), and save that"
        ) from None
    note_once(f"{name} is trained for {spec.precision}: read in the integers that it acts in, {spec.deployed.in_words}")
    return integers


def trained_grids(
    policy: Policy,
    spec: QatSpec,
    layers: Mapping[str, LayerPlan],
    grid_of: Callable[[Site], ActivationGrid | None],
) -> dict[str, ActivationGrid]:
    """Return the current grids of the policy's values; raise QuarlError for a value that training has not seen.

    Args:
        policy: The float policy.
        spec: Precision of the training.
        layers: Plans of its layers by name, without those that stay float.
        grid_of: Returns the grid of a site; None if training has seen nothing there.
    """
    rules = trained_rules(policy, spec.skips) if spec.activation_bits is not None else {}
    sites: dict[str, Site | None] = {}
    for op in policy.linear:
        if (layer := layers.get(op.name)) is not None:
            sites.setdefault(origin(rules, op.inputs[0]), layer.source)
            sites[op.name] = layer.behind
    grids = {}
    for name in rules:
        site = sites[origin(rules, name)]
        grid = None if site is None else grid_of(site)
        if grid is None:
            raise QuarlError(f"training has seen no values of {name!r}; train longer, so that its range becomes known")
        grids[name] = grid
    return grids


def on_grids(
    policy: Policy,
    spec: QuantSpec,
    *,
    bits: Mapping[str, int],
    grids: Mapping[str, ActivationGrid],
) -> QuantizedPolicy:
    """Return the policy with weights rounded to nearest and activations on the grids of training.

    Of the scheme's rewrites only the centering of scores is applied: training has done everything else to the weights.

    Args:
        policy: The float policy.
        spec: Precision to record in the result.
        bits: Bits of the layers whose weights become integers.
        grids: Grids of the values.
    """
    ops: list[Op] = []
    for op in (center_scores(policy) if spec.scheme.center_scores else policy).ops:
        if isinstance(op, Linear) and op.name in bits:
            grid = grids[op.inputs[0]] if op.name in grids else None
            least = None if grid is None else least_scales(op.bias.astype(np.float64), grid, bits[op.name])
            op = nearest(op, replace(spec, weight_bits=bits[op.name], edge_bits=None), least)
        ops.append(op)
    return QuantizedPolicy.of(policy, ops, spec, grids)


def row_grids(sites: Mapping[int, Site], ranges: Sequence[Sequence[float]]) -> dict[int, ActivationGrid]:
    """Return the grid of each row that has a range.

    The range may be a single number: a constant observation, or dead channels.
    """
    grids: dict[int, ActivationGrid] = {}
    affine: dict[int, list[int]] = {}
    for row, (low, high) in enumerate(ranges):
        if low <= high:
            site = sites[row]
            wide = wide_grid(max(-low, high), site.bits) if site.wide else None
            if wide is not None:
                grids[row] = wide
            else:
                affine.setdefault(min(site.bits, 8) if site.wide else site.bits, []).append(row)
    for bits, rows in affine.items():
        low, high = np.array([ranges[row] for row in rows]).T
        q = choose_qparams(low, high, bits, symmetric=False)
        for row, scale, zero_point in zip(rows, q.scale.tolist(), q.zero_point.tolist(), strict=True):
            grids[row] = ActivationGrid(scale=scale, zero_point=zero_point, bits=bits)
    return grids
