"""Balancing of channels at the switch: what a network computes stays, what its weights need of their grids shrinks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from learners import Pictures, prepared, watched
from stable_baselines3 import PPO

from quarl import qat
from quarl.qat.balance import balance, factors_of
from quarl.qat.policies import tables_of
from quarl.qat.prepare import follow

RELU = {"policy_kwargs": {"activation_fn": torch.nn.ReLU}}
MODELS: dict[str, Any] = {"ppo": RELU, "dqn": {}, "td3": {}, "sac": {}, "d4pg": {}}


def trained(algo: str) -> Any:
    """A model whose ranges are known and whose quantisation has not acted."""
    model = watched(algo, "4", 160, **MODELS[algo])
    if hasattr(model, "replay_buffer"):
        model.replay_buffer.reset()  # with nothing to look at, weights are balanced and not moved to their grids
    return model


def layers_of(model: Any, name: str) -> Any:
    table = tables_of(model.policy)[name]
    network = getattr(model.policy, name) if name else model.policy
    return table, network, [network.get_submodule(layer.path) for layer in table.plan.layers]


def outputs(model: Any, observations: Any) -> list[torch.Tensor]:
    """Of the acting network and of its target, in float32."""
    policy = model.policy
    x = torch.as_tensor(observations)
    with torch.no_grad():
        if hasattr(policy, "q_net"):
            return [policy.q_net(x), policy.q_net_target(x)]
        if not hasattr(policy, "actor"):
            return [policy.get_distribution(x).distribution.logits]
        targets = [policy.actor_target(x)] if hasattr(policy, "actor_target") else []
        return [policy.actor(x, deterministic=True) if not targets else policy.actor(x), *targets]


@pytest.mark.slow
@pytest.mark.parametrize("algo", MODELS)
def test_networks_and_targets_compute_the_same_bits_with_balanced_weights(algo: str):
    model = trained(algo)
    space = model.observation_space
    rows = np.stack([space.sample() for _ in range(64)]).clip(-3, 3).astype(np.float32)
    name = next(iter(tables_of(model.policy)))
    _, _, layers = layers_of(model, name)
    before, weights = outputs(model, rows), [layer.weight.detach().clone() for layer in layers]
    follow(model, active=True)
    for one in tables_of(model.policy).values():
        assert one.active
        one.active = False  # float32 again
    for old, new in zip(before, outputs(model, rows), strict=True):
        assert torch.equal(old, new)
    assert not torch.equal(weights[0], layers[0].weight)
    ratio = (layers[0].weight / weights[0]).log2()
    assert torch.equal(ratio, ratio.round())


def test_factors_by_hand():
    model = trained("dqn")
    table, network, layers = layers_of(model, "q_net")
    place = 0
    with torch.no_grad():
        table.extent_of(place).fill_(1.0)
        layers[1].weight.fill_(0.25)
        table.extent_of(place)[0] = 16.0  # reaches 16 times as far as the others: 4 times the factor
        layers[1].weight[:, 1] = 0.0  # nobody reads it
        layers[1].weight[:, 2] = 4.0  # read 16 times as loudly: a fourth
    found = factors_of(table, network, set())[place]
    assert found[0] == 4 * found[3]
    assert found[1] == 1.0
    assert found[2] == found[3] / 4
    assert (found[3:] == found[3]).all()


def test_channels_that_fell_silent_long_ago_keep_their_weights():
    model = trained("dqn")
    table, network, layers = layers_of(model, "q_net")
    with torch.no_grad():
        table.extent_of(0)[:2] = torch.tensor([1e-38, 1e-42])  # where an average ends that lost 1 % at each update
        layers[1].weight[:, 2] = 1e-40
    before = layers[0].weight.detach().clone()
    assert factors_of(table, network, set())[0][:3].tolist() == [1.0, 1.0, 1.0]
    follow(model, active=True)
    assert torch.equal(layers[0].weight[:3], before[:3])
    for parameter, state in model.policy.optimizer.state.items():
        assert parameter.isfinite().all()
        assert state["exp_avg_sq"].isfinite().all()


def test_the_range_in_force_is_that_of_the_scaled_channels():
    model = trained("dqn")
    table, _, layers = layers_of(model, "q_net")
    before, extent = layers[0].bias.detach().clone(), table.extent_of(0).clone()
    follow(model, active=True)
    scale = before / layers[0].bias.detach()
    row = table.plan.layers[0].behind.row
    assert table.seen_range[row, 1] == (extent / scale).max()
    assert table.grids[row].scale == pytest.approx(float((extent / scale).max()) / 255)


def test_what_the_optimiser_remembers_is_scaled_with_the_weights():
    model = trained("dqn")
    _, _, layers = layers_of(model, "q_net")
    weight, state = layers[0].weight, model.policy.optimizer.state[layers[0].weight]
    before = weight.detach().clone(), state["exp_avg"].clone(), state["exp_avg_sq"].clone()
    follow(model, active=True)
    factor = weight.detach() / before[0]
    assert not torch.equal(factor, torch.ones_like(factor))
    assert torch.equal(state["exp_avg"], before[1] / factor)
    assert torch.equal(state["exp_avg_sq"], before[2] / factor**2)


def switches_without_a_trace(model: Any) -> None:
    before = {name: value.clone() for name, value in model.policy.named_parameters()}
    follow(model, active=True)
    assert all(torch.equal(before[name], value) for name, value in model.policy.named_parameters())


@pytest.mark.slow
def test_the_noise_of_gsde_keeps_its_size():
    """It multiplies what the last layer reads."""
    model = watched("sac", "4", 160, use_sde=True)
    rows, actor = torch.randn(16, 3), model.policy.actor

    def deviation():
        latent = actor.latent_pi(rows)
        return (latent**2 @ actor.action_dist.get_std(actor.log_std) ** 2).sqrt()

    with torch.no_grad():
        before, weight = deviation(), actor.latent_pi[0].weight.clone()
        table = tables_of(model.policy)["actor"]
        balance(table, actor, factors_of(table, actor, set()))
        torch.testing.assert_close(deviation(), before)
        assert not torch.equal(actor.latent_pi[0].weight, weight)  # layers before it are balanced as ever


@pytest.mark.parametrize("what", ["tanh", "nothing seen"])
def test_what_cannot_be_balanced_stays_as_it_was(what: str):
    switches_without_a_trace(watched("ppo", "4") if what == "tanh" else prepared("dqn", "4"))


def test_an_extractor_that_the_value_network_shares_is_left_alone():
    model = PPO("CnnPolicy", Pictures(), n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu")
    qat.prepare(model, "w4a8")
    model.learn(32, callback=qat.QuantDelay(10**6, allow_inactive=True))
    switches_without_a_trace(model)
