"""Evaluation of a policy: the returns of its episodes in an environment, and the observations in them."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quarl import engines, stats
from quarl.arrays import Array
from quarl.calibration import quantize
from quarl.engines import Engine, sound
from quarl.envs.environment import Environment, home_of
from quarl.envs.rollout import Episode, Play, play
from quarl.envs.seeds import Stream
from quarl.episodes import Clock, Job, in_processes
from quarl.errors import QuarlError, UnsupportedError, detail, note, note_once
from quarl.policy.graph import Policy, QuantizedPolicy, shapes
from quarl.quant.spec import EXACT
from quarl.readers.sb3_network import SCORING

NUM_OBSERVATIONS, NUM_IMAGES = 4096, 1024
"""Sample sizes of observation vectors and of images. An image is as large as a thousand vectors, and
hundreds of rows to a convolution, so fewer images suffice."""
HELD_OUT = 10
"""Number of recorded observations of which one is held out."""
FEWEST = 10
"""Minimum number of recorded observations for calibration."""
MAX_CALIBRATED = 2**27
"""Maximum number of activation elements over the whole sample; a network with many activations gets fewer samples."""
RECORD_BATCH = 16  # episodes played side by side
IMAGE_INTERVAL = 8
"""Steps between two recorded images: a game has thousands, and consecutive ones are nearly equal."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Evaluation:
    """Results of one policy, episode by episode, with the same seeds in the same order for every precision.

    >>> evaluation = agent.evaluate(episodes=3)
    >>> evaluation.returns.mean(), evaluation.num_steps
    (np.float64(500.0), 1500)
    """

    env_id: str
    """Id of the environment that was played; its version may be newer than the requested one."""
    engine: str
    """Name of the engine."""
    measured: bool
    """False if the engine simulates the precision in float."""
    stochastic: bool
    """True if actions were sampled from the policy's distribution."""
    seed: int
    """Seed from which the episodes' seeds are derived."""
    returns: Array
    """Undiscounted sums of raw rewards, float64 [episodes]."""
    lengths: Array
    """Environment steps, int64 [episodes]."""
    seeds: Array
    """Seeds with which the episodes were reset, int64 [episodes]."""
    successes: Array | None
    """`info["is_success"]` of each episode's last step, bool [episodes], false where it is missing; None if it always
    is."""
    wall_s: float
    """Seconds from the first action to the end of the last episode, including the resets in between."""
    engine_s: float
    """Seconds of `wall_s` spent in the engine, summed over the workers."""

    def __repr__(self) -> str:
        played = f"{self.env_id} on {self.engine}, {len(self.returns)} episodes, seed {self.seed}"
        return f"Evaluation({played}: return {self.returns.mean():.1f} ± {self.returns.std():.1f})"

    def then(self, more: Evaluation) -> Evaluation:
        """Return these episodes followed by those of `more`, whose indices continue the ones here."""
        arrays = ("returns", "lengths", "seeds")
        joined: dict[str, Any] = {name: np.concatenate([getattr(self, name), getattr(more, name)]) for name in arrays}
        both = all_successes(self, more)
        joined["successes"] = None if both is None else np.concatenate(both)
        return replace(self, **joined, wall_s=self.wall_s + more.wall_s, engine_s=self.engine_s + more.engine_s)

    @property
    def success(self) -> stats.Interval | None:
        """Share of successful episodes with Wilson's 95 % interval; None if the environment reports no successes."""
        return None if self.successes is None else stats.wilson_interval(self.successes)

    def by_episode(self) -> dict[str, Any]:
        """Return the fields of a row that list episodes."""
        won = None if self.successes is None else self.successes.tolist()
        return {"returns": self.returns.tolist(), "lengths": self.lengths.tolist(), "successes": won}

    @property
    def num_steps(self) -> int:
        """Number of environment steps in all episodes."""
        return int(self.lengths.sum())

    @property
    def us_per_step(self) -> float:
        """Wall-clock time per environment step in µs, including the environment and resets."""
        return 1e6 * self.wall_s / self.num_steps

    @property
    def engine_us_per_step(self) -> float:
        """Time in the engine per environment step in µs."""
        return 1e6 * self.engine_s / self.num_steps


def all_successes(*played: Evaluation) -> list[Array] | None:
    """Return the successes of each evaluation; None if the environment reports none in any of them."""
    if all(each.successes is None for each in played):
        return None
    return [np.zeros(len(each.returns), np.bool_) if each.successes is None else each.successes for each in played]


def evaluate(
    policy: QuantizedPolicy,
    environment: Environment | None = None,
    *,
    episodes: int = 100,
    first: int = 0,
    seed: int = 0,
    engine: str | Engine = "litert",
    batch: int = 16,
    stochastic: bool | None = None,
    num_workers: int = 1,
    stream: Stream = "evaluation",
    record: int = 0,
    progress: Callable[[Episode], None] | None = None,
) -> Evaluation:
    """Play episodes and return their results, which depend only on the policy, the environment and the seed.

    Args:
        policy: The policy.
        environment: The environment to play in; None means the policy's own.
        episodes: Number of episodes.
        first: Index of the first episode; a later call continues a seed's episodes after those already played.
        seed: Seed of the episodes.
        engine: Name of an engine, or a loaded one, which plays with its own batch size in this process.
        batch: Episodes played side by side, in one call of the engine per step.
        stochastic: Sample actions from the policy's distribution; None follows the zoo's convention for this agent.
        num_workers: Number of processes that share the episodes.
        stream: Purpose of the episodes, which keeps their seeds apart from others.
        record: Steps from one observation of an episode that `progress` gets to the next; 0 records none.
        progress: Called with every finished episode, in the order in which they finish.

    Returns:
        Returns, lengths, seeds and successes, episode by episode, with the time that they took.

    Raises:
        QuarlError: The environment does not exist or does not fit the policy, or a number is out of range.
    """
    if not isinstance(engine, str):
        batch, num_workers = engine.batch, 1
    for name, value in (("episodes", episodes), ("batch", batch), ("num_workers", num_workers)):
        if _whole(name, value) < 1:
            raise QuarlError(f"{name} must be at least 1, got {value}")
    for name, value in (("seed", seed), ("first", first)):
        if _whole(name, value) < 0:
            raise QuarlError(f"{name} must not be negative, got {value}")
    if stochastic and policy.head.kind == "argmax" and (algo := policy.provenance.algo) in SCORING:
        raise UnsupportedError(f"{algo} predicts values of actions, not a distribution over them; drop --stochastic")
    environment = environment or home_of(policy)
    num_workers = environment.at_once(min(num_workers, episodes))
    job = Job(
        policy=policy,
        engine=engine,
        batch=min(batch, environment.at_once(-(-episodes // num_workers))) if isinstance(engine, str) else batch,
        stream=stream,
        seed=seed,
        stochastic=policy.provenance.stochastic if stochastic is None else stochastic,
        record=record,
        **environment.playing(policy),
    )
    finished: list[Episode] = []

    def report(episode: Episode) -> None:
        finished.append(replace(episode, observations=None))
        if progress is not None:
            progress(episode)

    indices = range(first, first + episodes)
    clocks = (
        [job.play(indices, report)]
        if num_workers == 1
        else in_processes(job, [indices[start::num_workers] for start in range(num_workers)], report)
    )
    return _evaluation(job, environment.env_id, finished, clocks)


def _evaluation(job: Job, env_id: str, finished: list[Episode], clocks: Sequence[Clock]) -> Evaluation:
    """Sort the finished episodes by index; raise QuarlError for returns that are not finite."""
    episodes = sorted(finished, key=lambda episode: episode.index)
    broken = sum(not np.isfinite(episode.total) for episode in episodes)
    if broken:
        raise QuarlError(
            f"{env_id} gave rewards that are NaN or infinite, in {broken} of {len(episodes)} episodes: fix its "
            "rewards, or play another environment"
        )
    successes = [episode.success for episode in episodes]
    if 0 < (missing := successes.count(None)) < len(successes):
        note(
            f"{env_id} reports is_success in {len(successes) - missing} of {len(successes)} episodes: the others count "
            "as failed"
        )
    evaluation = Evaluation(
        env_id=env_id,
        engine=job.engine if isinstance(job.engine, str) else job.engine.name,
        measured=clocks[0].measured,
        stochastic=job.stochastic,
        seed=job.seed,
        returns=np.array([episode.total for episode in episodes]),
        lengths=np.array([episode.length for episode in episodes]),
        seeds=np.array([episode.seed for episode in episodes]),
        successes=None if missing == len(successes) else np.array(successes, np.bool_),
        wall_s=max(clock.wall_s for clock in clocks),
        engine_s=sum(clock.engine_s for clock in clocks),
    )
    played = f"{len(episodes)} episodes of {env_id} in {evaluation.num_steps:,} steps and {evaluation.wall_s:.2f} s"
    kernels = f"{'measured' if evaluation.measured else 'simulated'} on {evaluation.engine}"
    detail(f"played {played}: {job.policy.spec.precision} {kernels}, seeds of {job.stream} {job.seed}")
    return evaluation


def record(
    policy: Policy,
    stream: Stream = "calibration",
    *,
    seed: int = 0,
    environment: Environment | None = None,
    engine: str | Engine = "litert",
    num: int | None = None,
    span: int = 1,
    min_episodes: int = 10,
    leave: Callable[[Any], Any] | None = None,
) -> Array:
    """Return observations [num, *shape] from the policy's own episodes, in its dtype.

    Play whole episodes until there are `min_episodes` and `num` steps, then take `num` evenly spaced steps. Otherwise
    a single start would fill the sample if episodes are long. Images are recorded at every
    IMAGE_INTERVAL-th step only. Like returns, the observations do not depend on the batch size.

    Args:
        policy: The policy, which also acts.
        stream: Purpose of the episodes, which keeps their seeds apart from those of other purposes.
        seed: Seed of the episodes.
        environment: The environment to play in; None means the policy's own.
        engine: A loaded engine, or the name of one, which then runs the policy in float32.
        num: Number of observations; None means the usual sample size for such a policy.
        span: Consecutive steps at each of the evenly spaced ones; `num` is rounded down to a multiple of it.
        min_episodes: Minimum number of episodes to sample from.
        leave: Wrapper around the environment, in which other states are met; None means the usual ones.

    Raises:
        QuarlError: `seed` or `num` is out of range, or the environment does not fit the policy.
    """
    num = sample_size(policy) if num is None else num
    if seed < 0:
        raise QuarlError(f"seed must not be negative, got {seed}")
    if num < 1:
        raise QuarlError(f"the number of observations must be at least 1, got {num}")
    environment = environment or home_of(policy)
    if isinstance(engine, str):
        engine = engines.load(quantize(policy, EXACT), engine, batch=environment.at_once(RECORD_BATCH))
    run, playing = engine.run, environment.playing(policy)
    make = playing.pop("make")
    setting = Play(
        policy=policy,
        batch=engine.batch,
        stream=stream,
        seed=seed,
        stochastic=policy.provenance.stochastic,
        record=IMAGE_INTERVAL if policy.observation_dtype == "uint8" else 1,
        make=make if leave is None else lambda: leave(make()),
        **playing,
    )
    episodes = play(setting, lambda observations: sound(policy, observations, run(observations)), itertools.count())
    # Episodes finish out of order; `ordered` has the observations of those whose predecessors have finished.
    by_index: dict[int, Array] = {}
    ordered: list[Array] = []
    with contextlib.closing(episodes):
        while len(ordered) < min_episodes or sum(map(len, ordered)) < num:
            episode = next(episodes)
            assert episode.observations is not None
            by_index[episode.index] = episode.observations
            while len(ordered) in by_index:  # only a prefix counts, so that short episodes are not preferred
                ordered.append(by_index.pop(len(ordered)))
                if len(ordered) >= min_episodes and sum(map(len, ordered)) >= num:
                    break
    met = np.concatenate(ordered)
    first = np.linspace(0, len(met) - span, num // span).round().astype(np.int64)
    return met[np.repeat(first, span) + np.tile(np.arange(span), len(first))]


def carry(policy: QuantizedPolicy, rows: Array, engine: str = "litert") -> Array:
    """Return recorded rows with the states that a policy with a memory itself carries, from the first row on.

    Args:
        policy: The policy; the rows of one without a memory do not change.
        rows: Observations [N, K + S] in the order of time; one with the initial state starts an episode.
        engine: Name of the preferred engine.
    """
    if policy.state.size:
        rows, size, run = rows.copy(), policy.seen[0], engines.load_fitting(policy, engine).run
        for last in np.flatnonzero((rows[1:, size:] != policy.state).any(axis=1)):
            rows[last + 1, size:] = run(rows[last : last + 1])[0, policy.head.width :]
    return rows


def sample_size(policy: Policy) -> int:
    """Return the number of recorded observations that calibrate the policy, or compare its actions."""
    usual = NUM_IMAGES if policy.observation_dtype == "uint8" else NUM_OBSERVATIONS
    return max(min(usual, MAX_CALIBRATED // sum(map(math.prod, shapes(policy).values()))), 1)


def sample(policy: Policy, observations: Array) -> Array:
    """Return evenly spaced observations, of recorded ones [N, *shape], in the number that calibrates the policy."""
    return observations[:: -(-len(observations) // sample_size(policy))]


def split_by_time(observations: Array) -> tuple[Array, Array]:
    """Return the first nine tenths of recorded observations [N, *shape], and the last tenth, which is held out.

    Neighbors in time are alike: observations held out at random would be nearly those that calibrate.
    """
    check_recorded(observations)
    seen, held_out = np.split(observations, [len(observations) - len(observations) // HELD_OUT])
    return seen, held_out


def check_recorded(observations: Array) -> Array:
    """Return recorded observations [N, ...] for calibration; note once which numbers never vary.

    Raises QuarlError for fewer than FEWEST.
    """
    if len(observations) < FEWEST:
        raise QuarlError(f"observations of {len(observations)} states are too few: give {FEWEST} or more")
    constant = (observations == observations[0]).reshape(len(observations), -1).all(axis=0)
    if constant.any() and (observations.ndim == 2 or constant.all()):  # borders of images are often constant
        places = ", ".join(map(str, np.flatnonzero(constant)[:8])) + (", ..." if constant.sum() > 8 else "")
        note_once(
            f"{constant.sum():,} of {constant.size:,} numbers of an observation (from 0: {places}) do not vary in the "
            f"{len(observations):,} recorded ones: record some in which they do, or their range is a guess"
        )
    return observations


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise QuarlError(f"{name} is {str(value)[:60]!r}, not a whole number")
    return int(value)
