"""Reader of Stable-Baselines 2 agents; nothing in the file is executed.

Two formats carry the same content. The older is a cloudpickle of (attributes, arrays without names) in .pkl files. The
later one is a zip, named .zip or .pkl, of `data` (JSON with pickles as base64 text), `parameters` (an .npz) and
`parameter_list` (JSON). The zoo keeps statistics of the observations beside either, in ENV/obs_rms.pkl.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError
from quarl.inert.npz import read_npz
from quarl.inert.objects import Inert
from quarl.inert.pickle import read_base64, read_pickle
from quarl.inert.reading_budget import read_json
from quarl.inert.zip import Opened
from quarl.policy.graph import Policy, Provenance, shapes
from quarl.policy.inputs import Input
from quarl.policy.operators import Shape
from quarl.readers import sb2_network, zoo
from quarl.readers.normalizer import Statistics
from quarl.readers.observation import observe
from quarl.readers.plain_spaces import Box, Dict, Discrete, Space, action_head, from_inert

MEMBERS = ("data", "parameters", "parameter_list")
MARKS = {
    "ppo2": {"noptepochs", "cliprange"},
    "a2c": {"alpha", "lr_schedule"},
    "dqn": {"exploration_final_eps", "target_network_update_freq"},
    "ddpg": {"observation_range", "actor_lr"},
    "acktr": {"kfac_clip"},
    "acer": {"rprop_alpha"},
    "trpo": {"max_kl"},
    "sac": {"ent_coef", "tau"},
    "td3": {"policy_delay"},
}
"""Attributes that only this algorithm saves. A2C comes after ACKTR and ACER, which share some of its attributes."""
EARLY_TD3 = {"tau", "learning_starts", "train_freq"}
"""Attributes of a TD3 that does not save its policy_delay, like the first versions."""
SUCCESS, OFFSET = ".DoneOnSuccessWrapper", 1.0
"""A wrapper of this library's zoo, and its default reward offset; Stable-Baselines3's default is 0."""
ACTORS = {"ddpg": "pi", "sac": "dense", "td3": "dense"}
"""Algorithms whose actions are tanh of an actor's output, mapped to the bounds, and the name of the actor's last layer.
All others but DQN are actor-critics of one kind, which act by a distribution and have tanh inside."""
SPACES = {**dict.fromkeys(ACTORS, Box), "acer": Discrete, "dqn": Discrete}
"""Action space of the algorithms that do not support every kind."""
HER = "n_sampled_goal"
"""Attribute that hindsight experience replay adds to those of the algorithm that it trains."""
GOALS = ("observation", "achieved_goal", "desired_goal")
"""Keys of its Dict observation, in the order in which HERGoalEnvWrapper concatenates them."""
FUNCTIONS = ("relu", "tanh", "sigmoid", "elu")
"""TensorFlow's names of activations that equal the graph's. Its leaky_relu has another slope."""
ZOO_POLICIES = ("CustomDQNPolicy", "CustomMlpPolicy", "CustomSACPolicy")
"""Classes in the zoo's own module utils; like the library's, they keep the default activation."""


def read_sb2(
    path: str | Path | Opened,
    algo: str | None = None,
    normalize: str | Path | None = None,
    frame_stack: int | None = None,
) -> Policy:
    """Read the policy in a Stable-Baselines 2 file; environment and statistics come from the zoo's files beside it.

    Args:
        path: The .pkl or .zip file.
        algo: As in `load.read`.
        normalize: As in `load.read`.
        frame_stack: As in `load.read`.

    Raises:
        QuarlError: The file is damaged, not a model of Stable-Baselines 2, or belongs to another algorithm.
    """
    data, arrays = contents(path)
    path = Path(path)
    environment, statistics = zoo.read_settings(path, normalize, frame_stack)
    added: Mapping[str, Any] = {"reward_offset": OFFSET}
    own = ((name, {**added, **kwargs} if name.endswith(SUCCESS) else kwargs) for name, kwargs in environment.wrappers)
    environment = replace(environment, wrappers=tuple(own))
    try:
        with np.errstate(all="ignore"):  # numbers beyond float32 become infinite, which the graph refuses
            return _policy(data, arrays, environment, statistics, algo and algo.lower())
    except QuarlError as error:
        text = str(error)
        raise type(error)(text if text.startswith(str(path.parent)) else f"{path}: {text}") from None


def contents(path: str | Path | Opened) -> tuple[Mapping[Any, Any], list[Array] | dict[str, Array]]:
    """Return the model's attributes, and its arrays: in order from a pickle, by name from a zip."""
    file = Opened.at(path)
    if file.is_zip:
        return _unzipped(file.unpacked(*MEMBERS), str(path))
    content = read_pickle(file.contents(), str(path))
    if not isinstance(content, tuple) or len(content) != 2 or not isinstance(content[0], dict):
        raise QuarlError(f"{path} is a pickle, but not of a Stable-Baselines 2 model (attributes, parameters)")
    data, arrays = content
    if isinstance(arrays, dict):  # 2.7 pickles on request, with names
        return data, _by_name(arrays, str(path))
    if not isinstance(arrays, list) or not all(isinstance(array, np.ndarray | np.generic) for array in arrays):
        raise QuarlError(f"{path} has parameters that are not arrays of numbers; the file is damaged")
    return data, [_real(np.asarray(array), str(path)) for array in arrays]


def _unzipped(members: Mapping[str, bytes], where: str) -> tuple[dict[str, Any], dict[str, Array]]:
    if missing := {"data", "parameters"} - members.keys():
        raise QuarlError(f"{where} has no member {min(missing)!r}; it is not a Stable-Baselines 2 model")
    entries = read_json(members["data"], f"{where}: member 'data'")
    data = {key: _value(entry, f"{where}: {key[:80]!r}") for key, entry in entries.items()}
    return data, _by_name(read_npz(members["parameters"], f"{where}: parameters"), where)


def _value(entry: Any, where: str) -> Any:
    """Return an attribute: plain JSON, or the content of its pickle."""
    if not isinstance(entry, dict) or ":serialized:" not in entry:
        return entry
    return read_base64(entry[":serialized:"], where)


def _by_name(arrays: Mapping[Any, Any], where: str) -> dict[str, Array]:
    """Return the arrays by TensorFlow's variable names, without the ":0" of their output."""
    if not all(isinstance(name, str) and isinstance(a, np.ndarray | np.generic) for name, a in arrays.items()):
        raise QuarlError(f"{where} has parameters that are not arrays by name; the file is damaged")
    return {name.removesuffix(":0"): _real(np.asarray(array), where) for name, array in arrays.items()}


def _real(array: Array, where: str) -> Array:
    if array.dtype.kind not in "fiu":
        raise QuarlError(f"{where} has parameters of type {array.dtype}, not real numbers")
    return array


def _policy(
    data: Mapping[Any, Any],
    arrays: list[Array] | dict[str, Array],
    environment: Provenance,
    statistics: Statistics | None,
    asked: str | None,
) -> Policy:
    algo = _algorithm(data, asked)
    kwargs = data["policy_kwargs"] if isinstance(data.get("policy_kwargs"), dict) else {}
    activation = _activation(data.get("policy"), kwargs, algo)
    observed = observe(from_inert(data.get("observation_space"), "observation_space"), "observation_space")
    shape: Shape = observed.fields["observation_shape"]
    actions = from_inert(data.get("action_space"), "action_space")
    if not isinstance(actions, SPACES.get(algo, Space)):
        raise QuarlError(f"action_space is {type(actions).__name__}, which {algo} cannot have; the file is damaged")
    width = actions.width
    # Older files have no names: they follow from the order of the arrays.
    named = arrays if isinstance(arrays, dict) else _named(arrays, algo, kwargs, shape, actions, width)
    image = bool(observed.images) and any(name.endswith("/c1/w") for name in named)
    network = sb2_network.Network(named, shape, image=image)
    if statistics is not None:
        statistics, environment = zoo.of_observation(statistics, network.shape, environment)
        network.append(statistics)
    if algo == "ddpg" and _flag(data, "normalize_observations", default=False):
        network.running_normalize(*_observation_range(data))
    # The three families of networks.
    if algo == "dqn":
        sb2_network.dqn(network, activation, dueling=_flag(kwargs, "dueling", default=True))
    elif algo in ACTORS:
        sb2_network.actor(network, activation, ACTORS[algo])
    else:
        sb2_network.actor_critic(network, activation)
    log_std = None
    if isinstance(actions, Box) and algo not in ACTORS:
        log_std = network.take("model/pi/logstd").reshape(-1).astype(np.float32)
        if log_std.size != width or not np.isfinite(log_std).all():
            raise QuarlError(f"pi/logstd has {log_std.size} numbers for {width} actions, or some are not finite")
    policy = Policy(
        observation_shape=network.shape,
        observation_dtype="uint8" if image else "float32",
        inputs=_goals(data.get("her_obs_space")) if HER in data else observed.fields.get("inputs", ()),
        ops=tuple(network.ops),
        head=action_head(actions, "action_space", squashed=algo in ACTORS, log_std=log_std),
        provenance=replace(
            environment,
            algo=algo,
            stochastic=algo not in (*ACTORS, "dqn"),  # the zoo's enjoy.py: actor-critics sample, others do not
            origin="sb2-zip" if isinstance(arrays, dict) else "sb2-pickle",
        ),
    )
    if shapes(policy)[policy.output] != (width,):
        raise QuarlError(f"the network's last layer does not fit {width} actions; the file is damaged")
    return policy


def _named(
    arrays: list[Array], algo: str, kwargs: Mapping[str, Any], shape: Shape, actions: Space, width: int
) -> dict[str, Array]:
    if algo == "dqn":
        return sb2_network.name_dqn(arrays, width, math.prod(shape), dueling=_flag(kwargs, "dueling", default=True))
    if algo in ACTORS:
        return sb2_network.name_actor(arrays, width, shape, kwargs, ACTORS[algo])
    if algo == "trpo":  # the policy, then the one before the last update
        sizes, half = [array.shape for array in arrays], len(arrays) // 2
        arrays = arrays[:half] if sizes == 2 * sizes[:half] else arrays
    return sb2_network.name_actor_critic(arrays, width, kwargs, gaussian=isinstance(actions, Box))


def _goals(space: Any) -> tuple[Input, ...]:
    """Return the parts of the row that an agent of hindsight experience replay reads, from its environment's space."""
    goals = from_inert(space, "her_obs_space")
    if not isinstance(goals, Dict) or not goals.spaces.keys() >= set(GOALS):
        raise QuarlError(f"her_obs_space lacks one of {', '.join(GOALS)}; the file is damaged")
    return observe(Dict({key: goals.spaces[key] for key in GOALS}), "her_obs_space").inputs


def _algorithm(data: Mapping[Any, Any], asked: str | None) -> str:
    """Return the algorithm, recognized by the attributes that only it saves."""
    possible = [algo for algo, marks in MARKS.items() if marks <= data.keys()]
    algo = possible[0] if len(possible) == 1 else next((name for name in ("acktr", "acer") if name in possible), "")
    if not possible and data.keys() >= EARLY_TD3:
        algo = "td3"
    if not algo:
        raise QuarlError("the attributes do not match any Stable-Baselines 2 algorithm; is it a trained model?")
    if asked not in (None, "", algo) and not (asked == "her" and HER in data):
        raise QuarlError(f"the file holds {algo}, not {asked}; name {algo}")
    return algo


def _activation(policy: Any, kwargs: Mapping[Any, Any], algo: str) -> str:
    """Return the hidden layers' activation: from policy_kwargs, or the default of the policy class."""
    if not isinstance(policy, Inert):
        raise QuarlError("the policy class is missing; the file is damaged")
    if "lstm" in policy.name.lower():
        raise UnsupportedError(f"policy {policy.name[:80]} is recurrent, which is not supported")
    package = policy.module.split(".")[0]
    standard = package == "stable_baselines" or (package == "utils" and policy.name in ZOO_POLICIES)
    if not standard or policy.called:
        raise UnsupportedError(f"policy {policy.path[:80]} is a custom class, so its activation is not known")
    chosen = kwargs.get("act_fun")
    if chosen is None:
        return "relu" if algo in (*ACTORS, "dqn") else "tanh"
    if not isinstance(chosen, Inert) or chosen.called or chosen.name not in FUNCTIONS:
        named = chosen.path[:80] if isinstance(chosen, Inert) else type(chosen).__name__
        raise UnsupportedError(f"act_fun {named} is not one of {', '.join(FUNCTIONS)}")
    return chosen.name


def _flag(data: Mapping[Any, Any], name: str, *, default: bool) -> bool:
    value = data.get(name, default)
    if not isinstance(value, bool):
        raise QuarlError(f"{name} is a {type(value).__name__}, not true or false; the file is damaged")
    return value


def _observation_range(data: Mapping[Any, Any]) -> tuple[float, float]:
    bounds = data.get("observation_range")
    if not isinstance(bounds, list | tuple) or len(bounds) != 2 or not all(isinstance(b, int | float) for b in bounds):
        raise QuarlError("observation_range is not a pair of numbers; the file is damaged")
    return float(bounds[0]), float(bounds[1])
