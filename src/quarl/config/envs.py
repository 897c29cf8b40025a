"""What `quarl envs` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from quarl.config.environment import OPTIONS, EnvironmentConfig
from quarl.errors import QuarlError


@dataclass(frozen=True, kw_only=True)
class EnvsConfig(EnvironmentConfig):
    """List the suites of environments, or say of one environment what it is like and which algorithms fit."""

    verb: ClassVar[str] = "envs"
    positional: ClassVar[tuple[str, ...]] = ("env",)

    env: Positional[Annotated[tuple[str, ...], arg(metavar="[ID]", help_behavior_hint="")]] = ()
    """Gymnasium id of an environment; without it all suites."""
    suite: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: all)")] = None
    """List the ids of this suite: classic, toy-text, box2d, mujoco, atari, pybullet or dm-control."""

    def check(self) -> None:
        super().check()
        if len(self.env) > 1:
            raise QuarlError(f"ID is one environment, got {len(self.env)} words: {' '.join(self.env)}")
        if not self.env:
            self.refuse(OPTIONS, "is of one environment", "name its ID")
        if self.env and self.suite is not None:
            raise QuarlError(f"ID {self.env[0]} is of one suite already: drop --suite")
