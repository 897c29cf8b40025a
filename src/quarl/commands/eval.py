"""`quarl eval`: returns of one policy as it is."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from quarl import stats
from quarl.commands import model, terminal
from quarl.config import EvalConfig
from quarl.evaluate import Evaluation, evaluate
from quarl.policy.graph import QuantizedPolicy
from quarl.ptq import quantize
from quarl.quant.spec import EXACT
from quarl.readers.normalizer import sentence
from quarl.report import schema


def run(config: EvalConfig) -> None:
    """Plays the episodes and prints one row."""
    policy = model.at_home(model.read(config), config)
    exact = policy if isinstance(policy, QuantizedPolicy) else quantize(policy, EXACT)
    with terminal.progress(config.episodes) as progress:
        evaluation = evaluate(
            exact,
            episodes=config.episodes,
            seed=config.seed,
            env_id=config.env,
            engine=config.engine,
            batch=config.batch,
            stochastic=True if config.stochastic else False if config.deterministic else None,
            num_workers=config.workers,
            progress=lambda episode: progress(exact.spec.precision, 1),
        )
    document = schema.document(
        "eval",
        [_row(exact, evaluation)],
        model=str(model.locate(config)),
        algo=policy.provenance.algo,
        env_id=evaluation.env_id,
        seed=config.seed,
        statistics=sentence(policy),
    )
    terminal.show("eval", document["rows"], model.title(policy, evaluation.env_id))
    terminal.say("", document["statistics"])
    terminal.finish(config, document)


def _row(policy: QuantizedPolicy, evaluation: Evaluation) -> schema.Row:
    summary = stats.summary(evaluation.returns, np.random.default_rng(evaluation.seed))
    return {
        "precision": policy.spec.precision,
        "engine": evaluation.engine,
        "measured": evaluation.measured,
        "stochastic": evaluation.stochastic,
        **asdict(summary),
        "steps": evaluation.num_steps,
        "steps_per_s": evaluation.num_steps / evaluation.wall_s,
    }
