"""Description of the numbers of an observation and of an action: places, names and units, from where they are known.

Names come from the environment, or from a file of the user's.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from quarl.envs.wrappers import FrameStack
from quarl.errors import QuarlError, printable
from quarl.inert.yaml import read_yaml
from quarl.policy.graph import Policy

ROW = re.compile(r"\s*\|\s*(\d+)\s*\|\s*([^|]+?)\s*\|")
"""Row in the table of observations in the documentation of Gymnasium's environments: number and name."""
HEADING = re.compile(r"\s*\|\s*Num\s*\|\s*Observation\b")
NAMED = dict.fromkeys(("TimeFeature", "TimeFeatureWrapper"), "remaining time, from 1 to 0")
"""Names of the numbers that wrappers append."""
MOST_NAMED = 256
"""Numbers of an input up to which each has an entry; a larger one, such as an image, has a single entry."""
Number = tuple[int, str, str]
"""(how many side by side, name or "", source)."""


def sizes(policy: Policy) -> dict[str, int]:
    """Return how many numbers an observation has, and how many an action or, for discrete ones, its scores."""
    return {
        "observation": math.prod(policy.seen),
        "action": policy.num_outputs if policy.head.is_discrete else policy.head.low.size,
    }


def read_names(path: Path, policy: Policy) -> dict[str, Any]:
    """Return the names and units in a YAML or JSON file, with the keys observation, action and control_hz.

    Args:
        path: The file; none of the keys is required.
        policy: The policy, whose numbers must be as many.

    Raises:
        QuarlError: The file has other keys, another number of names, or an entry that is no name.
    """
    names, wanted = read_yaml(path, merging=True), sizes(policy)
    if unknown := sorted(names.keys() - {*wanted, "control_hz"}):
        raise QuarlError(f"{path} has the key {unknown[0]!r}; it may have observation, action and control_hz")
    hz = names.get("control_hz", 1.0)
    if isinstance(hz, bool) or not isinstance(hz, int | float) or not 1e-6 <= hz <= 1e6:
        raise QuarlError(f"{path}: control_hz must be a number from 1e-6 to 1e6, got {printable(str(hz))[:40]}")
    for key, size in wanted.items():
        entries = names.get(key, [{"name": "x"}] * size)
        if not isinstance(entries, list) or len(entries) != size:
            raise QuarlError(
                f"{path} must have a list of {size} entries under {key}, one for each of the policy's numbers"
            )
        for place, each in enumerate(entries):
            if not (isinstance(each, dict) and each.get("name") and each.keys() <= {"name", "unit"}) or not all(
                isinstance(text, str) and text.isprintable() and len(text) <= 80 for text in each.values()
            ):
                raise QuarlError(
                    f"{path}: {key}[{place}] is not a name with a unit, as in {{name: height, unit: m}}, of up to "
                    "80 printable letters each"
                )
    return names


def named(names: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the contract's entries for the names in such a file, if there are any."""
    return [
        {"place": place, "name": each["name"], "unit": each.get("unit", "")}
        for place, each in enumerate(names.get(key, ()))
    ]


def are_as_many(numbers: list[Any], size: int) -> bool:
    """Return whether entries of a contract that come from a file of names are as many as the numbers."""
    own = sum(isinstance(each, dict) and "unit" in each for each in numbers)
    return own == 0 or own == len(numbers) == size


def observed(
    policy: Policy, env: gymnasium.Env[Any, Any] | None, names: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return `low`, `high` and `numbers` of the contract's observation.

    Bounds are a number if they are all equal, otherwise a list; a missing bound is null. An image has an entry for each
    of its channels. Without an `env`, only the policy's own knowledge is used. Names from a file replace all others.
    """
    low = high = None
    if env is not None and isinstance(space := env.observation_space, gymnasium.spaces.Box):
        low, high = bounds(space.low), bounds(space.high)
    shape = policy.seen
    numbers = _of_inputs(policy) if policy.inputs else [] if env is None else _made(env, shape)
    entries, end = [], 0
    for count, name, maker in numbers or [(math.prod(shape[1:]), "", "")] * shape[0]:
        start, end = end, end + count
        entries.append({"place": start if count == 1 else [start, end - 1], "name": name, "made_by": maker})
    return {"low": low, "high": high, "numbers": named(names or {}, "observation") or entries}


def bounds(array: Any) -> Any:
    """Return the bounds as JSON values: one number if they are all equal, None for a missing one."""
    flat = [float(number) if math.isfinite(number) else None for number in np.asarray(array, np.float64).reshape(-1)]
    return flat[0] if len(set(flat)) == 1 else flat


def _of_inputs(policy: Policy) -> list[Number]:
    """Return the numbers of a Dict and of discrete numbers, by key; TimeFeature widens the part "observation"."""
    numbers: list[Number] = []
    timed = any(name.rpartition(".")[2] in NAMED for name, _ in policy.provenance.wrappers)
    for each in policy.inputs:
        key = each.key or "observation"
        plain = each.size - (last := timed and each.key == "observation")
        if each.values:  # one-hot
            hot = [(which, value) for which, count in enumerate(each.values) for value in range(count)]
            of = [f"[{which}]" * (len(each.values) > 1) for which, _ in hot]
            numbers += [(1, f"{key}{place} is {value}", each.kind) for place, (_, value) in zip(of, hot, strict=True)]
        elif plain > MOST_NAMED:
            numbers.append((plain, key, each.kind))
        else:
            numbers += [
                (1, f"{key}[{','.join(map(str, place))}]", each.kind)
                for place in itertools.islice(np.ndindex(each.shape), plain)
            ]
        if last:
            numbers.append((1, NAMED["TimeFeature"], "TimeFeature"))
    return numbers


def _made(env: gymnasium.Env[Any, Any], shape: tuple[int, ...]) -> list[Number]:
    """Return the numbers along the first axis of an observation, from the environment outwards.

    The list is empty if their number does not match.
    """
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    base, count = layers.pop(), math.prod(shape[1:])
    named = _documented(base) if len(shape) == 1 else [""] * shape[0]
    numbers = [(count, name, type(base).__name__) for name in named]
    for layer in reversed(layers):
        size, kind = (layer.observation_space.shape or (0,))[0], type(layer).__name__
        if isinstance(layer, FrameStack):
            numbers = _stacked(numbers[: size // layer.num_frames], layer.num_frames)
        elif len(shape) > 1:
            continue  # for images, only the stacking is described
        elif kind in NAMED:  # it widens the space of what it wraps as well
            numbers = [*numbers[: size - 1], (1, NAMED[kind], kind)]
        elif size > len(numbers):
            numbers += [(1, "", kind)] * (size - len(numbers))
        elif size < len(numbers):
            numbers = [(1, "", kind)] * size
        elif isinstance(layer, gymnasium.ObservationWrapper):
            numbers = [(1, name, kind) for _, name, _ in numbers]
    return numbers if len(numbers) == shape[0] else []


def _stacked(numbers: list[Number], frames: int) -> list[Number]:
    """Return the numbers of several observations, the oldest first."""
    ages = [*(f"{age} steps earlier" for age in range(frames - 1, 1, -1)), "1 step earlier", "now"][-frames:]
    return [(count, f"{name}, {age}" if name else age, "FrameStack") for age in ages for count, name, _ in numbers]


def _documented(env: gymnasium.Env[Any, Any]) -> list[str]:
    """Return the names in the table of the environment's documentation; empty texts unless it names every number."""
    size = math.prod(env.observation_space.shape or (0,))
    named: list[str] | None = None
    for line in (type(env).__doc__ or "").splitlines():
        if HEADING.match(line):
            named = []
        elif named is not None and (row := ROW.match(line)) and int(row[1]) == len(named):
            named.append(printable(row[2])[:80])
        if named is not None and len(named) == size:
            return named
    return [""] * size
