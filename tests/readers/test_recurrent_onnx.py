"""Recurrent ONNX policies: states, recurrent operators and unrolled cells, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import quarl
import require
from onnx_models import model, put, random
from quarl.calibration import quantize
from quarl.engines import load as load_engine
from quarl.policy.graph import Policy
from quarl.quant.spec import EXACT, QuantSpec
from quarl.readers import load
from refusals import refused

SEEN, SIZE = 5, 8
RESETS = (0, 300, 301, 800)
"""Steps at which episodes start."""
NAMES = ("h_in", "c_in", "h_out", "c_out")
GRU = "GRU x W R B - h_in > y h_out | hidden_size=8"
LSTM = "LSTM x W R B - h_in c_in > y h_out c_out | hidden_size=8"
MLAGENTS = "Split recurrent_in half > h c | axis=2; LSTM x W R B - h c > y p q | hidden_size=8;"
GATES = "Gemm obs wi bi > a | transB=1; Gemm h_in wh bh > e | transB=1;"
CELL = f"{GATES} Split a > ar az an | axis=1 num_outputs=3; Split e > er ez en | axis=1 num_outputs=3; Add ar er > kr;"
CELL += "Sigmoid kr > r; Add az ez > kz; Sigmoid kz > z; Mul r en > v; Add an v > kn; Tanh kn > n;"
LSTM_CELL = f"{GATES} Add a e > k; Split k > ki kf kj ko | axis=1 num_outputs=4; Sigmoid ki > i; Sigmoid kf > f;"
LSTM_CELL += "Tanh kj > j; Sigmoid ko > o; Mul f c_in > fc; Mul i j > ij; Add fc ij > c_out; Tanh c_out > t;"
POLICIES = {
    "lstm": LSTM,
    "gru": f"{GRU} linear_before_reset=1",
    "gru-reset-first": GRU,
    "no-bias": f"{GRU.replace(' B - ', ' - lengths ')} direction='forward'",
    "mlagents": f"{MLAGENTS} Concat p q > recurrent_out | axis=2",
    "lstm-cell": f"{LSTM_CELL} Mul o t > h_out",
    "gru-cell": f"{CELL} Sub h_in n > d; Mul d z > k; Add k n > h_out",
    "gru-convex": f"{CELL} Sub unit z > m; Mul m n > p; Mul z h_in > q; Add p q > h_out",
    "gru-expanded": f"{CELL} Mul z n > p; Sub n p > m; Mul z h_in > q; Add q m > h_out",
}


def constants(gates: int, directions: int = 1) -> dict[str, np.ndarray]:
    rows, shapes = gates * SIZE, {"row": [1, -1], "zero": [0], "half": [SIZE, SIZE], "steps": [5, 1, SEEN]}
    made = {"W": random(directions, rows, SEEN), "R": random(directions, rows, SIZE), "B": random(directions, 2 * rows)}
    made |= {"wi": random(rows, SEEN), "wh": random(rows, SIZE), "bi": random(rows), "bh": random(rows)}
    made = {name: array / 2 for name, array in made.items()} | {"u": random(SIZE, 3), "unit": np.float32(1)}
    made |= {"lengths": np.int32([1]), "two": np.int32([2]), "start": np.zeros((1, 1, SIZE), np.float32)}
    return made | {"peep": random(1, 3 * SIZE)} | {k: np.int64(v) for k, v in shapes.items()}


def recurrent(text: str, names: tuple[str, ...] = NAMES, directions: int = 1, **ends) -> onnx.ModelProto:
    """The policy of the nodes, whose states have these names, last ones first; the graph's `ends` may be others."""
    rank, gates = 3 if " W " in text else 2, 4 if "LSTM" in text or "c_in" in text else 3
    if "actions" not in text:
        text = (
            f"Unsqueeze obs zero > x; {text}; Reshape y row > flat;" if rank == 3 else f"{text}; Identity h_out > flat;"
        )
        text += "MatMul flat u > actions"
    for old, new in zip(NAMES, names, strict=True):
        text = text.replace(old, new)
    words = set(text.replace(";", " ").split())
    used = {name: array for name, array in constants(gates, directions).items() if name in words}
    last, later = (
        dict.fromkeys((n for n in part if n in words), (1,) * (rank - 1) + (SIZE,)) for part in (names[:2], names[2:])
    )
    if "recurrent_in" in words:
        last, later = {"recurrent_in": (-1, 1, 2 * SIZE)}, {"recurrent_out": (None, 1, 2 * SIZE)}
    inputs, outputs = {"obs": [None, SEEN], **last}, {"actions": None, **later}
    return model(text, used, ends.get("inputs", inputs), ends.get("outputs", outputs))


def played(path: Path, observations: np.ndarray, later: dict[str, str] | None = None) -> np.ndarray:
    """ONNX Runtime's actions with states that it returned in the last step, 0 where an episode starts."""
    session, actions = require.module("onnxruntime").InferenceSession(path), []
    shapes = {each.name: each.shape for each in session.get_inputs()}
    later = later or {name: name.replace("_in", "_out") for name in shapes if name.endswith("_in")}
    for step, row in enumerate(observations):
        if step in RESETS:
            last = [
                np.zeros([n if isinstance(n, int) and n > 0 else 1 for n in shapes[name]], np.float32) for name in later
            ]
        given = {"obs": row[None], **dict(zip(later, last, strict=True))}
        action, *last = session.run(["actions", *later.values()], given)
        actions.append(action[0])
    return np.array(actions)


def driven(policy: Policy, engine: str, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Actions, next states, and the rows that the engine read."""
    runner, rows, outputs = load_engine(policy, engine), [], []
    for step, row in enumerate(observations):
        state = policy.state if step in RESETS else outputs[-1][policy.num_outputs :]
        rows.append(np.concatenate([row, state], dtype=np.float32))
        outputs.append(runner.run(rows[-1][None])[0])
    actions, states = np.split(np.array(outputs), [policy.num_outputs], axis=1)
    return actions, states, np.array(rows)


def check(path: Path, steps: int = 1000) -> Policy:
    """Compare with ONNX Runtime, and the int8 states of three engines with each other."""
    policy, observations = load.read(path), random(steps, SEEN)
    want = played(path, observations)
    actions, _, rows = driven(quantize(policy, EXACT), "reference", observations)
    assert np.abs(actions - want).max() <= 1e-5 * np.ptp(want)
    integers = quantize(policy, QuantSpec.parse("int8", mode="static"), rows)
    actions, states, _ = driven(integers, "reference", observations[:200])
    assert np.sqrt(np.mean((actions - want[:200]) ** 2)) <= 0.02 * np.ptp(want)
    assert len(np.unique(states)) > 50
    for module, engine in (("ai_edge_litert", "litert"), ("onnxruntime", "onnx")):
        require.package(module)
        np.testing.assert_array_equal(driven(integers, engine, observations[:200])[1], states)
    return policy


@pytest.mark.parametrize("name", POLICIES)
def test_recurrent_policy_acts_as_in_onnx_runtime(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    policy = check(put(tmp_path, recurrent(POLICIES[name])))
    assert (policy.seen, policy.state.size) == ((SEEN,), 8 if "gru" in name or name == "no-bias" else 16)
    first = "recurrent" if name == "mlagents" else "h"
    assert f"state, which starts at 0: '{first}_in' (the next one is '{first}_out')" in capsys.readouterr().err


PAIRS = {
    "torch": ("h0", "c0", "hn", "cn"),
    "hx": ("hx", "cx", "hy", "cy"),
    "dots": ("lstm.h.in", "lstm.c.in", "lstm.h.out", "lstm.c.out"),
    "words": ("hidden", "cell", "next_hidden", "new_cell"),
    "swapped": ("c_prev", "h_prev", "c", "h"),
    "order": ("in.1", "in.3", "41", "42"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_states_are_paired_by_name_and_otherwise_by_order(name: str, tmp_path: Path):
    made, later = recurrent(LSTM, PAIRS[name]), dict(zip(PAIRS[name][:2], PAIRS[name][2:], strict=True))
    if name != "order":  # the file may list them in any order
        for values in (made.graph.input, made.graph.output):
            values.insert(0, values.pop(2))
    path, observations = put(tmp_path, made), random(50, SEEN)
    policy = load.read(path, output_name="actions")
    actions, _, _ = driven(quantize(policy, EXACT), "reference", observations)
    np.testing.assert_allclose(actions, played(path, observations, later), atol=1e-5)


def test_layout_changes_nothing_for_one_step_of_one_row(tmp_path: Path):
    policies, made = [], recurrent(GRU)
    for layout in (0, 1):  # ONNX Runtime refuses 1
        made.graph.node[1].attribute.append(onnx.helper.make_attribute("layout", layout))
        policies.append(quantize(load.read(put(tmp_path, made)), EXACT))
        del made.graph.node[1].attribute[-1]
    observations = random(20, SEEN)
    np.testing.assert_array_equal(*(driven(policy, "reference", observations)[0] for policy in policies))


class Exporter(nn.Module):
    """The module that rsl_rl exports: normalizer, memory and actor, with the state as inputs and outputs."""

    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn, self.actor = rnn, nn.Sequential(nn.Linear(SIZE, 8), nn.ELU(), nn.Linear(8, 3))
        self.mean, self.std = nn.Buffer(torch.rand(SEEN)), nn.Buffer(torch.rand(SEEN) + 0.5)

    def forward(self, x: torch.Tensor, *last: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = ((x - self.mean) / self.std).unsqueeze(0)
        x, later = self.rnn(x, last if len(last) > 1 else last[0])
        return self.actor(x.squeeze(0)), *(later if len(last) > 1 else [later])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["tracing", "dynamo"])
@pytest.mark.parametrize(("kind", "layers"), [(nn.LSTM, 1), (nn.LSTM, 2), (nn.GRU, 1), (nn.GRU, 2)])
def test_actor_that_rsl_rl_exports_acts_as_in_onnx_runtime(kind, layers: int, way: str, tmp_path: Path):
    if way == "dynamo":
        require.module("onnxscript")
    module, parts = Exporter(kind(SEEN, SIZE, layers)).eval(), "hc" if kind is nn.LSTM else "h"
    inputs = (torch.zeros(1, SEEN), *(torch.zeros(layers, 1, SIZE) for _ in parts))
    ends = ["obs", *(f"{p}_in" for p in parts)], ["actions", *(f"{p}_out" for p in parts)]
    options = {"input_names": ends[0], "output_names": ends[1], "verbose": False, "dynamo": way == "dynamo"}
    torch.onnx.export(module, inputs, path := tmp_path / "m.onnx", **options)
    assert check(path, 400).state.size == layers * SIZE * len(parts)


def test_memory_of_a_critic_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = f"Unsqueeze obs zero > x; {GRU}; Reshape y row > z; MatMul z u > values; Gemm obs wi > actions | transB=1"
    made = recurrent(text, outputs={"actions": None, "values": None, "h_out": [1, 1, SIZE]})
    assert not quarl.load(put(tmp_path, made), output_name="actions").policy.state.size
    assert "does not depend are left out: 'h_in'" in capsys.readouterr().err


STATE, ONLY = {"h_in": [1, 1, SIZE]}, {"outputs": {"actions": None}}
TWO = {"inputs": {"obs": [1, SIZE], "a": [1, SIZE], "e": [1, SIZE]}, "outputs": {"actions": None, "q": [1, SIZE]}}
LATER = {"outputs": {"actions": None, "h_out": None}}
HEAD = "Reshape y row > z; MatMul z u > actions"
REFUSED = {
    "time": (
        f"Reshape wide steps > x; {GRU}; {HEAD}",
        {"inputs": {"wide": [1, 25]} | STATE},
        "it reads [5, 1, 5]; only",
    ),
    "steps": (f"{GRU}; {HEAD}", {"inputs": {"x": [5, 1, 5]} | STATE}, "only the batch may be dynamic"),
    "both": (f"{GRU} direction='bidirectional'", {"directions": 2}, "it does not run forward only"),
    "reverse": (f"{GRU} direction='reverse'", {}, "operator GRU ('y'): it does not run forward only"),
    "clip": (f"{GRU} clip=3.0", {}, "it clips its gates"),
    "functions": (f"{GRU} activations=['Sigmoid','Relu']", {}, "its activations are not sigmoid and tanh"),
    "lengths": (GRU.replace("-", "two"), {}, "its sequence_lens is not 1"),
    "peepholes": (LSTM.replace("c_in", "c_in peep"), {}, "it has peepholes"),
    "coupled": (f"{LSTM} input_forget=1", {}, "it couples its gates"),
    "weights": (GRU.replace(" R ", " W "), {}, "its weights do not fit its input and its state"),
    "forgets": (GRU.replace("h_in", "start"), ONLY, "it forgets"),
    "no-input": (GRU.replace("h_in", "start"), LATER, "output 'h_out' is a state, but no input is the last one"),
    "no-output": (
        LSTM,
        LATER,
        "inputs 'c_in', 'obs', not on one; set those that are constant with --fix NAME=VALUE; a s",
    ),
    "shape": (
        f"{GRU.replace('h_out', 'h')}; Concat h h > h_out | axis=2",
        {},
        "has shape [1, 1, 8], the next one [1, 1, 16]",
    ),
    "unclear": ("Add a e > f; Add f obs > q; MatMul q u > actions", TWO, "inputs 'a', 'e', 'obs', not on"),
    "constant": (
        f"{GRU.replace('h_out', 'h')}; Shape h > s; Cast s > h_out | to=1",
        {},
        "output 'h_out' is a constant",
    ),
    "bytes": (GRU, {}, "input 'obs' is neither float32 nor, without a state, uint8"),
    "fixed": (GRU, {}, "output 'h_out' is a state, but no input is the last one, or --fix makes it constant"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_recurrent_file_that_cannot_be_read_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text, options, said = REFUSED[name]
    made = recurrent(text, **options)
    if name == "bytes":
        made.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    words = {"fixed": ["--fix", "h_in=0"], "unclear": ["--output-name", "actions"]}.get(name, [])
    assert said in refused(capsys, "eval", put(tmp_path, made), *words)
