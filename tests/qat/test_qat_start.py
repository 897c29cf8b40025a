"""Where training for integers begins: at codes nearer to what the network computed than those of its weights."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from learners import Pictures, make, watched
from stable_baselines3 import DQN, SAC

from quarl import qat
from quarl.qat.policies import tables_of
from quarl.qat.prepare import follow
from quarl.qat.start import ROOM, remembered
from quarl.quant.affine import choose_qparams, dequantize, fake_quantize
from quarl.quant.rounding import gptq, second_moment, to_the_ends
from quarl.quant.spec import QatSpec

OFF_POLICY = ("dqn", "ddpg", "td3", "sac", "d4pg")


def trained(algo: str, spec: QatSpec | str = "3", **kwargs: Any) -> Any:
    """A model whose ranges are known, and whose quantisation has not acted."""
    return watched(algo, spec, 192, **kwargs)


def acting(model: Any) -> Any:
    return model.policy.q_net if hasattr(model.policy, "q_net") else model.policy.actor


def layers_of(model: Any) -> list[tuple[Any, Any]]:
    """(plan, module) of the acting network's layers."""
    network = acting(model)
    table = next(table for name, table in tables_of(model.policy).items() if name in ("q_net", "actor"))
    return [(layer, network.get_submodule(layer.path)) for layer in table.plan.layers]


def computed(model: Any) -> torch.Tensor:
    """By the acting network, of what the replay remembers; of scores what an argmax sees."""
    model.policy.set_training_mode(False)
    rows = model.replay_buffer.observations[: model.replay_buffer.size()].reshape(-1, *model.observation_space.shape)
    greedy = {"deterministic": True} if isinstance(model, SAC) else {}
    with torch.no_grad():
        y: torch.Tensor = acting(model)(torch.as_tensor(rows), **greedy)
    return y - y.mean(dim=1, keepdim=True) if hasattr(model.policy, "q_net") else y


def without_replay(model: Any) -> Any:
    """The same model with nothing to look at: it begins at rounding to nearest."""
    other = copy.deepcopy(model)
    other.replay_buffer.reset()
    return other


@pytest.mark.slow
@pytest.mark.parametrize("algo", OFF_POLICY)
def test_the_network_is_nearer_to_what_it_was_than_by_rounding_to_nearest(algo: str):
    """Activations are float here: what lies beyond ranges that a short run has seen is clipped either way."""
    errors = []
    for seed in range(3):
        model = trained(algo, QatSpec.parse("w3"), seed=seed)
        nearest, replay = without_replay(model), copy.deepcopy(model.replay_buffer)
        before = computed(model)
        follow(model, active=True)
        assert follow(nearest, active=True)
        nearest.replay_buffer = replay
        errors.append([float((computed(one) - before).square().mean()) for one in (model, nearest)])
    error, of_nearest = np.sum(errors, axis=0)
    assert error < of_nearest / 2


def assert_well_inside_their_steps(layer: Any) -> None:
    """No number may be near another code: the first updates would turn it back."""
    rounded, scale = layer.rounded(layer.weight)
    if layer.table.spec.mid_rise(layer.plan.bits):
        scale = 2 * scale  # of a step, which is two of those that codes count
    assert ((rounded - layer.weight).abs() <= (ROOM + 1e-4) * scale).all()
    ends = layer.weight.abs().amax(tuple(range(1, layer.weight.ndim)), keepdim=True)  # rounding again finds this grid
    torch.testing.assert_close(rounded.abs().amax(tuple(range(1, rounded.ndim)), keepdim=True), ends)


@pytest.mark.slow
@pytest.mark.parametrize("algo", OFF_POLICY)
def test_hidden_weights_lie_well_inside_the_steps_of_their_codes(algo: str):
    model = trained(algo, QatSpec.parse("w3a8"))
    before = [layer.weight.detach().clone() for _, layer in layers_of(model)]
    follow(model, active=True)
    for (plan, layer), was in zip(layers_of(model), before, strict=True):
        if not plan.scores:
            assert not torch.equal(layer.weight, was)
            assert_well_inside_their_steps(layer)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["dqn", "td3", "d4pg"])
def test_target_networks_move_as_far(algo: str):
    model = trained(algo)
    network = acting(model)
    target = model.policy.q_net_target if algo == "dqn" else model.policy.actor_target
    with torch.no_grad():  # as right after an update of the target
        for one, other in zip(target.parameters(), network.parameters(), strict=True):
            one.copy_(other)
    follow(model, active=True)
    for one, other in zip(target.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("continuous", [False, True])
def test_convolutions_begin_there_too(continuous: bool):
    cls = type(make("td3")) if continuous else DQN
    size = {"learning_starts": 32, "buffer_size": 200, "batch_size": 8, "device": "cpu", "seed": 0}
    model = cls("CnnPolicy", Pictures(continuous=continuous), policy_kwargs={"net_arch": [16]}, **size)
    qat.prepare(model, "w4a8")
    model.learn(48, callback=qat.QuantDelay(10**6, allow_inactive=True))
    follow(model, active=True)
    convolutions = [layer for _, layer in layers_of(model) if isinstance(layer, torch.nn.Conv2d)]
    assert len(convolutions) == 3
    for layer in convolutions:
        assert_well_inside_their_steps(layer)


@pytest.mark.slow
def test_skipped_layers_and_the_critic_stay():
    model = trained("td3", QatSpec.parse("w3a8", critic=True, skip=("actor.mu.0",)))
    before = copy.deepcopy(model.policy.state_dict())
    nearest = without_replay(model)
    follow(model, active=True)
    follow(nearest, active=True)
    after, of_nearest = model.policy.state_dict(), nearest.policy.state_dict()
    assert torch.equal(after["actor.mu.0.weight"], before["actor.mu.0.weight"])
    assert not torch.equal(after["actor.mu.2.weight"], of_nearest["actor.mu.2.weight"])
    for name in after:
        if name.startswith("critic") and name.endswith("weight"):
            assert torch.equal(after[name], of_nearest[name]), name


@pytest.mark.slow
def test_the_last_layer_has_its_own_bits():
    model = trained("ddpg", QatSpec.parse("w2a8", output_bits=8))
    follow(model, active=True)
    levels = [max(len(row.unique()) for row in layer.rounded(layer.weight)[0]) for _, layer in layers_of(model)]
    assert [plan.bits for plan, _ in layers_of(model)] == [2, 2, 8]
    assert levels[0] <= 3
    assert levels[1] <= 4 < levels[2]
    for _, layer in layers_of(model):
        assert_well_inside_their_steps(layer)


def test_the_same_run_begins_at_the_same_weights():
    one, other = (trained("dqn") for _ in range(2))
    for model in (one, other):
        np.random.seed(1)
        follow(model, active=True)
    for name, parameter in one.policy.state_dict().items():
        assert torch.equal(parameter, other.policy.state_dict()[name]), name


@pytest.mark.parametrize("spec", ["w2", "w4"])
def test_biases_make_up_for_what_rounding_adds_on_average(spec: str):
    model = trained("dqn", spec)
    first = layers_of(model)[0][1]
    np.random.seed(1)
    rows = remembered(model)
    assert rows is not None
    with torch.no_grad():
        before = first(rows).mean(0)
    bias = first.bias.detach().clone()
    np.random.seed(1)
    follow(model, active=True)
    with torch.no_grad():
        torch.testing.assert_close(first(rows).mean(0), before, rtol=0, atol=1e-5)
    assert not torch.equal(first.bias, bias)


def test_rows_reach_the_ends_of_their_grids_so_that_their_extent_is_their_scale():
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 24))
    h = second_moment(rng.standard_normal((500, 24)) @ rng.standard_normal((24, 24)))
    high = 1.15 * np.abs(weight).max(axis=1, keepdims=True)  # a grid that many rows do not fill
    q = choose_qparams(-high, high, 4, symmetric=True)
    assert (np.abs(gptq(weight, h, q)).max(axis=1) < q.qmax).any()
    codes, finer = to_the_ends(weight, h, q)
    assert (np.abs(codes).max(axis=1) == finer.qmax).all()
    values = dequantize(codes, finer)
    extent = np.abs(values).max(axis=1, keepdims=True)
    again = fake_quantize(values, choose_qparams(-extent, extent, 4, symmetric=True))
    np.testing.assert_allclose(again, values, rtol=1e-5)
    full = np.abs(gptq(weight, h, q)).max(axis=1) == q.qmax
    np.testing.assert_array_equal(codes[full], gptq(weight, h, q)[full])
