"""Options of `quarl robust`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional

from quarl.config.base import DrawnConfig, EnvId, Output, check_folder
from quarl.config.trained_policy import check_paths
from quarl.errors import QuarlError
from quarl.fields import AT_LEAST_ONE, NOT_NEGATIVE, PERCENTAGE, QUANTISATION, SOME, Bound, shown
from quarl.specs import SEED, PtqSpec

COUNTS = r"0*[1-9]\d{0,8}"
NUMBERS = rf"({COUNTS}(\.\d*)?|0*\.0*[1-9]\d*)"
"""Regular expressions of levels, which are above 0."""
LEAST = Bound("must be at least 10, below which every verdict is undecided", lambda episodes: episodes >= 10)


@dataclass(frozen=True, kw_only=True)
class RobustConfig(DrawnConfig):
    """Compare precisions under disturbances: noise, delay, control rate, pushes and changed dynamics."""

    verb: ClassVar[str] = "robust"
    examples = (
        "quarl robust logs/dqn/CartPole-v1_1 --levels noise:0.1,0.3 delay:1,2 length:0.5,2 -o robust",
        "quarl robust out/fp32.safetensors --levels push:0.5,1 control-hz:25,100 mass:0.8,1.2 friction:0.5,2",
    )

    model: Positional[Annotated[str, shown("MODEL")]] = ""
    """A float policy, as for quarl ptq; its out/fp32.safetensors includes the environment with all options."""
    env: EnvId = None
    """Gymnasium id of the environment; my_module:MyEnv-v0 first imports my_module, which registers it."""
    levels: Annotated[tuple[str, ...], shown("NAME:A,B,... ..."), SOME] = ("noise:0.1,0.3,1", "delay:1,2,4")
    """Sweeps. noise: deviation of Gaussian noise on each input, and push: of kicks of each velocity, in units of its
    standard deviation on the path. delay: control steps. control-hz: control rate. Otherwise the name of a parameter of
    the dynamics, and its factors: mass, friction, damping or gravity of MuJoCo, or a constant such as length.
    """
    bits: Annotated[tuple[str, ...], shown("BITS ..."), QUANTISATION, SOME] = ("8", "4", "2")
    """Precisions, with static and with dynamic activations, beside fp32."""
    episodes: Annotated[int, LEAST] = 20
    """Episodes of every cell; episode k has the same start and the same disturbance at every precision."""
    margin: Annotated[float, shown("PERCENT"), PERCENTAGE] = 5.0
    """Acceptable loss of return, in percent of that of fp32 under the same disturbance."""
    jobs: Annotated[int, AT_LEAST_ONE] = 1
    """Number of simultaneous cells, each on one core."""
    minutes: Annotated[float, shown("FLOAT", default="no bound"), NOT_NEGATIVE] = math.inf
    """Minutes after which no new cell starts; repeat the command to continue."""
    seed: Annotated[int, SEED] = 0
    """Seed of the episodes and of the disturbances."""
    output: Output = Path("quarl-robust")
    """Folder of the study, its rows, figures and page."""

    def check(self) -> None:
        super().check()
        if not self.model:
            raise QuarlError("MODEL is missing: add it before the options, as in quarl robust MODEL")
        self.sweeps()
        PtqSpec(bits=self.bits).check()
        check_folder(self.output)

    def look(self) -> None:
        check_paths((self.model,))

    def sweeps(self) -> dict[str, tuple[float, ...]]:
        """Return the levels of each disturbance."""
        found: dict[str, tuple[float, ...]] = {}
        for word in self.levels:
            name, _, listed = word.partition(":")
            counted = NUMBERS if name != "delay" else COUNTS
            if name in found or not re.fullmatch(rf"[\w-]+:{counted}(,{counted})*", word):
                raise QuarlError(
                    f"--levels {word!r} is not NAME:LEVEL,... with numbers above 0, of whole steps for delay, and each "
                    "name once, as in noise:0.1,0.3 delay:1,2"
                )
            found[name] = tuple(dict.fromkeys(map(float, listed.split(","))))
        return found
