"""`quarl.compare` and `quarl compare`: agents against a baseline on the same episodes, however they were quantized."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike

from quarl import engines, formats, judging
from quarl.api import Agent, agent_of
from quarl.arguments import check, checks_keywords, policy_rows
from quarl.arrays import Array
from quarl.engines import Engine
from quarl.envs.environment import Environment, EnvironmentKeywords, described, home_of, in_environment
from quarl.envs.spaces import actions_of
from quarl.errors import QuarlError, did_you_mean
from quarl.evaluation import evaluate, split_by_time
from quarl.export import verification
from quarl.policy.graph import QuantizedPolicy
from quarl.post_training.measure import PtqRow, precision_of
from quarl.post_training.table import PtqTable
from quarl.progress import progress
from quarl.readers import find
from quarl.report import schema
from quarl.report.assessment import limits, listed, undecided
from quarl.rows import Column
from quarl.specs import CompareSpec
from quarl.stats import INFERIOR, NONINFERIOR, as_fields, improvement_interval

Arm = tuple[str, QuantizedPolicy, Engine, Environment | None]
"""The name of an agent, its policy, the engine that runs it, and its environment, if it names one."""


def _verdict(word: str | None, differs: bool | None, *parts: str | None) -> str:
    """Return the cell of a verdict; its agent may be called fp32 or be in fp32, and is no baseline for that."""
    return formats.verdict(word, differs, "", *parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRow(PtqRow):
    """One agent of a comparison, the baseline's first.

    The baseline takes the place of fp32 in all meanings. If recorded observations replace the environment, no episodes
    are played, and all that depends on returns is null. Latency is null, too: `quarl bench latency` measures it. An
    exported file is packed as it is.
    """

    command = "compare"
    arm: Annotated[str, Column("agent", before="precision")]
    """Name of the agent: its path, unless it was given another one."""
    difference: Annotated[
        float | None,
        Column(
            "difference",
            formats.estimate,
            of=("difference", "difference_low", "difference_high"),
            before="margin_pct",
            optional=True,
        ),
    ]
    """Mean over episodes of the return minus that of the baseline from the same start. Its ends are those of the
    verdict: of a 95 % interval if two agents are compared, and of a wider one for more."""
    verdict: Annotated[
        str | None,
        Column(
            "verdict",
            _verdict,
            of=("verdict", "differs", "verdict_return", "verdict_success"),
            before="margin_pct",
            optional=True,
        ),
    ]
    """Verdict on the mean difference to the baseline, paired by episode, with Holm's correction for the number of
    agents. Non-inferior if the interval of `difference` is above minus the margin, inferior if it is below, otherwise
    undecided. Null for the baseline."""
    improvement: Annotated[
        float | None,
        Column(
            "better %",
            formats.shares,
            of=("improvement", "improvement_low", "improvement_high"),
            before="margin_pct",
            optional=True,
        ),
    ]
    """Probability of improvement, 0..1: that an episode returns more than one of the baseline, a tie counted as half,
    with its 95 % bootstrap interval. Null for the baseline."""
    improvement_low: float | None
    improvement_high: float | None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Comparison(PtqTable):
    """A table with one CompareRow for each agent, the baseline's first, displayed as `quarl compare` prints it.

    `agents` has those that are not exported, by name.
    """

    rows: tuple[CompareRow, ...]
    env_id: str | None
    """Id of the environment that was played; None if recorded observations took its place."""

    @property
    def verdicts(self) -> list[str]:
        """Sentences that name the agents with each verdict.

        >>> quarl.compare({"fp32": agent, "again": agent}).verdicts
        ['Non-inferior to fp32 within 5 %: again.']
        """
        base, *others = schema.fields(self.rows)
        if base["observations"]:
            return [f"Fidelity, no return: actions are compared with those of {base['arm']}."]
        name = base["arm"]
        within, beyond = limits(base, others)
        than = {NONINFERIOR: f"Non-inferior to {name} {within}", INFERIOR: f"Inferior to {name} {beyond}"}
        said = [
            f"{begin}: {listed(names)}."
            for word, begin in than.items()
            if (names := [row["arm"] for row in others if row["verdict"] == word])
        ]
        if base["episodes"] < (needed := judging.fewest(base["margin_pct"], len(others))):
            return [
                *said,
                f"No agent can be called non-inferior with fewer than {needed:,} episodes: "
                f"{formats.counted(len(others), 'agent')} against {name} at a margin of "
                f"{base['margin_pct']:g} %.",
            ]
        arms = sum(row["verdict"] != NONINFERIOR for row in others)  # the divisor of Holm's last step
        return said + undecided([{**row, "precision": row["arm"]} for row in others], base, arms)


@checks_keywords
def compare(
    agents: Mapping[str, Agent | str | os.PathLike[str]],
    baseline: str | None = None,
    *,
    episodes: int | Literal["auto"] = CompareSpec.episodes,
    margin: float = CompareSpec.margin,
    success_margin: float = CompareSpec.success_margin,
    max_episodes: int | None = None,
    seed: int = 0,
    num_workers: int = 1,
    observations: ArrayLike | dict[str, Array] | None = None,
    **where: Unpack[EnvironmentKeywords],
) -> Comparison:
    """Compare agents with a baseline on the same episodes, as `quarl compare` does.

    No file is written.

    Args:
        agents: Agents in float32, quantized by any method or exported, or their paths, by name.
        baseline: Name of the baseline; None means the first agent.
        episodes: Number of episodes of each agent, from the same starts; "auto" plays until there is a verdict, or
            `max_episodes`.
        margin: Acceptable loss of return in percent of the baseline's.
        success_margin: Acceptable loss of successes in percentage points, if the environment reports them.
        max_episodes: Maximum number of episodes with "auto"; None means the default of `quarl compare`.
        seed: Seed of the episodes.
        num_workers: Number of processes that share the episodes of an agent.
        observations: Raw observations [N, ...] in the order of time, in place of an environment: the table has the
            errors of actions on the last tenth, and no return.
        env_id: The environment; None means the one that the baseline was trained in.
        env_kwargs: Arguments of the environment, in addition to those that the policy records.
        wrappers: Wrappers in place of the policy's, the outermost last: names, as in "AtariWrapper", or (name,
            arguments).
        frame_stack: Number of stacked observations in place of the policy's; 1 means no stacking.
        max_episode_steps: Time limit in steps, in place of the policy's or the registered one.
        env: A live environment to play in, as in `evaluate`.

    Returns:
        The table.

    Raises:
        QuarlError: An option is invalid, or environments, wrappers, determinism or action spaces of the agents differ.

    >>> quarl.compare({"fp32": agent, "int8": agent.quantize(8)}, episodes=60)[1].verdict
    'non-inferior'
    """
    asked = CompareSpec(
        baseline=baseline,
        episodes=episodes,
        margin=margin,
        success_margin=success_margin,
        max_episodes=max_episodes,
        seed=seed,
        workers=num_workers,
    )
    check(asked, {"workers": "num_workers"})
    if observations is not None and any(where.values()):
        raise QuarlError("observations replace an environment and its returns: drop the environment's keywords")
    recorded = None if observations is None else lambda policy: policy_rows(policy, observations)[0]
    return compared(agents, asked, where, recorded)


def compared(
    agents: Mapping[str, Agent | str | os.PathLike[str]],
    asked: CompareSpec,
    where: EnvironmentKeywords,
    recorded: Callable[[QuantizedPolicy], Array] | None = None,
) -> Comparison:
    """Return the comparison of several agents.

    Args:
        agents: Agents, or their paths, by name.
        asked: Name of the baseline, episodes and margin.
        where: Keywords of the environment, for all agents.
        recorded: Returns recorded observations as a policy reads them, in place of an environment.
    """
    if not isinstance(agents, Mapping) or len(agents) < 2:
        raise QuarlError("compare takes two or more agents by name: the baseline, and those to compare with it")
    if not all(agents):
        raise QuarlError("an agent has an empty name: give it one, as in int8=PATH")
    first = asked.baseline or next(iter(agents))
    if first not in agents:
        raise QuarlError(f"baseline {first!r} is not one of {listed([*agents])}{did_you_mean(first, agents)}")
    arms = [_arm(name, agents[name], where) for name in sorted(agents, key=lambda name: name != first)]
    home = None if recorded is not None else arms[0][-1] or home_of(arms[0][1], recordable=True)
    for arm in arms:
        for (what, mine, shown), (_, theirs, others) in zip(_facts(arm, home), _facts(arms[0], home), strict=True):
            if mine != theirs:
                raise QuarlError(f"{arm[0]} {what} {shown}, the baseline {first} {others}: compare agents that agree")
    return Comparison(
        title=f"{formats.counted(len(arms) - 1, 'agent')} against {first}{f' on {home.env_id}' if home else ''}",
        env_id=home.env_id if home else None,
        rows=tuple(_of_returns(arms, home, asked) if recorded is None else _of_actions(arms, recorded)),
        agents={name: Agent(policy) for name, policy, *_ in arms if policy.ops},
    )


def _arm(name: str, agent: Agent | str | os.PathLike[str], where: EnvironmentKeywords) -> Arm:
    """Return the arm of an agent, of the file at a path, or of the export in a folder."""
    path = find.named([os.fspath(agent)]) if isinstance(agent, str | os.PathLike) else None
    if path is None or (file := verification.exported_file(path)) is None:
        policy = agent_of(path or agent, where.get("frame_stack"))._quantized()
        engine = engines.load_fitting(policy)
    else:
        policy, engine = verification.opened(file)
        policy = replace(policy, provenance=replace(policy.provenance, stochastic=False))  # it has greedy actions alone
    policy, environment = in_environment(policy, **where)
    return name, policy, engine, environment


def _facts(arm: Arm, home: Environment | None) -> Iterator[tuple[str, Any, str]]:
    """Yield the facts in which arms must agree: a verb, the value, and the value in words.

    `home` is the environment of an agent that names none; None if no episodes are played.
    """
    head, sampled = arm[1].head, arm[1].provenance.stochastic
    yield (
        "has",
        (head.kind, head.segments, head.first, arm[1].num_outputs)
        if head.is_discrete
        else (head.low.shape, head.low.tolist(), head.high.tolist()),
        f"the actions {actions_of(arm[1])}",
    )
    if home is not None:
        own = arm[3] or home
        limit = own.max_episode_steps or (None if own.lent else own.spec.max_episode_steps)
        yield "plays", (own.env_id, dict(own.env_kwargs), own.wrappers, limit), described(own)
        yield "has", sampled, "sampled actions" if sampled else "deterministic actions"


def _row(arm: Arm, **measured: Any) -> CompareRow:
    """Return the row of an arm with the fields that were measured; others are null."""
    name, policy, engine, _ = arm
    nulls = dict[str, Any](dict.fromkeys(each.name for each in fields(CompareRow)))
    return CompareRow(**nulls | {"arm": name} | precision_of(policy, engine) | measured)


def _of_actions(arms: Sequence[Arm], recorded: Callable[[QuantizedPolicy], Array]) -> Iterator[CompareRow]:
    """Yield the row of each arm, by its actions on the last tenth of recorded observations."""
    first, count = arms[0][1], len(split_by_time(recorded(arms[0][1]))[1])
    acted = [
        policy.head(
            engines.run_all(
                engine if isinstance(engine, verification.Loaded) else engines.load_fitting(policy, batch=64), rows
            )
        )
        for _, policy, engine, _ in arms
        for rows in [recorded(policy)[-count:]]
    ]
    for arm, actions in zip(arms, acted, strict=True):
        yield _row(arm, episodes=0, observations=count, **judging.fidelity(first, acted[0], actions))


def _of_returns(arms: Sequence[Arm], home: Environment | None, asked: CompareSpec) -> Iterator[CompareRow]:
    """Yield the row of each arm, by its episodes in the baseline's environment."""
    looks = judging.looks_of(asked, len(arms) - 1)
    with progress(asked.most_episodes * len(arms)) as bar:
        plays = [
            partial(
                evaluate,
                policy,
                home,
                seed=asked.seed,
                engine=engine if isinstance(engine, verification.Loaded) else engine.name,
                num_workers=asked.workers,
                progress=partial(lambda name, episode: bar(name, 1), name),
            )
            for name, policy, engine, _ in arms
        ]
        base, *others = judging.until_judged(plays, looks, asked.margin, asked.success_margin, corrected=True)
    verdicts = judging.verdicts([base, *others], asked.margin, asked.success_margin, looks, corrected=True)
    for arm, played, verdict in zip(arms, (base, *others), (None, *verdicts), strict=True):
        exact = None if verdict is None else base.returns[: len(played.returns)]
        better = (
            exact if exact is None else improvement_interval(exact, played.returns, np.random.default_rng(asked.seed))
        )
        yield _row(
            arm,
            **judging.judged(played.returns, exact, asked.margin, asked.seed, looks, verdict=verdict)
            | as_fields(played.success, "success", "success")
            | as_fields(better, "improvement", "improvement"),
            **played.by_episode(),
        )
