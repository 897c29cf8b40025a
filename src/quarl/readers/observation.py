"""Spaces of observations as the row that engines read, and the operators in front of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.graph import Provenance
from quarl.policy.inputs import Input, places
from quarl.policy.operators import OBSERVATION, Normalize, Op, Scale, Shape, Slice
from quarl.policy.recurrent import SEEN, State, remembering
from quarl.readers.normalizer import Statistics
from quarl.readers.plain_spaces import Box, Dict, MultiBinary, MultiDiscrete, Space, observation_box
from quarl.readers.zoo import of_observation


@dataclass(frozen=True, eq=False, slots=True)
class Observed:
    """A space of observations, as Stable-Baselines3 prepares them for a network."""

    inputs: tuple[Input, ...]
    """Parts of the observation; a space other than a Dict is one part without a key."""
    images: frozenset[str]
    """Keys of the byte images that are divided by 255."""

    @property
    def is_array(self) -> bool:
        """Return whether engines read the raw observation."""
        return not self.inputs[0].key and self.inputs[0].kind == "Box"

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of a Policy that describe the observation."""
        if self.is_array:
            dtype = "uint8" if self.images else "float32"
            return {"observation_shape": self.inputs[0].shape, "observation_dtype": dtype}
        return {"observation_shape": (sum(each.size for each in self.inputs),), "inputs": self.inputs}

    def read_by(self, ops: Sequence[Op], states: Sequence[State]) -> dict[str, Any]:
        """Return the fields of a Policy that describe its observation, its operators and its memory.

        Args:
            ops: Operators, which read the observation.
            states: Parts of the state; empty without a memory.

        Raises:
            UnsupportedError: The observation beside a state is not a row of numbers.
        """
        if not states:
            return self.fields | {"ops": tuple(ops)}
        shape = self.fields["observation_shape"]
        if self.images or len(shape) != 1:
            seen = ", ".join(map(str, self.inputs))
            raise UnsupportedError(f"it observes {seen}: policies with a memory read vectors, and Dicts of them")
        row = [replace(op, inputs=tuple(SEEN if name == OBSERVATION else name for name in op.inputs)) for op in ops]
        return self.fields | remembering(shape[0], states, row, row[-1].name)


def observe(space: Space, where: str) -> Observed:
    """Return the space as inputs; refuse an unsupported part of a Dict by its key."""
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
    """Return the operators that normalize, by key, and the environment for which they hold.

    Args:
        observed: The space of observations.
        statistics: Statistics of the observations; None does not normalize.
        environment: The training environment.

    Raises:
        QuarlError: The statistics belong to another observation.
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
                f"the statistics of {environment.statistics or 'VecNormalize'} belong to {key[:60]!r} "
                f"{operator.mean.shape}, but the policy observes {', '.join(map(str, observed.inputs))}"
            )
    return dict(by_key), environment


def front(
    observed: Observed, norms: Mapping[str, Normalize], *, scales: bool = True, apart: bool = False
) -> tuple[list[Op], dict[str, tuple[str, Shape]]]:
    """Return the operators from the raw observation on, and the values that the network reads.

    The values are given by key, with name and shape.

    The parts of a Dict are one value without a key, the row, unless a part is needed on its own.

    Args:
        observed: The space of observations.
        norms: Operators from `normalizers`.
        scales: Divide images by 255.
        apart: The network reads each part on its own.
    """
    images = observed.images if scales else frozenset()
    ops: list[Op] = []
    parts: dict[str, tuple[str, Shape]] = {}
    if not observed.inputs[0].key or not (apart or images or 0 < len(norms) < len(observed.inputs)):
        parts[""] = OBSERVATION, observed.fields["observation_shape"]
        if "" not in norms and norms:  # one VecNormalize: all keys share its epsilon and bounds
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
    # Normalize and scale each part in the order of VecNormalize and the network.
    for key, (source, shape) in parts.items():
        if key in norms:
            ops.append(replace(norms[key], name=f"{source}.normalize", inputs=(source,)))
            source = ops[-1].name
        if key in images:
            ops.append(Scale(f"{source}.scale", (source,), np.array(1 / 255, np.float32)))
            source = ops[-1].name
        parts[key] = source, shape
    return ops, parts
