"""A trained agent to start from: architecture and weights of a Stable-Baselines3 zip, without executing anything in it.

Stable-Baselines3's own `load` unpickles the file's contents. Here a model is built from hyper-parameters and the
architecture that the file describes, and receives the file's weights by name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecNormalize

from quarl.algorithms.learners import learner_class
from quarl.algorithms.zoo_arguments import mapping
from quarl.errors import QuarlError
from quarl.inert.yaml import read_yaml
from quarl.inert.zip import Opened
from quarl.literals import Name, spell
from quarl.policy.graph import Policy
from quarl.policy.trained import TRAINED_RANGES
from quarl.readers import find, sb3, zoo
from quarl.readers.normalizer import read_options, read_statistics, sentence
from quarl.readers.sb3_network import FUNCTIONS
from quarl.readers.torch_file import read_tensors
from quarl.specs import LEARNERS

SHAPING = (
    *("net_arch", "activation_fn", "n_critics", "share_features_extractor", "normalize_images", "squash_output"),
    *("full_std", "use_expln", "clip_mean", "v_min", "v_max", "num_atoms"),
)
"""Arguments of a policy that determine its networks and their computation."""
ENVIRONMENT = ("normalize", "env_wrapper", "env_kwargs", "frame_stack", "vec_env_wrapper")
"""Hyper-parameters that determine the agent's observations."""
CRITICS = set(range(1, 11))
"""Supported numbers of critics of a policy."""
ALIASES = ("pi_features_extractor.", "vf_features_extractor.")
"""Other names of features_extractor, in files of releases that saved it once."""


class TrainedAgent:
    """Contents of a Stable-Baselines3 zip."""

    def __init__(self, path: Path, algo: str, normalize: str | None = None, frame_stack: int | None = None) -> None:
        """Read the zip.

        Raise QuarlError if it holds another algorithm's agent, or a model that QuaRL does not support.
        """
        file = find.opened(path)
        if not (file.start or file.contents()).startswith(b"PK"):
            raise QuarlError(f"{file} is not a zip file: -i takes agents of Stable-Baselines3")
        saved = sb3.contents(file)
        self.path = path = saved.path
        self.policy: Policy = saved.policy(*zoo.read_settings(path, normalize, frame_stack), trained=False)
        self.asked, self.settings = normalize, find.settings_folder(path)
        self.statistics, _ = zoo.find_statistics(path, self.settings, normalize)
        if (trained_by := saved.algorithm()) != algo:
            trains = trained_by in LEARNERS
            way = "name the algorithm that trained it with --algo" if trains else "quarl ptq and quarl distill take it"
            raise QuarlError(f"{path} is a {trained_by} agent, not {algo}; {way}")
        self.algo = algo
        self.state = {name: array for name, array in saved.state.items() if TRAINED_RANGES not in name.split(".")}
        self.gsde = bool(saved.data.get("use_sde"))
        self.kwargs = saved.kwargs

    def adapt(self, tuned: Mapping[str, Any], given: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
        """Return the tuned hyper-parameters with the file's architecture and wrappers, overridden by the given ones.

        Args:
            tuned: Tuned hyper-parameters.
            given: Typed hyper-parameters.
            say: Receives a line about the observations' normalization.

        Returns:
            The hyper-parameters by name.
        """
        adapted = {**tuned, **given}
        # wrappers as the agent was trained with
        document = (self.settings or self.path) / "config.yml"
        if documented := document.is_file():
            trained_with = read_yaml(document)
            adapted |= {name: trained_with.get(name) for name in ENVIRONMENT}
            adapted["env_kwargs"] = dict(self.policy.provenance.env_kwargs) or None
        # normalization follows the statistics beside the zip
        if self.asked is not None or not documented or not adapted.get("normalize"):
            if self.statistics is not None:
                adapted["normalize"] = read_options(self.statistics)
            elif adapted.get("normalize"):
                adapted["normalize"] = False
        say(sentence(self.policy))
        adapted["policy_kwargs"] = spell(self._architecture(adapted.get("policy_kwargs") or {}))
        if self.gsde or adapted.get("use_sde"):
            adapted["use_sde"] = self.gsde
        if self.algo == "dqn":
            defaults = inspect.signature(learner_class("dqn").__init__).parameters
            final = adapted.get("exploration_final_eps")
            adapted["exploration_initial_eps"] = defaults["exploration_final_eps"].default if final is None else final
        return adapted | {name: value for name, value in given.items() if name != "policy_kwargs"}

    def _architecture(self, given: Any) -> dict[str, Any]:
        """Return the given policy_kwargs with the file's values for those that shape the networks."""
        kwargs = mapping(given, "policy_kwargs", self.path, names=True)
        kwargs = {name: value for name, value in kwargs.items() if name not in SHAPING}
        for name in SHAPING:
            if self.kwargs.get(name) is not None:
                kwargs[name] = self._shaping(name, self.kwargs[name])
        return kwargs

    def _shaping(self, name: str, value: Any) -> Any:
        if name == "activation_fn":
            match = re.fullmatch(r"<class 'torch\.nn\.modules\.activation\.(\w+)'>", str(value)[:200])
            if match is None or match[1] not in FUNCTIONS:
                raise QuarlError(f"{self.path}: activation function {str(value)[:60]} is not supported")
            return Name(f"nn.{match[1]}")
        if name == "net_arch" and isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
            value = value[0]  # the form before Stable-Baselines3 1.8
        sizes = {size for array in self.state.values() for size in array.shape}
        possible = {"net_arch": sizes, "num_atoms": sizes, "n_critics": CRITICS}.get(name)
        _check_plain(value, f"{self.path}: {name} of its policy", possible)
        return value

    def give(self, model: BaseAlgorithm) -> None:
        """Load weights and statistics into the model; its first actions already use them."""
        if self.policy.observation_shape != (shape := model.observation_space.shape):
            raise QuarlError(
                f"{self.path} observes {self.policy.observation_shape} and this environment gives {shape}; "
                "name the one that it was trained on with --env"
            )
        # the file's weights under the names of this release
        here = model.policy.state_dict()
        state = dict(self.state)
        for name in here.keys() - state.keys():
            for alias in ALIASES:
                source = name.replace(alias, "features_extractor.", 1)
                if name.startswith(alias) and source in state:
                    state[name] = state[source]
        # compare all shapes before anything is loaded
        for name in sorted({*here, *state}):
            saved, expected = (str(tuple(d[name].shape)) if name in d else "missing" for d in (state, here))
            if saved != expected:
                raise QuarlError(f"{self.path}: {name} is {saved} in the file and {expected} in a {self.algo} model")
        model.policy.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        for name, network in model.policy.named_children():
            if name.endswith("_target"):
                network.load_state_dict(getattr(model.policy, name.removesuffix("_target")).state_dict())
        self._give_entropy(model)
        wrapper = model.get_vec_normalize_env()
        if wrapper is not None:
            self._give_statistics(wrapper)
        if isinstance(model, OffPolicyAlgorithm):
            act_before_learning(model)

    def _give_entropy(self, model: BaseAlgorithm) -> None:
        """Load SAC's entropy coefficient if both the file and the model learn it."""
        coefficient: torch.Tensor | None = getattr(model, "log_ent_coef", None)
        name = "pytorch_variables.pth"
        if coefficient is None or (member := Opened(self.path).unpacked(name).get(name)) is None:
            return
        saved = read_tensors(member, f"{self.path}: {name}").get("log_ent_coef")
        if saved is not None and saved.shape == tuple(coefficient.shape):
            with torch.no_grad():
                coefficient.copy_(torch.from_numpy(saved))

    def _give_statistics(self, wrapper: VecNormalize) -> None:
        saved = {} if self.statistics is None else read_statistics(self.statistics)
        for name, (mean, variance, count) in saved.items():
            statistics: Any = getattr(wrapper, name, None)
            if statistics is None:
                continue
            if statistics.mean.shape != mean.shape or mean.shape != variance.shape:
                raise QuarlError(f"{self.statistics}: {name} has shape {mean.shape}, expected {statistics.mean.shape}")
            statistics.mean, statistics.var, statistics.count = mean, variance, count


def act_before_learning(model: OffPolicyAlgorithm) -> None:
    """Make the agent act, with its exploration, before learning starts; a new one would act at random."""
    plain = model._sample_action

    def sample(learning_starts: int, *args: Any, **kwargs: Any) -> Any:
        return plain(0, *args, **kwargs)

    vars(model)["_sample_action"] = sample


def _check_plain(value: Any, what: str, possible: set[int] | None) -> None:
    """Raise QuarlError unless `value` is a number among the `possible` ones, or a short list or dict of such numbers.

    Values in the file are accepted only as far as the shapes of its weights confirm them.
    """
    if isinstance(value, list | dict) and len(value) <= 100:
        if isinstance(value, dict) and not all(isinstance(key, str) and key.isidentifier() for key in value):
            raise QuarlError(f"{what} is {str(value)[:60]!r}, not numbers by name")
        for entry in value.values() if isinstance(value, dict) else value:
            _check_plain(entry, what, possible)
    elif not isinstance(value, int | float) or (possible is not None and value not in possible):
        raise QuarlError(f"{what} is {str(value)[:60]!r}, which its weights are not")
