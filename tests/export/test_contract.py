"""The contract: what it says of observations, actions and layers, and the seal of the short form inside a file."""

from __future__ import annotations

import json
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

import networks
from quarl.calibration import quantize
from quarl.engines import litert, onnx
from quarl.envs import home_of
from quarl.envs.wrappers import FrameStack
from quarl.errors import QuarlError
from quarl.export import contract
from quarl.export.numbers import observed
from quarl.export.readme import readme
from quarl.policy.graph import ActionHead, Policy, Provenance
from quarl.policy.inputs import Input
from quarl.policy.operators import mlp
from quarl.quant.spec import QuantSpec

SOURCE = {"file": "agent.zip", "sha256": "0" * 64}


def static(policy, precision="int8"):
    """The policy in static mode."""
    spec = QuantSpec.parse(precision, scheme="per-channel", mode="static")
    return quantize(policy, spec, networks.observations(policy, 32))


def cartpole(widths=(4, 8, 2)):
    """A network for CartPole, which it does not know how to balance."""
    policy = networks.dense([*widths])
    return Policy(
        observation_shape=policy.observation_shape,
        ops=policy.ops,
        head=policy.head,
        provenance=Provenance(algo="dqn", env_id="CartPole-v1"),
    )


def full(policy, target="tflite", env=None):
    """The contract of a policy."""
    return contract.contract(policy, target, arithmetic="f32-rne", source=SOURCE, env=env)


def names(policy, env):
    return [(each["place"], each["name"], each["made_by"]) for each in observed(policy, env)["numbers"]]


def test_numbers_of_an_observation_are_named_as_the_environments_documentation_names_them():
    env = gymnasium.make("CartPole-v1")
    said = observed(cartpole(), env)
    assert names(cartpole(), env)[2] == (2, "Pole Angle", "CartPoleEnv")
    assert said["low"][1] is None
    assert said["high"][0] == pytest.approx(4.8)


@pytest.mark.parametrize("name", ["TimeFeatureWrapper", "TimeFeature"])
def test_the_number_that_a_wrapper_appends_is_said_to_be_its(name):
    class Appends(gymnasium.ObservationWrapper):
        def __init__(self, env):
            super().__init__(env)
            box = env.observation_space
            self.observation_space = gymnasium.spaces.Box(
                *np.float32([np.append(box.low, 0), np.append(box.high, 1)]), dtype=np.float32
            )

        def observation(self, observation):
            return np.append(observation, 1)

    Appends.__name__ = name
    env = Appends(gymnasium.make("CartPole-v1"))
    assert names(networks.dense([5, 8, 2]), env)[3:] == [
        (3, "Pole Angular Velocity", "CartPoleEnv"),
        (4, "remaining time, from 1 to 0", name),
    ]


def test_stacked_numbers_are_said_to_be_of_which_step():
    env = FrameStack(gymnasium.make("CartPole-v1"), 3)
    said = names(networks.dense([12, 8, 2]), env)
    assert said[0] == (0, "Cart Position, 2 steps earlier", "FrameStack")
    assert said[4][1] == "Cart Position, 1 step earlier"
    assert said[11] == (11, "Pole Angular Velocity, now", "FrameStack")


def test_numbers_of_a_dict_are_named_by_key_and_one_hot_ones_by_value():
    policy = Policy(
        observation_shape=(5,),
        inputs=(Input("goal", "Box", (2,)), Input("mode", "Discrete", (), (3,))),
        ops=tuple(mlp(networks.layers(np.random.default_rng(0), [5, 4, 2]), "relu")),
        head=ActionHead("argmax"),
    )
    assert [name for _, name, _ in names(policy, None)] == ["goal[0]", "goal[1]", "mode is 0", "mode is 1", "mode is 2"]


@pytest.mark.parametrize(
    "name", ["sb3_contrib.common.wrappers.TimeFeatureWrapper", "utils.wrappers.TimeFeatureWrapper"]
)
@pytest.mark.parametrize("size", [3, 300])
def test_the_remaining_time_in_a_part_of_a_dict_is_named(name, size):
    parts = (Input("goal", "Box", (2,)), Input("observation", "Box", (size + 1,)), Input("zeta", "Box", (1,)))
    policy = Policy(
        observation_shape=(size + 4,),
        inputs=parts,
        ops=tuple(mlp(networks.layers(np.random.default_rng(0), [size + 4, 4, 2]), "relu")),
        head=ActionHead("argmax"),
        provenance=Provenance(env_id="Reach-v0", wrappers=((name, {}),)),
    )
    said = names(policy, None)
    assert said[-2:] == [(size + 2, "remaining time, from 1 to 0", "TimeFeature"), (size + 3, "zeta[0]", "Box")]
    assert said[-3] == (
        (size + 1, f"observation[{size - 1}]", "Box") if size < 10 else ([2, size + 1], "observation", "Box")
    )
    page = readme({**full(static(policy)), "verified": []}, "policy.tflite")
    assert f"; number {size + 2} is remaining time, from 1 to 0 (made by TimeFeature)." in page
    assert "made by Box" not in page
    assert "wrappers that are not part of the file: TimeFeatureWrapper." in page
    plain = replace(policy, provenance=Provenance())
    assert names(plain, None)[-2][2] == names(plain, None)[-1][2] == "Box"
    assert "made by" not in readme({**full(static(plain)), "verified": []}, "policy.tflite")


def test_the_remaining_time_behind_a_box_is_named_in_the_readme():
    policy = networks.dense([5, 8, 2])
    policy = replace(
        policy, provenance=Provenance(env_id="CartPole-v1", wrappers=(("rl_zoo3.wrappers.TimeFeatureWrapper", {}),))
    )
    env = home_of(policy).make_for(policy)
    said = names(policy, env)
    env.close()
    assert said[3:] == [(3, "Pole Angular Velocity", "CartPoleEnv"), (4, "remaining time, from 1 to 0", "TimeFeature")]
    page = readme(full(static(policy), env=env), "policy.tflite")
    assert "; number 4 is remaining time, from 1 to 0 (made by TimeFeature)." in page


def test_an_image_has_an_entry_for_each_channel():
    assert names(networks.convolutional(size=20), None)[1] == ([400, 799], "", "")


def test_layers_have_their_products_and_bytes():
    conv, *_, last = full(static(networks.convolutional(size=20), "int4"))["layers"]
    assert (conv["kind"], conv["shape"], conv["bits"]) == ("Conv2d", [6, 3, 5, 5], 4)
    assert conv["macs"] == 6 * 3 * 5 * 5 * 8 * 8
    assert conv["bytes"] == 225
    assert (last["shape"], last["macs"], last["bytes"]) == ([4, 16], 64, 32)


def test_what_nan_does_is_said_of_each_target():
    policy = static(networks.dense([5, 8, 2]))
    assert full(policy, "c")["observation"]["nan"] == "policy_act returns -1"
    assert "do not act" in full(policy)["observation"]["nan"]


@pytest.mark.parametrize("network", ["relu", "tanh-normalized", "squashed", "convolutional", "dueling", "sliced"])
def test_the_contract_inside_is_sealed_and_gives_its_policy_back(network):
    policy = static(networks.EVERY[network]())
    inner = contract.inner(full(policy))
    content = contract.sealed(litert.write(policy, acts=True, metadata={"quarl.contract": inner}))
    inside = contract.read(content, "policy.tflite")
    assert len(inner) <= contract.MOST_INSIDE
    assert {**inside, "sealed": contract.OPEN} == json.loads(inner)
    exported = contract.policy_of(inside, "policy.tflite")
    assert (exported.observation_shape, exported.inputs) == (policy.observation_shape, policy.inputs)
    assert exported.num_outputs == (policy.num_outputs if policy.head.is_discrete else policy.head.low.size)
    np.testing.assert_array_equal(exported.head.low, policy.head.low)
    assert exported.spec == policy.spec


def test_contract_states_the_calibrated_box_in_the_fewest_digits():
    policy = static(networks.dense([3, 6, 2]))
    policy = replace(policy, box=tuple(np.float32([[-0.1, 0, 1e-30], [0.1, 16777216, 1e-30]])))
    said = json.loads(json.dumps(full(policy, "c"), default=contract.plain))
    assert said["observation"]["box"] == {"low": [-0.1, 0, 1e-30], "high": [0.1, 16777216, 1e-30]}
    assert "case 1: count++; break; /* an action, but the observation is outside" in readme(said, "policy.c")
    assert "`observation.box` of `contract.json`" in readme(full(policy), "policy.tflite")
    moved = replace(policy, box=(policy.box[0], np.nextafter(policy.box[1], np.float32(np.inf))))
    assert list(contract.differences(moved, said)) == ["observation.box.high"]
    exported = contract.policy_of(json.loads(contract.inner(said)), "policy.c")
    np.testing.assert_array_equal(exported.box, policy.box)


def test_contract_inside_a_file_leaves_out_a_long_box():
    image = full(static(networks.convolutional(size=20)))
    assert image["observation"]["box"] is None
    assert json.loads(contract.inner(image))["box"] is None
    assert "observation.box" not in readme({**image, "verified": []}, "policy.tflite")
    wide = full(static(networks.dense([400, 8, 2])))
    short = json.loads(contract.inner(wide))
    assert {"box", "bits"} & short.keys() == {"bits"}
    assert contract.policy_of(short, "policy.tflite").box is None


@pytest.mark.parametrize("ends", [([1], [0]), ([0, 1], [2, 2]), ([0], None), (["x"], [1]), ([0], [1e39])])
def test_policy_of_refuses_a_box_that_does_not_fit(ends):
    said = json.loads(contract.inner(full(static(networks.dense([1, 6, 2])))))
    said["box"] = dict(zip(("low", "high"), ends, strict=True))
    with pytest.raises(QuarlError, match=r"^policy\.tflite: its contract does not describe a policy"):
        contract.policy_of(said, "policy.tflite")


@pytest.mark.parametrize(("writer", "suffix"), [(litert.write, ".tflite"), (onnx.write, ".onnx")])
def test_any_flipped_bit_of_a_file_breaks_its_seal(writer, suffix):
    policy = static(networks.dense([4, 6, 2]))
    content = contract.sealed(writer(policy, acts=True, metadata={"quarl.contract": contract.inner(full(policy))}))
    contract.read(content, f"policy{suffix}")
    for place in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        with pytest.raises(QuarlError, match=rf"^(the contract in )?policy{suffix}"):
            contract.read(bytes(flipped), f"policy{suffix}")


def test_a_file_of_another_program_has_no_contract():
    with pytest.raises(QuarlError, match=r"^other\.tflite holds no contract: quarl export did not write it"):
        contract.read(b"TFL3" * 9, "other.tflite")


def test_long_lists_of_layers_are_left_out_of_the_short_form():
    ops = mlp(networks.layers(np.random.default_rng(0), [4] * 90, "a.rather.long.name.of.a.layer"), "relu")
    policy = static(Policy(observation_shape=(4,), ops=tuple(ops), head=ActionHead("argmax")))
    short = contract.inner(full(policy))
    assert len(short) <= contract.MOST_INSIDE
    assert "bits" not in json.loads(short)


def test_digests_change_with_a_weight_and_with_a_grid():
    one, other = static(networks.dense([4, 6, 2])), static(networks.dense([4, 6, 2], seed=1))
    assert contract.digests(one) == contract.digests(static(networks.dense([4, 6, 2])))
    assert contract.digests(one)["weights"] != contract.digests(other)["weights"]
    assert contract.digests(one)["grids"] != contract.digests(other)["grids"]


@pytest.mark.parametrize("missing", ["action", "source", "observation", "environment"])
def test_a_contract_that_lacks_a_part_is_refused_in_a_line(missing):
    said = json.loads(contract.inner(full(static(networks.dense([4, 6, 2])))))
    del said[missing]
    with pytest.raises(QuarlError, match=r"^policy\.tflite: its contract does not describe a policy"):
        contract.policy_of(said, "policy.tflite")
