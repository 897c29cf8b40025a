"""The graph refuses what cannot run, and its head says what outputs mean."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import networks
from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.graph import ActionHead, Policy, final_linear, shapes
from quarl.policy.operators import (
    Activation,
    Concat,
    Conv2d,
    Dense,
    Flatten,
    L2Norm,
    LayerNorm,
    Normalize,
    Pool2d,
    QuantizedTensor,
    mlp,
)


@pytest.mark.parametrize("name", networks.EVERY)
def test_every_test_network_is_sound(name):
    policy = networks.EVERY[name]()
    assert shapes(policy)[policy.output] == (len(policy.ops[-1].bias) if name != "dueling" else 3,)


def test_final_layers_are_those_with_no_layer_behind_them():
    assert final_linear(networks.dense([4, 8, 8, 2])) == {"net.2"}
    assert final_linear(networks.dueling()) == {"value.1", "advantage.1"}


def damaged(op_index, **changes):
    policy = networks.dense([4, 8, 2])
    ops = list(policy.ops)
    ops[op_index] = replace(ops[op_index], **changes)
    return lambda: replace(policy, ops=tuple(ops))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (damaged(0, weight=np.full((8, 4), np.nan, np.float32)), "weight of layer 'net.0' holds NaN"),
        (damaged(0, bias=np.zeros(7, np.float32)), "bias of layer 'net.0'"),
        (damaged(0, inputs=("elsewhere",)), "reads 'elsewhere', which no earlier operator computes"),
        (damaged(2, name="net.0"), "two operators are named 'net.0'"),
        (damaged(2, weight=np.zeros((2, 9), np.float32)), "expects input"),
        (damaged(1, kind="softsign"), "'softsign'"),
        (lambda: Policy(observation_shape=(4,), ops=(), head=ActionHead("argmax")), "no operators"),
        (lambda: replace(networks.dense([4, 8, 2]), head=networks.action_head("clip", 3)), "action head expects"),
        (
            lambda: replace(networks.dense([4, 2]), head=ActionHead("tanh", *np.float32([[-np.inf] * 2, [1, 1]]))),
            "the action head maps tanh to bounds that are infinite",
        ),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(build, message):
    with pytest.raises(QuarlError, match=re.escape(message)):
        build()


@pytest.mark.parametrize("bits", [8, 17])
def test_what_needs_more_memory_than_any_policy_is_refused(bits):
    """A few bytes of a file can ask for gigabytes: here for a margin around an image that strides pass over."""
    policy = networks.convolutional()
    first = next(op for op in policy.ops if isinstance(op, Conv2d))
    wide = replace(first, padding=(2**bits, 2**bits), stride=(2**bits, 2**bits))
    ops = tuple(wide if op is first else op for op in policy.ops)
    with pytest.raises(QuarlError, match="expects input" if bits == 8 else "more than 4,194,304 numbers"):
        shapes(replace(policy, ops=ops))


def test_the_values_of_all_operators_together_are_bounded():
    names = ["observation", *(f"value.{i}" for i in range(64))]
    ops = tuple(Flatten(name, (source,)) for source, name in pairwise(names))
    with pytest.raises(QuarlError, match=r"value\.63.* more than 4,194,304 numbers"):
        Policy(observation_shape=(2**15 + 1,), ops=ops, head=ActionHead("argmax"))


def test_heads_by_hand():
    low, high = np.float32([-2, 0]), np.float32([2, 10])
    outputs = np.float32([[-3, 5], [1, 12]])
    assert ActionHead("clip", low, high)(outputs).tolist() == [[-2, 5], [1, 10]]
    half = np.arctanh(np.float32(0.5))
    assert ActionHead("tanh", low, high)(np.float32([[-99, 99], [half, 0]])).tolist() == [[-2, 10], [1, 5]]
    assert ActionHead("argmax", start=3)(outputs).tolist() == [4, 4]


def test_samples_follow_the_distribution_and_their_own_generator():
    head = ActionHead("argmax")
    logits = np.log(np.float32([[0.7, 0.2, 0.1]]))
    generators = [np.random.default_rng(k) for k in range(4000)]
    drawn = head(np.repeat(logits, 4000, axis=0), generators)
    assert np.bincount(drawn) / 4000 == pytest.approx([0.7, 0.2, 0.1], abs=0.03)
    alone = head(logits, [np.random.default_rng(17)])
    assert alone[0] == drawn[17]


def test_gaussian_samples_have_the_policys_spread():
    head = ActionHead("clip", np.float32([-9]), np.float32([9]), log_std=np.log(np.float32([0.5])))
    drawn = head(np.ones((4000, 1), np.float32), [np.random.default_rng(k) for k in range(4000)])
    assert drawn.mean() == pytest.approx(1, abs=0.03)
    assert drawn.std() == pytest.approx(0.5, abs=0.03)


def test_a_deterministic_policy_cannot_be_sampled():
    head = ActionHead("tanh", np.float32([-1]), np.float32([1]))
    with pytest.raises(UnsupportedError, match="--stochastic"):
        head(np.zeros((1, 1), np.float32), [np.random.default_rng(0)])


def test_normalize_clips_after_scaling():
    norm = Normalize("n", ("observation",), np.array([1.0]), np.array([4.0]), 0.0, 1.5)
    assert norm(np.float32([[2], [9], [-9]])).ravel().tolist() == [0.5, 1.5, -1.5]


def test_dequantized_weights_by_hand():
    tensor = QuantizedTensor(np.int8([[1, -2], [3, 0]]), np.float32([0.5, 2]), np.int32([0, 1]), 4)
    assert tensor.dequantize().tolist() == [[0.5, -1], [4, -2]]


def test_mlp_names_values_after_their_layers():
    ops = mlp([("a", np.zeros((2, 3)), np.zeros(2)), ("b", np.zeros((1, 2)), np.zeros(1))], "tanh", "x")
    assert [(op.name, op.inputs) for op in ops] == [("a", ("x",)), ("a.tanh", ("a",)), ("b", ("a.tanh",))]
    assert [type(op) for op in ops] == [Dense, Activation, Dense]


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (ActionHead("clip", np.zeros(2, np.float32), np.ones(3, np.float32)), "bounds"),
        (ActionHead("clip", np.full(2, np.nan, np.float32), np.ones(2, np.float32)), "bounds"),
        (ActionHead("clip", np.ones(2, np.float32), np.zeros(2, np.float32)), "bounds"),
        (ActionHead("clip", *np.float32([[0, 0], [1, 1]]), log_std=np.zeros(3, np.float32)), "log_std"),
        (ActionHead("clip", *np.float32([[0, 0], [1, 1]]), log_std=np.full(2, np.inf, np.float32)), "log_std"),
    ],
)
def test_a_head_that_no_action_fits_is_refused(head: ActionHead, said: str):
    with pytest.raises(QuarlError, match=f"the action head's {said}"):
        replace(networks.dense([4, 8, 2], head="clip"), head=head)


def chain(*ops, size=3):
    """A policy of these operators, the last of which scores."""
    return Policy(observation_shape=(size,), ops=ops, head=ActionHead("argmax"))


def image(op):
    """A policy of this operator, which reads an image."""
    return Policy(observation_shape=(1, 99, 99), ops=(op,), head=ActionHead("argmax"))


def layer(weight, name="a", source="observation"):
    weight = np.asarray(weight, np.float32)
    return Dense(name, (source,), weight, np.zeros(len(weight), np.float32))


def coded(scale, code=100):
    codes = np.full((2, 3), code, np.int8)
    scales, zeros = np.full(2, scale, np.float32), np.zeros(2, np.int32)
    return replace(layer(np.ones((2, 3))), weight=QuantizedTensor(codes, scales, zeros, 8))


ONES, ZEROS = np.ones(3, np.float32), np.zeros(3, np.float32)
WIDE = Conv2d("a", ("observation",), np.ones((64, 1, 65, 65), np.float32), np.zeros(64, np.float32), padding=(32, 32))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda: chain(layer(np.ones((2, 3)), "dead"), layer(np.ones((2, 3)))),
            "the result of operator 'dead' is never read",
        ),
        (lambda: chain(*(Concat(f"d{n}", (f"d{n - 1}" if n else "observation",) * 2) for n in range(23))), "numbers"),
        (lambda: chain(*(Activation(f"r{n}", (f"r{n - 1}",), "relu") for n in range(20_000))), "1,024 operators"),
        (lambda: chain(layer(np.ones((0, 3))), layer(np.ones((2, 0)), "b", "a")), "layer 'a' has an empty result"),
        (lambda: chain(LayerNorm("n", ("observation",), ONES, ZEROS, -5.0)), "layer 'n' has epsilon -5"),
        (lambda: chain(LayerNorm("n", ("observation",), ONES, ZEROS, float("nan"))), "layer 'n' has epsilon nan"),
        (lambda: chain(L2Norm("n", ("observation",), 3, 0.0)), "layer 'n' has epsilon 0"),
        (lambda: chain(L2Norm("n", ("observation",), 4, 1e-12)), "operator 'n' (L2Norm) expects input (4,), got (3,)"),
        (lambda: chain(Normalize("n", ("observation",), ZEROS, ONES, -0.5, 1.0)), "layer 'n' has epsilon -0.5"),
        (lambda: chain(Normalize("n", ("observation",), ZEROS, ONES, 0.0, -1.0)), "layer 'n' clips at -1"),
        (lambda: image(replace(WIDE, stride=(0, 1))), "operator 'a' has stride (0, 1) and padding (32, 32)"),
        (
            lambda: image(Pool2d("a", ("observation",), "max", (2, 2), (1, 1), (2, 0))),
            "kernel (2, 2), stride (1, 1), padding",
        ),
        (
            lambda: chain(Activation("a", ("observation",), "relu", (1.0,))),
            "'relu' of 'a' takes no settings, got (1.0,)",
        ),
        (lambda: chain(coded(3e38)), "the weight of layer 'a' holds NaN or infinity"),
        (lambda: image(WIDE), "layer 'a', one observation takes more than 268,435,456 products"),
    ],
)
def test_what_costs_or_means_nothing_is_refused_by_name(build, said):
    with pytest.raises(QuarlError, match=re.escape(said)):
        build()
