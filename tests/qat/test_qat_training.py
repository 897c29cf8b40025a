"""Training with fake quantisation: nothing changes before it acts, and what it does afterwards."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from learners import ALGORITHMS, Normalised, make, prepared
from stable_baselines3 import A2C, PPO, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy

from quarl import qat
from quarl.errors import QuarlError, UnsupportedError
from quarl.qat.fake_layers import QatLinear
from quarl.qat.policies import tables_of
from quarl.qat.prepare import follow
from quarl.quant.spec import QatSpec
from quarl.readers.extract import from_model

STEPS = 256


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in model.policy.state_dict().items() if "qat_ranges" not in name}


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_before_it_acts_training_is_plain_training_bit_for_bit(algo: str):
    plain = make(algo).learn(STEPS)
    prepared = make(algo)
    qat.prepare(prepared, "w4a4")
    prepared.learn(STEPS, callback=qat.QuantDelay(10**9, allow_inactive=True))
    expected, found = weights(plain), weights(prepared)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert not qat.is_active(prepared)
    watched = [table for name, table in tables_of(prepared.policy).items() if not name.endswith("_target")]
    assert watched
    assert all(bool((table.seen_range[:, 0] < table.seen_range[:, 1]).all()) for table in watched)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_loaded_model_acts_and_goes_on_as_the_saved_one(algo: str, tmp_path: Any):
    model = prepared(algo, qat.QatSpec.parse("w4a8", critic=True))
    model.learn(STEPS, callback=qat.QuantDelay(STEPS // 4))
    assert qat.is_active(model)
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model", env=model.get_env(), device="cpu")
    assert qat.is_active(loaded)
    assert qat.spec_of(loaded) == qat.spec_of(model)
    rows = np.stack([model.observation_space.sample() for _ in range(50)]).clip(-3, 3)
    assert np.array_equal(model.predict(rows, deterministic=True)[0], loaded.predict(rows, deterministic=True)[0])
    for name, tensor in model.policy.state_dict().items():
        assert torch.equal(tensor, loaded.policy.state_dict()[name]), name
    loaded.learn(64, reset_num_timesteps=False, callback=qat.QuantDelay(0))


class FirstRatio(BaseCallback):
    """Compares the log-probabilities of a rollout with those that training starts from."""

    def __init__(self) -> None:
        super().__init__()
        self.worst: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        buffer, model = self.model.rollout_buffer, self.model
        model.policy.set_training_mode(True)
        flat = torch.as_tensor(buffer.observations.reshape(-1, 4)), torch.as_tensor(buffer.actions.reshape(-1))
        with torch.no_grad():
            _, log_prob, _ = model.policy.evaluate_actions(*flat)
        self.worst.append(float((log_prob - torch.as_tensor(buffer.log_probs.reshape(-1))).exp().sub(1).abs().max()))


@pytest.mark.slow
def test_the_first_minibatch_has_a_probability_ratio_of_one():
    model = prepared("ppo", qat.QatSpec.parse("w4a8"))
    ratios = FirstRatio()
    model.learn(6 * 128, callback=[qat.QuantDelay(256), ratios])
    assert qat.is_active(model)
    assert max(ratios.worst) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["dqn", "ddpg", "td3", "sac", "d4pg"])
def test_target_networks_quantise_with_the_ranges_of_their_originals(algo: str):
    model = prepared(algo, qat.QatSpec.parse("w4a8", critic=True))
    model.learn(STEPS, callback=qat.QuantDelay(STEPS // 2))
    follow(model, active=True)
    tables = tables_of(model.policy)
    targets = [name for name in tables if name.endswith("_target")]
    assert targets
    for name in targets:
        assert tables[name].active
        tables[name.removesuffix("_target")].running_range.mul_(1.5)
    model.target_update_interval = 1  # the next one copies weights and ranges; TD3 does at every second update
    if algo == "dqn":
        model._on_step()
    else:
        model.train(gradient_steps=2, batch_size=16)
    for name in targets:
        original = tables[name.removesuffix("_target")].running_range
        assert torch.equal(tables[name].running_range, original)
        assert (original[:, 0] < original[:, 1]).all()


def test_target_networks_count_in_the_steps_of_the_grids_in_force():
    """Long sums are counted in steps of grids, which are made anew only some updates after the ranges were copied."""
    model = prepared("dqn", "w8a8", policy_kwargs={"net_arch": [300, 300]})
    model.learn(STEPS, callback=qat.QuantDelay(64))
    rows, table = torch.randn(16, 4), tables_of(model.policy)["q_net_target"]
    with torch.no_grad():
        for copied in (*model.q_net_target.parameters(), table.running_range):
            copied.data.mul_(1.5)  # as Stable-Baselines3 writes both
        model.q_net_target(rows)
        follow(model, active=True)
        found = model.q_net_target(rows)
        table.cache.clear()
        assert torch.equal(found, model.q_net_target(rows))


def test_rollouts_see_the_weights_after_every_step():
    model = prepared("dqn", "w8a8")
    model.learn(STEPS, callback=qat.QuantDelay(64))
    rows = torch.randn(16, 4)
    with torch.no_grad():
        before = model.q_net(rows)
        for parameter in model.q_net.parameters():
            parameter.mul_(1.5)
        assert not torch.allclose(before, model.q_net(rows))
        target = model.q_net_target(rows)
        for parameter in model.q_net_target.parameters():
            parameter.data.mul_(1.5)  # as Stable-Baselines3 writes target networks
        assert not torch.allclose(target, model.q_net_target(rows))


def test_the_value_network_is_quantised_where_asked_for():
    model = prepared("ppo", qat.QatSpec.parse("w2a8", critic=True))
    model.learn(384, callback=qat.QuantDelay(0))
    layer = model.policy.value_net
    assert len(np.unique(layer.computed().weight.detach().numpy())) <= 4


@pytest.mark.parametrize("algo", ["ppo", "a2c", "ddpg", "td3", "sac", "d4pg"])
def test_every_layer_of_a_critic_is_quantised_where_asked_for(algo: str):
    """The last ones with the bits of the output, and no other one."""
    model = prepared(algo, qat.QatSpec.parse("w2a8", output_bits=6, critic=True))
    policy = model.policy
    critics = [policy.critic, policy.critic_target] if hasattr(policy, "critic") else [policy]
    for network in critics:
        layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, torch.nn.Linear)}
        assert layers
        assert all(isinstance(layer, QatLinear) for layer in layers.values())
        bits = {name: layer.plan.bits for name, layer in layers.items()}
        ends = {name for name, layer in layers.items() if bits[name] == 6}
        if algo in ("ppo", "a2c"):
            assert ends == {"action_net", "value_net"}
        elif algo == "d4pg":
            assert ends == {"head"}
        else:
            assert ends == {f"qf{i}.4" for i in range(1 + (algo != "ddpg"))}
        assert set(bits.values()) == {2, 6}


def test_bits_of_the_output_and_layers_left_out():
    model = prepared("ppo", qat.QatSpec.parse("w2a8", output_bits=8, skip=("mlp_extractor.policy_net.2",)))
    model.learn(256, callback=qat.QuantDelay(0))
    first, skipped = model.policy.mlp_extractor.policy_net[0], model.policy.mlp_extractor.policy_net[2]
    last = model.policy.action_net
    assert len(np.unique(np.abs(first.computed().weight[0].detach().numpy()))) <= 2
    assert len(np.unique(np.abs(last.computed().weight[0].detach().numpy()))) > 20
    assert type(skipped) is torch.nn.Linear


def test_a_layer_that_is_not_there_cannot_be_left_out():
    model = make("ppo")
    with pytest.raises(
        QuarlError, match=r"'mlp_extractor\.policy_nett\.0'; did you mean 'mlp_extractor\.policy_net\.0'"
    ):
        qat.prepare(model, qat.QatSpec.parse("w4a8", skip=("mlp_extractor.policy_nett.0",)))
    qat.prepare(model, qat.QatSpec.parse("w4a8", skip=("mlp_extractor",)))  # all that is below it


@pytest.mark.parametrize(
    ("algo", "delay", "steps"), [("ppo", 129, 256), ("dqn", 300, 300), ("a2c", 98, 100)], ids=lambda value: str(value)
)
def test_a_delay_beyond_the_last_rollout_is_refused_before_training(algo: str, delay: int, steps: int):
    model = prepared(algo, "w8a8")
    with pytest.raises(QuarlError, match="last rollout"):
        model.learn(steps, callback=qat.QuantDelay(delay))
    assert model.num_timesteps == 0


def test_the_last_rollout_of_an_off_policy_algorithm_may_be_long():
    model = prepared("dqn", "w8a8", train_freq=256)
    with pytest.raises(QuarlError, match="last rollout of this run starts at 768"):
        model.learn(1000, callback=qat.QuantDelay(769))
    assert model.num_timesteps == 0
    model.learn(1000, callback=qat.QuantDelay(768))
    assert qat.is_active(model)


def test_the_delay_is_the_middle_of_the_run_unless_given():
    model = prepared("dqn", "w8a8")
    model.learn(200, callback=qat.QuantDelay())
    assert 100 <= float(tables_of(model.policy)["q_net"].switched_at) <= 104


@pytest.mark.slow
@pytest.mark.parametrize("stop", [128, 212, 320])
def test_a_run_in_two_parts_has_the_grids_of_one_without_a_break(stop: int):
    """With a delay that is no multiple of the steps between two looks at ranges."""

    def parts(*lengths: int) -> dict[str, torch.Tensor]:
        model = prepared("dqn", "w4a8", exploration_initial_eps=0.1, exploration_final_eps=0.1)
        for length in lengths:
            callback = qat.QuantDelay(200, allow_inactive=True)
            model.learn(length, reset_num_timesteps=not model.num_timesteps, callback=callback)
        assert qat.is_active(model)
        return model.policy.state_dict()

    whole, broken = parts(500), parts(stop, 500 - stop)
    assert all(torch.equal(tensor, broken[name]) for name, tensor in whole.items())


def test_batch_normalisation_is_read_and_refused_for_training_until_it_is_folded():
    kwargs = {"net_arch": [8], "features_extractor_class": Normalised}
    model = TD3("MlpPolicy", "Pendulum-v1", device="cpu", buffer_size=10, policy_kwargs=kwargs)
    with pytest.raises(UnsupportedError, match=r"layer 'features_extractor\.net\.0' is normalized or changed by"):
        qat.prepare(model, "w8a8")
    assert not any("net.1" in op.name for op in from_model(model).ops)
    policy = model.policy.eval()
    for network in (policy.actor, policy.actor_target, policy.critic, policy.critic_target):
        net = network.features_extractor.net
        net[1].running_mean.fill_(0.3)
        folded = torch.nn.utils.fuse_linear_bn_eval(net[0], net[1])
        net[0], net[1] = folded, torch.nn.Identity()
    model.actor_batch_norm_stats = model.critic_batch_norm_stats = []
    qat.prepare(model, "w8a8")
    assert qat.spec_of(model) is not None


def test_parameters_of_a_model_that_was_not_prepared_are_refused_in_one_line():
    prepared, plain = make("ppo"), make("ppo", seed=1)
    qat.prepare(prepared, "w8a8")
    with pytest.raises(QuarlError, match=r"a model that was not prepared: load them before qat\.prepare"):
        prepared.set_parameters(plain.get_parameters())
    other = make("ppo", seed=1)
    qat.prepare(other, "w8a8")
    prepared.set_parameters(other.get_parameters())
    assert torch.equal(prepared.policy.action_net.weight, plain.policy.action_net.weight)


class OwnPolicy(ActorCriticPolicy):
    """Of somebody who wrote it."""


def test_what_cannot_be_prepared_is_refused_by_name():
    model = prepared("ppo", "w8a8")
    with pytest.raises(QuarlError, match="already prepared for w8a8"):
        qat.prepare(model, "w4a8")
    custom = PPO("MlpPolicy", "CartPole-v1", device="cpu", policy_kwargs={"activation_fn": torch.nn.CELU})
    with pytest.raises(UnsupportedError, match=r"policy_net\.1' \(CELU\) calls aten\.celu.*; use nn\.SiLU, "):
        qat.prepare(custom, "w8a8")
    with pytest.raises(UnsupportedError, match="OwnPolicy does not support quantization-aware training"):
        qat.prepare(PPO(OwnPolicy, "CartPole-v1", device="cpu"), "w8a8")
    with pytest.raises(QuarlError, match="not prepared"):
        make("ppo").learn(128, callback=qat.QuantDelay())
    with pytest.raises(QuarlError, match="leaves no layer"):
        qat.prepare(make("ppo"), qat.QatSpec.parse("w8a8", skip=("mlp_extractor", "action_net")))


@pytest.mark.parametrize("bits", ["1", "17", "w8a1", "w17a8", "float", ""])
def test_bits_out_of_range_are_refused(bits: str):
    with pytest.raises(QuarlError):
        qat.QatSpec.parse(bits)


class Still(gymnasium.Env[Any, Any]):
    """Shows the same number for ever."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shown: float) -> None:
        self.shown = np.full(2, shown, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.shown, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.shown, float(action), self.steps == 5, False, {}


@pytest.mark.parametrize("shown", [0.5, 0.0, -0.5])
def test_ranges_of_one_number_have_grids(shown: float):
    relu = {"activation_fn": torch.nn.ReLU, "net_arch": [3]}
    model = A2C("MlpPolicy", Still(shown), policy_kwargs=relu, seed=0, device="cpu")
    with torch.no_grad():
        model.policy.mlp_extractor.policy_net[0].bias.fill_(-1.5)  # no ReLU of the layer ever passes anything
    qat.prepare(model, QatSpec.parse("w8a8"))
    model.learn(100, callback=qat.QuantDelay(50))
    assert qat.is_ready(model)
    policy = qat.convert(model)
    seen = np.full((1, 2), shown, np.float32)
    assert policy.predict(seen)[0] == model.predict(seen, deterministic=True)[0]
