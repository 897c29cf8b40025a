"""`quarl eval`: the returns of one policy as it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np

from quarl import formats, saturation, stats
from quarl.calibration import quantize
from quarl.commands import model, terminal
from quarl.config import EvalConfig
from quarl.engines import Engine
from quarl.envs.rollout import Episode
from quarl.errors import QuarlError
from quarl.evaluation import evaluate
from quarl.export import verification
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.quant.spec import EXACT
from quarl.readers.normalizer import sentence
from quarl.rows import Column, EngineName, Episodes, Measured, Outside, Precision, Returns, Row, Saturated, Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRow(Row):
    """One evaluation of one policy."""

    command = "eval"
    precision: Precision
    engine: EngineName
    measured: Measured
    stochastic: Annotated[
        bool, Column("actions", lambda drawn: "sampled" if drawn else "deterministic", caption="{} actions")
    ]
    episodes: Episodes
    mean: Annotated[float, Column("return", formats.spread, of=("mean", "std"))]
    std: float
    iqm: Annotated[float, Column("IQM", formats.number)]
    ci_low: Annotated[float | None, Column("95 % interval", formats.interval, of=("ci_low", "ci_high"), before="iqm")]
    ci_high: float | None
    success: Annotated[
        float | None,
        Column("success %", formats.shares, of=("success", "success_low", "success_high"), optional=True),
    ]
    """Share of episodes whose last step has `is_success`, with Wilson's 95 % interval; null if none has it."""
    success_low: float | None
    success_high: float | None
    steps: Steps
    steps_per_s: Annotated[float, Column("steps/s", "{:,.0f}".format)]
    """Steps of all environments together per second."""
    saturated: Saturated
    outside: Outside
    returns: Returns


def run(config: EvalConfig) -> None:
    """Play the episodes and print one row."""
    file = model.locate(config)
    engine: str | Engine = config.engine
    is_exported = verification.is_exported(file)
    policy: Policy
    if is_exported:
        if config.stochastic or "engine" in config.typed:
            raise QuarlError(f"{file} is played as it is, with greedy actions: drop --engine and --stochastic")
        policy, engine = verification.opened(file)
    else:
        policy = model.read(config)
    policy, environment = model.at_home(policy, config)
    exact = policy if isinstance(policy, QuantizedPolicy) else quantize(policy, EXACT)
    seen: list[Episode] = []
    with terminal.progress(config.episodes) as progress:

        def ended(episode: Episode) -> None:
            seen.append(saturation.thinned(episode, config.episodes))
            progress(exact.spec.precision, 1)

        evaluation = evaluate(
            exact,
            episodes=config.episodes,
            seed=config.seed,
            environment=environment,
            engine=engine,
            batch=config.batch,
            stochastic=True if config.stochastic else False if config.deterministic or is_exported else None,
            num_workers=config.workers,
            record=saturation.interval(exact),
            progress=ended,
        )
    row = EvalRow(
        precision=exact.spec.precision,
        engine=evaluation.engine,
        measured=evaluation.measured,
        stochastic=evaluation.stochastic,
        **asdict(stats.summary(evaluation.returns, np.random.default_rng(config.seed))),
        **stats.as_fields(evaluation.success, "success", "success"),
        steps=evaluation.num_steps,
        steps_per_s=evaluation.num_steps / evaluation.wall_s,
        **saturation.shares(exact, seen),
        returns=evaluation.returns.tolist(),
    )
    terminal.tell(
        config,
        EvalRow,
        [row],
        policy.provenance.title(evaluation.env_id),
        "",
        sentence(policy),
        **model.told(config, policy, evaluation),
    )
