"""Options of every verb that creates an environment, beside its id."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from quarl import literals
from quarl.config.base import Config, hyperparameters
from quarl.fields import AT_LEAST_ONE, ENVIRONMENT, shown
from quarl.literals import named_wrapper

OPTIONS = ("env_kwargs", "wrapper", "frame_stack", "max_episode_steps")


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig(Config):
    """A verb that creates an environment."""

    env_kwargs: Annotated[tuple[str, ...], shown("NAME:VALUE ..."), ENVIRONMENT] = ()
    """Arguments of the environment, as in continuous:True; they override those of the model's files or RL Zoo."""
    wrapper: Annotated[tuple[str, ...], shown("NAME[:K=V,...] ..."), ENVIRONMENT] = ()
    """Wrappers, as in TimeLimit:max_episode_steps=200, instead of those of the model's files, if any; the last is the
    outermost, and none means no wrapper.
    """
    frame_stack: Annotated[int | None, shown("N"), ENVIRONMENT, AT_LEAST_ONE] = None
    """Number of stacked observations, as in VecFrameStack, instead of that of the model's files, if any; 1 stacks
    none.
    """
    max_episode_steps: Annotated[int | None, shown("N"), ENVIRONMENT, AT_LEAST_ONE] = None
    """Environment steps after which an episode is truncated, instead of the registered limit. Without it, evaluations
    refuse episodes of more than 120,000 steps.
    """

    def check(self) -> None:
        super().check()
        self.environment()

    def environment(self) -> dict[str, Any]:
        """Return the options as `evaluate` takes them in Python."""
        return {
            "env_kwargs": hyperparameters(self.env_kwargs, plain, "--env-kwargs"),
            "wrappers": tuple(map(named_wrapper, self.wrapper)) if self.wrapper else None,
            "frame_stack": self.frame_stack,
            "max_episode_steps": self.max_episode_steps,
        }


def plain(text: str) -> Any:
    """Return the literal value of the text, or the text itself if it is a word or a path, as in ant.xml or 8x8."""
    try:
        return literals.read(text)
    except ValueError:
        if not re.fullmatch(r"[\w./+-]+", text):
            raise
        return text


def spelled(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of --env-kwargs for these arguments."""
    return tuple(f"{name}:{literals.spell(value)}" for name, value in arguments.items())
