"""Contract of an exported file: its input, output and arithmetic.

It is in contract.json, and in short form inside the file.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import gymnasium
import numpy as np

from quarl import __version__
from quarl.arrays import Array
from quarl.engines import int16x8
from quarl.errors import QuarlError, UnsupportedError
from quarl.export.numbers import are_as_many, bounds, named, observed, sizes
from quarl.export.targets import PACKAGES, TARGETS, reference_of
from quarl.inert.reading_budget import MAX_NUMBERS, read_json
from quarl.policy.artifact import plain, provenance_from_json, provenance_to_json
from quarl.policy.container import raw
from quarl.policy.graph import ActionHead, QuantizedPolicy, macs, shapes
from quarl.policy.inputs import Input, layout
from quarl.policy.operators import QuantizedTensor
from quarl.policy.recurrent import ports
from quarl.quant.spec import QuantSpec

POLICY, CONTRACT, GOLDEN, SUMS = "policy.quarl", "contract.json", "golden.npz", "SHA256SUMS"
"""Files of the folder besides the exported one."""
FORMAT = "quarl-contract-1"
MOST_INSIDE = 4096
"""Largest short form in bytes."""
BEGIN = f'{{"format":"{FORMAT}"'
"""Start of the short form, by which it is found in a file of any kind."""
SEAL = re.compile(rb'"sealed":"([0-9a-f]{64})"')
OPEN = "0" * 64
"""Placeholder of the seal: the seal is the sha256 of the file with this placeholder."""
INSIDE = ("format", "target", "precision", "mode", "arithmetic", "environment")
NAN = {
    "c": "{name}_act returns -1",
    "": "not looked at: the arithmetic makes some number of it; do not act on such an observation",
}
CODES = (
    "its output is int16 codes; times io.output.scale they are the network's outputs. The largest is the discrete "
    "action; the caller clips continuous ones to low and high, or squashes them: low + (tanh(x) + 1) / 2 * (high - low)"
)
"""Meaning of the output of a file of integers."""
TOLD = (
    "quarl",
    "footprint",
    "verified",
    "source.file",
    "source.sha256",
    "observation.low",
    "observation.high",
    "observation.numbers",
    "action.numbers",
    "control_period",
)
"""Keys, with dots between, whose type alone depends on the policy; names depend on the environment or a file."""
ENVIRONMENT = {"id": "env_id", "kwargs": "env_kwargs", "wrappers": "wrappers", "max_episode_steps": "max_episode_steps"}
SOURCE = ("algo", "statistics", "stochastic", "origin")
"""Fields of Provenance in the contract's `environment`, by the key there, and in its `source`."""


def contract(
    policy: QuantizedPolicy,
    target: str,
    *,
    arithmetic: str,
    source: Mapping[str, str],
    env: gymnasium.Env[Any, Any] | None = None,
    name: str = "policy",
    package: str | None = None,
    names: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content of contract.json; `footprint` and `verified` are empty.

    Args:
        policy: The policy.
        target: Runtime or language of the export.
        arithmetic: Arithmetic of the file.
        source: `file` and `sha256` of the agent.
        env: Environment of the policy, which describes its observations; None if it is missing here.
        name: Prefix of symbols and files in C.
        package: Project around C.
        names: Names and units of numbers, as `read_names` returns them.
    """
    # Keys are part of the format: `differences` compares them with those of files.
    head, of, products = policy.head, provenance_to_json(policy.provenance), macs(policy)
    order = "channels first" if len(policy.observation_shape) == 3 else "one row"
    return {
        "format": FORMAT,
        "quarl": __version__,
        "target": target,
        "name": name,
        "package": package,
        "precision": policy.spec.precision,
        "mode": policy.spec.mode,
        "spec": policy.spec.to_json(),
        "arithmetic": arithmetic,
        "io": int16x8.io(policy) if arithmetic == "int16x8" else "float",
        "source": {**source, **{key: of[key] for key in (*SOURCE, "metadata", "choices") if key in of}},
        "environment": {key: of[field] for key, field in ENVIRONMENT.items()},
        "control_period": 1 / names["control_hz"] if names and "control_hz" in names else None,
        "observation": {
            "shape": list(policy.seen),
            "dtype": policy.observation_dtype,
            "layout": f"{order}: {layout(policy.inputs)}" if policy.inputs else order,
            "inputs": list(map(astuple, policy.inputs)),
            "nan": NAN.get(target, NAN[""]).format(name=name)
            if policy.observation_dtype == "float32"
            else "bytes have none",
            "box": box(policy),
            **observed(policy, env, names),
        },
        "action": {
            "kind": head.kind,
            "shape": list(head.low.shape) if not head.is_discrete else [len(head.segments)] if head.segments else [],
            "low": None if head.is_discrete else bounds(head.low),
            "high": None if head.is_discrete else bounds(head.high),
            "start": head.start,
            "zero_based": head.zero_based,
            "segments": list(head.segments),
            "num_outputs": sizes(policy)["action"],
            "numbers": named(names or {}, "action"),
            "meaning": CODES if arithmetic == "int16x8" else meaning(head),
        },
        **({"state": _parts(policy)} if policy.state.size else {}),
        "layers": [
            {
                "name": op.name,
                "kind": type(op).__name__,
                "shape": list(op.weight.shape),
                "bits": policy.bits_of_layers[op.name],
                "macs": products[op.name],
                "bytes": math.ceil(policy.bits_of_layers[op.name] * math.prod(op.weight.shape) / 8),
            }
            for op in policy.linear
        ],
        "grids": {
            name: {"scale": grid.scale, "zero_point": grid.zero_point, "bits": grid.bits}
            for name, grid in (int16x8.grids(policy) if arithmetic == "int16x8" else policy.grids).items()
        },
        "sha256": digests(policy),
        "footprint": {},
        "verified": [],
    }


def sha256(data: bytes) -> str:
    """Return the sha256 of the bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def box(policy: QuantizedPolicy) -> dict[str, list[float]] | None:
    """Return the ends of the calibration observations in one row each, as short as float32 allows."""
    ends, size = zip(("low", "high"), policy.box or (), strict=False), math.prod(policy.seen)
    return {end: [float(str(number)) for number in numbers.flat[:size]] for end, numbers in ends} or None


def _parts(policy: QuantizedPolicy) -> list[dict[str, Any]]:
    """Return names, sizes and initial numbers of the parts of the state; `start` is a number if all are equal."""
    parts, shape_of = ports(policy)[1:], shapes(policy)
    sizes = [shape_of[port.computed][0] for port in parts]
    about = zip(parts, sizes, np.split(policy.state, np.cumsum(sizes)[:-1]), strict=True)
    return [{"name": port.name, "next": port.next, "size": n, "start": bounds(start)} for port, n, start in about]


def memory(full: Mapping[str, Any]) -> str:
    """Return a sentence about the state that the caller of a file carries; "" without one."""
    parts = ", ".join(f"{part['next']} is {part['name']} [{part['size']}]" for part in full.get("state", ()))
    return parts and (
        f"it has a memory: {parts} of the next step; at the start of an episode these are the numbers `start` under "
        "`state` in contract.json"
    )


def meaning(head: ActionHead) -> str:
    """Return a sentence about the meaning of a file's output."""
    if not head.is_discrete:
        bounded = np.isfinite(head.low).any() or np.isfinite(head.high).any()
        outside = "without bounds; the scale of actions and the pose to which they are added stay outside the file"
        return head.reading or f"its output is the action, {'within its bounds' if bounded else outside}"
    return head.reading or "its output is a score for each action, which is the number of the largest, from 0"


def digests(policy: QuantizedPolicy) -> dict[str, str]:
    """Return the sha256 of the weights (codes with their scales, or floats) and of the grids."""
    weights = hashlib.sha256()
    for op in policy.linear:
        weight = op.weight
        held = (weight.codes, weight.scale, weight.zero_point) if isinstance(weight, QuantizedTensor) else (weight,)
        for array in (*held, op.bias):
            weights.update(f"{op.name} {array.dtype} {array.shape}".encode())
            weights.update(raw(np.ascontiguousarray(array)))
    grids = json.dumps({name: astuple(grid) for name, grid in policy.grids.items()}, sort_keys=True)
    return {"weights": weights.hexdigest(), "grids": sha256(grids.encode())}


def inner(full: Mapping[str, Any]) -> str:
    """Return the short form, one line of ASCII, with an open seal."""
    said = {
        **{name: full[name] for name in INSIDE},
        "source": {name: full["source"][name] for name in ("sha256", *SOURCE)},
        "observation": {name: full["observation"][name] for name in ("shape", "dtype", "inputs")},
        "spec": full["spec"],
        "sha256": full["sha256"],
        "action": {name: value for name, value in full["action"].items() if name not in ("meaning", "numbers")},
        **{name: full[name] for name in ("state",) if name in full},
        "bits": {layer["name"]: layer["bits"] for layer in full["layers"]},
        "box": full["observation"]["box"],
    }
    for left_out in ((), ("box",), ("box", "bits"), ("box", "bits", "spec")):
        short = {name: value for name, value in said.items() if name not in left_out}
        text = json.dumps(short | {"sealed": OPEN}, separators=(",", ":"), default=plain)
        if len(text) <= MOST_INSIDE:
            return text
    raise UnsupportedError(
        f"the contract inside the file takes {len(text):,} bytes of {MOST_INSIDE:,}: shorten --env-kwargs or --wrapper"
    )


def sealed(content: bytes) -> bytes:
    """Return the file with its own sha256 in the contract inside."""
    return content.replace(f'"sealed":"{OPEN}"'.encode(), f'"sealed":"{sha256(content)}"'.encode(), 1)


def read(content: bytes, where: str) -> dict[str, Any]:
    """Return the contract inside a file that is to run on its own.

    Raises:
        QuarlError: There is no contract, or a bit of the file has changed.
        UnsupportedError: The file computes in integers alone.
    """
    begin = content.find(BEGIN.encode())
    if begin < 0:
        raise QuarlError(
            f"{where} holds no contract: quarl export did not write it, or it is damaged; name the model that it was "
            "made from"
        )
    seal = SEAL.search(content, begin, begin + MOST_INSIDE)
    whole = seal and sha256(content[: seal.start(1)] + OPEN.encode() + content[seal.end(1) :])
    if seal is None or whole != seal[1].decode():
        raise QuarlError(f"{where} does not match the sha256 of its contract; the file is damaged: export it again")
    inside = read_json(content[begin : seal.end() + 1], f"the contract in {where}")
    if inside.get("arithmetic") == "int16x8":
        raise UnsupportedError(
            f"{where} reads and returns int16 codes, and their scales and the normalizer are in its folder: give the "
            "folder to quarl verify, or its policy.quarl to quarl eval --engine reference"
        )
    return inside


def differences(policy: QuantizedPolicy, full: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of contract.json, with dots between, that differ from the contract of the policy."""
    target = full.get("target") if full.get("target") in TARGETS else TARGETS[0]
    arithmetic = "qdq" if target == "onnx-qdq" else reference_of(str(target))
    known = contract(
        policy,
        str(target),
        arithmetic=arithmetic,
        source={"file": "", "sha256": ""},
        name=str(full.get("name")),
        package=full.get("package") if target == "c" and full.get("package") in PACKAGES else None,
        names=None if full.get("control_period") is None else {"control_hz": 1.0},
    )
    found = list(_differ(json.loads(json.dumps(known, default=plain)), full, ""))
    if not found:  # all keys are there, with values of their kinds
        found = [f"{key}.numbers" for key, n in sizes(policy).items() if not are_as_many(full[key]["numbers"], n)]
    yield from found


def _differ(known: Any, full: Any, name: str) -> Iterator[str]:
    if isinstance(known, dict) and isinstance(full, dict) and name not in TOLD:
        for key in (*known, *sorted(full.keys() - known.keys())):
            yield from _differ(known.get(key, ...), full.get(key, ...), f"{name}.{key}".lstrip("."))
        return
    other_kind = type(known) is not type(full) and (name not in TOLD or known is not None or full is ...)
    if other_kind or (name not in TOLD and known != full):
        yield name


@dataclass(frozen=True, eq=False, slots=True, kw_only=True, repr=False)
class Exported(QuantizedPolicy):
    """A policy whose network is in a file and everything else in the contract inside it: it has no operators."""

    width: int
    """Number of outputs of the file."""

    def __post_init__(self) -> None:
        """Skip the checks of a graph."""

    @property
    def num_outputs(self) -> int:
        """Return the number of outputs of the file."""
        return self.width


def policy_of(contract: Mapping[str, Any], where: str) -> Exported:
    """Return the policy of the contract: its actions are the file's outputs, or the ones with the best scores."""
    try:
        of, action, observation = contract["source"], contract["action"], contract["observation"]
        of_environment = {field: contract["environment"][name] for name, field in ENVIRONMENT.items()}
        discrete, size = action["kind"] in ("argmax", "binary"), int(action["num_outputs"])
        head = ActionHead(
            kind=action["kind"] if discrete else "clip",
            start=int(action["start"]),
            zero_based=action["zero_based"] is True,
            segments=tuple(map(int, action["segments"])),
            width=size if "state" in contract else 0,
            **({} if discrete else {end: _bounds(action[end], action["shape"], end) for end in ("low", "high")}),
        )
        spec, shape = contract.get("spec"), tuple(map(int, observation["shape"]))
        state = _state(contract.get("state", []))
        return Exported(
            observation_shape=(shape[0] + state.size,) if state.size else shape,
            state=state,
            observation_dtype="uint8" if observation["dtype"] == "uint8" else "float32",
            inputs=tuple(Input(str(k), kind, tuple(s), tuple(v)) for k, kind, s, v in observation["inputs"]),
            ops=(),
            head=head,
            box=_box(ends, observation["shape"], state.size) if (ends := contract.get("box")) is not None else None,
            provenance=provenance_from_json({**of_environment, **{name: of[name] for name in SOURCE}}),
            spec=QuantSpec.from_json(spec) if spec else QuantSpec.parse(contract["precision"], mode=contract["mode"]),
            width=size,
        )
    except (QuarlError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise QuarlError(f"{where}: its contract does not describe a policy ({error}); export it again") from None


@np.errstate(over="ignore")
def _state(parts: list[dict[str, Any]]) -> Array:
    """Return the state at the start of an episode, float32 [S], that `_parts` wrote; empty without a memory."""
    sizes = [int(part["size"]) for part in parts]
    if sum(sizes) > MAX_NUMBERS:
        raise ValueError(f"its state has {sum(sizes):,} numbers")
    starts = (np.broadcast_to(np.float32(part["start"]), size) for part, size in zip(parts, sizes, strict=True))
    return np.concatenate([np.zeros(0, np.float32), *starts])


@np.errstate(over="ignore")
def _box(given: Any, shape: list[int], more: int) -> tuple[Array, Array]:
    """Return the ends of the calibration observations, float32 [*shape], that `box` wrote.

    A state of `more` numbers behind them has no ends.
    """
    low, high = (np.array(given[end], np.float32).reshape(shape) for end in ("low", "high"))
    if not np.isfinite([low, high]).all() or (low > high).any():
        raise ValueError("its box has a low end above the high one, or one that is not finite")
    return (np.append(low, [-np.inf] * more), np.append(high, [np.inf] * more)) if more else (low, high)


def _bounds(given: Any, shape: list[int], end: str) -> Any:
    """Return the bounds, float32 [*shape], that `bounds` wrote; a missing bound is infinite."""
    numbers = given if isinstance(given, list) else [given] * math.prod(map(int, shape))
    beyond = -math.inf if end == "low" else math.inf
    return np.array([beyond if number is None else float(number) for number in numbers], np.float32).reshape(shape)
