"""Supported algorithms, spaces and modules, found by trying each, for README and reference/agents.md.

Models are new ones, in an environment that does not change; nothing trains. A dash means that a library or QuaRL
refuses it.
"""

from __future__ import annotations

import functools
import importlib
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.preprocessing import is_image_space
from torch import nn

import quarl
from quarl import qat
from quarl.algorithms.learners import learner_class
from quarl.config.actorq import ALGORITHMS
from quarl.config.train import LEARNERS
from quarl.readers import sb2
from quarl.readers.plain_spaces import Space
from quarl.readers.sb3_network import CLASSES, LAYOUTS

YES, NO = "yes", "–"
LIBRARIES = {"stable_baselines3": "Stable-Baselines3", "sb3_contrib": "sb3-contrib", "quarl": "QuaRL"}
SB2 = "Stable-Baselines 2"
BOX, FRAMES = spaces.Box(-1, 1, (3,)), spaces.Box(0, 255, (4, 36, 36), np.uint8)
ACTIONS: Mapping[str, spaces.Space[Any]] = {
    "`Box`": BOX,
    "`Discrete`": spaces.Discrete(3),
    "`MultiDiscrete`": spaces.MultiDiscrete([3, 2]),
    "`MultiBinary`": spaces.MultiBinary(3),
}
OBSERVATIONS: Mapping[str, spaces.Space[Any]] = {
    **ACTIONS,
    "`Box` of images": FRAMES,
    "`Dict`": spaces.Dict(a=BOX, b=spaces.Discrete(3), c=spaces.MultiBinary(2)),
    "`Dict` with images": spaces.Dict(a=BOX, b=FRAMES),
}
GOALS = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), BOX))
FILES, MODES = (".tflite", ".onnx"), ("dynamic", "static")
Outcome = tuple[str, ...]
Table = tuple[Sequence[str], list[Sequence[str]]]
"""Headings and entries of a table."""


class Still(gymnasium.Env[Any, Any]):
    """An environment that returns samples of its spaces and never ends."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}


class Function(nn.Module):
    """A module that calls the function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.forward = function


PLAIN = (
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.Tanh, nn.Sigmoid, nn.ReLU6, nn.SiLU, nn.GELU, nn.Mish, nn.Softplus),
    *(nn.Hardswish, nn.Hardtanh, nn.Hardsigmoid, nn.CELU, nn.SELU, nn.PReLU, nn.LogSigmoid, nn.Softsign),
    *(nn.Identity, nn.Dropout, nn.Flatten),
)
"""Modules that need no argument."""
VECTORS: Mapping[str, nn.Module] = {
    "Linear": nn.Linear(6, 6),
    **{kind.__name__: kind() for kind in PLAIN},
    "LayerNorm": nn.LayerNorm(6),
    "RMSNorm": nn.RMSNorm(6),
    "BatchNorm1d": nn.BatchNorm1d(6),
    "Softmax": nn.Softmax(dim=-1),
    "Conv1d": nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 3, 2), nn.Flatten()),
    "cat": Function(lambda x: torch.cat([x[:, 3:], x[:, :3]], dim=-1)),
    "x + f(x)": Function(lambda x: x + torch.tanh(x)),
    "x * f(x)": Function(lambda x: x * torch.tanh(x)),
    "a * x + b": Function(lambda x: 0.5 * x + torch.arange(6.0)),
    "x / a": Function(lambda x: x / 3.0),
    "x.clamp(a, b)": Function(lambda x: x.clamp(-0.5, 0.25)),
    "x - x.mean(-1)": Function(lambda x: x - x.mean(dim=-1, keepdim=True)),
}
"""Modules tried between two Linear of 6 numbers, by name."""
IMAGES: Mapping[str, nn.Module] = {
    "Conv2d": nn.Conv2d(4, 2, 3),
    "BatchNorm2d": nn.BatchNorm2d(4),
    "GroupNorm": nn.GroupNorm(2, 4),
    "MaxPool2d": nn.MaxPool2d(2),
    "AvgPool2d": nn.AvgPool2d(2),
    "AdaptiveAvgPool2d": nn.AdaptiveAvgPool2d(4),
}
"""Modules tried behind a Conv2d of 4 channels, by name."""


def of(algo: str) -> Any:
    """Return the class of the algorithm from its package."""
    if algo in LEARNERS:
        return learner_class(algo)
    contrib = vars(importlib.import_module("sb3_contrib")).items()
    return next(cls for name, cls in contrib if isinstance(cls, type) and name == CLASSES[algo])


def model(algo: str, observed: spaces.Space[Any], actions: spaces.Space[Any], **arguments: Any) -> Any:
    """Return a new model for these spaces, with the policy that they need."""
    images = isinstance(observed, spaces.Box) and is_image_space(observed)
    policy = "MultiInput" if isinstance(observed, spaces.Dict) else "Cnn" if images else "Mlp"
    if issubclass(of(algo), OffPolicyAlgorithm):
        arguments["buffer_size"] = 10
    scores = isinstance(actions, spaces.Discrete) or algo == "ars"  # their networks have no critic beside them
    kwargs = {"net_arch": [4] if scores else {"pi": [4], "qf": [4], "vf": [4]}}
    return of(algo)(
        f"{policy}{'Lstm' if algo == 'ppo_lstm' else ''}Policy",
        Still(observed, actions),
        device="cpu",
        seed=0,
        policy_kwargs=kwargs,
        **arguments,
    )


def read(trained: Any) -> bool:
    """Return True if its zip and the live model are read as agents that act alike; raise QuarlError if either is
    refused."""
    with tempfile.TemporaryDirectory() as folder:
        trained.save(Path(folder) / "model.zip")
        saved, live = quarl.load(Path(folder) / "model.zip"), quarl.from_sb3(trained)
    row = trained.observation_space.sample()
    return np.allclose(saved.predict(row)[0], live.predict(row)[0], atol=1e-5)


def prepared(trained: Any) -> bool:
    """Return True; raise QuarlError if it cannot be trained quantization-aware."""
    qat.prepare(trained, "int8")
    return True


def works(tried: Callable[..., Any], make: Callable[..., Any], *arguments: Any, **named: Any) -> bool:
    """Return the entry for the result of a function; False if the library or QuaRL refuses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return tried(make(*arguments, **named)) is not False
        except (quarl.QuarlError, AssertionError, ValueError, TypeError, NotImplementedError):
            return False


@functools.cache
def algorithms() -> Mapping[str, tuple[str, Sequence[str], bool, bool]]:
    """Return, by name: the library, kinds of actions with which models are read, support of qat, and of goals."""
    tried = {}
    for algo in LAYOUTS:
        actions = [name for name, space in ACTIONS.items() if works(read, model, algo, BOX, space)]
        first = ACTIONS[actions[0]] if actions else BOX
        her = {"replay_buffer_class": HerReplayBuffer}
        goals = issubclass(of(algo), OffPolicyAlgorithm) and works(read, model, algo, GOALS, first, **her)
        library = LIBRARIES[of(algo).__module__.partition(".")[0]]
        tried[algo] = library, actions, works(prepared, model, algo, BOX, first), goals
    return tried


@functools.cache
def observed() -> Mapping[str, Sequence[bool]]:
    """Return, by name of the space, the support of reading a PPO that observes it and of qat; the same for acting in
    it."""
    tried = {}
    for name, space in OBSERVATIONS.items():
        pairs = [(space, BOX), *([(BOX, space)] if name in ACTIONS else [])]
        tried[name] = [works(how, model, "ppo", *pair) for pair in pairs for how in (read, prepared)]
    return tried


@functools.cache
def modules() -> Mapping[str, Outcome]:
    """Return, by name of the module, the FILES that can hold a network with it, and teaching; nothing if it is
    refused."""
    vectors = {name: _uses([nn.Linear(3, 6), tried, nn.Linear(6, 2)], (3,)) for name, tried in VECTORS.items()}
    images = {
        name: _uses([nn.Conv2d(1, 4, 3), tried, nn.Flatten(), nn.LazyLinear(2)], (1, 8, 8))
        for name, tried in IMAGES.items()
    }
    return vectors | images


def _uses(layers: Sequence[nn.Module], shape: tuple[int, ...]) -> Outcome:
    network = nn.Sequential(*layers).eval()
    rows = np.random.default_rng(0).standard_normal((64, *shape)).astype(np.float32)
    network(torch.as_tensor(rows))  # lazy layers infer their shapes
    try:
        agent = quarl.from_module(network, observation=shape, head=spaces.Discrete(2))
    except quarl.QuarlError:
        return ()
    made = {mode: agent.quantize("int8", mode=mode, observations=rows) for mode in MODES}
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"agent{suffix}" for suffix in FILES]
        saved = [[mode for mode in MODES if works(made[mode].save, Path, path)] for path in paths]
    taught = works(lambda told: agent.distill(4, **told), dict, observations=rows, rounds=1, updates=1, states=64)
    return (*(YES if len(modes) == len(MODES) else " ".join(modes) or NO for modes in saved), YES if taught else NO)


def sb2_actions(algo: str) -> Sequence[str]:
    """Kinds of actions with which the algorithm of Stable-Baselines 2 is read."""
    kinds = sb2.SPACES.get(algo, Space)
    names = [f"`{kind.__name__}`" for kind in get_args(kinds) or (kinds,)]
    return [name for name in names if name in ACTIONS]


def tables() -> Mapping[str, Table]:
    """Return tables by title: supported reading, training and saving, by algorithm, space and module."""
    entries: list[Sequence[str]] = [
        (f"`{algo}`", library, ", ".join(actions), *_marks(goals, algo in LEARNERS, trains, algo in ALGORITHMS))
        for algo, (library, actions, trains, goals) in algorithms().items()
    ]
    for algo in sorted(sb2.MARKS):
        entries.append(
            (f"`{algo}`", SB2, ", ".join(sb2_actions(algo)), *_marks(algo in (*sb2.ACTORS, "dqn")), *(NO,) * 3)
        )
    groups: dict[Outcome, list[str]] = {}
    for name, uses in modules().items():
        groups.setdefault(uses, []).append(f"`{name}`")
    verbs = ("`quarl train`", "`quarl.qat`", "`quarl actorq`")
    files = (*(f"`{suffix}`" for suffix in FILES), "`quarl distill`")
    return {
        "Algorithms": (("algorithm", "library", "actions", "with HER", *verbs), entries),
        "Spaces": (
            ("space", "observed", "`quarl.qat`", "acted in", "`quarl.qat`"),
            [(name, *_marks(*flags), *[""] * (4 - len(flags))) for name, flags in observed().items()],
        ),
        "Modules": (
            ("of PyTorch", "`quarl.from_module`", *files),
            [(", ".join(names), *_marks(bool(uses)), *(uses or (NO,) * 3)) for uses, names in groups.items()],
        ),
    }


def front() -> Table:
    """Return the same in a few lines."""
    agents = {algo: told for algo, told in algorithms().items() if told[1]}
    entries = [
        (library, [_name(algo) for algo, told in agents.items() if told[0] == library])
        for library in LIBRARIES.values()
    ]
    entries += [
        (SB2, [algo.upper() for algo in sorted(sb2.MARKS)]),
        ("with HER", [_name(algo) for algo, (*_, goals) in agents.items() if goals]),
        ("observations", [name for name, flags in observed().items() if flags[0]]),
        ("actions", [name for name, flags in observed().items() if any(flags[2:3])]),
        ("trained, with `--qat` too", [_name(algo) for algo in LEARNERS if agents[algo][2]]),
        ("trained by `quarl actorq`", [_name(algo) for algo in ALGORITHMS]),
    ]
    return ("agents", "that are read, played, quantized, distilled and saved"), [
        (a, ", ".join(b)) for a, b in entries if b
    ]


def _name(algo: str) -> str:
    name: str = of(algo).__name__
    return name


def _marks(*flags: bool) -> Sequence[str]:
    return [YES if flag else NO for flag in flags]
