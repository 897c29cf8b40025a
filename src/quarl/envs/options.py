"""Options of an environment over what a policy's files or hyper-parameters say: what is given replaces, the rest stays.

They are put into a policy's provenance, or into hyper-parameters in RL Zoo's words, once. Whatever makes environments
from these, processes of evaluations, calibration and saved policies among them, needs nothing more.
"""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from quarl import literals
from quarl.config.environment import NONE, EnvironmentConfig, named_wrapper
from quarl.envs.bound import LIMIT, checked_limit
from quarl.envs.names import is_atari, is_same, resolve
from quarl.envs.wrappers import dotted
from quarl.errors import MissingEnvironmentError, QuarlError, note_once
from quarl.policy.graph import Policy, Provenance
from quarl.readers.zoo import PREPROCESSING, VEC_FRAME_STACK, Wrappers, stacked, wrappers_of

P = TypeVar("P", bound=Policy)
OF_ENVIRONMENT = ("env_kwargs", "env_wrapper", "frame_stack")
"""Hyper-parameters of RL Zoo that say how environments are made."""
PREPROCESSED = (4, 84, 84)
"""Observations of Atari games behind Stable-Baselines3's preprocessing: make_atari_env and VecFrameStack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentOptions:
    """What a user says of an environment beside its id."""

    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Wrappers | None = None
    """(dotted class name, arguments), outermost last; None: not given."""
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
        """The options, checked; wrappers: NAME, NAME:K=V or (NAME, arguments), names short or dotted."""
        if env_kwargs is not None and not isinstance(env_kwargs, Mapping):
            raise QuarlError(f"env_kwargs is {str(env_kwargs)[:60]!r}, not values by name, as in dict(continuous=True)")
        stacked((), frame_stack)  # the check of the number
        entries = [wrappers] if isinstance(wrappers, str) else wrappers or ()
        pairs = (named_wrapper(entry) if isinstance(entry, str) else entry for entry in entries)
        named = tuple((dotted(name), dict(arguments)) for name, arguments in pairs if name != NONE)
        told: dict[str, Any] = {"frame_stack": frame_stack, LIMIT: checked_limit(max_episode_steps)}
        return cls(env_kwargs=dict(env_kwargs or {}), wrappers=None if wrappers is None else named, **told)

    @classmethod
    def written(cls, values: Mapping[str, Any], where: Path) -> EnvironmentOptions:
        """What hyper-parameters in RL Zoo's words say of it; `where` begins the line of an error."""
        return cls(env_kwargs=_arguments(values, where), wrappers=wrappers_of(values, where))

    @classmethod
    def said(cls, config: EnvironmentConfig) -> EnvironmentOptions:
        """Those of a verb."""
        return cls.of(**config.environment())

    def at_home(self, policy: P, env_id: str | None = None) -> P:
        """The policy, knowing that it plays in `env_id`, None for its own, made as the options say.

        Where nothing says how an Atari game was preprocessed, the observations of Stable-Baselines3's way tell it.
        """
        source = policy.provenance
        if not (chosen := env_id or source.env_id):
            return policy
        is_home = env_id is None or is_same(env_id, source.env_id)
        home = source
        if self != EnvironmentOptions() or not source.env_id:
            before = {LIMIT: source.max_episode_steps, **source.env_kwargs} if is_home else {}
            kwargs = {**before, **self.env_kwargs}
            limit = kwargs.pop(LIMIT, None)
            home = replace(
                source,
                env_id=source.env_id if is_home else resolve(chosen, trusted=True),
                env_kwargs=kwargs,
                wrappers=self._over(source.wrappers),
                max_episode_steps=self.max_episode_steps or limit,
                longest=self.max_episode_steps or source.longest,
            )
        frames = (policy.observation_dtype, policy.observation_shape) == ("uint8", PREPROCESSED)
        raw = all(name == VEC_FRAME_STACK for name, _ in home.wrappers)
        if frames and raw and _is_game(chosen, trusted=env_id is not None):
            way = "Stable-Baselines3's preprocessing: AtariWrapper and 4 frames"
            note_once(f"uint8 {PREPROCESSED} on {chosen} is {way}")
            home = replace(home, wrappers=wrappers_of(PREPROCESSING, Path(chosen)))
        return policy if home == source else replace(policy, provenance=home)

    def game(self, env_id: str) -> str:
        """The line that says how a game of Atari is made."""
        source = Provenance(env_id=env_id, env_kwargs=self.env_kwargs, wrappers=self._over(()))
        return f"a game of Atari: {described(source)}"

    @property
    def making(self) -> dict[str, Any]:
        """What `envs.make` takes."""
        return {"env_kwargs": self.env_kwargs, "wrappers": self._over(()), LIMIT: self.max_episode_steps}

    def over(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """Hyper-parameters, as a config.yml spells them, with these options in place of theirs."""
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


def _is_game(env_id: str, *, trusted: bool) -> bool:
    """Return whether it is a game of Atari; if the environment is missing, whoever makes it finds out."""
    with contextlib.suppress(MissingEnvironmentError):
        return is_atari(resolve(env_id, trusted=trusted))
    return False


def _arguments(values: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Those of an environment, from hyper-parameters."""
    arguments = values.get("env_kwargs") or {}
    try:
        return literals.mapping(arguments)
    except ValueError:
        raise QuarlError(f"{where}: env_kwargs is {str(arguments)[:60]!r}; write dict(...) of plain values") from None


def described(source: Provenance) -> str:
    """The environment in a line: its id, arguments, wrappers and limit."""
    parts = [source.env_id, *(f"{name}={value}" for name, value in source.env_kwargs.items())]
    for name, arguments in source.wrappers:
        inside = ", ".join(f"{k}={reprlib.repr(v) if isinstance(v, list) else v}" for k, v in arguments.items())
        parts.append(f"{name.rpartition('.')[2]}{f'({inside})' if inside else ''}")
    if source.max_episode_steps is not None:
        parts.append(f"episodes of at most {source.max_episode_steps:,} steps")
    return ", ".join(parts)
