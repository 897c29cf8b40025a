"""The rows of a sweep over bits, and what its seeds say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quarl import stats
from quarl.config import SweepConfig
from quarl.experiments.bits import FP32, Played, env_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One method at one precision with one seed: the contract of `quarl sweep --json`."""

    algo: str
    env_id: str
    method: str
    """fp32, ptq or qat."""
    precision: str
    bits_weights: int
    bits_activations: int
    """32 where activations stay float."""
    seed: int
    episodes: int
    mean: float
    ci_low: float | None
    """Ends of the 95 % bootstrap interval of the mean, over episodes; None of one."""
    ci_high: float | None
    error_pct: float
    """Loss against the fp32 agent of the same seed, in percent of it; NaN where its interval contains 0."""
    noninferior: bool
    verdict: str
    """Paired with that agent's episodes, as stats.Verdict has it."""
    differs: bool
    measured: bool
    """False where no kernel runs the precision and it was simulated."""
    env_steps: int
    minutes: float
    """Of the training behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One method at one precision over all seeds, each seed's episodes paired with its own fp32 agent's."""

    method: str
    precision: str
    bits_weights: int
    bits_activations: int
    seeds: int
    mean: float
    ci_low: float
    """Ends of the 95 % interval over seeds and their episodes."""
    ci_high: float
    error_pct: float
    error_low: float
    error_high: float
    noninferior: bool
    verdict: str
    """By the interval of the error, as stats.Verdict has it."""
    differs: bool
    gain: float | None
    """Of qat over ptq in return; None elsewhere."""
    gain_low: float | None
    gain_high: float | None


def rows(config: SweepConfig, played: Sequence[Played]) -> list[Row]:
    """A row each, compared with the fp32 agent of its seed."""
    exact = {one.seed: one.returns for one in played if one.method == FP32}
    made = []
    for one in (one for one in played if one.seed in exact):
        rng = np.random.default_rng(one.seed)
        summary = stats.summary(one.returns, rng)
        made.append(
            Row(
                algo=config.algo,
                env_id=env_id(config),
                method=one.method,
                precision=one.spec.precision,
                bits_weights=one.spec.weight_bits,
                bits_activations=one.spec.activation_bits or 32,
                seed=one.seed,
                episodes=summary.episodes,
                mean=summary.mean,
                ci_low=summary.ci_low,
                ci_high=summary.ci_high,
                error_pct=stats.error_pct(exact[one.seed], one.returns, np.random.default_rng(one.seed)),
                **stats.verdict(exact[one.seed], one.returns, config.margin, rng).to_json(),
                measured=one.measured,
                env_steps=one.env_steps,
                minutes=one.minutes,
            )
        )
    return made


def summaries(config: SweepConfig, played: Sequence[Played]) -> list[Summary]:
    """Every method at every precision, over the seeds that are there."""
    groups: dict[tuple[str, str], dict[int, Played]] = {}
    for one in played:
        groups.setdefault((one.method, one.spec.precision), {})[one.seed] = one
    exact = groups.get((FP32, FP32), {})
    made = []
    for (method, precision), group in groups.items():
        seeds = [seed for seed in group if seed in exact]
        if not seeds:
            continue
        values = stats.over_seeds([group[seed].returns for seed in seeds], np.random.default_rng(0))
        pairs = [(exact[seed].returns, group[seed].returns) for seed in seeds]
        error = stats.error_over_seeds(pairs, np.random.default_rng(0))
        gain = None
        other = groups.get(("ptq", precision), {})
        if method == "qat" and all(seed in other for seed in seeds):
            gain = stats.over_seeds([group[s].returns - other[s].returns for s in seeds], np.random.default_rng(0))
        spec = group[seeds[0]].spec
        made.append(
            Summary(
                method=method,
                precision=precision,
                bits_weights=spec.weight_bits,
                bits_activations=spec.activation_bits or 32,
                seeds=len(seeds),
                **stats.as_fields(values, "mean", "ci"),
                **stats.as_fields(error, "error_pct", "error"),
                **stats.verdict_over_seeds(pairs, config.margin, np.random.default_rng(0)).to_json(),
                **stats.as_fields(gain, "gain", "gain"),
            )
        )
    return made
