"""Stable-Baselines 2 files: the graph computes what the library's own formulas give, from either format."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from quarl.engines.numpy_operators import as_float
from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.graph import ActionHead, Policy
from quarl.policy.inputs import flatten
from quarl.policy.operators import Dense, Normalize
from quarl.readers.load import read
from quarl.readers.sb2 import GOALS, read_sb2
from sb3_archives import zipped
from stress.fuzz.pickles import Call, Name, pickled
from stress.fuzz.seeds import SB2_ACTORS as ACTORS
from stress.fuzz.seeds import SB2_ALGORITHMS as ALGORITHMS
from stress.fuzz.seeds import box, discrete, goals, npy, running_mean_std, sb2_arrays, sb2_data, serialized

Array = NDArray[Any]
Named = dict[str, Array]
DISCRETE = ("a2c", "acer", "dqn")
OBSERVED = 3


def drawn(arrays: Named, seed: int = 0) -> Named:
    """The same variables with random numbers; statistics stay possible ones."""
    rng = np.random.default_rng(seed)
    named = {name: rng.standard_normal(a.shape).astype(a.dtype) for name, a in arrays.items()}
    for name in named:
        if name.endswith("runningsumsq:0"):
            named[name] = 40 + 10 * rng.random(OBSERVED)
        if name.endswith("count:0"):
            named[name] = np.array(10.0)
    return named


def as_pickle(folder: Path, data: dict[str, Any], named: Named) -> Path:
    path = folder / "Env-v0.pkl"
    path.write_bytes(pickled((data, list(named.values())), 4))
    return path


def as_zip(folder: Path, data: dict[str, Any], named: Named, name: str = "Env-v0.zip") -> Path:
    plain = {key: v if isinstance(v, int | float | str | tuple | dict) else serialized(v) for key, v in data.items()}
    path = folder / name
    path.write_bytes(
        zipped(
            {
                "data": json.dumps(plain).encode(),
                "parameters": zipped({f"{key}.npy": npy(array) for key, array in named.items()}),
                "parameter_list": json.dumps(list(named)).encode(),
            }
        )
    )
    return path


def output(policy: Policy, observations: Array) -> Array:
    return as_float(policy, observations)[policy.output]


def observations(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal((16, *shape)).astype(np.float32) * 3


def layer_norm(x: Array, beta: Array, gamma: Array) -> Array:
    mean, variance = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-12) * gamma + beta


def expected(algo: str, named: Named, x: Array) -> Array:
    """The library's own formula over its own variables, in float64."""
    v = {name.removesuffix(":0"): array.astype(np.float64) for name, array in named.items()}
    if algo not in ("dqn", *ACTORS):
        return np.tanh(x @ v["model/pi_fc0/w"] + v["model/pi_fc0/b"]) @ v["model/pi/w"] + v["model/pi/b"]
    if algo == "dqn":

        def stream(scope: str) -> Array:
            fc, ln = f"deepq/model/{scope}/fully_connected", f"deepq/model/{scope}/LayerNorm"
            hidden = layer_norm(x @ v[f"{fc}/weights"] + v[f"{fc}/biases"], v[f"{ln}/beta"], v[f"{ln}/gamma"])
            return np.maximum(hidden, 0) @ v[f"{fc}_1/weights"] + v[f"{fc}_1/biases"]

        advantage = stream("action_value")
        return stream("state_value") + advantage - advantage.mean(axis=1, keepdims=True)
    if algo == "ddpg":
        count = v["input/obs_rms/count"]
        mean = v["input/obs_rms/runningsum"] / count
        std = np.sqrt(np.maximum(v["input/obs_rms/runningsumsq"] / count - mean**2, 1e-2))
        x = np.clip((x - mean) / std, -5, 5)
    pi, last = "model/pi", "model/pi/pi" if algo == "ddpg" else "model/pi/dense"
    hidden = x @ v[f"{pi}/fc0/kernel"] + v[f"{pi}/fc0/bias"]
    hidden = np.maximum(layer_norm(hidden, v[f"{pi}/LayerNorm/beta"], v[f"{pi}/LayerNorm/gamma"]), 0)
    return hidden @ v[f"{last}/kernel"] + v[f"{last}/bias"]  # its tanh is the head's


@pytest.mark.parametrize("algo", [*ALGORITHMS, "early td3"])
@pytest.mark.parametrize("write", [as_pickle, as_zip])
def test_outputs_are_those_of_the_librarys_formula(algo: str, write: Any, tmp_path: Path):
    early, algo = algo.startswith("early"), algo.removeprefix("early ")
    named, data = drawn(sb2_arrays(algo)), sb2_data(algo)
    if early:
        data |= {"learning_starts": 100, "train_freq": 100}
        del data["policy_delay"]  # which it did not save
    policy = read_sb2(write(tmp_path, data, named))
    x = observations(OBSERVED)
    np.testing.assert_allclose(output(policy, x), expected(algo, named, x), rtol=2e-5, atol=2e-5)
    assert policy.provenance.algo == algo
    assert policy.provenance.env_id == "Env-v0"
    assert policy.provenance.stochastic == (algo not in ("dqn", *ACTORS))
    assert policy.head.kind == ("tanh" if algo in ACTORS else "argmax" if algo in DISCRETE else "clip")


@pytest.mark.parametrize(
    ("given", "name", "kept"),
    [
        ("\n- {name}", "utils.wrappers.DoneOnSuccessWrapper", {"reward_offset": 1.0}),
        ("\n- {name}: {{reward_offset: 0.5}}", "utils.wrappers.DoneOnSuccessWrapper", {"reward_offset": 0.5}),
        (" {name}", "utils.wrappers.TimeFeatureWrapper", {}),
    ],
)
def test_wrappers_of_the_zoo_are_kept(given: str, name: str, kept: dict[str, float], tmp_path: Path):
    path = as_pickle(tmp_path, sb2_data("ppo2"), drawn(sb2_arrays("ppo2")))
    (tmp_path / "Env-v0").mkdir()
    (tmp_path / "Env-v0/config.yml").write_text(f"env_wrapper:{given.format(name=name)}\n")
    assert read_sb2(path).provenance.wrappers == ((name, kept),)


@pytest.mark.parametrize("algo", ["dqn", *ACTORS])
def test_what_follows_the_networks_in_a_pickle_does_not_change_them(algo: str, tmp_path: Path):
    """Critics, targets, noisy copies and the second list of everything that DDPG used to save."""
    named = drawn(sb2_arrays(algo))
    networks = {name: a for name, a in named.items() if "obs_rms" not in name and "eps" not in name}
    others = {f"target/{name}": array for name, array in drawn(networks, 5).items()}
    rms = {name: a for name, a in named.items() if "obs_rms" in name}
    eps = {name: a for name, a in named.items() if "eps" in name}
    (tmp_path / "long").mkdir()
    long = read_sb2(as_pickle(tmp_path / "long", sb2_data(algo), {**eps, **networks, **others, **rms}))
    short = read_sb2(as_pickle(tmp_path, sb2_data(algo), named))
    x = observations(OBSERVED)
    np.testing.assert_array_equal(output(long, x), output(short, x))


def test_dqn_without_dueling_is_its_advantages(tmp_path: Path):
    named = {name: a for name, a in drawn(sb2_arrays("dqn")).items() if "state_value" not in name}
    target = {f"target/{name}": a for name, a in named.items() if "eps" not in name}
    data = {**sb2_data("dqn"), "policy_kwargs": {"dueling": False}}
    plain = read_sb2(as_pickle(tmp_path, data, named | target))
    assert plain.output == "deepq/model/action_value/fully_connected_1"
    x = observations(OBSERVED)
    by_name = read_sb2(as_zip(tmp_path, data, named))
    np.testing.assert_array_equal(output(plain, x), output(by_name, x))


def test_the_mean_advantage_is_folded_into_the_last_layer(tmp_path: Path):
    policy = read_sb2(as_pickle(tmp_path, sb2_data("dqn"), drawn(sb2_arrays("dqn"))))
    last = next(op for op in policy.ops if op.name == "deepq/model/action_value/fully_connected_1")
    assert isinstance(last, Dense)
    np.testing.assert_allclose(last.weight.sum(axis=0), 0, atol=1e-6)
    assert abs(last.bias.sum()) < 1e-6


def mlp_arrays(layers: list[str], sizes: dict[str, tuple[int, int]], outputs: int, latent: tuple[int, int]) -> Named:
    """Variables of an actor-critic MLP: hidden layers by name, then vf, pi and q."""
    shapes = {name: sizes[name] for name in layers}
    shapes |= {"vf": (latent[1], 1), "pi": (latent[0], outputs), "q": (latent[1], outputs)}
    zeros = {
        f"model/{name}/{part}:0": np.zeros(shape[2 * (part == "b") - 1 :] if part == "b" else shape, np.float32)
        for name, shape in shapes.items()
        for part in ("w", "b")
    }
    return drawn(zeros, 3)


def test_net_arch_tells_shared_from_separate_layers(tmp_path: Path):
    sizes = {"shared_fc0": (3, 6), "pi_fc0": (6, 5), "vf_fc0": (6, 6), "vf_fc1": (6, 4)}
    named = mlp_arrays(list(sizes), sizes, 2, (5, 4))
    data = {**sb2_data("a2c"), "policy_kwargs": {"net_arch": [6, {"pi": [5], "vf": [6, 4]}]}}
    policy = read_sb2(as_pickle(tmp_path, data, named))
    x = observations(OBSERVED)
    hidden = np.tanh(
        np.tanh(x @ named["model/shared_fc0/w:0"] + named["model/shared_fc0/b:0"]) @ named["model/pi_fc0/w:0"]
        + named["model/pi_fc0/b:0"]
    )
    np.testing.assert_allclose(output(policy, x), hidden @ named["model/pi/w:0"] + named["model/pi/b:0"], atol=1e-5)
    by_name = read_sb2(as_zip(tmp_path, data, named))
    np.testing.assert_array_equal(output(by_name, x), output(policy, x))


def test_an_activation_in_policy_kwargs_replaces_the_default(tmp_path: Path):
    named = drawn(sb2_arrays("a2c"))
    kwargs = {"act_fun": Name("tensorflow.python.ops.gen_nn_ops", "relu")}
    policy = read_sb2(as_pickle(tmp_path, {**sb2_data("a2c"), "policy_kwargs": kwargs}, named))
    x = observations(OBSERVED)
    hidden = np.maximum(x @ named["model/pi_fc0/w:0"] + named["model/pi_fc0/b:0"], 0)
    np.testing.assert_allclose(output(policy, x), hidden @ named["model/pi/w:0"] + named["model/pi/b:0"], atol=1e-5)


def gym_space(kind: str, **state: Any) -> Call:
    return Call(Name(f"gym.spaces.{kind.lower()}", kind), (), state, pickle.NEWOBJ)


def cnn_arrays(actions: int, shape: tuple[int, int, int]) -> Named:
    height, width, channels = shape
    for kernel, stride in ((8, 4), (4, 2), (3, 1)):
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    zeros = {}
    for name, (kernel, inputs, outputs) in {"c1": (8, channels, 4), "c2": (4, 4, 5), "c3": (3, 5, 6)}.items():
        zeros[f"model/{name}/w:0"] = np.zeros((kernel, kernel, inputs, outputs), np.float32)
        zeros[f"model/{name}/b:0"] = np.zeros((1, outputs, 1, 1), np.float32)
    for name, (inputs, outputs) in {
        "fc1": (height * width * 6, 7),
        "vf": (7, 1),
        "pi": (7, actions),
        "q": (7, actions),
    }.items():
        zeros[f"model/{name}/w:0"] = np.zeros((inputs, outputs), np.float32)
        zeros[f"model/{name}/b:0"] = np.zeros(outputs, np.float32)
    return {name: a * 0.2 for name, a in drawn(zeros).items()}


@pytest.mark.parametrize("write", [as_pickle, as_zip])
def test_convolutions_see_channels_first_and_give_what_they_gave_channels_last(write: Any, tmp_path: Path):
    shape = (40, 44, 2)
    named = cnn_arrays(3, shape)
    low = np.zeros(shape, np.uint8)
    image = gym_space("Box", low=low, high=low + 255, shape=shape, dtype=low.dtype)
    spaces = {"observation_space": image, "action_space": discrete(3)}
    policy = read_sb2(write(tmp_path, {**sb2_data("a2c"), **spaces}, named))
    assert (policy.observation_shape, policy.observation_dtype) == ((2, 40, 44), "uint8")
    images = np.random.default_rng(2).integers(0, 256, (3, *shape)).astype(np.uint8)
    x = images / 255
    for name, stride in (("c1", 4), ("c2", 2), ("c3", 1)):
        w, b = named[f"model/{name}/w:0"], named[f"model/{name}/b:0"].reshape(-1)
        k = len(w)
        rows, columns = ((n - k) // stride + 1 for n in x.shape[1:3])
        x = np.array(
            [
                [
                    [
                        np.tensordot(image[r * stride : r * stride + k, c * stride : c * stride + k], w, 3) + b
                        for c in range(columns)
                    ]
                    for r in range(rows)
                ]
                for image in x
            ]
        )
        x = np.maximum(x, 0)
    hidden = np.maximum(x.reshape(3, -1) @ named["model/fc1/w:0"] + named["model/fc1/b:0"], 0)
    wanted = hidden @ named["model/pi/w:0"] + named["model/pi/b:0"]
    np.testing.assert_allclose(output(policy, images.transpose(0, 3, 1, 2)), wanted, rtol=1e-4, atol=1e-4)


def test_the_variance_of_the_running_statistics_has_a_floor(tmp_path: Path):
    named = drawn(sb2_arrays("ddpg"))
    named["input/obs_rms/runningsum:0"] = np.array([10.0, 20.0, 30.0])
    named["input/obs_rms/runningsumsq:0"] = np.array([10.0, 45.0, 90.0])
    policy = read_sb2(as_pickle(tmp_path, sb2_data("ddpg"), named))
    first = policy.ops[0]
    assert isinstance(first, Normalize)
    np.testing.assert_allclose(first.mean, [1, 2, 3])
    np.testing.assert_allclose(first.variance, [0.01, 0.5, 0.01], rtol=1e-5)
    assert (first.epsilon, first.clip) == (0.0, 5.0)


def test_actions_of_ddpg_fill_the_bounds(tmp_path: Path):
    data = {**sb2_data("ddpg"), "action_space": box(2, 4.0)}
    policy = read_sb2(as_pickle(tmp_path, data, drawn(sb2_arrays("ddpg"))))
    actions = policy.head(np.array([[-99.0, np.arctanh(0.5)]], np.float32))
    np.testing.assert_allclose(actions, [[-4.0, 2.0]], rtol=1e-6)


@pytest.mark.parametrize("write", [as_pickle, as_zip])
def test_actions_of_several_numbers_and_of_bits_are_those_of_their_scores(write: Any, tmp_path: Path):
    sizes = {"pi_fc0": (OBSERVED, 6), "vf_fc0": (OBSERVED, 4)}
    named, arch = mlp_arrays(list(sizes), sizes, 5, (6, 4)), {"net_arch": [{"pi": [6], "vf": [4]}]}
    for kind, state, head in [
        ("MultiDiscrete", {"nvec": np.array([2, 3], np.uint32), "shape": (2,)}, ActionHead("argmax", segments=(2, 3))),
        ("MultiBinary", {"n": 5, "shape": (5,)}, ActionHead("binary")),
    ]:
        data = {**sb2_data("a2c"), "action_space": gym_space(kind, **state), "policy_kwargs": arch}
        policy = read_sb2(write(tmp_path, data, named))
        assert (policy.head.kind, policy.head.segments) == (head.kind, head.segments)
        scores = output(policy, observations(OBSERVED))
        split = np.stack([scores[:, :2].argmax(1), scores[:, 2:].argmax(1)], 1) if head.segments else scores > 0
        assert np.array_equal(policy.head(scores), split)


def test_ppo2_keeps_its_deviation_for_sampling(tmp_path: Path):
    named = drawn(sb2_arrays("ppo2"))
    policy = read_sb2(as_pickle(tmp_path, sb2_data("ppo2"), named))
    np.testing.assert_array_equal(policy.head.log_std, named["model/pi/logstd:0"][0])


def test_statistics_beside_the_file_normalise_the_observation(tmp_path: Path):
    named = drawn(sb2_arrays("ppo2"))
    path = as_pickle(tmp_path, sb2_data("ppo2"), named)
    (tmp_path / "Env-v0").mkdir()
    statistics = running_mean_std(OBSERVED)
    statistics.state["mean"], statistics.state["var"] = np.full(3, 2.0), np.full(3, 4.0)
    (tmp_path / "Env-v0/obs_rms.pkl").write_bytes(pickled(statistics, 3))
    x = observations(OBSERVED)
    wanted = expected("ppo2", named, np.clip((x - 2) / np.sqrt(4 + 1e-8), -10, 10))
    np.testing.assert_allclose(output(read_sb2(path), x), wanted, rtol=1e-5, atol=1e-5)
    for config, reason in ("normalize: false\n", "says normalize: false"), ("policy: MlpPolicy\n", "does not say norm"):
        (tmp_path / "Env-v0/config.yml").write_text(config)
        policy = read_sb2(path)
        np.testing.assert_allclose(output(policy, x), expected("ppo2", named, x), rtol=1e-5, atol=1e-5)
        assert reason in policy.provenance.statistics


@pytest.mark.parametrize(
    ("changes", "error", "cause"),
    [
        ({"observation_range": (-5.0, 10.0)}, UnsupportedError, r"\(-5.0, 10.0\); only symmetric ranges"),
        ({"observation_range": 5.0}, QuarlError, "not a pair of numbers"),
        ({"policy_kwargs": {"dueling": np.zeros(3)}}, QuarlError, "dueling is a ndarray, not true or false"),
        ({"policy": Name("stable_baselines.common.policies", "MlpLstmPolicy")}, UnsupportedError, "recurrent"),
        ({"policy": Name("__main__", "Mine")}, UnsupportedError, "is a custom class"),
        ({"policy": None}, QuarlError, "class is missing"),
        ({"policy_kwargs": {"act_fun": Name("tensorflow", "leaky_relu")}}, UnsupportedError, "act_fun"),
        (
            {"action_space": Call(Name("gym.spaces.multi_discrete", "MultiDiscrete"))},
            QuarlError,
            "MultiDiscrete whose nvec",
        ),
        ({"action_space": discrete(5)}, QuarlError, "5 actions"),
        ({"noptepochs": 4, "cliprange": 0.2}, QuarlError, "do not match any Stable-Baselines 2 algorithm"),
        ({"policy_kwargs": {"net_arch": "wide"}}, QuarlError, "net_arch is not a list of layers"),
        ({"policy_kwargs": {"net_arch": [{"pi": 64, "vf": [64]}]}}, QuarlError, "net_arch is not a list of layers"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(changes: dict[str, Any], error: type, cause: str, tmp_path: Path):
    algo = "ddpg" if "observation_range" in changes else "dqn" if "dueling" in cause else "a2c"
    path = as_pickle(tmp_path, {**sb2_data(algo), **changes}, sb2_arrays(algo))
    with pytest.raises(error, match=cause) as caught:
        read_sb2(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("write", [as_pickle, as_zip])
def test_a_missing_or_misshapen_variable_is_refused(algo: str, write: Any, tmp_path: Path):
    named = sb2_arrays(algo)
    unread = ("vf", "/q/", "eps", "oldpi", "values_fn", "dense_1")
    needed = [name for name in named if not any(part in name for part in unread)]
    for name in needed:
        with pytest.raises(QuarlError):
            read_sb2(write(tmp_path, sb2_data(algo), {key: a for key, a in named.items() if key != name}))
        with pytest.raises(QuarlError):
            read_sb2(write(tmp_path, sb2_data(algo), {**named, name: np.zeros((2, 9, 3), np.float32)}))
        with pytest.raises(QuarlError):
            read_sb2(write(tmp_path, sb2_data(algo), {**named, name: named[name] * np.nan}))


def as_named_pickle(folder: Path, data: dict[str, Any], named: Named) -> Path:
    """As 2.7 saves on request: arrays by name, and numbers that are not arrays."""
    path = folder / "Env-v0.pkl"
    path.write_bytes(pickled((data, {**named, "model/log_ent_coef:0": np.float32(-4.5)}), 4))
    return path


def test_hindsight_replay_holds_the_algorithm_that_learnt_from_it(tmp_path: Path):
    named = drawn(sb2_arrays("sac"))
    path = as_named_pickle(tmp_path, sb2_data("her"), named)
    x = observations(OBSERVED)
    for asked in (None, "her", "SAC"):
        policy = read_sb2(path, asked)
        assert policy.provenance.algo == "sac"
        np.testing.assert_allclose(output(policy, x), expected("sac", named, x), rtol=2e-5, atol=2e-5)
    with pytest.raises(QuarlError, match="holds sac, not ddpg"):
        read_sb2(path, "ddpg")
    with pytest.raises(QuarlError, match="holds sac, not her"):
        read_sb2(as_named_pickle(tmp_path, sb2_data("sac"), named), "her")


@pytest.mark.parametrize("write", [as_named_pickle, as_zip, as_pickle])
def test_goals_follow_the_observation_in_the_row_whatever_the_space_s_order(write: Any, tmp_path: Path):
    named = drawn(sb2_arrays("sac"))
    inputs = read_sb2(write(tmp_path, sb2_data("her"), named)).inputs
    shown = {"desired_goal": np.array([3.0]), "achieved_goal": np.array([2.0]), "observation": np.array([1.0])}
    assert flatten(inputs, shown)[0].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("space", "shown", "row"),
    [
        (discrete(3), 2, [0, 0, 1]),
        (gym_space("MultiDiscrete", nvec=np.array([2, 1])), [1, 0], [0, 1, 1]),
        (gym_space("MultiBinary", n=3), [1, 0, 1], [1, 0, 1]),
    ],
)
@pytest.mark.parametrize("write", [as_pickle, as_zip])
def test_whole_numbers_are_observed_one_hot(space: Call, shown: Any, row: list[int], write: Any, tmp_path: Path):
    named = drawn(sb2_arrays("a2c"))
    policy = read_sb2(write(tmp_path, {**sb2_data("a2c"), "observation_space": space}, named))
    x = flatten(policy.inputs, np.array(shown))[0]
    assert x.tolist() == [row]
    np.testing.assert_allclose(output(policy, x), expected("a2c", named, x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("space", "cause"),
    [
        (None, "her_obs_space is a NoneType, not a space"),
        (goals(observation=2, achieved_goal=1), "her_obs_space lacks one of observation"),
        (goals(observation=2, achieved_goal=1, desired_goal=1), "4 numbers"),
        (box(3, 1.0), "her_obs_space lacks one of"),
        (gym_space("Dict", spaces=dict.fromkeys(GOALS, 1)), "is a int"),
    ],
)
def test_goals_that_are_not_the_row_are_one_line(space: Any, cause: str, tmp_path: Path):
    with pytest.raises(QuarlError, match=cause):
        read_sb2(as_pickle(tmp_path, {**sb2_data("her"), "her_obs_space": space}, sb2_arrays("sac")))


def test_an_actor_as_wide_as_its_actions_ends_where_its_layers_do(tmp_path: Path):
    """Every array of such a SAC agent has the same shape, also the deviation's that follows the mean."""
    n = OBSERVED
    rng = np.random.default_rng(4)
    names = [f"model/pi/{layer}" for layer in ("fc0", "fc1", "fc2", "dense", "dense_1")] + ["model/values_fn/vf/fc0"]
    named = {
        f"{name}/{part}:0": rng.standard_normal((n, n) if part == "kernel" else n).astype(np.float32)
        for name in names
        for part in ("kernel", "bias")
    }
    data = {**sb2_data("sac"), "action_space": box(n, 1.0), "policy_kwargs": {"layers": [n, n, n]}}
    x = observations(n)
    hidden = x
    for layer in names[:3]:
        hidden = np.maximum(hidden @ named[f"{layer}/kernel:0"] + named[f"{layer}/bias:0"], 0)
    wanted = hidden @ named["model/pi/dense/kernel:0"] + named["model/pi/dense/bias:0"]
    for write in (as_pickle, as_zip):
        np.testing.assert_allclose(output(read_sb2(write(tmp_path, data, named)), x), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("algo", "changes", "cause"),
    [
        ("sac", {"action_space": discrete(2)}, "action_space is Discrete, which sac cannot have"),
        ("td3", {"action_space": discrete(2)}, "action_space is Discrete, which td3 cannot have"),
        ("acer", {"action_space": box(2, 1.0)}, "action_space is Box, which acer cannot have"),
        ("sac", {"action_space": box(2, np.inf)}, "unbounded"),
        ("sac", {"action_space": box(3, 1.0)}, r"a layer of shape \(4, 2\)|expects \(3,\)"),
        ("td3", {"observation_space": box(5, 1.0)}, "a layer of shape|model/pi/fc0"),
        ("trpo", {"observation_space": box(5, 1.0)}, "model/pi_fc0"),
        ("acktr", {"action_space": box(4, 1.0)}, "4 actions"),
        ("trpo", {"policy": Name("stable_baselines.common.policies", "MlpLstmPolicy")}, "recurrent"),
    ],
)
@pytest.mark.parametrize("write", [as_pickle, as_zip])
def test_what_an_algorithm_cannot_have_is_one_line(
    algo: str, changes: dict[str, Any], cause: str, write: Any, tmp_path: Path
):
    with pytest.raises(QuarlError, match=cause):
        read_sb2(write(tmp_path, {**sb2_data(algo), **changes}, sb2_arrays(algo)))


FEW = list(sb2_arrays("a2c").values())[:3]


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ([1, 2], "is a pickle, but not of a Stable-Baselines 2 model"),
        ((sb2_data("a2c"), "x"), "has parameters that are not arrays of numbers; the file is damaged"),
        ((sb2_data("a2c"), {"w": 1}), "has parameters that are not arrays by name; the file is damaged"),
        ((sb2_data("a2c"), [np.array([True])]), "has parameters of type bool, not real numbers"),
        ((sb2_data("a2c"), FEW), "fewer arrays than"),
        ((sb2_data("sac"), [np.zeros((8, 8, 1, 4), np.float32)]), "fewer arrays than"),
    ],
)
def test_pickles_of_something_else_are_refused_in_one_line(content: Any, cause: str, tmp_path: Path):
    path = tmp_path / "Env-v0.pkl"
    path.write_bytes(pickled(content, 4))
    with pytest.raises(QuarlError, match=cause) as caught:
        read_sb2(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("layers", [[], [4, 4], [4] * 9])
def test_an_actor_of_another_number_of_layers_is_refused(layers: list[int], tmp_path: Path):
    data = {**sb2_data("td3"), "policy_kwargs": {"layers": layers}}
    with pytest.raises(QuarlError, match=r"fewer arrays|a layer of shape"):
        read_sb2(as_pickle(tmp_path, data, sb2_arrays("td3")))


def test_the_wrong_algorithm_is_named(tmp_path: Path):
    path = as_pickle(tmp_path, sb2_data("dqn"), sb2_arrays("dqn"))
    with pytest.raises(QuarlError, match="holds dqn, not ppo2"):
        read_sb2(path, "ppo2")
    assert read_sb2(path, "DQN").provenance.algo == "dqn"
    both = as_pickle(tmp_path, {**sb2_data("a2c"), "max_kl": 0.01}, sb2_arrays("a2c"))
    with pytest.raises(QuarlError, match="do not match any Stable-Baselines 2 algorithm"):
        read_sb2(both)


def test_either_format_is_found_by_its_contents(tmp_path: Path):
    named = drawn(sb2_arrays("a2c"))
    zip_called_pkl = as_zip(tmp_path, sb2_data("a2c"), named, "Env-v0.pkl")
    assert read(zip_called_pkl).provenance.origin == "sb2-zip"
    as_pickle(tmp_path, sb2_data("a2c"), named)
    assert read(tmp_path / "Env-v0.pkl").provenance.origin == "sb2-pickle"
    (tmp_path / "Env-v0").mkdir()
    assert read(tmp_path / "Env-v0").provenance.origin == "sb2-pickle"


def test_load_refuses_what_is_no_policy(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("hello, this is text")
    (tmp_path / "empty").touch()
    buffer = io.BytesIO()
    zipfile.ZipFile(buffer, "w").close()
    (tmp_path / "empty.zip").write_bytes(buffer.getvalue())
    for name in ("notes.txt", "empty", "empty.zip", "missing", ""):
        with pytest.raises(QuarlError):
            read(tmp_path / name)


def episode(policy: Policy, env_id: str, seed: int) -> float:
    env = gymnasium.make(env_id)
    observation, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        action = policy.head(output(policy, np.asarray(observation, np.float32)[None]))[0]
        observation, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(reward), terminated or truncated
    env.close()
    return total


@pytest.mark.parametrize(
    ("agent", "env_id", "least"),
    [
        ("a2c/CartPole-v1", "CartPole-v1", 495),
        ("dqn/CartPole-v1", "CartPole-v1", 495),
        ("ddpg/MountainCarContinuous-v0", "MountainCarContinuous-v0", 88),
    ],
)
def test_real_agents_reach_their_published_returns(agent: str, env_id: str, least: float, agents: Path):
    policy = read_sb2(agents / "sb2" / f"{agent}.pkl")
    assert min(episode(policy, env_id, seed) for seed in range(2)) >= least


def test_all_real_agents_load(agents: Path):
    layers = {}
    for path in sorted(agents.glob("sb2/*/*.pkl")):
        policy = read(path)
        assert isinstance(policy, Policy)
        assert policy.provenance.algo == path.parent.name
        layers[f"{path.parent.name}/{path.stem}"] = [op.weight.shape for op in policy.linear]
    assert layers["ddpg/BipedalWalker-v2"] == [(64, 24), (64, 64), (4, 64)]
    assert layers["ppo2/HopperBulletEnv-v0"] == [(64, 15), (64, 64), (3, 64)]
    assert layers["dqn/CartPole-v1"] == [(64, 4), (2, 64), (64, 4), (1, 64)]


def test_what_is_refused_is_not_written_out_first(tmp_path: Path):
    """Tuples that share their members are written in a few bytes, and out in gigabytes."""
    shared: Any = ()
    for _ in range(60):
        shared = (shared, shared)
    data = {**sb2_data("a2c"), "policy_kwargs": {"act_fun": shared}}
    path = tmp_path / "Env-v0.pkl"
    path.write_bytes(pickled((data, list(sb2_arrays("a2c").values())), 4))
    with pytest.raises(UnsupportedError, match="act_fun tuple is not one of"):
        read_sb2(path)
