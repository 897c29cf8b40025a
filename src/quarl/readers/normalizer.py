"""VecNormalize's observation statistics as a Normalize operator: from its pickle, read as data, or from a live one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, first_line
from quarl.inert.npz import read_npz
from quarl.inert.objects import Inert
from quarl.inert.pickle import read_pickle
from quarl.inert.zip import read_bytes
from quarl.policy.graph import Policy
from quarl.policy.operators import OBSERVATION, Normalize, Op, Shape, Slice
from quarl.policy.recurrent import SEEN

Statistics = Normalize | Mapping[str, Normalize]
"""Statistics of one array, or by key for the arrays of a Dict, some of which may have none."""
NAME = f"{OBSERVATION}.normalize"
FLAGS, BOUNDS = ("norm_obs", "norm_reward"), ("clip_obs", "clip_reward", "epsilon")
"""Boolean and numeric arguments of VecNormalize."""
ENTRIES = ("mean", "var", "clip", "epsilon", "count")
"""Names of a caller's statistics; the count is not used."""
PICKLE_BYTES = 2**28
"""Largest pickle of statistics in bytes.

Statistics of an 84 x 84 x 4 image take 0.5 MB; the pickle also holds the last observations of every environment.
"""


def read_vecnormalize(path: Path) -> Statistics | None:
    """Return the operator of the statistics in `path`, or one per key of a Dict; None if they normalize only rewards.

    Plain statistics, which the zoo of Stable-Baselines 2 saved as obs_rms.pkl, get VecNormalize's defaults.
    """
    saved = _vecnormalize(path, "RunningMeanStd")
    if saved.name == "RunningMeanStd":
        return _normalize({"epsilon": 1e-8, "clip_obs": 10.0, "obs_rms": saved}, str(path))
    return _normalize(saved.attributes, str(path))


def read_statistics(path: Path) -> dict[str, tuple[Array, Array, float]]:
    """Return (mean, variance, count) of the running statistics in vecnormalize.pkl: obs_rms, and ret_rms for returns.

    Missing or non-numeric entries are left out; `read_vecnormalize` reports them as errors.
    """
    saved = _vecnormalize(path)
    running: dict[str, tuple[Array, Array, float]] = {}
    for name in ("obs_rms", "ret_rms"):
        statistics = _attributes(saved.attributes.get(name))
        values: list[Any] = [statistics.get(key) for key in ("mean", "var", "count")]
        if all(_real(value) and np.isfinite(value).all() for value in values) and np.ndim(values[2]) == 0:
            running[name] = np.array(values[0], np.float64), np.array(values[1], np.float64), float(values[2])
    return running


def read_options(path: Path) -> dict[str, bool | float]:
    """Return VecNormalize's arguments in vecnormalize.pkl, except the discount, which belongs to the learner."""
    saved = _vecnormalize(path).attributes
    options: dict[str, bool | float] = {name: saved[name] for name in FLAGS if isinstance(saved.get(name), bool)}
    for name in BOUNDS:
        value: Any = saved.get(name)
        if not _real(value) or np.ndim(value) != 0:
            continue
        if np.isfinite(value) or (name != "epsilon" and value == np.inf):  # an infinite bound does not clip
            options[name] = float(value)
    return options


def _vecnormalize(path: Path, *others: str) -> Inert:
    saved = read_pickle(read_bytes(path, limit_bytes=PICKLE_BYTES), str(path))
    if not isinstance(saved, Inert) or saved.name not in ("VecNormalize", *others):
        kind = saved.path[:80] if isinstance(saved, Inert) else type(saved).__name__
        raise QuarlError(f"{path} holds a {kind}, not the VecNormalize wrapper of Stable-Baselines3")
    return saved


def from_wrapper(wrapper: Any) -> Statistics | None:
    """Return the result of `read_vecnormalize` for a live wrapper.

    It is a VecNormalize, or a NormalizeObservation, which does not clip.
    """
    return _normalize({"clip_obs": np.inf, **vars(wrapper)}, f"the model's {type(wrapper).__name__}")


def from_arrays(given: Any, shape: Shape) -> Normalize:
    """Return the operator of a caller's observation statistics.

    Args:
        given: A mapping, an object or the path of an .npz file with mean and var, and optionally clip and epsilon.
        shape: Shape of an observation.

    Raises:
        QuarlError: An entry is missing, unknown or unusable, or the statistics belong to another observation.
    """
    where = "normalize"
    if isinstance(given, str | os.PathLike):
        where = os.fspath(given)
        given = read_npz(read_bytes(Path(where), limit_bytes=PICKLE_BYTES), where)
    if not isinstance(given, Mapping):
        given = {name: getattr(given, name) for name in ENTRIES if hasattr(given, name)}
    if unknown := [str(name)[:60] for name in given if name not in ENTRIES]:
        raise QuarlError(f"{where} has the unknown entry {unknown[0]!r} (known: {', '.join(ENTRIES)})")
    if missing := [name for name in ENTRIES[:2] if name not in given]:
        raise QuarlError(f"{where} has no {missing[0]}: give mean and var, as in normalize=env.obs_rms")
    try:
        values = {name: np.asarray(value) for name, value in {"clip": 10.0, "epsilon": 1e-8, **given}.items()}
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, and tensors on a GPU or with a gradient
        raise QuarlError(f"{where} has an entry that is not an array of numbers: {first_line(error)[:200]}") from None
    for name in ("mean", "var"):
        if values[name].shape != shape:
            raise QuarlError(f"{where} has {name} of shape {values[name].shape}, but the module observes {shape}")
    running = SimpleNamespace(mean=values["mean"], var=values["var"])
    operator = _operator({"epsilon": values["epsilon"], "clip_obs": values["clip"]}, running, where)
    return replace(operator, name=f"{OBSERVATION}.statistics")  # a module that normalizes itself has the usual name


def in_front(norm: Normalize, ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Return the operators with `norm` between the observation, without any state, and those that read it."""
    source = SEEN if ops[0].name == SEEN else OBSERVATION
    norm = replace(norm, inputs=(source,))
    behind = [replace(op, inputs=tuple(norm.name if name == source else name for name in op.inputs)) for op in ops]
    behind.insert(source == SEEN, norm)
    return tuple(behind)


def _attributes(value: Any) -> Mapping[Any, Any]:
    """Return the attributes by name of a live object or one read as data; empty for anything else."""
    return value.attributes if isinstance(value, Inert) else getattr(value, "__dict__", {})


def sentence(policy: Policy) -> str:
    """Return a clause that names the statistics that normalize the policy's observations."""
    source = policy.provenance.statistics
    if not policy.ops:  # an exported file: only its contract is known
        return f"the file reads raw observations: its normalizer, if any, is inside{f' ({source})' if source else ''}"
    raw = {OBSERVATION, *(op.name for op in policy.ops if isinstance(op, Slice))}
    if any(isinstance(op, Normalize) and op.inputs[0] in raw for op in policy.ops):
        return f"observations normalized with {source or 'the statistics inside the file'}"
    return f"no VecNormalize statistics{f' ({source})' if source else ''}: observations are not normalized"


def outside(wrappers: Sequence[tuple[str, Any]]) -> str:
    """Return a sentence about the environment's wrappers, which an exported file leaves out; "" without wrappers."""
    return (
        f"it acts inside wrappers that are not part of the file: {', '.join(n.rpartition('.')[2] for n, _ in wrappers)}"
        if wrappers
        else ""
    )


def clamp(source: str, shape: tuple[int, ...], bound: float) -> Normalize:
    """Return the operator min(max(x, -bound), bound) of the value `source`: a Normalize with mean 0 and variance 1.

    Args:
        source: Name of the value.
        shape: Shape of the value.
        bound: Largest absolute value.
    """
    return Normalize(f"{source}.clamp", (source,), np.zeros(shape), np.ones(shape), 0.0, bound)


def _normalize(wrapper: Mapping[Any, Any], where: str) -> Statistics | None:
    """Return the operators for a wrapper's attributes by name; None if it does not normalize observations."""
    if wrapper.get("norm_obs") is False:
        return None
    statistics = wrapper.get("obs_rms")
    if isinstance(statistics, dict):
        return {str(key): _operator(wrapper, rms, f"{where}: {str(key)[:60]!r}") for key, rms in statistics.items()}
    return _operator(wrapper, statistics, where)


def _operator(wrapper: Mapping[Any, Any], running: Any, where: str) -> Normalize:
    """Return the operator for a wrapper's attributes and its RunningMeanStd."""
    statistics = _attributes(running)
    values: list[Any] = [statistics.get("mean"), statistics.get("var"), wrapper.get("epsilon"), wrapper.get("clip_obs")]
    mean, variance, epsilon, clip = values
    if not _real(mean) or not _real(variance) or np.shape(mean) != np.shape(variance):
        raise QuarlError(f"{where} has no mean and variance of observations in real numbers; save it again")
    if not _real(epsilon) or not _real(clip) or np.ndim(epsilon) or np.ndim(clip) or not epsilon >= 0 or not clip > 0:
        raise QuarlError(f"{where} has no usable epsilon, from 0 on, and clip, above 0; save it again")
    mean, variance = np.array(mean, np.float64), np.array(variance, np.float64)
    if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
        raise QuarlError(f"{where}: the observation statistics hold NaN or infinity; they cannot be used")
    if (variance < 0).any() or not (variance + epsilon > 0).all():
        raise QuarlError(f"{where}: the observations' variance is negative, or 0 with epsilon 0")
    return Normalize(NAME, (OBSERVATION,), mean, variance, float(epsilon), float(clip))


def _real(value: Any) -> bool:
    """Return True for real numbers and arrays of them."""
    return isinstance(value, int | float | np.ndarray | np.generic) and np.asarray(value).dtype.kind in "iuf"
