"""Options of the verbs that use one trained policy."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from quarl.config.base import Config, EnvId, Normalize
from quarl.config.environment import EnvironmentConfig
from quarl.errors import QuarlError
from quarl.fields import QUANTISATION, shown
from quarl.specs import PATH, SEED, check_envelope


@dataclass(frozen=True, kw_only=True)
class StatedConfig(Config):
    """A verb that reads policies from files that may not define their actions."""

    head: Annotated[str, shown("HEAD", default="the file's")] = ""
    """Meaning of the output of an .onnx file, TorchScript or a checkpoint: raw, clip[:LOW,HIGH], tanh[:LOW,HIGH],
    argmax[:2,3,...] or gaussian.
    """
    output_name: Annotated[str, shown("NAME", default="the only one")] = ""
    """Output of an .onnx file that is the action."""
    activation: Annotated[str, shown("NAME", default="that of agent.yaml")] = ""
    """Function between the layers of a checkpoint of rsl_rl, rl_games or skrl, such as elu."""
    fix: Annotated[tuple[str, ...], shown("NAME=VALUE ...")] = ()
    """Inputs of an .onnx file that are constant; action_masks is 1."""

    def check(self) -> None:
        super().check()
        self.stated()

    def stated(self) -> dict[str, Any]:
        """Return the options as `load` takes them in Python."""
        fixed: dict[str, float] = {}
        for word in self.fix:
            name, _, number = word.rpartition("=")
            try:
                fixed[name] = float(number)
            except ValueError:
                fixed[name] = math.nan
            if not name or not math.isfinite(fixed[name]):
                raise QuarlError(f"--fix takes NAME=VALUE with a finite number, got {word!r}")
        return {"head": self.head, "output_name": self.output_name, "fix": fixed, "activation": self.activation}


@dataclass(frozen=True, kw_only=True)
class NamedModel(StatedConfig):
    """A verb that uses one trained policy without an environment."""

    model: Positional[Annotated[tuple[str, ...], shown("MODEL")]] = ()
    """A Stable-Baselines3 zip, zoo run folder, Stable-Baselines 2 file, .onnx file or saved policy; hub:ORG/NAME of the
    Hugging Face Hub; or ALGO ENV with -f FOLDER.
    """
    folder: Annotated[Path | None, shown("FOLDER", "-f")] = None
    """Folder of agents in the zoo's layout, FOLDER/ALGO/ENV_1/ENV.zip, for a MODEL in two words."""

    def check(self) -> None:
        super().check()
        if not self.model:
            raise QuarlError(f"MODEL is missing: add it before the options, as in quarl {self.verb} MODEL")
        self.check_model()

    def look(self) -> None:
        check_paths(self.model if self.folder is None else ())

    def check_model(self) -> None:
        """Refuse words that do not name a model."""
        words = shlex.join(self.model)
        if len(self.model) > 2:
            raise QuarlError(f"MODEL is a path or two words ALGO ENV, got {len(self.model)} words: {words}")
        if len(self.model) == 2 and self.folder is None:
            raise QuarlError(f"MODEL {words} is two words ALGO ENV: add the folder of the agents with -f FOLDER")
        if len(self.model) == 1 and self.folder is not None:
            raise QuarlError(f"-f FOLDER requires two words ALGO ENV, got only {words}: add the environment or drop -f")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(NamedModel, EnvironmentConfig):
    """A verb that uses one trained policy and an environment to play in."""

    normalize: Normalize = None
    """VecNormalize statistics that the agent observed with, or none."""
    env: EnvId = None
    """Gymnasium id of the environment; my_module:MyEnv-v0 first imports my_module, which registers it."""
    seed: Annotated[int, SEED] = 0
    """Seed of the episodes; episode k starts from the same state at every precision."""


@dataclass(frozen=True, kw_only=True)
class CalibratedConfig(ModelConfig):
    """A verb that calibrates grids of static mode."""

    envelope: Annotated[str, shown("path|visited*K|env|FILE"), QUANTISATION] = PATH
    """States that the grids of static mode cover: path, the recorded ones; visited*K, also farther from their mean by
    factors up to K; env, also those of perturbed episodes and random starts; or also the rows of a file.
    """

    def check(self) -> None:
        super().check()
        check_envelope(self.envelope, getattr(self, "mode", None))


def check_paths(paths: Iterable[str]) -> None:
    """Refuse a path that does not exist."""
    for path in paths:
        if not (path.startswith("hub:") or os.path.exists(path) or os.path.exists(f"{path}.zip")):
            raise QuarlError(f"no file {path}; check the path")
