"""`quarl envs`: lists suites of environments, or describes one and the algorithms that fit it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from gymnasium.envs.registration import EnvSpec, registry

from quarl.commands import terminal
from quarl.config import EnvsConfig
from quarl.envs.bound import EPISODE_FRAMES
from quarl.envs.checked import held
from quarl.envs.environment import Environment, make
from quarl.envs.names import LQR_STEPS
from quarl.envs.options import EnvironmentOptions
from quarl.envs.spaces import fits, fitting, unreadable
from quarl.envs.suites import LISTED, SUITES, TASKS, Suite, suite_of
from quarl.errors import QuarlError, did_you_mean
from quarl.machine import version
from quarl.rows import Algorithm, Column, Row
from quarl.specs import LEARNERS

ALL = (
    Suite("classic", "gymnasium.envs.classic_control", "gymnasium", "CartPole-v1"),
    Suite("toy-text", "gymnasium.envs.toy_text", "gymnasium", "FrozenLake-v1"),
    *SUITES,
)
"""All suites, with those that are always installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRow(Row):
    """One suite."""

    command = "envs"
    suite: Annotated[str, Column("suite")]
    package: str
    version: Annotated[str | None, Column("installed", _installed, of=("package", "version", "install"))]
    """Version of the package; null if it is not installed."""
    install: str
    """The command that installs it; empty if it is installed."""
    ids: Annotated[int, Column("ids", "{:,}".format)]
    """Number of current ids."""
    example: Annotated[str, Column("example")]
    algorithms: Annotated[list[str], Column("learners that fit it", lambda fitting: " ".join(fitting) or "–")]
    """Algorithms that can learn in the example; empty if the suite is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRow(Row):
    """One algorithm on one environment."""

    command = "envs id"
    env_id: str
    suite: Annotated[str, Column("suite", caption="suite {}")]
    observation_space: Annotated[str, Column("observations", caption="observations {}")]
    action_space: Annotated[str, Column("actions", caption="actions {}")]
    time_limit: Annotated[int | None, Column("time limit", _limit, caption="time limit {}", left=True)]
    """Steps after which an episode is truncated; null if the environment never truncates."""
    algo: Algorithm
    fits: Annotated[bool, Column("", lambda fits: "fits" if fits else "n/a")]
    reason: Annotated[str, Column("reason")]
    """Reason that it does not fit; empty if it fits."""


def _installed(package: str, version: str | None, install: str) -> str:
    return f"{package} {version}" if version else install


def _limit(steps: int | None) -> str:
    return "none" if steps is None else f"{steps:,} steps"


def run(config: EnvsConfig) -> None:
    """Print one row per suite, or one per algorithm if an environment is named."""
    if config.env:
        rows = describe(Environment.typed_by_user(config.env[0], EnvironmentOptions.of(**config.environment())))
        terminal.tell(config, FitRow, rows, rows[0].env_id, env_id=rows[0].env_id)
        return
    names = [suite.extra for suite in ALL]
    chosen = [suite for suite in ALL if config.suite in (None, suite.extra)]
    if not chosen:
        meant = did_you_mean(str(config.suite), names)
        raise QuarlError(f"unknown suite {config.suite!r}{meant} (known: {', '.join(names)})")
    ids = [] if config.suite is None else [", ".join(env_id for suite in chosen for env_id in ids_of(suite))]
    terminal.tell(config, SuiteRow, list(map(_suite_row, chosen)), "Suites of environments", *ids)


def ids_of(suite: Suite) -> tuple[str, ...]:
    """Return the suite's current ids, installed or not."""
    return suite.ids or tuple(sorted(id for id, spec in registry.items() if suite_of(spec, ALL) is suite))


def _suite_row(suite: Suite) -> SuiteRow:
    installed = version(suite.distribution)
    return SuiteRow(
        suite=suite.extra,
        package=suite.distribution,
        version=installed,
        install="" if installed else f"pip install 'quarl[{suite.extra}]'",
        ids=len(ids_of(suite)),
        example=suite.example,
        algorithms=_learners(suite.example) if installed else [],
    )


def describe(environment: Environment) -> list[FitRow]:
    """Return one row per algorithm for the environment, which is made once."""
    living = environment.env_id
    with held(environment.make) as env:
        spec, observed = env.spec, unreadable(env.observation_space)
        reasons = {algo: observed or fits(algo, env.action_space) or "" for algo in LEARNERS}
        return [
            FitRow(
                env_id=living,
                suite=_suite(living, spec),
                observation_space=" ".join(str(env.observation_space).split()),
                action_space=" ".join(str(env.action_space).split()),
                time_limit=_time_limit(living, spec),
                algo=algo,
                fits=not reason,
                reason=reason,
            )
            for algo, reason in reasons.items()
        ]


def _learners(env_id: str) -> list[str]:
    """Return the algorithms that fit; none if the environment cannot be made."""
    with contextlib.suppress(QuarlError), held(partial(make, env_id)) as env:
        return [] if unreadable(env.observation_space) else list(fitting(env.action_space))
    return []


def _suite(env_id: str, spec: EnvSpec | None) -> str:
    suite = LISTED.get(env_id) or (spec and suite_of(spec, ALL))
    return suite.extra if suite else "your own"


def _time_limit(env_id: str, spec: EnvSpec | None) -> int | None:
    """Return the time limit in environment steps from its registration, its emulator or its suite; None without one."""
    if spec is None:
        return None
    frames = spec.kwargs.get(EPISODE_FRAMES)
    skip = spec.kwargs.get("frameskip")
    if isinstance(frames, int) and isinstance(skip, int):
        return frames // skip
    if env_id in TASKS:
        return LQR_STEPS
    return spec.max_episode_steps
