"""What a policy observes: how a space of observations becomes the row that engines read, and what lies in front of its
network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.graph import Provenance
from quarl.policy.inputs import Input, places
from quarl.policy.operators import OBSERVATION, Normalize, Op, Scale, Shape, Slice
from quarl.readers.normalizer import Statistics
from quarl.readers.plain_spaces import Box, Dict, MultiBinary, MultiDiscrete, Space, observation_box
from quarl.readers.zoo import of_observation


@dataclass(frozen=True, eq=False, slots=True)
class Observed:
    """A space of observations, as Stable-Baselines3 prepares them for a network."""

    inputs: tuple[Input, ...]
    """One without a key for anything but a Dict."""
    images: frozenset[str]
    """Keys of bytes that are divided by 255."""

    @property
    def is_array(self) -> bool:
        """Whether engines read the observation as it comes."""
        return not self.inputs[0].key and self.inputs[0].kind == "Box"

    @property
    def fields(self) -> dict[str, Any]:
        """Of a Policy."""
        if self.is_array:
            dtype = "uint8" if self.images else "float32"
            return {"observation_shape": self.inputs[0].shape, "observation_dtype": dtype}
        return {"observation_shape": (sum(each.size for each in self.inputs),), "inputs": self.inputs}


def observe(space: Space, where: str) -> Observed:
    """The space as inputs; one of a Dict that has no counterpart is refused by its key."""
    spaces = space.spaces if isinstance(space, Dict) else {"": space}
    inputs = tuple(_input(key, each, f"{where}[{key!r}]" if key else where) for key, each in spaces.items())
    return Observed(inputs, frozenset(key for key, each in spaces.items() if isinstance(each, Box) and each.is_image))


def _input(key: str, space: Any, where: str) -> Input:
    if isinstance(space, Box):
        return Input(key, "Box", observation_box(space, where).low.shape)
    if isinstance(space, MultiBinary):
        return Input(key, "MultiBinary", space.shape)
    if isinstance(space, MultiDiscrete):
        return Input(key, "MultiDiscrete", (len(space.nvec),), space.nvec)
    if space.start:
        raise UnsupportedError(f"{where} counts from {space.start}, Stable-Baselines3 reads it from 0; wrap it")
    return Input(key, "Discrete", (), (space.n,))


def normalizers(
    observed: Observed, statistics: Statistics | None, environment: Provenance
) -> tuple[dict[str, Normalize], Provenance]:
    """(by key, the operator of what is normalized; the environment in which they hold).

    QuarlError for statistics of another observation.
    """
    if statistics is None:
        return {}, environment
    if observed.is_array:
        operator, environment = of_observation(statistics, observed.inputs[0].shape, environment)
        return {"": operator}, environment
    shapes = {each.key: each.shape for each in observed.inputs if each.kind == "Box"}
    by_key = {"": statistics} if isinstance(statistics, Normalize) else statistics
    for key, operator in by_key.items():
        if operator.mean.shape != shapes.get(key):
            raise QuarlError(
                f"the statistics of {environment.statistics or 'VecNormalize'} are of {key[:60]!r} "
                f"{operator.mean.shape}, but the policy observes {', '.join(map(str, observed.inputs))}"
            )
    return dict(by_key), environment


def front(
    observed: Observed, norms: Mapping[str, Normalize], *, scales: bool = True, apart: bool = False
) -> tuple[list[Op], dict[str, tuple[str, Shape]]]:
    """(operators from the raw observation on; by key, name and shape of what the network is given of it).

    The parts of a Dict are one value without a key, the row, where nothing needs them by themselves.

    norms: as of `normalizers`. scales: images are divided by 255. apart: the network reads each part by itself.
    """
    images = observed.images if scales else frozenset()
    ops: list[Op] = []
    parts: dict[str, tuple[str, Shape]] = {}
    if not observed.inputs[0].key or not (apart or images or 0 < len(norms) < len(observed.inputs)):
        parts[""] = OBSERVATION, observed.fields["observation_shape"]
        if "" not in norms and norms:  # of one VecNormalize
            mean, variance = (
                np.concatenate([getattr(norms[each.key], name).reshape(-1) for each in observed.inputs])
                for name in ("mean", "variance")
            )
            norms = {"": replace(next(iter(norms.values())), mean=mean, variance=variance)}
    else:
        for each, start in zip(observed.inputs, places(observed.inputs).values(), strict=True):
            shape = (each.size,) if each.values else each.shape
            parts[each.key] = f"{OBSERVATION}.{start}", shape
            ops.append(Slice(parts[each.key][0], (OBSERVATION,), start, shape))
    for key, (source, shape) in parts.items():
        if key in norms:
            ops.append(replace(norms[key], name=f"{source}.normalize", inputs=(source,)))
            source = ops[-1].name
        if key in images:
            ops.append(Scale(f"{source}.scale", (source,), np.array(1 / 255, np.float32)))
            source = ops[-1].name
        parts[key] = source, shape
    return ops, parts
