"""Options of `quarl compare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional

from quarl.config.base import DrawnConfig, EnvId, Observations, Output
from quarl.config.precisions import UNPLAYED
from quarl.config.trained_policy import check_paths
from quarl.errors import QuarlError
from quarl.fields import shown
from quarl.specs import CompareSpec


@dataclass(frozen=True, kw_only=True)
class CompareConfig(CompareSpec, DrawnConfig):
    """Compare agents with a baseline on the same episodes, however they were quantized or exported."""

    verb: ClassVar[str] = "compare"
    examples = (
        "quarl compare logs/dqn/CartPole-v1_1 out/int8.safetensors small/int4e8.safetensors -o compared",
        "quarl compare fp32=model.zip tflite=quarl-export c=firmware --baseline fp32 --episodes auto",
    )

    model: Positional[Annotated[tuple[str, ...], shown("MODEL ...")]] = ()
    """Agents: a model as for other verbs, a saved policy, or an exported folder or file. NAME=PATH gives an agent a
    name; otherwise the path is the name.
    """
    env: EnvId = None
    """Gymnasium id of the environment for all agents; my_module:MyEnv-v0 first imports my_module, which registers it.
    """
    observations: Observations = None
    """Recorded observations, .npy, .npz or .csv with a row per step, instead of an environment: actions on the last
    tenth are compared, and no return is measured.
    """
    output: Output = Path("quarl-compare")
    """Folder for comparison.json, tables.tex, returns.csv and the figure comparison.png."""

    def check(self) -> None:
        super().check()
        if not self.model:
            raise QuarlError("MODEL is missing: add two or more before the options, as in quarl compare A B")
        if len(self.agents()) < len(self.model):
            raise QuarlError("two agents have the same name: name one of them in NAME=PATH, as in again=PATH")
        if self.observations is not None:
            self.refuse(UNPLAYED, "requires an environment, and --observations replaces it")

    def look(self) -> None:
        check_paths(self.agents().values())

    def agents(self) -> dict[str, str]:
        """Return the path of each agent by its name, which is the path if no other one is given."""
        return {word.partition("=")[0]: word.partition("=")[2] or word for word in self.model}
