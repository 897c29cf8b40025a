"""Recurrent layers in the graph: torch's numbers in float32, one state in every engine, rows that stand alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import networks
import require
from quarl.calibration import quantize
from quarl.engines import load, run_all
from quarl.errors import QuarlError
from quarl.policy import artifact
from quarl.policy.graph import Policy
from quarl.policy.operators import Dense, Mul, Rounded
from quarl.policy.recurrent import SEEN
from quarl.quant.spec import EXACT, QuantSpec

LAYERS = ("lstm", "gru", "gru-after")
STEPS = 300


def played(policy, engine, observations):
    """Return outputs and rows of a sequence whose state is carried, with a reset in the middle."""
    running, state, outputs, rows = load(policy, engine), policy.state, [], []
    for step, x in enumerate(observations):
        rows.append(np.concatenate([x, policy.state if step == len(observations) // 2 else state]))
        outputs.append(running.run(rows[-1][None])[0])
        state = outputs[-1][policy.num_outputs :]
    return np.array(outputs), np.array(rows)


@pytest.fixture(scope="module", params=LAYERS)
def recurrent(request):
    """A policy, observations, and the rows of its float32 self on them."""
    policy = networks.recurrent(request.param)
    observations = np.random.default_rng(1).normal(size=(STEPS, 5)).astype(np.float32)
    return policy, observations, played(quantize(policy, EXACT), "reference", observations)[1]


@pytest.mark.parametrize("layer", ["lstm", "gru"])
def test_float32_outputs_are_those_of_torch(layer):
    torch = require.module("torch")
    policy = networks.recurrent(layer)
    module = getattr(torch.nn, layer.upper())(5, 12)
    for mine, theirs in zip(networks.recurrent_weights(layer), module.parameters(), strict=True):
        theirs.data = torch.tensor(mine)
    x = np.random.default_rng(2).normal(size=(STEPS, 5)).astype(np.float32)
    hidden = module(torch.tensor(x)[:, None])[0][:, 0].detach().numpy()
    head = next(op for op in policy.ops if op.name == "head")
    state, got = policy.state, []
    engine = load(quantize(policy, EXACT), "reference")
    for each in x:
        row = engine.run(np.concatenate([each, state])[None])[0]
        got.append(row[: policy.num_outputs])
        state = row[policy.num_outputs :]
    # Errors of a step are below some units in the last place of numbers below 4, and gates keep them from growing.
    np.testing.assert_allclose(got, hidden @ head.weight.T + head.bias, atol=2.0**-19)


@pytest.mark.parametrize("bits", ["int8", "int4", "int2"])
def test_every_engine_carries_the_same_state_bit_for_bit(recurrent, bits):
    policy, observations, rows = recurrent
    quantized = quantize(policy, QuantSpec.parse(bits, mode="static"), rows)
    expected, joined = played(quantized, "reference", observations)
    for engine in ("litert", "onnx"):
        np.testing.assert_array_equal(played(quantized, engine, observations)[0], expected)
    # and the rows, shuffled and in batches, give the same
    order = np.random.default_rng(3).permutation(STEPS)
    for batch in (1, 7):
        np.testing.assert_array_equal(run_all(load(quantized, "litert", batch=batch), joined[order]), expected[order])


def test_states_are_on_their_grids_and_int8_stays_near_float32(recurrent):
    policy, observations, rows = recurrent
    quantized = quantize(policy, QuantSpec.parse("int8", mode="static"), rows)
    outputs = played(quantized, "reference", observations)[0]
    exact = played(quantize(policy, EXACT), "reference", observations)[0]
    count = policy.num_outputs
    assert np.sqrt(np.square(outputs - exact)[:, :count].mean()) < 0.02 * np.ptp(exact[:, :count])
    assert not (outputs[:, count:] * 2**11 % 1).any()
    dynamic = quantize(policy, QuantSpec.parse("int8", mode="dynamic"), rows)
    assert np.sqrt(np.square(played(dynamic, "litert", observations)[0] - exact).mean()) < 0.02 * np.ptp(exact)


@pytest.mark.parametrize("layer", LAYERS)
def test_wide_observations_beside_a_state_keep_their_weights(layer):
    policy = networks.recurrent(layer)
    small = [  # the columns of the observation
        replace(op, weight=np.concatenate([op.weight[:, :5] / 256, op.weight[:, 5:]], axis=1))
        if isinstance(op, Dense) and op.inputs[0].endswith(("joined", "both", SEEN))
        else op
        for op in policy.ops
    ]
    observations = 256 * np.random.default_rng(4).normal(size=(STEPS, 5)).astype(np.float32)
    wide = replace(policy, ops=tuple(small))
    exact, rows = played(quantize(wide, EXACT), "reference", observations)
    quantized = quantize(wide, QuantSpec.parse("int8", mode="static"), rows)
    outputs = played(quantized, "reference", observations)[0]
    assert np.sqrt(np.square(outputs - exact)[:, :3].mean()) < 0.01 * np.ptp(exact[:, :3])
    np.testing.assert_array_equal(played(quantized, "litert", observations)[0], outputs)


def test_a_recurrent_policy_survives_its_file(recurrent):
    policy, _, rows = recurrent
    policy = replace(policy, state=np.arange(policy.state.size, dtype=np.float32) / 16)
    quantized = quantize(policy, QuantSpec.parse("int4", mode="static"), rows)
    for each in (quantize(policy, EXACT), quantized):
        again = artifact.from_bytes(artifact.to_bytes(each), "memory")
        np.testing.assert_array_equal(again.state, policy.state)
        assert (again.head.width, again.num_outputs, again.seen) == (policy.head.width, 3, (5,))
        np.testing.assert_array_equal(*(load(p, "reference").run(rows[:1]) for p in (each, again)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: {"state": p.state[:-1]}, "the state of"),
        (lambda p: {"state": np.full_like(p.state, np.nan)}, "the state of"),
        (lambda p: {"head": replace(p.head, width=0)}, "the state of"),
        (lambda p: {"head": replace(p.head, width=2)}, "the state of"),
        (
            lambda p: {"ops": tuple(replace(op, bits=1) if isinstance(op, Rounded) else op for op in p.ops)},
            "rounds to 1",
        ),
        (lambda p: {"ops": tuple(replace(op, step=0.3) if isinstance(op, Rounded) else op for op in p.ops)}, "of 0.3"),
        (
            lambda p: {"ops": tuple(replace(op, inputs=op.inputs[:1]) if isinstance(op, Mul) else op for op in p.ops)},
            "from",
        ),
    ],
)
def test_a_graph_with_a_wrong_state_is_refused_in_one_line(recurrent, change, said):
    policy = recurrent[0]
    with pytest.raises(QuarlError) as caught:
        replace(policy, **change(policy))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_width_without_a_state_is_refused():
    with pytest.raises(QuarlError, match="action head"):
        Policy(
            observation_shape=(4,),
            ops=networks.dense([4, 2]).ops,
            head=replace(networks.dense([4, 2]).head, width=2),
        )
