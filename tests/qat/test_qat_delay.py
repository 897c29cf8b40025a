"""When fake quantisation begins to act, and runs in which it would train nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from learners import ALGORITHMS, Normalised, make, prepared, watched
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from quarl import qat
from quarl.errors import QuarlError, UnsupportedError
from quarl.qat.policies import QatPolicy, tables_of


class Log(KVWriter):
    """Remembers what the logger says of the switch."""

    def __init__(self) -> None:
        self.switches: list[Any] = []

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        self.switches += [value for key, value in key_values.items() if key == "qat/switched_at"]

    def close(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "delay", "expected"), [("ppo", 129, 256), ("ppo", 128, 128), ("a2c", 98, 100)])
def test_the_step_at_which_it_begins_to_act_is_told(algo: str, delay: int, expected: int):
    model, said, logged = make(algo), list[str](), Log()
    qat.prepare(model, "w8a8")
    assert qat.switched_at(model) is None
    model.set_logger(Logger(folder=None, output_formats=[logged]))
    model.learn(512, callback=qat.QuantDelay(delay, say=said.append))
    assert qat.switched_at(model) == expected
    assert said == [f"fake quantization is active from step {expected} on"]
    assert logged.switches == [expected]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delay", "begun", "expected"),
    [(0.5, 0, 256), (0.25, 0, 128), (None, 0, 256), (0.5, 256, 512), (np.float32(0.5), 0, 256)],
)
def test_a_share_is_of_the_steps_that_learn_was_asked_for(delay: Any, begun: int, expected: int):
    model = watched("ppo", "w4a8", begun) if begun else prepared("ppo", "w4a8")
    model.learn(512, callback=qat.QuantDelay(delay), reset_num_timesteps=not begun)
    assert qat.switched_at(model) == expected


@pytest.mark.parametrize("delay", [2.0, 1.0, 0.0, 2.5, -0.5, float("nan"), float("inf"), True, np.True_, "0.5", 0.5j])
def test_what_is_neither_a_count_nor_a_share_is_refused(delay: Any):
    with pytest.raises(QuarlError, match=r"a whole number of steps, or a share between 0 and 1, got "):
        qat.QuantDelay(delay)


def test_a_negative_count_is_refused():
    with pytest.raises(QuarlError, match="must not be negative, got -5"):
        qat.QuantDelay(-5)
    assert qat.QuantDelay(np.int64(5)).steps == 5


class Stop(BaseCallback):
    """Ends a run at a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        return self.num_timesteps < self.step


@pytest.mark.parametrize(
    ("kwargs", "delay", "stop", "said"),
    [
        ({}, 150, 100, "before step 150, at which quantization would have become active"),
        ({"train_freq": 4, "gradient_steps": 0}, 100, 200, "without an update after step 100"),
    ],
)
def test_a_run_without_an_update_behind_the_switch_is_no_result(kwargs: Any, delay: int, stop: int, said: str):
    with pytest.raises(QuarlError, match=f"ended {said}"):
        prepared("dqn", "w8a8", **kwargs).learn(200, callback=[qat.QuantDelay(delay), Stop(stop)])
    callback = [qat.QuantDelay(delay, allow_inactive=True), Stop(stop)]
    assert qat.is_active(prepared("dqn", "w8a8", **kwargs).learn(200, callback=callback)) == (delay < stop)


@pytest.mark.parametrize("spec", ["w8a8", "w4"])
@pytest.mark.parametrize("algo", ["dqn", "td3", "sac", "d4pg"])
def test_a_run_that_ends_before_learning_starts_is_refused(algo: str, spec: str):
    model = prepared(algo, spec, learning_starts=400)
    with pytest.raises(QuarlError, match=r"learning starts after step 400, and this run ends at 400"):
        model.learn(400, callback=qat.QuantDelay())
    assert model.num_timesteps == 0
    model.learn(404, callback=qat.QuantDelay())
    assert qat.is_active(model)


@pytest.mark.slow
def test_a_callback_serves_one_run_after_another():
    callback, switched = qat.QuantDelay(), []
    for steps in (256, 1024):
        model = prepared("ppo", "w8a8")
        switched.append(qat.switched_at(model.learn(steps, callback=callback)))
    assert switched == [128, 512]


class Twice(BaseFeaturesExtractor):
    """Applies a layer to its own output."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, features_dim=4)
        self.l = torch.nn.Linear(4, 4)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.l(torch.relu(self.l(observations)))


class OwnLinear(torch.nn.Linear):
    """A class of somebody's own."""


class Own(BaseFeaturesExtractor):
    """Has such a layer."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, features_dim=4)
        self.l = OwnLinear(4, 4)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.l(observations))


@pytest.mark.parametrize(
    ("extractor", "message"),
    [
        (Twice, r"'features_extractor\.l.*' is not a separate module"),
        (Own, r"'features_extractor\.l' is a OwnLinear"),
        (Normalised, r"layer 'features_extractor\.net\.0' is normalized"),
    ],
)
def test_a_model_that_is_refused_is_as_it_was(extractor: Any, message: str):
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, policy_kwargs={"features_extractor_class": extractor})
    before = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
    with pytest.raises(UnsupportedError, match=message):
        qat.prepare(model, "w4a8")
    assert not isinstance(model.policy, QatPolicy)
    assert "qat" not in model.policy_kwargs
    after = model.policy.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    qat.prepare(model, qat.QatSpec.parse("w4a8", skip=("features_extractor",)))
    model.learn(128, callback=qat.QuantDelay(64))
    assert qat.is_active(model)


def observation_grid(spec: qat.QatSpec) -> tuple[int, bool]:
    """(bits, whether a wide grid's) that CartPole's observation is trained with."""
    model = prepared("ppo", spec)
    (site,) = {
        layer.before
        for layer in tables_of(model.policy)[""].plan.layers
        if layer.before is not None and layer.before.row >= 0
    }
    return site.bits, site.wide


def test_the_observation_has_no_fewer_bits_than_activations():
    parse = qat.QatSpec.parse
    bits, wide = observation_grid(parse("w8a8"))
    assert bits > 8
    assert wide
    assert observation_grid(parse("w16a16")) == (16, False)
    assert observation_grid(parse("w16a8")) == (8, False)
    assert observation_grid(parse("w8a8", observation_bits=10)) == (10, True)
    assert observation_grid(parse("w8a8", observation_bits=5)) == (5, False)


def test_more_bits_of_the_observation_than_sums_are_exact_with_are_refused():
    model = make("ppo")
    with pytest.raises(QuarlError, match=r"cannot have 16 bits: .* use at most \d+"):
        qat.prepare(model, qat.QatSpec.parse("w8a8", observation_bits=16))
    assert not isinstance(model.policy, QatPolicy)
    with pytest.raises(QuarlError, match="observation bits require activation bits: w4 leaves both"):
        qat.QatSpec.parse("w4", observation_bits=8)


def test_sixteen_bits_of_weights_and_activations_are_near_float32():
    model = prepared("ppo", "w16a16")
    model.learn(384, callback=qat.QuantDelay(128))
    rows = model.rollout_buffer.observations.reshape(-1, 4)[:100]
    policy = qat.quantized_policy(model)
    assert policy.grids["observation"].bits == 16
    for table in tables_of(model.policy).values():
        table.active = False
    expected = model.policy.get_distribution(torch.from_numpy(rows)).distribution.logits.detach().numpy()
    for table in tables_of(model.policy).values():
        table.active = True
    found = model.policy.get_distribution(torch.from_numpy(rows)).distribution.logits.detach().numpy()
    # beyond the ranges that training saw, numbers are cut off
    assert np.quantile(np.abs(found - expected), 0.9) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_training_without_the_callback_is_warned_of_once(algo: str):
    model = prepared(algo, "w8a8")
    with pytest.warns(UserWarning, match=r"prepared for w8a8 but trained without qat\.QuantDelay") as found:
        model.learn(512)
    assert len(found) == 1
    assert not qat.is_active(model)
    model.learn(512, callback=qat.QuantDelay())
    assert qat.is_active(model)
