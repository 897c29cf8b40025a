"""Environment options that override those of a policy's files or hyper-parameters; values not given stay.

They are written once, into an `Environment` or into hyper-parameters in RL Zoo's format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quarl import literals
from quarl.envs.bound import LIMIT, checked_limit
from quarl.envs.wrappers import dotted
from quarl.errors import QuarlError
from quarl.literals import NONE, named_wrapper
from quarl.policy.graph import Provenance
from quarl.readers.zoo import VEC_FRAME_STACK, Wrappers, stacked, wrappers_of

OF_ENVIRONMENT = ("env_kwargs", "env_wrapper", "frame_stack")
"""Hyper-parameters of RL Zoo that describe the construction of environments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentOptions:
    """The user's options of an environment, besides its id."""

    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Wrappers | None = None
    """(dotted class name, arguments) of each wrapper, outermost last; None if not given."""
    frame_stack: int | None = None
    max_episode_steps: int | None = None

    @classmethod
    def of(
        cls,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[Any] | str | None = None,
        frame_stack: int | None = None,
        max_episode_steps: int | None = None,
    ) -> EnvironmentOptions:
        """Return the checked options.

        Args:
            env_kwargs: Arguments of the environment.
            wrappers: NAME, NAME:K=V or (NAME, arguments) of each wrapper, outermost last; names are short or dotted.
            frame_stack: Number of stacked observations.
            max_episode_steps: Time limit in steps.

        Returns:
            The options.

        Raises:
            QuarlError: A value is invalid.
        """
        if env_kwargs is not None and not isinstance(env_kwargs, Mapping):
            raise QuarlError(f"env_kwargs is {str(env_kwargs)[:60]!r}, not values by name, as in dict(continuous=True)")
        stacked((), frame_stack)  # checks the number
        entries = [wrappers] if isinstance(wrappers, str) else wrappers or ()
        pairs = (named_wrapper(entry) if isinstance(entry, str) else entry for entry in entries)
        named = tuple((dotted(name), dict(arguments)) for name, arguments in pairs if name != NONE)
        told: dict[str, Any] = {"frame_stack": frame_stack, LIMIT: checked_limit(max_episode_steps)}
        return cls(env_kwargs=dict(env_kwargs or {}), wrappers=None if wrappers is None else named, **told)

    @classmethod
    def written(cls, values: Mapping[str, Any], where: Path) -> EnvironmentOptions:
        """Return the options in hyper-parameters of RL Zoo's format; errors begin with the file `where`."""
        return cls(env_kwargs=_arguments(values, where), wrappers=wrappers_of(values, where))

    @property
    def making(self) -> dict[str, Any]:
        """The fields of an `Environment` that has these options."""
        return {"env_kwargs": self.env_kwargs, "wrappers": self._over(()), LIMIT: self.max_episode_steps}

    def over_provenance(self, source: Provenance, is_home: bool) -> EnvironmentOptions:
        """Return these options over those of a policy's file, whose arguments apply only in its own environment."""
        before = {LIMIT: source.max_episode_steps, **source.env_kwargs} if is_home else {}
        kwargs = {**before, **self.env_kwargs}
        limit = kwargs.pop(LIMIT, None)
        return EnvironmentOptions(
            env_kwargs=kwargs,
            wrappers=self._over(source.wrappers),
            max_episode_steps=self.max_episode_steps or limit,
        )

    def over(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """Return hyper-parameters in the format of config.yml, with these options in place of theirs."""
        merged = dict(written)
        limit = {} if self.max_episode_steps is None else {LIMIT: self.max_episode_steps}
        if given := {**self.env_kwargs, **limit}:
            merged["env_kwargs"] = _arguments(merged, Path("hyper-parameters")) | given
        if self.wrappers is not None:
            merged["env_wrapper"] = [{name: arguments} for name, arguments in self.wrappers] or None
        if self.frame_stack is not None:
            merged["frame_stack"] = self.frame_stack if self.frame_stack > 1 else None
        return merged

    def _over(self, wrappers: Wrappers) -> Wrappers:
        if self.wrappers is not None:
            wrappers = (*self.wrappers, *(entry for entry in wrappers if entry[0] == VEC_FRAME_STACK))
        return stacked(wrappers, self.frame_stack)


UNSAID = EnvironmentOptions()


def _arguments(values: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Return the environment's arguments in the hyper-parameters."""
    arguments = values.get("env_kwargs") or {}
    try:
        return literals.mapping(arguments)
    except ValueError:
        raise QuarlError(f"{where}: env_kwargs is {str(arguments)[:60]!r}; write dict(...) of plain values") from None
