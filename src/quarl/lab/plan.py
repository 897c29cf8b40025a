"""The plan: a study's policies times its methods, precisions and seeds, each cell checked before anything runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from quarl.distillation.rounds import recipe_of
from quarl.envs.environment import Environment
from quarl.envs.names import of_module, resolve
from quarl.envs.spaces import fits, unreadable
from quarl.errors import QuarlError
from quarl.lab import actorq_plan, source
from quarl.lab.cells import ACTORQ, DISTILL, FP32, PTQ, QAT, THROUGHPUT, TRAIN, UNTRAINED, UPDATES, Cell
from quarl.lab.checks import Place
from quarl.lab.file import MethodEntry, PolicyEntry, Study
from quarl.lab.planned import Planned
from quarl.lab.source import Agent
from quarl.lab.trainings import check_training
from quarl.quant.spec import EXACT, QatSpec, QuantSpec
from quarl.specs import PtqSpec

_Asked = tuple[Cell, PolicyEntry, Place]
"""A requested cell, the policy that requests it, and the place of the method, or of the policy if it is to be
trained."""


def plan(study: Study, seed: int | None = None, env_module: str | None = None) -> list[Cell]:
    """Return all cells in the order of measurement, trainings before the cells that need them.

    A well-formed cell that cannot be measured is n/a and has the reason.

    Args:
        study: The study.
        seed: The only seed, in place of the study's.
        env_module: Module typed by the user that registers environments when it is imported; no file can name one.

    Returns:
        The cells.

    Raises:
        QuarlError: An id or option is invalid; the message names the line.
    """
    cells: list[Cell] = []
    asked: dict[tuple[str, ...] | str, _Asked] = {}
    spaces: dict[str, tuple[Any, str]] = {}
    for entry in study.policies:
        try:
            env_id = of_module(env_module, entry.env) if env_module else entry.env
            if env_id == entry.env:
                env_id = resolve(entry.env, typed="--env-module {module}")
        except QuarlError as error:
            raise entry.at.wrong(str(error)) from None
        for number in (seed,) if seed is not None else entry.seeds or study.seeds:
            for cell, at in _of_policy(study, entry, env_id, number, spaces):
                other = asked.get(cell.label) or asked.get(cell.key)
                if other is None:
                    asked[cell.label] = asked[cell.key] = (cell, entry, at)
                    cells.append(cell)
                elif cell.seed != number and cell.key == other[0].key:
                    continue  # a run of the development seed, which all seeds share
                elif clash := _clash((cell, entry, at), other):
                    raise clash
    return cells


def _clash(asked: _Asked, before: _Asked) -> QuarlError | None:
    """Return the error for two equal cells.

    None for one ActorQ training, which starts from no agent, for two agents.
    """
    (cell, entry, at), (other, elder, where) = asked, before
    if cell.method == ACTORQ and cell.key == other.key and entry.source != elder.source:
        return None
    if entry is elder:
        again = "twice" if at.line == where.line else f"here and in line {where.line}"
        return at.wrong(f"{cell.title} is asked for {again}; keep one")
    named, elsewhere = f"{cell.title} from {cell.source}", f"of line {elder.at.line}"
    if cell.key == other.key:
        return entry.at.wrong(f"{named} is the same cell as one {elsewhere}; keep one")
    return entry.at.wrong(f"{named} would have the same name in tables as another {elsewhere}; give it a name")


def _of_policy(
    study: Study, entry: PolicyEntry, env_id: str, seed: int, spaces: dict[str, tuple[Any, str]]
) -> Iterator[tuple[Cell, Place]]:
    """Yield the cells of one policy with one seed, with the place that requests each; a needed training comes first."""
    agent, na = None, entry.na
    if entry.source:
        na = _unfit(entry, env_id, spaces)
        if not na:
            agent = source.locate(study, entry, env_id, seed)
            na = "" if agent is not None else entry.na
    if agent is not None:
        agent = dataclasses.replace(agent, identity={**agent.identity, **entry.identity})
    policy = Planned(study=study, entry=entry, env_id=env_id, seed=seed, agent=agent)
    pairs = [(cell, method.at) for method in study.methods for cell in _METHODS[method.method](policy, method)]
    if na:
        pairs = [(cell.refused(na), at) for cell, at in pairs]
    if agent is not None and any(cell.needs for cell, _ in pairs):
        training = Cell(**policy.about, method=TRAIN, precision="fp32", work=agent.identity)
        policy.check(partial(check_training, training.work))
        yield training, entry.at
    yield from pairs


def _unfit(entry: PolicyEntry, env_id: str, spaces: dict[str, tuple[Any, str]]) -> str:
    """Return the reason that the algorithm cannot act in the environment, or an empty string.

    Environments are made once.
    """
    trains = entry.source[:1] == ("train",)
    key = f"{env_id} {entry.identity} {trains}"
    if key not in spaces:
        try:
            env = Environment.typed_by_user(env_id, entry.environment).make()  # the plan has resolved it
            spaces[key] = env.action_space, unreadable(env.observation_space) if trains else ""
            env.close()
        except QuarlError as error:  # an extra is missing
            spaces[key] = None, str(error)
    space, why = spaces[key]
    return why or (entry.algo and fits(entry.algo, space)) or ""


def _fp32(policy: Planned, method: MethodEntry) -> Iterator[Cell]:
    yield _play(policy, EXACT)


def _untrained(policy: Planned, method: MethodEntry) -> Iterator[Cell]:
    """Yield a cell of the networks before a training of the study."""
    agent = policy.agent
    cell = Cell(**policy.about, method=UNTRAINED, precision=EXACT.precision, work={})
    if agent is None or agent.kind != TRAIN:
        yield cell.refused("" if agent is None else "its training is not part of the study")
    else:
        yield dataclasses.replace(cell, work={**agent.identity, **policy.played})


def _updates(policy: Planned, method: MethodEntry) -> Iterator[Cell]:
    """Yield the cell that times updates of the policy's training."""
    agent, about = policy.agent, {**policy.about, "source": policy.entry.name or policy.entry.env}
    cell = Cell(**about, method=UPDATES, precision=EXACT.precision, work={})
    why = "" if agent is None or agent.kind == TRAIN else "its training is not part of the study"
    if policy.entry.algo != "dqn":
        why = "updates are timed of DQN alone"
    if agent is None or why:
        yield cell.refused(why)
        return
    work = {**agent.identity, "dtypes": list(method.dtypes), "timed_s": method.seconds}
    policy.check(partial(check_training, work))
    yield dataclasses.replace(cell, work=work)


def _ptq(policy: Planned, method: MethodEntry) -> Iterator[Cell]:
    """Yield every precision with every scheme and mode; float formats, which have none, once."""
    told: Any = {"bits": method.precision, "scheme": method.scheme, "edge_bits": method.edge_bits}
    specs = [spec for mode in method.mode for spec in PtqSpec(**{**told, "mode": mode}).specs()]
    for spec in dict.fromkeys(spec if spec.float_type is None else QuantSpec.parse(spec.precision) for spec in specs):
        yield _play(policy, spec)


def _distill(policy: Planned, method: MethodEntry) -> Iterator[Cell]:
    """Yield a cell of distillation at every precision; its seed is also that of calibration and distillation."""
    for config in method.distillations():
        recipe = recipe_of(dataclasses.replace(config, margin=policy.study.margin))
        for spec in config.specs():
            cell = _play(policy, spec)
            # `from` means that the cell starts from the agent's file
            work = {**cell.work, "from": cell.work["agent"], "recipe": recipe}
            yield dataclasses.replace(cell, method=DISTILL, work=work)


def _play(policy: Planned, spec: QuantSpec) -> Cell:
    return Cell(
        **policy.about,
        method=FP32 if spec == EXACT else PTQ,
        precision=spec.precision,
        scheme=spec.scheme.name,
        mode=spec.mode,
        needs=policy.training,
        work={
            "agent": None if policy.agent is None else policy.agent.identity,
            "env_id": policy.env_id,
            "spec": spec.to_json(),
            "seed": policy.seed,
            **policy.played,
            **({"disturbance": dict(disturbance)} if (disturbance := policy.entry.disturbance) else {}),
        },
    )


def _qat(policy: Planned, method: MethodEntry) -> Iterator[Cell]:
    """Yield a training for every precision: from scratch or, with fine_tune, from the agent."""
    agent, share = policy.agent, method.fine_tune
    for text in method.precision:
        mid_tread = bool(method.options.get("qat_mid_tread"))
        spec = QatSpec.parse(text, edges=method.edge_bits, mid_tread=mid_tread)
        precision = spec.precision
        cell = Cell(**policy.about, method=QAT, precision=precision, mode="static", work={"qat": precision})
        why = "" if agent is None else _untrainable(agent, share)
        if agent is None or why:
            yield cell.refused(why)
            continue
        recipe = source.training(policy.entry, policy.env_id, policy.seed)
        if share is not None:
            recipe |= source.lengths(max(round(share * (agent.n_timesteps or 1)), 1))
        work = {
            **recipe,
            "qat": precision,
            "quant_delay": method.quant_delay,
            "from": None if share is None else agent.identity,
            **policy.played,
        }
        if told := {**policy.entry.train, **method.options}:
            work["train"] = told
        if spec.deployed.mid_rise:  # a key that later versions added
            work["mid_rise"] = True
        policy.check(partial(check_training, work))
        yield dataclasses.replace(cell, needs="" if share is None else policy.training, work=work)


def _untrainable(agent: Agent, share: float | None) -> str:
    """Return the reason that quantization-aware training cannot start from the agent, or an empty string."""
    if share is None:
        return "" if agent.kind == TRAIN else "its training is not part of the study: give qat a share, fine_tune: 0.1"
    if agent.path is not None and agent.path.suffix != ".zip":
        return "fine-tuning starts from a Stable-Baselines3 zip, and this agent is of Stable-Baselines 2"
    if agent.n_timesteps is None:
        return "fine_tune is a share of the agent's training, whose length is not known: give the policy n_timesteps"
    return ""


_METHODS: Mapping[str, Callable[[Planned, MethodEntry], Iterator[Cell]]] = {
    FP32: _fp32,
    PTQ: _ptq,
    DISTILL: _distill,
    QAT: _qat,
    ACTORQ: actorq_plan.runs,
    THROUGHPUT: actorq_plan.windows,
    UNTRAINED: _untrained,
    UPDATES: _updates,
}
