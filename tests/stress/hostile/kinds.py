"""Malicious agents of the later kinds: spaces in spaces, sizes of them, and what policies of sb3-contrib tell."""

from __future__ import annotations

import base64
import io
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sb3_archives import saved, unzipped, zipped
from stress.fuzz import agents, seeds
from stress.fuzz.pickles import Call, Name
from stress.fuzz.seeds import ACTIONS, HIDDEN, OBSERVED
from stress.hostile.pickles import payloads, system

Row = tuple[str, str, dict[str, bytes]]
SIZES, PICKLES, WORK = "absurd sizes", "pickle in the zip's data", "exponential or quadratic work"
LARGE = 2**31 - 1


def rows(canary: Path) -> Iterator[Row]:
    """(mechanism, name, files by relative path, the model first)."""
    yield from _observed(canary)
    yield from _acted(canary)
    yield from _contrib(canary)


def _space(kind: str, **state: Any) -> Call:
    """A space of gymnasium."""
    module = {"Dict": "dict", "Discrete": "discrete"}.get(kind, f"multi_{kind[5:].lower()}")
    return Call(Name(f"gymnasium.spaces.{module}", kind), (), {"_shape": None, **state}, pickle.NEWOBJ)


def _agent(**spaces: Any) -> dict[str, bytes]:
    entries = {f"{name}_space": seeds.serialized(space) for name, space in spaces.items()}
    return {"agent.zip": seeds.sb3_agent({**seeds.sb3_data(), **entries})}


def _observed(canary: Path) -> Iterator[Row]:
    small = seeds.box(OBSERVED, 1.0)
    nested: Any = small
    for _ in range(100):
        nested = _space("Dict", spaces={"a": nested})
    for name, observed in {
        "value": {"a": system(canary)},
        "key": {Name("os", "system"): small},
        "call": Call(Name("collections", "OrderedDict"), ([("a", system(canary))],)),
        "no-dict": system(canary),
        "list": [small] * 3,
        "empty": {},
        "number": {7: small},
        "terminal": {"\x1b[2J\n": _space("Discrete", n=0)},
        "text": {"a": "Box"},
        "twin": {"a": nested},
    }.items():
        yield PICKLES, f"dict-{name}", _agent(observation=_space("Dict", spaces=observed))
    yield WORK, "dict-deep", _agent(observation=nested)
    yield WORK, "dict-wide", _agent(observation=_space("Dict", spaces={str(n): small for n in range(30_000)}))
    for name, observed in {
        "discrete": _space("Discrete", n=LARGE),
        "discrete-beyond": _space("Discrete", n=10**300),
        "discrete-start": _space("Discrete", n=OBSERVED, start=-(10**300)),
        "multi-discrete": _space("MultiDiscrete", nvec=np.full(1000, LARGE)),
        "multi-discrete-many": _space("MultiDiscrete", nvec=np.ones(2**20, np.int64)),
        "multi-discrete-none": _space("MultiDiscrete", nvec=np.ones(0, np.int64)),
        "multi-discrete-real": _space("MultiDiscrete", nvec=np.array([np.nan, 2.0])),
        "multi-binary": _space("MultiBinary", n=LARGE),
        "multi-binary-shape": _space("MultiBinary", n=(2**20, 2**20)),
    }.items():
        yield SIZES, f"observed-{name}", _agent(observation=observed)
        yield SIZES, f"dict-{name}", _agent(observation=_space("Dict", spaces={"a": observed, "b": small}))


def _acted(canary: Path) -> Iterator[Row]:
    for name, actions in {
        "segments": _space("MultiDiscrete", nvec=np.full(1000, LARGE)),
        "many-segments": _space("MultiDiscrete", nvec=np.ones(2**20, np.int64)),
        "bits": _space("MultiBinary", n=LARGE),
        "start": _space("Discrete", n=ACTIONS, start=2**62),
        "others": _space("MultiDiscrete", nvec=np.full(2, ACTIONS)),
    }.items():
        yield SIZES, f"acted-{name}", _agent(action=actions)
    called = _space("MultiDiscrete", nvec=system(canary))
    yield PICKLES, "acted-payload", _agent(action=called)
    yield PICKLES, "acted-dict", _agent(action=_space("Dict", spaces={"a": seeds.discrete(2)}))


def _contrib(canary: Path) -> Iterator[Row]:
    for kind, payload in payloads(canary).items():  # its class alone tells whether an ARS policy is linear
        yield PICKLES, f"ars-{kind}", _of("ars", {}, payload, action_net=(ACTIONS + 1, OBSERVED))
    for name, told in {"zero": 0, "huge": 2**62, "odd": 3, "text": "\x1b[2J", "list": [1] * 1000}.items():
        yield SIZES, f"quantiles-{name}", _of("qrdqn", {"n_quantiles": told}, **_quantiles(4 * ACTIONS))
    yield SIZES, "quantiles-rest", _of("qrdqn", {}, **_quantiles(4 * ACTIONS + 1))
    for name, epsilon in {"negative": -1.0, "text": "nan", "not": float("nan"), "large": 10**400}.items():
        yield SIZES, f"renorm-{name}", _renormed({"batch_norm_eps": epsilon})
    for name, numbers in {
        "variance": {"ra_var": torch.full((OBSERVED,), -1.0)},
        "mean": {"ra_mean": torch.full((OBSERVED,), torch.nan)},
        "width": {"ra_mean": torch.zeros(OBSERVED + 1)},
        "overflow": {"scale": torch.full((OBSERVED,), 3e38), "ra_var": torch.zeros(OBSERVED)},
        "missing": {"bias": None},
    }.items():
        yield SIZES, f"renorm-{name}", _renormed({}, **numbers)
    yield SIZES, "unknown-kind", _of("x" * 10_000, {}, action_net=(ACTIONS, OBSERVED))


def _quantiles(outputs: int) -> dict[str, tuple[int, int]]:
    net = "quantile_net.quantile_net"
    return {f"{net}.0": (HIDDEN, OBSERVED), f"{net}.2": (outputs, HIDDEN)}


def _renormed(kwargs: dict[str, Any], **numbers: torch.Tensor | None) -> dict[str, bytes]:
    """A CrossQ agent that was told so, with other numbers in its first renormalisation."""
    members = unzipped(agents.saved()[agents.OF_CONTRIB.index("crossq")])
    data = json.loads(members["data"])
    state = torch.load(io.BytesIO(members["policy.pth"]), weights_only=True)
    state |= {f"actor.latent_pi.0.{name}": numbers[name] for name in numbers}
    weights = saved({name: tensor for name, tensor in state.items() if tensor is not None})
    data["policy_kwargs"] |= kwargs
    return {"agent.zip": zipped({"data": json.dumps(data).encode(), "policy.pth": weights})}


def _of(
    kind: str, told: dict[str, Any], policy_class: bytes = b"\x80\x04N.", **layers: tuple[int, int]
) -> dict[str, bytes]:
    """An agent of sb3-contrib with these layers."""
    entry = {":serialized:": base64.b64encode(policy_class).decode(), "__module__": f"sb3_contrib.{kind}.policies"}
    state = {f"{name}.weight": torch.ones(size) for name, size in layers.items()}
    state |= {f"{name}.bias": torch.zeros(size[0]) for name, size in layers.items()}
    data = {**seeds.sb3_data(), "policy_class": entry, **told}
    return {"agent.zip": seeds.sb3_agent(data, policy__pth=saved(state))}
