"""Operators of an SB3 actor from its parameters by name: the layers, and the operators between them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError
from quarl.policy.operators import Activation, Concat, Conv2d, Dense, Flatten, Op, Shape, mlp
from quarl.policy.recurrent import HIDDEN, State, Weights, lstm
from quarl.policy.trained import TRAINED_RANGES
from quarl.readers.normalizer import clamp

NATURE_CNN = ((0, 8, 4), (2, 4, 2), (4, 3, 1))
"""(index, kernel size, stride) of the convolutions of NatureCNN (Mnih et al. 2015)."""
FUNCTIONS = {"ReLU": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid", "ELU": "elu", "LeakyReLU": "leaky_relu"}
FUNCTIONS |= {name: name.lower() for name in ("SiLU", "GELU", "Mish", "Softplus", "Hardswish", "Hardsigmoid")}
"""Torch's class names to the graph's; Stable-Baselines3 creates them with default arguments."""
SAC_CLIP_MEAN = 2.0
"""SACPolicy's default bound for the mean of a gSDE actor."""
EXTRACTORS = ("FlattenExtractor", "NatureCNN", "WideCNN", "CombinedExtractor")
EXTRACTORS_IN = r"(?:stable_baselines3\.common\.torch_layers|quarl\.algorithms\.wide_cnn)"
_VALUE = r"<class '{}\.(\w+)'>"


class CustomError(UnsupportedError):
    """A model that only its author's code can compute."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of an algorithm's actor among the parameters."""

    activation: str
    """Default activation of the policy class."""
    extractor: str
    chains: tuple[str, ...]
    """Sequential modules with layers at even places and activations between them."""
    output: str | None
    """Output layer; None if it is the last of the chain."""
    ignored: tuple[str, ...]
    """Prefixes of parameters that do not affect actions."""
    tanh: bool = False
    """Actions are tanh of the output, mapped to the bounds."""
    values: bool = False
    """The output holds the values of discrete actions."""
    distribution: bool = True
    """Scores of discrete actions define a distribution, which can be sampled."""


ON_POLICY = Layout(
    "tanh",
    "features_extractor",
    ("mlp_extractor.shared_net", "mlp_extractor.policy_net"),
    "action_net",
    # pi_features_extractor is features_extractor again: one module under two names.
    (
        *("mlp_extractor.value_net.", "value_net.", "vf_features_extractor.", "pi_features_extractor.", "log_std"),
        *("lstm_critic.", "critic."),
    ),
)
CRITICS = ("critic.", "critic_target.")
TD3 = Layout("relu", "actor.features_extractor", ("actor.mu",), None, (*CRITICS, "actor_target."), tanh=True)
SAC = Layout("relu", "actor.features_extractor", ("actor.latent_pi",), "actor.mu", (*CRITICS, "actor.log_std"), True)
_VALUES: Any = {"output": None, "values": True, "distribution": False}
DQN = Layout("relu", "q_net.features_extractor", ("q_net.q_net",), ignored=("q_net_target.",), **_VALUES)
QRDQN = Layout(
    *("relu", "quantile_net.features_extractor", ("quantile_net.quantile_net",)),
    ignored=("quantile_net_target.",),
    **_VALUES,
)
ARS = Layout("relu", "features_extractor", ("action_net",), None, (), distribution=False)
LAYOUTS = {
    **{"ppo": ON_POLICY, "a2c": ON_POLICY, "dqn": DQN, "ddpg": TD3, "td3": TD3, "sac": SAC, "d4pg": TD3},
    **{"trpo": ON_POLICY, "maskableppo": ON_POLICY, "tqc": SAC, "crossq": SAC, "qrdqn": QRDQN, "ars": ARS},
    "ppo_lstm": ON_POLICY,
}
CLASSES = {
    **{algo: algo.upper() for algo in LAYOUTS},
    **{"maskableppo": "MaskablePPO", "crossq": "CrossQ", "ppo_lstm": "RecurrentPPO"},
}
"""Name of each algorithm's class."""
SCORING = frozenset(algo for algo, layout in LAYOUTS.items() if not layout.distribution)
"""Algorithms whose scores of discrete actions are not a distribution: only the greedy action counts."""


def bare(name: str) -> str:
    """Return a parameter's name without the parts that torch.compile and DataParallel add for their wrappers."""
    return ".".join(part for part in name.split(".") if part not in ("_orig_mod", "module"))


class Parameters:
    """A policy's tensors by name; each tensor must be taken or known to be unused."""

    def __init__(self, state: Mapping[str, Array], *, biased: bool = True) -> None:
        """Hold the tensors of a policy; biased: False if no layer has a bias, as in linear policies of ARS."""
        self.biased = biased
        self.state = {name: array for name, array in state.items() if TRAINED_RANGES not in name.split(".")}
        self.taken: set[str] = set()

    def take(self, name: str, shape: tuple[int, ...] | int) -> Array:
        """Return the float32 tensor of that name; `shape` is its expected shape, or its number of axes."""
        if name not in self.state:
            raise QuarlError(f"parameter {name!r} is missing; the file is damaged or the policy is a custom one")
        array = self.state[name]
        if array.ndim != shape if isinstance(shape, int) else array.shape != shape:
            raise QuarlError(
                f"parameter {name!r} has shape {array.shape}, expected {shape}; the policy is a custom one"
            )
        if not np.isfinite(array).all():
            raise QuarlError(f"parameter {name!r} holds NaN or infinity; the policy cannot be used")
        self.taken.add(name)
        return array.astype(np.float32, copy=False)

    def layer(self, name: str, axes: int) -> tuple[str, Array, Array]:
        """Return (name, weight, bias) of one layer."""
        weight = self.take(f"{name}.weight", axes)
        bias = self.take(f"{name}.bias", weight.shape[:1]) if self.biased else np.zeros(len(weight), np.float32)
        return name, weight, bias

    def chain(self, prefix: str) -> list[tuple[str, Array, Array]]:
        """Return the dense layers of a Sequential module.

        They are every second module; CrossQ has a batch renormalization in front of each. Linear policies of ARS once
        had a layer with the module's own name.
        """
        if f"{prefix}.weight" in self.state:
            return [self.layer(prefix, 2)]
        pattern = re.compile(rf"{re.escape(prefix)}\.([0-9]{{1,6}})\.weight")
        places = sorted(int(match[1]) for match in map(pattern.fullmatch, self.state) if match)
        first = int(f"{prefix}.1.weight" in self.state)
        if places != list(range(first, (2 + first) * len(places), 2 + first)):
            raise UnsupportedError(
                f"{prefix} has layers at places {places[:8]}; only dense layers with one activation are known"
            )
        return [self.layer(f"{prefix}.{place}", 2) for place in places]

    def refuse_others(self, ignored: tuple[str, ...]) -> None:
        """Raise CustomError for a parameter that was not taken, unless its prefix is in `ignored`."""
        for name in self.state:
            if name not in self.taken and not name.startswith(ignored):
                kind = "recurrent" if re.search(r"_[ih]h_l\d", name) else "custom"
                raise CustomError(
                    f"parameter {name[:80]!r} does not belong to a known network; the policy is a {kind} one"
                )


def network(
    parameters: Parameters,
    layout: Layout,
    parts: Mapping[str, tuple[str, Shape]],
    kwargs: Mapping[str, Any],
    *,
    gsde: bool,
    memory: bool = False,
) -> tuple[list[Op], list[State]]:
    """Return the operators from the features extractor to the actor's output, before any tanh, and its state.

    Args:
        parameters: Tensors of the policy; those that are used are taken.
        layout: Names of the actor's modules.
        parts: Values that the network reads, from `observation.front`.
        kwargs: Keyword arguments of the policy; classes are text as Python prints them.
        gsde: State-dependent exploration, which bounds the mean of a SAC actor.
        memory: An LSTM reads the features.

    Raises:
        QuarlError: A parameter is missing, damaged or belongs to a custom network.
    """
    ops: list[Op] = []
    extractor = _class(kwargs, "features_extractor_class", EXTRACTORS_IN)
    if extractor not in (None, *EXTRACTORS):
        # with a memory, no other reader can compute it either
        kind = UnsupportedError if memory else CustomError
        raise kind(f"features extractor {extractor} is not supported; {', '.join(EXTRACTORS)} are")
    # Features of each part: a CNN, a flattened value, or the value itself.
    features = []
    for key, (source, shape) in parts.items():
        prefix = f"{layout.extractor}.extractors.{key}" if key else layout.extractor
        if f"{prefix}.cnn.0.weight" in parameters.state:
            ops += _nature_cnn(parameters, prefix, source)
        elif len(shape) > 1:
            ops.append(Flatten(f"{source}.flatten", (source,)))
        features.append(ops[-1].name if len(shape) > 1 else source)
    if len(features) > 1:
        ops.append(Concat(f"{features[0]}.concat", tuple(features)))
    source = ops[-1].name if len(features) > 1 else features[0]
    source, states = _lstm(parameters, ops, source) if memory else (source, [])
    layers = [layer for chain in layout.chains for layer in parameters.chain(chain)]
    # gSDE wraps the mean of a SAC actor in Sequential(Linear, Hardtanh).
    clipped = layout is SAC and gsde and "actor.mu.0.weight" in parameters.state
    if layout.output is not None:
        layers.append(parameters.layer(f"{layout.output}.0" if clipped else layout.output, 2))
    name = _class(kwargs, "activation_fn", r"torch\.nn\.modules\.activation")
    if name is not None and name not in FUNCTIONS:
        raise UnsupportedError(f"activation function {name} is not supported; {', '.join(FUNCTIONS)} are")
    ops += mlp(layers, layout.activation if name is None else FUNCTIONS[name], source)
    if clipped:
        bound = kwargs.get("clip_mean", SAC_CLIP_MEAN)
        if not isinstance(bound, int | float) or not bound > 0:
            raise QuarlError(f"clip_mean of the policy is {str(bound)[:40]}, not a positive number")
        ops.append(clamp(ops[-1].name, layers[-1][2].shape, float(bound)))
    return ops, states


def _lstm(parameters: Parameters, ops: list[Op], source: str) -> tuple[str, list[State]]:
    """Add the layers of the actor's LSTM; return its output, and the hidden state and the cell of each layer.

    As in sb3-contrib, they are zeros at the start of an episode.
    """
    made: dict[str, Op] = {}
    states: list[State] = []
    names = [name for name in parameters.state if re.fullmatch(r"lstm_actor\.weight_ih_l[0-9]+", name)]
    for layer in range(max(1, len(names))):  # one at least, so that a missing one is an error
        axes = {"weight_ih": 2, "weight_hh": 2, "bias_ih": 1, "bias_hh": 1}
        weights = Weights(*(parameters.take(f"lstm_actor.{name}_l{layer}", num) for name, num in axes.items()))
        if {len(array) for array in weights} != {4 * weights.hidden.shape[1]}:
            raise UnsupportedError(f"layer {layer} of lstm_actor is not a plain LSTM; projected ones are not supported")
        name, start = f"lstm_actor.{layer}", np.zeros(weights.hidden.shape[1], np.float32)
        last = f"{name}.h", f"{name}.c"
        source, cell = lstm(lambda op: made.setdefault(op.name, op).name, name, source, last, weights)
        states += [State(last[0], source, start, HIDDEN), State(last[1], cell, start)]
    ops += made.values()
    return source, states


def _nature_cnn(parameters: Parameters, prefix: str, source: str) -> list[Op]:
    ops: list[Op] = []
    for place, kernel, stride in NATURE_CNN:
        name, weight, bias = parameters.layer(f"{prefix}.cnn.{place}", 4)
        if weight.shape[2:] != (kernel, kernel):
            raise UnsupportedError(f"{name} has a kernel of {weight.shape[2:]}; only NatureCNN ({kernel}) is known")
        ops.append(Conv2d(name, (source,), weight, bias, (stride, stride)))
        ops.append(Activation(f"{name}.relu", (name,), "relu"))
        source = ops[-1].name
    ops.append(Flatten(f"{source}.flatten", (source,)))
    name, weight, bias = parameters.layer(f"{prefix}.linear.0", 2)
    ops.append(Dense(name, (ops[-1].name,), weight, bias))
    ops.append(Activation(f"{name}.relu", (name,), "relu"))
    return ops


def _class(kwargs: Mapping[str, Any], key: str, module: str) -> str | None:
    """Return the class name in an entry such as "<class 'torch.nn.modules.activation.ReLU'>"; None if there is none."""
    if kwargs.get(key) is None:
        return None
    match = re.fullmatch(_VALUE.format(module), str(kwargs[key])[:200])
    return match[1] if match else str(kwargs[key])[:80]
