"""Reader of Stable-Baselines3 zips and RL Zoo folders; nothing in them is executed.

A zip holds `data` (JSON, with pickles as base64 text) and `policy.pth` (the parameters by name). The names determine
the algorithm and the order of its layers; only the activation function has to be read from `data`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quarl.arrays import Array
from quarl.errors import QuarlError, UnsupportedError
from quarl.inert.objects import Inert
from quarl.inert.pickle import read_base64
from quarl.inert.reading_budget import read_json
from quarl.inert.zip import Opened
from quarl.policy.graph import Policy, Provenance
from quarl.policy.operators import Dense
from quarl.policy.trained import KEY, as_trained, is_prepared
from quarl.readers import zoo
from quarl.readers.fold import RENORM_EPSILON, fold_renorm, mean_over_quantiles
from quarl.readers.normalizer import Statistics
from quarl.readers.observation import front, normalizers, observe
from quarl.readers.plain_spaces import Box, Discrete, Space, action_head, as_pairs, from_blob
from quarl.readers.sb3_network import (
    ARS,
    CLASSES,
    LAYOUTS,
    ON_POLICY,
    QRDQN,
    CustomError,
    Parameters,
    bare,
    network,
)
from quarl.readers.torch_file import read_tensors

SBX = (
    "is an agent of SBX (Stable-Baselines Jax), which pickles its network as code of Jax that is never run: copy its "
    "parameters into an nn.Module (kernels transposed) and give that to quarl.from_module"
)
_OF_JAX = re.compile(rb"\b(sbx|jax|jaxlib|flax|optax)\.")
"""Modules that JSON names in plain text; base64 text has no dot."""


def read_zip(
    path: str | Path | Opened,
    algo: str = "",
    normalize: str | Path | None = None,
    frame_stack: int | None = None,
    *,
    trained: bool = True,
) -> Policy:
    """Return the policy in an SB3 zip; environment and observation statistics come from the zoo's files beside it.

    Args:
        path: The zip.
        algo: Expected algorithm of the zip; "" accepts any.
        normalize: As in `load.read`.
        frame_stack: As in `load.read`.
        trained: Return a model of quantization-aware training in the integers that it acts in, not in float32.

    Raises:
        QuarlError: The zip is damaged, not supported, or holds another algorithm.
    """
    saved = contents(path)
    return saved.policy(*zoo.read_settings(saved.path, normalize, frame_stack), algo, trained=trained)


def contents(path: str | Path | Opened) -> Saved:
    """Read the model's attributes and parameters; raise QuarlError for any other file."""
    members = Opened(path).unpacked("data", "policy.pth")
    if "policy.pth" not in members and _OF_JAX.search(members.get("data", b"")):
        raise UnsupportedError(f"{path} {SBX}")
    if missing := {"data", "policy.pth"} - members.keys():
        raise QuarlError(f"{path} has no member {min(missing)!r}; it is not a Stable-Baselines3 model")
    data = read_json(members["data"], f"{path}: member 'data'")
    state = read_tensors(members["policy.pth"], f"{path}: policy.pth")
    named = {bare(name): array for name, array in state.items()}
    if len(named) < len(state):
        raise QuarlError(f"{path} has a parameter twice, with and without '_orig_mod.' or 'module.'; save it again")
    return Saved(Path(path), data, named)


@dataclass(frozen=True, eq=False, slots=True)
class Saved:
    """The content of a Stable-Baselines3 model's zip."""

    path: Path
    data: Mapping[str, Any]
    """Attributes; pickles in them are base64 text."""
    state: Mapping[str, Array]
    """Parameters by name."""

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Return the arguments of the policy class."""
        return self.data["policy_kwargs"] if isinstance(self.data.get("policy_kwargs"), dict) else {}

    def policy(
        self, environment: Provenance, statistics: Statistics | None, asked: str = "", *, trained: bool = True
    ) -> Policy:
        """Return the policy of the model.

        Args:
            environment: The training environment, from `zoo.read_settings`.
            statistics: Statistics of the model's observations, also from `zoo.read_settings`.
            asked: Expected algorithm; "" accepts any.
            trained: As in `read_zip`.

        Raises:
            QuarlError: The model is damaged, of another algorithm, or of a kind that QuaRL does not run.
        """
        try:
            policy = self._policy(environment, statistics, asked)
            if trained and (is_prepared(self.state) or self._module.startswith("quarl.qat.")):
                return as_trained(policy, self.data["policy_kwargs"].get(KEY), self.state, self.path.name)
            return policy
        except CustomError as error:
            way = self._way(Path(environment.statistics).name if statistics else "")
            raise CustomError(f"{self.path}: {error}; {way}") from None
        except QuarlError as error:
            raise type(error)(f"{self.path}: {error}") from None

    def algorithm(self, asked: str = "") -> str:
        """Return the algorithm by the policy class, by parameter names and, if two share them, by attributes.

        Raises:
            QuarlError: The model is not of the algorithm `asked`, if that is not "", or not of a known one.
        """
        data, state = self.data, self.state
        contrib = re.match(r"sb3_contrib\.(?:common\.)?(\w+)\.", self._module)
        if contrib:
            algo = {"maskable": "maskableppo", "recurrent": "ppo_lstm"}.get(contrib[1], contrib[1])
        elif "action_net.weight" in state:
            algo = "trpo" if "cg_max_steps" in data else "ppo" if "clip_range" in data or "n_epochs" in data else "a2c"
        elif any(name.startswith("q_net.q_net.") for name in state):
            algo = "dqn"
        elif any(name.startswith("actor.log_std") for name in state):
            algo = "sac"
        elif "actor.mu.0.weight" in state and "critic.atoms" in state:
            algo = "d4pg"
        elif "actor.mu.0.weight" in state:
            algo = "ddpg" if data.get("policy_delay") == 1 and not data.get("target_noise_clip") else "td3"
            algo = asked if asked in ("ddpg", "td3") else algo  # one network; they differ in how it was trained
        else:
            first = min(state, default="nothing")
            raise UnsupportedError(f"its parameters ({first[:60]}, ...) do not match any agent of {', '.join(LAYOUTS)}")
        if algo not in LAYOUTS:
            raise UnsupportedError(f"it is a {algo[:40]} agent; only {', '.join(LAYOUTS)} are supported")
        if asked not in ("", algo):
            raise QuarlError(f"it is a {algo} agent, not {asked}; name the algorithm that trained it")
        return algo

    def _policy(self, environment: Provenance, statistics: Statistics | None, asked: str) -> Policy:
        data, state, module, kwargs = self.data, self.state, self._module, self.kwargs
        if not module.startswith(("stable_baselines3.", "sb3_contrib.", "quarl.algorithms.", "quarl.qat.")):
            raise CustomError(
                f"the policy class is from {module[:80]}; only Stable-Baselines3's, sb3-contrib's and D4PG's own are "
                "known"
            )
        algo = self.algorithm(asked)
        layout, gsde = LAYOUTS[algo], bool(data.get("use_sde"))
        observed = observe(from_blob(data.get("observation_space"), "observation_space"), "observation_space")
        actions = from_blob(data.get("action_space"), "action_space")
        actions = as_pairs(actions) if algo == "maskableppo" else actions
        if not isinstance(actions, Discrete if layout.values else Box if layout.tanh else Space):
            raise QuarlError(f"action_space is {type(actions).__name__}, which {algo} cannot have; the file is damaged")
        # ARS has other defaults than all other algorithms.
        biased, squashed = True, layout.tanh or (gsde and kwargs.get("squash_output") is True)
        if layout is ARS:  # a linear policy has other defaults
            mlp = not _is_linear(data["policy_class"])
            biased, squashed = (kwargs.get(name, mlp) is True for name in ("with_bias", "squash_output"))
        head = action_head(actions, "action_space", squashed=squashed)
        parameters = Parameters(state, biased=biased)
        scales = kwargs.get("normalize_images") is not False
        apart = any(f"{layout.extractor}.extractors.{each.key}.cnn.0.weight" in state for each in observed.inputs)
        # Operators in front of the network, the network, and rewrites of some algorithms.
        norms, environment = normalizers(observed, statistics, environment)
        ops, parts = front(observed, norms, scales=scales, apart=apart)
        layers, states = network(parameters, layout, parts, kwargs, gsde=gsde, memory=algo == "ppo_lstm")
        ops += layers
        if algo == "crossq":
            ops = fold_renorm(ops, parameters, kwargs.get("batch_norm_eps", RENORM_EPSILON))
        if layout is QRDQN:
            ops = mean_over_quantiles(ops, actions.width, data.get("n_quantiles"))
        if head.is_discrete:
            last = ops[-1]
            assert isinstance(last, Dense)
            if (scores := last.bias.size) != actions.width:
                raise QuarlError(
                    f"the network scores {scores} actions, action_space has {actions.width}; the file is damaged"
                )
        elif layout is ON_POLICY and not squashed and not gsde:
            head = replace(head, log_std=parameters.take("log_std", (actions.width,)))
        parameters.refuse_others(layout.ignored)
        return Policy(
            **observed.read_by(ops, states),
            head=replace(head, width=actions.width if states else 0),
            provenance=replace(
                environment, algo=algo, stochastic=zoo.samples_actions(algo, environment.env_id), origin="sb3-zip"
            ),
        )

    def _way(self, statistics: str) -> str:
        """Return instructions for reading, live, an agent that only its own code can compute."""
        try:
            algo = self.algorithm()
        except QuarlError:  # its networks have other names
            algo = "ppo"
        env = f", env=VecNormalize.load({statistics!r}, venv)" if statistics else ""
        load = f"{CLASSES[algo]}.load(path{env})"
        return f'its own code reads it: model = {load}; quarl.from_sb3(model).save("policy.quarl")'

    @property
    def _module(self) -> str:
        """Return the module of the policy class."""
        return str(
            self.data["policy_class"].get("__module__") if isinstance(self.data.get("policy_class"), dict) else None
        )


def _is_linear(entry: Mapping[str, Any]) -> bool:
    """Return whether the policy class of an ARS agent is the linear one, which only its pickle records."""
    named = read_base64(str(entry.get(":serialized:")), "policy_class")
    return isinstance(named, Inert) and named.name == "ARSLinearPolicy"
