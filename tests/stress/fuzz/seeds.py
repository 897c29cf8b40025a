"""Tiny valid files of every kind that QuaRL reads, as bytes: what the fuzzer mutates and hostile files hide in.

Nothing here comes from a trained agent.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import A2C

from quarl.calibration import quantize
from quarl.export import export
from quarl.policy import artifact
from quarl.policy.graph import ActionHead, ActivationGrid, Policy, QuantizedPolicy
from quarl.policy.operators import OBSERVATION, Activation, Add, Dense, LayerNorm, Normalize, QuantizedTensor
from quarl.quant.spec import QuantSpec
from sb3_archives import saved, zipped
from stress.fuzz.pickles import Call, Name, pickled

Array = NDArray[Any]
OBSERVED, HIDDEN, ACTIONS = 3, 4, 2
ENV = "CartPole-v1"


def npy(array: Array) -> bytes:
    """The array as an .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def box(size: int, bound: float) -> Call:
    """A gym Box of `size` numbers."""
    high = np.full(size, bound, np.float32)
    state = {"low": -high, "high": high, "shape": (size,), "dtype": high.dtype}
    return Call(Name("gym.spaces.box", "Box"), (), state, pickle.NEWOBJ)


def discrete(n: int) -> Call:
    """A gym Discrete space."""
    return Call(Name("gym.spaces.discrete", "Discrete"), (), {"n": n, "shape": ()}, pickle.NEWOBJ)


def serialized(value: Any) -> dict[str, str]:
    """An entry of a zip's `data` that JSON cannot hold."""
    return {":type:": "<class 'object'>", ":serialized:": base64.b64encode(pickled(value)).decode()}


def sb3_data(*, continuous: bool = False, **extra: Any) -> dict[str, Any]:
    """`data` of a Stable-Baselines3 PPO (or DDPG) agent."""
    own = {"policy_delay": 1} if continuous else {"clip_range": 0.2}
    return {
        "policy_class": {**serialized(None), "__module__": "stable_baselines3.common.policies"},
        "policy_kwargs": {"activation_fn": "<class 'torch.nn.modules.activation.ReLU'>"},
        "observation_space": serialized(box(OBSERVED, 5.0)),
        "action_space": serialized(box(ACTIONS, 1.0) if continuous else discrete(ACTIONS)),
        "use_sde": False,
        **own,
        **extra,
    }


def sb3_weights(*, continuous: bool = False) -> bytes:
    """`policy.pth` that goes with it."""
    names = ("actor.mu.0", "actor.mu.2") if continuous else ("mlp_extractor.policy_net.0", "action_net")
    sizes = ((HIDDEN, OBSERVED), (ACTIONS, HIDDEN))
    state = {f"{name}.weight": torch.ones(size) for name, size in zip(names, sizes, strict=True)}
    state |= {f"{name}.bias": torch.zeros(size[0]) for name, size in zip(names, sizes, strict=True)}
    return saved(state)


def sb3_zip(*, continuous: bool = False) -> bytes:
    """A whole Stable-Baselines3 agent."""
    data = json.dumps(sb3_data(continuous=continuous)).encode()
    return zipped({"data": data, "policy.pth": sb3_weights(continuous=continuous)})


def goals(**sizes: int) -> Call:
    """The gym Dict space of an environment with goals, its keys sorted."""
    spaces = {key: box(size, np.inf) for key, size in sorted(sizes.items())}
    return Call(Name("gym.spaces.dict", "Dict"), (), {"spaces": spaces, "shape": None}, pickle.NEWOBJ)


SB2_ACTORS = ("ddpg", "sac", "td3")
SB2_ALGORITHMS = ("a2c", "acer", "acktr", "dqn", "ppo2", "trpo", *SB2_ACTORS)


def sb2_data(algo: str) -> dict[str, Any]:
    """Attributes of a Stable-Baselines 2 model; values may be Names and Calls. her: SAC's that learnt by hindsight."""
    if algo == "her":
        space = goals(observation=1, achieved_goal=1, desired_goal=1)
        return {**sb2_data("sac"), "n_sampled_goal": 4, "her_obs_space": space}
    family = {"dqn": "deepq"}.get(algo, algo if algo in SB2_ACTORS else "common")
    own = {
        "a2c": {"alpha": 0.99, "lr_schedule": "linear"},
        "ppo2": {"noptepochs": 4, "cliprange": Call(Name("cloudpickle", "_make_skel_func"), (None, 1))},
        "dqn": {"exploration_final_eps": 0.02, "target_network_update_freq": 500},
        "ddpg": {"observation_range": (-5.0, 5.0), "actor_lr": 1e-4, "normalize_observations": True},
        "acer": {"rprop_alpha": 0.99, "lr_schedule": "linear", "alpha": 0.99},
        "acktr": {"kfac_clip": 1e-3, "lr_schedule": "linear"},
        "trpo": {"max_kl": 1e-2},
        "sac": {"ent_coef": "auto", "tau": 5e-3, "target_entropy": -2.0},
        "td3": {"policy_delay": 2, "tau": 5e-3},
    }[algo]
    return {
        "policy": Name(f"stable_baselines.{family}.policies", "MlpPolicy"),
        "observation_space": box(OBSERVED, np.inf),
        "action_space": discrete(ACTIONS) if algo in ("a2c", "acer", "dqn") else box(ACTIONS, 1.0),
        "policy_kwargs": {"layers": [HIDDEN]} if algo in SB2_ACTORS else {},
        **own,
    }


def sb2_arrays(algo: str) -> dict[str, Array]:
    """Variables of its model in creation order."""
    algo = "sac" if algo == "her" else algo

    def layer(name: str, inputs: int, outputs: int, kinds: tuple[str, str]) -> dict[str, Array]:
        return {
            f"{name}/{kinds[0]}:0": np.ones((inputs, outputs), np.float32),
            f"{name}/{kinds[1]}:0": np.zeros(outputs, np.float32),
        }

    def norm(name: str) -> dict[str, Array]:
        return {f"{name}/{part}:0": np.ones(HIDDEN, np.float32) for part in ("beta", "gamma")}

    if algo == "dqn":
        kinds, scope = ("weights", "biases"), "deepq/model/{}_value/{}"
        return {"deepq/eps:0": np.float32(0.1) * np.ones(())} | {
            name: array
            for stream, outputs in (("action", ACTIONS), ("state", 1))
            for part in (
                layer(scope.format(stream, "fully_connected"), OBSERVED, HIDDEN, kinds),
                norm(scope.format(stream, "LayerNorm")),
                layer(scope.format(stream, "fully_connected_1"), HIDDEN, outputs, kinds),
            )
            for name, array in part.items()
        }
    if algo in SB2_ACTORS:
        kinds = ("kernel", "bias")
        moments = {"runningsum:0": np.zeros(OBSERVED), "runningsumsq:0": np.ones(OBSERVED), "count:0": np.ones(())}
        others = {
            "ddpg": {f"input/obs_rms/{name}": array for name, array in moments.items()},
            "sac": layer("model/pi/dense_1", HIDDEN, ACTIONS, kinds)
            | layer("model/values_fn/vf/fc0", OBSERVED, HIDDEN, kinds),
            "td3": layer("model/values_fn/qf1/fc0", OBSERVED + ACTIONS, HIDDEN, kinds),
        }
        return (
            layer("model/pi/fc0", OBSERVED, HIDDEN, kinds)
            | norm("model/pi/LayerNorm")
            | layer(f"model/pi/{'pi' if algo == 'ddpg' else 'dense'}", HIDDEN, ACTIONS, kinds)
            | others[algo]
        )
    kinds = ("w", "b")
    continuous = algo in ("acktr", "ppo2", "trpo")
    logstd = {"model/pi/logstd:0": np.zeros((1, ACTIONS), np.float32)} if continuous else {}
    model = (
        layer("model/pi_fc0", OBSERVED, HIDDEN, kinds)
        | layer("model/vf_fc0", OBSERVED, HIDDEN, kinds)
        | layer("model/vf", HIDDEN, 1, kinds)
        | layer("model/pi", HIDDEN, ACTIONS, kinds)
        | logstd
        | layer("model/q", HIDDEN, ACTIONS, kinds)
    )
    return model | ({f"oldpi/{name}": array for name, array in model.items()} if algo == "trpo" else {})


def sb2_pickle(algo: str, protocol: int = 4) -> bytes:
    """A Stable-Baselines 2 agent in the old format."""
    return pickled((sb2_data(algo), list(sb2_arrays(algo).values())), protocol)


def sb2_zip(algo: str) -> bytes:
    """The same in the later format."""
    plain = (int, float, str, list, tuple, dict)
    data = {key: value if isinstance(value, plain) else serialized(value) for key, value in sb2_data(algo).items()}
    arrays = sb2_arrays(algo)
    return zipped(
        {
            "data": json.dumps(data).encode(),
            "parameters": zipped({f"{name}.npy": npy(array) for name, array in arrays.items()}),
            "parameter_list": json.dumps(list(arrays)).encode(),
        }
    )


def running_mean_std(size: int) -> Call:
    """Statistics of observations, as the zoo of Stable-Baselines 2 saves them."""
    state = {"mean": np.zeros(size), "var": np.ones(size), "count": 10.0001}
    return Call(Name("stable_baselines.common.running_mean_std", "RunningMeanStd"), (), state, pickle.NEWOBJ)


def vecnormalize(**extra: Any) -> Call:
    """Stable-Baselines3's wrapper with its statistics."""
    state = {
        "observation_space": box(OBSERVED, 5.0),
        "obs_rms": running_mean_std(OBSERVED),
        "ret_rms": running_mean_std(1),
        "clip_obs": 10.0,
        "epsilon": 1e-8,
        "norm_obs": True,
        "old_obs": np.zeros((1, OBSERVED), np.float32),
        **extra,
    }
    return Call(Name("stable_baselines3.common.vec_env.vec_normalize", "VecNormalize"), (), state, pickle.NEWOBJ)


CONFIGS = (
    b"!!python/object/apply:collections.OrderedDict\n- - [batch_size, 256]\n  - [normalize, true]\n"
    b"  - [policy, MlpPolicy]\n  - [policy_kwargs, 'dict(log_std_init=-2)']\n",
    b"!!python/object/apply:collections.OrderedDict\n- - - env_wrapper\n"
    b"    - sb3_contrib.common.wrappers.TimeFeatureWrapper\n  - - normalize\n    - '{''norm_obs'': True}'\n",
    b"algo: ppo\nenv: CartPole-v1\nenv_kwargs: {render_mode: null}\nframe_stack: 2\n"
    b"env_wrapper:\n  - gymnasium.wrappers.TimeLimit: {max_episode_steps: 100}\n",
)


def float_policy() -> Policy:
    """A policy with every operator that needs no image."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    ops = (
        Normalize("n", ("observation",), np.zeros(OBSERVED), np.ones(OBSERVED), 1e-8, 10.0),
        Dense("a", ("n",), weight(HIDDEN, OBSERVED), weight(HIDDEN)),
        LayerNorm("ln", ("a",), weight(HIDDEN), weight(HIDDEN), 1e-5),
        Activation("t", ("ln",), "tanh"),
        Dense("q", ("t",), weight(ACTIONS, HIDDEN), weight(ACTIONS)),
        Dense("v", ("t",), weight(1, HIDDEN), weight(1)),
        Add("sum", ("q", "v")),
    )
    return Policy(observation_shape=(OBSERVED,), ops=ops, head=ActionHead("argmax"))


def integer_policy() -> QuantizedPolicy:
    """A statically quantised policy."""
    codes = np.ones((HIDDEN, OBSERVED), np.int8)
    weight = QuantizedTensor(codes, np.ones(HIDDEN, np.float32), np.zeros(HIDDEN, np.int32), 4)
    last = QuantizedTensor(codes[:ACTIONS, :].copy(), np.ones(ACTIONS, np.float32), np.zeros(ACTIONS, np.int32), 4)
    ops = (
        Dense("a", ("observation",), weight, np.zeros(HIDDEN, np.float32)),
        Activation("r", ("a",), "relu"),
        Dense("b", ("r",), np.ones((OBSERVED, HIDDEN), np.float32), np.zeros(OBSERVED, np.float32)),
        Dense("c", ("b",), last, np.zeros(ACTIONS, np.float32)),
    )
    bound = np.ones(ACTIONS, np.float32)
    grid = ActivationGrid(scale=0.1, zero_point=-128)
    return QuantizedPolicy(
        observation_shape=(OBSERVED,),
        ops=ops,
        head=ActionHead("clip", -bound, bound, log_std=bound),
        spec=QuantSpec.parse("int4", mode="static"),
        grids=dict.fromkeys(("observation", "a", "r", "b"), grid),
    )


def artefact(*, quantized: bool) -> bytes:
    """A policy in QuaRL's own format."""
    return artifact.to_bytes(integer_policy() if quantized else float_policy())


def exported() -> tuple[bytes, bytes, tuple[bytes, ...]]:
    """policy.c, golden.npz, and the contracts of a C and a .tflite file, as quarl export writes them."""
    rng = np.random.default_rng(0)
    x, first, last = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((64, OBSERVED), (HIDDEN, OBSERVED), (ACTIONS, HIDDEN))
    )
    ops = (
        Dense("a", (OBSERVATION,), first, np.zeros(HIDDEN, np.float32)),
        Activation("r", ("a",), "relu"),
        Dense("q", ("r",), last, np.zeros(ACTIONS, np.float32)),
    )
    floats = Policy(observation_shape=(OBSERVED,), ops=ops, head=ActionHead("argmax"))
    policy = quantize(floats, QuantSpec.parse("int8", mode="static"), x)
    with tempfile.TemporaryDirectory() as folder:
        for target in ("c", "tflite"):
            export(policy, target, Path(folder) / target, observations=x)
        names = ("c/policy.c", "c/golden.npz", "c/contract.json", "tflite/contract.json")
        code, vectors, *contracts = ((Path(folder) / name).read_bytes() for name in names)
    return code, vectors, tuple(contracts)


def learner() -> A2C:
    """A new learner that plays CartPole."""
    return A2C("MlpPolicy", ENV, n_steps=4, policy_kwargs={"net_arch": [HIDDEN]}, device="cpu", seed=0)


def sb3_agent(data: dict[str, Any] | bytes | None = None, **members: bytes) -> bytes:
    """A Stable-Baselines3 zip with `data` replaced, and members replaced or added ("policy__pth" for policy.pth)."""
    text = data if isinstance(data, bytes) else json.dumps(data or sb3_data()).encode()
    named = {name.replace("__", "."): member for name, member in members.items()}
    return zipped({"data": text, "policy.pth": sb3_weights()} | named)


def zoo_run(config: bytes = b"normalize: true\n", **files: bytes) -> dict[str, bytes]:
    """Files of a zoo run around a valid agent, by relative path ("args__yml" for args.yml)."""
    run = f"{ENV}_1"
    beside = {f"{run}/{ENV}/{name.replace('__', '.')}": data for name, data in files.items()}
    return {f"{run}/{ENV}.zip": sb3_agent(), f"{run}/{ENV}/config.yml": config, **beside}
