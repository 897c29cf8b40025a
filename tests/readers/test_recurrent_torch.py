"""Recurrent torch programs, TorchScript files and modules, act as torch does step by step."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import quarl
import require
from quarl.arrays import Array
from quarl.calibration import quantize
from quarl.engines import load
from quarl.errors import QuarlError
from quarl.policy.graph import ActionHead, Policy
from quarl.quant.spec import EXACT, QuantSpec
from quarl.readers.extract import from_module
from quarl.readers.load import read

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

HEAD = ActionHead("clip", -np.full(2, 9, np.float32), np.full(2, 9, np.float32))
WALK = np.repeat(np.float32([0.25, 0.1, 0, 0.2, 0.1]), [3, 3, 3, 12, 12])
"""Standard deviations of what the G1 reads: angular velocity, gravity, command, joints, velocities of joints."""


def played(policy: Any, observations: Array, engine: str = "reference") -> list[Array]:
    """Outputs, states and joined rows [T, rows, n] of an engine that carries the state from its start."""
    rows, policy = observations.shape[1], policy if hasattr(policy, "spec") else quantize(policy, EXACT)
    runs, state, kept = load(policy, engine, batch=rows), np.tile(policy.state, (rows, 1)), []
    for seen in observations:
        row = np.hstack([seen, state]).astype(np.float32)
        action, state = np.split(runs.run(row).copy(), [policy.num_outputs], axis=1)
        kept.append((action, state, row))
    return [np.stack(each) for each in zip(*kept, strict=True)]


def walks(policy: Policy, steps: int, rows: int, seed: int) -> Array:
    """Simulated observations of the G1 [steps, rows, 47]: random walks, a command every 2.5 s, last actions, a gait."""
    rng = np.random.default_rng(seed)
    walk, phase = rng.normal(size=(rows, 33)) * WALK, rng.uniform(size=(rows, 1))
    runs, action, state, kept = load(quantize(policy, EXACT), "reference"), np.zeros((rows, 12)), 0, []
    for step in range(steps):
        if step % 125 == 0:
            command = rng.uniform(-1, 1, (rows, 3)) * [1.6, 1.0, 0.25]
        walk = 0.95 * walk + np.sqrt(1 - 0.95**2) * rng.normal(size=walk.shape) * WALK
        body = walk + np.pad(np.hstack([np.tile([0, 0, -1], (rows, 1)), command]), ((0, 0), (3, 24)))
        gait = 2 * np.pi * (phase + step / 40)
        kept.append(np.hstack([body, action, np.sin(gait), np.cos(gait)]).astype(np.float32))
        state = state if step else np.tile(policy.state, (rows, 1))
        action, state = np.split(runs.run(np.hstack([kept[-1], state]).astype(np.float32)), [12], axis=1)
    return np.stack(kept)


@pytest.fixture
def g1() -> tuple[Path, Policy]:
    path = require.folder("agents-wild") / "torchscript" / "unitree-g1-motion-lstm.pt"
    return path, read(path)


def test_lstm_of_the_g1_acts_as_in_torch_with_resets(g1):
    path, policy = g1
    assert (policy.seen, policy.state.size) == ((47,), 128)
    observations = walks(policy, 125, 8, 0)
    actions = played(policy, observations)[0]
    module = torch.jit.load(str(path)).eval()
    for episode in range(8):
        module.reset_memory()
        with torch.no_grad():
            expected = [module(torch.from_numpy(seen[episode : episode + 1])).numpy()[0] for seen in observations]
        assert np.abs(actions[:, episode] - expected).max() <= 1e-5


def test_int8_of_the_g1_carries_equal_states_without_drift(g1):
    _, policy = g1
    observations, rows = walks(policy, 1000, 10, 0), played(policy, walks(policy, 300, 10, 1))[2].reshape(-1, 175)
    quantized = quantize(policy, QuantSpec.parse("int8", mode="static"), rows)
    actions, states, _ = played(quantized, observations)
    assert all(np.array_equal(played(quantized, observations, engine)[1], states) for engine in ("litert", "onnx"))
    exact = played(policy, observations)[0]
    early, late = (np.sqrt(np.mean((actions - exact)[start : start + 100] ** 2)) for start in (100, 900))
    assert late <= min(1.2 * early, 0.02 * np.ptp(exact))


class Buffers(nn.Module):
    def __init__(self, kind: str = "LSTM", layers: int = 1, **options: Any) -> None:
        super().__init__()
        self.memory, self.head = getattr(nn, kind)(5, 8, layers, **options), nn.Linear(8, 2)
        for name, shape in {"mean": [5], "h": [layers, 1, 8], "c": [layers, 1, 8]}.items():
            self.register_buffer(name, torch.randn(shape))


class Net(Buffers):
    def forward(self, x: Tensor, state: Any) -> Any:
        if isinstance(self.memory, nn.RNNCellBase):
            state = self.memory(x, state)
            return self.head(state[0] if isinstance(state, tuple) else state), state
        axis = int(self.memory.batch_first)
        output, state = self.memory(x.unsqueeze(axis), state)
        return self.head(output).squeeze(axis), state


class Sliced(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        out, (h, c) = self.memory((x - self.mean).unsqueeze(0), (self.h, self.c))
        self.h[:] = h
        self.c[:] = c
        return self.head(out.squeeze(0)) + self.c[0, :, :2]  # the buffer has its new value


class Assigned(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        _, self.h = self.memory(x.unsqueeze(0), self.h)
        return torch.tanh(self.head(self.h[-1])) * 3


class Twice(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        self.h.copy_(self.memory(x, self.h.view(1, 8)).unsqueeze(0))
        self.h.copy_(self.memory(x, self.h.view(1, 8)).unsqueeze(0))
        return self.head(self.h.view(1, 8))


class Code(Buffers):
    def __init__(self, function: Any, **options: Any) -> None:
        super().__init__(**options)
        self.function = function

    def forward(self, x: Tensor, *state: Any) -> Any:
        return self.function(self, x, *state)


def viewed(module: Any, x: Tensor) -> Tensor:
    view = module.h.view(1, 8)
    module.h.copy_((torch.tanh(view) + x[:, :1]).unsqueeze(0))
    return module.head(view)


def assert_acts_alike(policy: Policy, step: Callable[[Tensor], Tensor]) -> None:
    """Compare 200 steps, and the states of int8 in every engine."""
    seen = np.random.default_rng(1).normal(size=(200, 1, 5)).astype(np.float32)
    actions, _, rows = played(policy, seen)
    with torch.no_grad():
        expected = np.stack([step(torch.from_numpy(x)).numpy() for x in seen])
    assert np.abs(policy.head(actions.reshape(200, -1)) - expected.reshape(200, -1)).max() <= 1e-6
    quantized = quantize(policy, QuantSpec.parse("int8", mode="static"), rows.reshape(200, -1))
    states = [played(quantized, seen, engine)[1] for engine in ("reference", "litert", "onnx")]
    assert all(np.array_equal(states[0], each) for each in states)


def saved(module: nn.Module, path: Path, kind: str = "traced") -> Path:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the tracer warns of constants
        trace = torch.jit.trace(module, torch.zeros(1, 5), check_trace=False) if kind == "traced" else None
        (trace or torch.jit.script(module)).save(str(path / "m.pt"))
    return path / "m.pt"


WRITING = [Sliced(), Sliced(layers=2), Twice("GRUCell"), Assigned("GRU"), Assigned("GRU", 3)]
READ = [*itertools.product(WRITING, ["scripted", "module"]), *((module, "traced") for module in WRITING[:3])]


@pytest.mark.parametrize(("module", "kind"), [*READ, (Code(viewed), "module")])
def test_buffers_that_forward_writes_are_the_state(module, kind, tmp_path):
    module.eval()
    if kind == "module":
        policy = from_module(module, (5,), head=HEAD)
    else:
        policy = read(saved(module, tmp_path, kind), head="" if isinstance(module, Assigned) else "clip:-9,9")
    assert {op.name.split(".")[0] for op in policy.linear} <= {"memory", "head"}
    start = torch.cat([module.h, module.c] if isinstance(module, Sliced) else [module.h]).numpy()
    assert np.array_equal(np.sort(policy.state), np.sort(start, None))
    assert_acts_alike(policy, module)


LAYERS = [Net("LSTM"), Net("LSTM", 2, batch_first=True, bias=False), Net("GRU", 2), Net("LSTMCell"), Net("GRUCell")]


@pytest.mark.parametrize("module", LAYERS)
def test_states_that_a_module_takes_and_returns_are_carried(module):
    shape = (1, 8) if isinstance(module.memory, nn.RNNCellBase) else (module.memory.num_layers, 1, 8)
    start = [np.random.default_rng(n).normal(size=shape).astype(np.float32) / 2 for n in range(2)]
    is_pair = isinstance(module.memory, nn.LSTM | nn.LSTMCell)
    policy = quarl.from_module(module.eval(), (5,), HEAD, state=(tuple(start) if is_pair else start[0],)).policy
    carried: Any = tuple(map(torch.from_numpy, start)) if is_pair else torch.from_numpy(start[0])

    def step(x: Tensor) -> Tensor:
        nonlocal carried
        output, carried = module(x, carried)
        return output

    assert_acts_alike(policy, step)
    assert np.array_equal(policy.state, np.ravel(start if is_pair else start[0]))
    with pytest.raises(QuarlError, match=r"beside a state, .* one row of float32, not float32 \(1, 5\)|cannot follow"):
        from_module(module, (1, 5), head=HEAD, state=(tuple(start) if is_pair else start[0],))


def stepped(module: Any, x: Tensor) -> Tensor:
    ways, size = 1 + module.memory.bidirectional, module.memory.proj_size or 8
    last = torch.cat([module.h] * ways)[..., :size], torch.cat([module.c] * ways)
    out, (h, c) = module.memory(x.unsqueeze(1), last)
    module.h[..., :size].copy_(h[:1])
    module.c.copy_(c[:1])
    return torch.tanh(out[-1, :, :2])


def partly(module: Any, x: Tensor) -> Tensor:
    module.h[0, :, :4] = x[:, :4]
    return module.head(module.h.view(1, 8))


PROGRAMS: dict[str, tuple[Any, str]] = {
    "both ways": (Code(stepped, bidirectional=True), "torch.lstm: it is bidirectional, has projections"),
    "projected": (Code(stepped, proj_size=7), "torch.lstm: it is bidirectional, has projections"),
    "sequence": (Code(lambda m, x: stepped(m, torch.cat([x, x]))), "one step of one row per call"),
    "view": (Code(viewed), "reads or writes a value that is overwritten"),
    "part": (Code(partly), "writes to a part of 'h'"),
    "restarted": (
        Code(lambda m, x: m.head(m.memory(x.unsqueeze(0), (m.h, m.c))[0][0])),
        "starts each call from the same state",
    ),
}


@pytest.mark.parametrize(("module", "said"), PROGRAMS.values(), ids=list(PROGRAMS))
def test_recurrent_programs_beyond_the_set_are_refused(module, said, tmp_path):
    with pytest.raises(QuarlError, match=f"^{tmp_path}.*{said}") as raised:
        read(saved(module.eval(), tmp_path), head="clip:-1,1")
    assert "\n" not in str(raised.value)


START = np.zeros((1, 2))
MODULES: dict[str, tuple[Any, Any, str]] = {
    "no state": (Net("LSTM"), (), r"torch\.export cannot follow Net.*'state'; .*as in state=\(np"),
    "other shape": (Net("GRU"), np.zeros((1, 1, 7)), r"Expected hidden size \(1, 1, 8\), got \[1, 1, 7\]"),
    "grows": (Code(lambda m, x, h: (x[:, :2] + h, torch.cat([h, h]))), START, r"\[1, 2\], the next one \[2, 2\]"),
    "forgets": (Code(lambda m, x, h: x[:, :2] + h), START, "returns no values: return the output before the state"),
    "unread": (Code(lambda m, x, h: (x[:, :2], x[:, 3:])), START, "does not depend on it: leave it out"),
    "both ways": (PROGRAMS["both ways"][0], (), "'memory'.*it is bidirectional, has projections"),
    "sequence": (PROGRAMS["sequence"][0], (), r"it reads \[2, 1, 5\]"),
    "part": (Code(partly), (), "scatter"),
}


@pytest.mark.parametrize(("module", "state", "said"), MODULES.values(), ids=list(MODULES))
def test_recurrent_modules_beyond_the_set_are_refused(module, state, said):
    with pytest.raises(QuarlError, match=said) as raised:
        from_module(module.eval(), (5,), head=HEAD, state=state)
    assert "\n" not in str(raised.value)
