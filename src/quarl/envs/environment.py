"""The environment of a call: described once, by a user or by a file, and then passed along.

Options override the file's own here. A policy's provenance receives them too, so that saved policies contain them.
"""

from __future__ import annotations

import copy
import reprlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from quarl.envs.atari import WholeGame, emulator_arguments
from quarl.envs.bound import LIMIT, LONGEST, REPEATS, Bounded, check_numbers, checked_limit, longest
from quarl.envs.checked import held, name_of
from quarl.envs.masks import is_masked
from quarl.envs.names import MODULE_ID, find, is_atari, is_same, resolve
from quarl.envs.options import UNSAID, EnvironmentOptions
from quarl.envs.reseed import needs_fresh
from quarl.envs.spaces import check_spaces
from quarl.envs.suites import ATARI, missing_extra, suite_of
from quarl.envs.wrappers import Kept, older, shown_to, wrap
from quarl.errors import RAISED, MissingEnvironmentError, QuarlError, first_line, note_once
from quarl.policy.graph import Policy, Provenance
from quarl.readers.zoo import PREPROCESSING, VEC_FRAME_STACK, Wrappers, wrappers_of

P = TypeVar("P", bound=Policy)
PREPROCESSED = (4, 84, 84)
"""Shape of observations of Atari games behind Stable-Baselines3's make_atari_env and VecFrameStack."""
PREPROCESSING_WRAPPERS = wrappers_of(PREPROCESSING, Path("preprocessing"))
Inside = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]


class EnvironmentKeywords(TypedDict, total=False):
    """Keywords of functions in Python that play in an environment; the guide explains them."""

    env_id: str | None
    env_kwargs: Mapping[str, Any] | None
    wrappers: Sequence[Any] | None
    frame_stack: int | None
    max_episode_steps: int | None
    env: gymnasium.Env[Any, Any] | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Environment:
    """An environment and its construction; nothing is looked up, imported or made before it is needed.

    Create it with `typed_by_user` or `from_file`: the two treat the id differently.
    """

    asked: str
    """The id as typed, or as a file has it; empty if `lent` has none."""
    may_import: bool
    """True if the id may be "module:Name-v0", whose module is imported: importing executes code."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Wrappers = ()
    """(dotted class name, arguments) of each wrapper, outermost last."""
    max_episode_steps: int | None = None
    """Time limit in steps; None means that of the registration."""
    longest: int | None = None
    """Longest episode in steps that the user allows; a user may allow more than a file."""
    lent: gymnasium.Env[Any, Any] | None = None
    """An environment that a Python caller has passed; it stays open."""
    outside: Inside | None = None
    """Wrapper for evaluation outside all others, which sees the policy's observations and actions."""

    @classmethod
    def typed_by_user(cls, env_id: str, options: EnvironmentOptions = UNSAID) -> Environment:
        """Describe an environment whose id the user typed; it may name a module that registers the environment."""
        allowed = options.max_episode_steps
        return cls(asked=env_id, may_import=True, **options.making, longest=allowed)

    @classmethod
    def from_file(cls, env_id: str, options: EnvironmentOptions = UNSAID) -> Environment:
        """Describe an environment whose id a file names; such an id never imports a module."""
        return cls(asked=env_id, may_import=False, **options.making)

    @cached_property
    def env_id(self) -> str:
        """The current id.

        Raises:
            MissingEnvironmentError: The id is unknown, or a file's id names a module.
        """
        if self.lent is not None and not self.asked:
            return name_of(self.lent)
        return self.asked if self.may_import and MODULE_ID.fullmatch(self.asked) else resolve(self.asked)

    @property
    def typed(self) -> str | None:
        """The id as the user typed it; None if a file names it."""
        return self.asked if self.may_import else None

    @property
    def spec(self) -> EnvSpec:
        """The registration."""
        return find(self.env_id)

    @property
    def is_atari(self) -> bool:
        """True for a game of Atari."""
        return is_atari(self.env_id)

    def make(self, *, render_mode: str | None = None, inside: Sequence[Inside] = ()) -> gymnasium.Env[Any, Any]:
        """Make a new environment inside its time limit and wrappers.

        Atari games get the wrappers of training; `make_for` returns whole games. Gymnasium's passive checker and order
        enforcer are disabled: they take half of the time of a CartPole step and change no result.

        Args:
            render_mode: gymnasium's render mode; None draws nothing.
            inside: Wrappers to put inside all others, next to the environment's own rewards and ends.

        Returns:
            The environment.

        Raises:
            QuarlError: The id is unknown (the nearest is suggested), an extra is missing (the pip command is named), or
                the environment rejects its arguments or wrappers.
        """
        spec = copy.copy(self.spec)
        spec.order_enforce = False
        spec.disable_env_checker = True
        # a file's arguments could otherwise open a window
        kwargs = {key: value for key, value in self.env_kwargs.items() if key != "render_mode"}
        # not all environments accept the argument
        drawing: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
        limit = kwargs.pop(LIMIT, None)
        limit = checked_limit(limit if self.max_episode_steps is None else self.max_episode_steps)
        if not MODULE_ID.fullmatch(self.env_id):  # arguments of a user's own code are not limited
            check_numbers(kwargs, f"environment {self.env_id!r}", REPEATS)
        suite = suite_of(spec)
        if suite is ATARI:
            kwargs = emulator_arguments(spec, self.wrappers, kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                with suite.muted() if suite else nullcontext():
                    env = gymnasium.make(spec, max_episode_steps=limit, **drawing, **kwargs)
                    if suite and suite.prints_at_reset:
                        env.reset(seed=0)
            except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
                if suite is not None:
                    raise missing_extra(self.env_id, suite) from None
                needs = f"environment {self.env_id!r} needs a package: {first_line(error)}"
                raise MissingEnvironmentError(needs) from None
            except RAISED as error:  # constructors raise exceptions of any type for a file's arguments
                given = f" with {kwargs}" if kwargs else f" ({type(error).__name__})"
                raise QuarlError(f"environment {self.env_id!r} cannot be made{given}: {first_line(error)}") from error
            for wrapper in inside:
                env = wrapper(env)
            return wrap(env, self.wrappers)

    def make_for(self, policy: Policy, bound: int = LONGEST, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
        """Make the environment for evaluation of `policy`, and check that their spaces match.

        An episode of an Atari game is a whole one, and its rewards are points. Images get the policy's order of axes,
        as in Stable-Baselines3. MuJoCo's environments show the observations of the version that the policy was trained
        on. A lent environment is played unchanged.

        Args:
            policy: The policy to play.
            bound: Number of steps after which an episode is an error, counted inside wrappers, which can make many in
                one.
            render_mode: gymnasium's render mode; None draws nothing.

        Returns:
            The environment.

        Raises:
            QuarlError: As for `make`, or the spaces differ.
        """
        if self.lent is not None:
            env = shown_to(policy, Kept(self.lent))
            check_spaces(policy, env)
            return env
        is_game = suite_of(self.spec) is ATARI  # training ends games with a life
        bounded = (partial(Bounded, bound=bound),) if self.wrappers else ()
        refusals = []
        for shown in ((), *older(self.env_id)):
            inside: tuple[Inside, ...] = (*shown, *bounded, *((RecordEpisodeStatistics,) if is_game else ()))
            env = self.make(render_mode=render_mode, inside=inside)
            env = shown_to(policy, WholeGame(env) if is_game else env)
            try:
                check_spaces(policy, env)
                return env if self.outside is None else self.outside(env)
            except QuarlError as error:
                env.close()
                refusals.append(error)
        raise refusals[0]

    def playing(self, policy: Policy) -> dict[str, Any]:
        """Return the fields of a `Play` of `policy` here; one environment is made first, to raise errors early."""
        with held(partial(self.make_for, policy)) as first:  # before any process or engine starts
            if first.has_wrapper_attr("older_observation"):
                note_once(first.get_wrapper_attr("older_observation"))
        if (env := self.lent) is not None:
            name = "_max_episode_steps"  # an attribute of gymnasium's TimeLimit
            bound = longest(None, env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None)
            return {"make": partial(self.make_for, policy), "fresh": False, "alone": True, "bound": bound}
        limit = self.max_episode_steps or self.env_kwargs.get(LIMIT)
        bound = longest(limit, self.longest, self.spec.max_episode_steps)
        make = partial(self.make_for, policy, bound=bound)
        key = (self.env_id, self.wrappers, self.env_kwargs, limit)
        # the probe takes random actions, which masks may forbid
        fresh = is_masked(policy) or needs_fresh(make, " ".join(map(str, key)))
        return {"make": make, "fresh": fresh, "bound": bound}

    def told(self, policy: P) -> P:
        """Return the policy with this environment in its provenance; the id in its file stays."""
        source, kwargs = policy.provenance, dict(self.env_kwargs)
        limit = kwargs.pop(LIMIT, None)
        home = replace(
            source,
            env_id=source.env_id or self.env_id,
            env_kwargs=kwargs,
            wrappers=self.wrappers,
            max_episode_steps=self.max_episode_steps or limit,
            longest=self.longest,
        )
        return replace(policy, provenance=home)

    def at_once(self, batch: int) -> int:
        """Return the number of `batch` episodes that can be played side by side: one in a lent environment."""
        return batch if self.lent is None else 1


def make(
    env_id: str, *, render_mode: str | None = None, inside: Sequence[Inside] = (), **described: Any
) -> gymnasium.Env[Any, Any]:
    """Make the environment of an id that names no module.

    Args:
        env_id: Gymnasium's id.
        render_mode: As for `Environment.make`.
        inside: As for `Environment.make`.
        **described: Fields of `EnvironmentOptions`.

    Returns:
        The environment.
    """
    return Environment.from_file(env_id, EnvironmentOptions(**described)).make(render_mode=render_mode, inside=inside)


def in_environment(
    policy: P, env_id: str | None = None, *, env: gymnasium.Env[Any, Any] | None = None, **described: Any
) -> tuple[P, Environment | None]:
    """Return the policy with its environment as described in its provenance, and that environment.

    If the preprocessing of an Atari game is unknown, it is inferred from observations in the format of
    Stable-Baselines3.

    Args:
        policy: The policy as it was read.
        env_id: Id of the environment, typed by the user; None means the policy's own. With `env`, its name in results.
        env: An environment to play in, one episode after the other; it stays open. None makes new ones.
        **described: Keywords of `EnvironmentOptions.of`; with `env` only the time limit is allowed.

    Returns:
        The policy and its environment; None if the policy names none and none was given.

    Raises:
        QuarlError: `env` is not an environment, or options for new ones were given with it.
    """
    if env_id is not None and not isinstance(env_id, str):
        kind = type(env_id).__name__
        raise QuarlError(f"env_id is a {kind}: give a Gymnasium id, as in 'CartPole-v1', or the environment as env")
    options = EnvironmentOptions.of(**described)
    lent = None
    if env is not None:
        if not isinstance(env, gymnasium.Env):
            raise QuarlError(f"env is a {type(env).__name__}, not a gymnasium.Env; an id is given as env_id")
        if any(value for name, value in described.items() if name != LIMIT):
            raise QuarlError("env already exists: drop env_kwargs, wrappers and frame_stack")
        limit = options.max_episode_steps
        lent = Environment(asked=env_id or "", may_import=True, lent=env if limit is None else TimeLimit(env, limit))
    source = policy.provenance
    if not (chosen := env_id or source.env_id):
        return policy, lent
    # the file's arguments have no meaning in another environment
    is_home = env_id is None or is_same(env_id, source.env_id)
    merged = options.over_provenance(source, is_home)
    environment = Environment.from_file(chosen, merged) if env_id is None else Environment.typed_by_user(chosen, merged)
    environment = replace(environment, longest=options.max_episode_steps or source.longest)
    if options != UNSAID or not source.env_id:
        policy = environment.told(policy if is_home else replace(policy, provenance=replace(source, env_id="")))
    frames = (policy.observation_dtype, policy.observation_shape) == ("uint8", PREPROCESSED)
    if frames and all(name == VEC_FRAME_STACK for name, _ in environment.wrappers) and _is_game(environment):
        way = "Stable-Baselines3's preprocessing: AtariWrapper and 4 frames"
        note_once(f"uint8 {PREPROCESSED} on {chosen} is {way}")
        environment = replace(environment, wrappers=PREPROCESSING_WRAPPERS)
        policy = replace(policy, provenance=replace(policy.provenance, wrappers=environment.wrappers))
    return policy, lent or environment


def _is_game(environment: Environment) -> bool:
    """Return True for a game of Atari, False if the environment is missing: making it raises the error."""
    with suppress(MissingEnvironmentError):
        return environment.is_atari
    return False


def home_of(policy: Policy, env_id: str | None = None, *, recordable: bool = False) -> Environment:
    """Return the environment that `policy` was trained on, or `env_id`, which the user typed.

    Args:
        policy: The policy.
        env_id: Id of the environment; None means the policy's own.
        recordable: Whether recorded observations may replace the environment, for the error message.

    Raises:
        QuarlError: The policy names none, and none is given.
    """
    environment = in_environment(policy, env_id)[1]
    if environment is None:
        fix, python = (
            ("--env", "env_id or env")
            if not recordable
            else ("--env, or give recorded --observations", "env_id, env or observations")
        )
        raise QuarlError(
            f"the policy does not name the environment it was trained on; name one with {fix} ({python} in Python)"
        )
    return environment


def described(source: Provenance | Environment) -> str:
    """Return a one-line description of the environment: its id, arguments, wrappers and limit."""
    parts = [source.env_id, *(f"{name}={value}" for name, value in source.env_kwargs.items())]
    for name, arguments in source.wrappers:
        inside = ", ".join(f"{k}={reprlib.repr(v) if isinstance(v, list) else v}" for k, v in arguments.items())
        parts.append(f"{name.rpartition('.')[2]}{f'({inside})' if inside else ''}")
    if source.max_episode_steps is not None:
        parts.append(f"episodes of at most {source.max_episode_steps:,} steps")
    return ", ".join(parts)
