"""Policy × environment → episode returns, and the observations met on the way."""

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
from quarl.errors import QuarlError, UnsupportedError, detail, note
from quarl.policy.graph import Policy, QuantizedPolicy, shapes
from quarl.quant.spec import EXACT
from quarl.readers.sb3_network import SCORING

NUM_OBSERVATIONS, NUM_IMAGES = 4096, 1024
"""Observations that stand for all that a policy meets. An image weighs as much as a thousand vectors, and gives a
convolution hundreds of rows."""
FEWEST = 10
"""Recorded observations to calibrate on."""
MAX_CALIBRATED = 2**27
"""Numbers of all values on them together; there are fewer observations where a network makes more of each."""
RECORD_BATCH = 16  # episodes side by side
IMAGE_INTERVAL = 8
"""Steps between two images that are recorded: a game has thousands of them, most like the one before."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Evaluation:
    """Returns of one policy, episode by episode: the same seeds in the same order for every precision.

    >>> evaluation = agent.evaluate(episodes=3)
    >>> evaluation.returns.mean(), evaluation.num_steps
    (np.float64(500.0), 1500)
    """

    env_id: str
    """The living id that was played, which may be newer than the one asked for."""
    engine: str
    measured: bool
    """False where the engine simulates the precision in float."""
    stochastic: bool
    seed: int
    returns: Array
    """float64 [episodes]: undiscounted sums of raw rewards."""
    lengths: Array
    """int64 [episodes]: environment steps."""
    seeds: Array
    """int64 [episodes]: what each episode was reset with."""
    successes: Array | None
    """bool [episodes]: `info["is_success"]` of each one's last step; None where the environment does not say."""
    wall_s: float
    """From the first action to the end of the last episode, resets in between included."""
    engine_s: float
    """The part of it spent in the engine, summed over the workers."""

    def __repr__(self) -> str:
        played = f"{self.env_id} on {self.engine}, {len(self.returns)} episodes, seed {self.seed}"
        return f"Evaluation({played}: return {self.returns.mean():.1f} ± {self.returns.std():.1f})"

    def then(self, more: Evaluation) -> Evaluation:
        """These episodes and after them those of `more`, which begin where these end."""
        arrays = ("returns", "lengths", "seeds")
        joined: dict[str, Any] = {name: np.concatenate([getattr(self, name), getattr(more, name)]) for name in arrays}
        both = None if self.successes is None or more.successes is None else [self.successes, more.successes]
        joined["successes"] = None if both is None else np.concatenate(both)
        return replace(self, **joined, wall_s=self.wall_s + more.wall_s, engine_s=self.engine_s + more.engine_s)

    @property
    def success(self) -> stats.Interval | None:
        """The share of episodes that succeeded, with Wilson's 95 % interval; None where that is not said."""
        return None if self.successes is None else stats.wilson_interval(self.successes)

    @property
    def num_steps(self) -> int:
        """Environment steps of all episodes."""
        return int(self.lengths.sum())

    @property
    def us_per_step(self) -> float:
        """Microseconds of wall clock per environment step, everything included."""
        return 1e6 * self.wall_s / self.num_steps

    @property
    def engine_us_per_step(self) -> float:
        """Microseconds in the engine per environment step."""
        return 1e6 * self.engine_s / self.num_steps


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
    progress: Callable[[Episode], None] | None = None,
) -> Evaluation:
    """Play episodes; their returns depend on the policy, the environment and the seed, on nothing else.

    Args:
        policy: The policy.
        environment: The environment to play in; None is the policy's own.
        episodes: How many.
        first: Number of the first episode; those of a seed continue the ones that were played.
        seed: Seed of the episodes.
        engine: A name, or an engine that is loaded: then its batch is played, in this process.
        batch: Episodes played side by side, in one call of the engine per step.
        stochastic: Whether actions are sampled; None follows the zoo's convention for this agent.
        num_workers: Processes that share the episodes.
        stream: Purpose of the episodes, which keeps their seeds apart from others.
        progress: Called with every finished episode, in the order they finish.

    Returns:
        The returns, episode by episode.

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
        raise UnsupportedError(f"{algo} has values of actions and no distribution of them; drop --stochastic")
    environment = environment or home_of(policy)
    num_workers = environment.at_once(min(num_workers, episodes))
    job = Job(
        policy=policy,
        engine=engine,
        batch=min(batch, environment.at_once(-(-episodes // num_workers))) if isinstance(engine, str) else batch,
        stream=stream,
        seed=seed,
        stochastic=policy.provenance.stochastic if stochastic is None else stochastic,
        **environment.playing(policy),
    )
    finished: list[Episode] = []

    def report(episode: Episode) -> None:
        finished.append(episode)
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
    """Put the finished episodes in order; refuse returns that are not finite."""
    episodes = sorted(finished, key=lambda episode: episode.index)
    broken = sum(not np.isfinite(episode.total) for episode in episodes)
    if broken:
        raise QuarlError(
            f"{env_id} gave rewards that are NaN or infinite, in {broken} of {len(episodes)} episodes: mend its "
            "rewards, or play another environment"
        )
    successes = [episode.success for episode in episodes]
    evaluation = Evaluation(
        env_id=env_id,
        engine=job.engine if isinstance(job.engine, str) else job.engine.name,
        measured=clocks[0].measured,
        stochastic=job.stochastic,
        seed=job.seed,
        returns=np.array([episode.total for episode in episodes]),
        lengths=np.array([episode.length for episode in episodes]),
        seeds=np.array([episode.seed for episode in episodes]),
        successes=None if None in successes else np.array(successes),
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
    min_episodes: int = 10,
) -> Array:
    """Observations [num, *shape] that the policy meets in its own episodes, in its dtype.

    Plays whole episodes until there are `min_episodes` and `num` steps, and takes `num` of those steps, evenly spaced:
    long episodes would otherwise fill the sample with one start. Like returns, they do not depend on the batch.
    Of images every IMAGE_INTERVAL-th step counts.

    stream: keeps purposes apart. environment: None is the policy's own. engine: a name loads the policy in float32.
    num: None takes as many as calibrate such a policy.
    """
    num = sample_size(policy) if num is None else num
    if seed < 0:
        raise QuarlError(f"seed must not be negative, got {seed}")
    if num < 1:
        raise QuarlError(f"the number of observations must be at least 1, got {num}")
    environment = environment or home_of(policy)
    if isinstance(engine, str):
        engine = engines.load(quantize(policy, EXACT), engine, batch=environment.at_once(RECORD_BATCH))
    run = engine.run
    setting = Play(
        policy=policy,
        batch=engine.batch,
        stream=stream,
        seed=seed,
        stochastic=policy.provenance.stochastic,
        record=IMAGE_INTERVAL if policy.observation_dtype == "uint8" else 1,
        **environment.playing(policy),
    )
    episodes = play(setting, lambda observations: sound(policy, observations, run(observations)), itertools.count())
    by_index: dict[int, Array] = {}
    ordered: list[Array] = []
    with contextlib.closing(episodes):
        while len(ordered) < min_episodes or sum(map(len, ordered)) < num:
            episode = next(episodes)
            assert episode.observations is not None
            by_index[episode.index] = episode.observations
            while len(ordered) in by_index:  # only a prefix counts, so that quick episodes are not preferred
                ordered.append(by_index.pop(len(ordered)))
                if len(ordered) >= min_episodes and sum(map(len, ordered)) >= num:
                    break
    met = np.concatenate(ordered)
    return met[np.linspace(0, len(met) - 1, num).round().astype(np.int64)]


def sample_size(policy: Policy) -> int:
    """How many recorded observations calibrate the policy, or compare its actions."""
    usual = NUM_IMAGES if policy.observation_dtype == "uint8" else NUM_OBSERVATIONS
    return max(min(usual, MAX_CALIBRATED // sum(map(math.prod, shapes(policy).values()))), 1)


def check_recorded(observations: Array) -> Array:
    """Return recorded observations [N, ...] to calibrate on; note the numbers of an observation that never vary.

    Raises QuarlError for fewer than FEWEST.
    """
    if len(observations) < FEWEST:
        raise QuarlError(f"observations of {len(observations)} states are too few: give {FEWEST} or more")
    constant = (observations == observations[0]).reshape(len(observations), -1).all(axis=0)
    if constant.any() and (observations.ndim == 2 or constant.all()):  # borders of images are often constant
        places = ", ".join(map(str, np.flatnonzero(constant)[:8])) + (", ..." if constant.sum() > 8 else "")
        note(
            f"{constant.sum():,} of {constant.size:,} numbers of an observation (from 0: {places}) do not vary in the "
            f"{len(observations):,} recorded ones: record some in which they do, or their range is a guess"
        )
    return observations


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise QuarlError(f"{name} is {str(value)[:60]!r}, not a whole number")
    return int(value)
