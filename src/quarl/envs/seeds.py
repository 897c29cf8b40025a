"""Reset seeds: every episode of every stream has its own, and no two streams share one."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

Stream = Literal["evaluation", "calibration", "fidelity", "envelope", "development", "probe", "training", "validation"]
"""Purpose of the episodes.

A scheme is chosen on "development", calibrated on "calibration" and judged on "evaluation". "probe" tests environments,
actors learn from "training", "validation" chooses snapshots, and "envelope" leaves the path of the policy.
"""
STREAMS: tuple[Stream, ...] = get_args(Stream)
STREAM_BITS = 3
EPISODE_BITS = 31 - STREAM_BITS
"""Number of bits for the episode; seeds stay below 2**31, which every simulator accepts."""
_MASK = 2**EPISODE_BITS - 1
_ODD = 0x9E3779B1
"""2**32 over the golden ratio; any odd factor permutes the integers modulo a power of two."""


def episode_seed(stream: Stream, seed: int, k: int) -> int:
    """Return the reset seed of episode k, in [0, 2**31).

    The low bits are the stream's number, so streams are disjoint. The others are a permutation of k chosen by `seed`:
    each round is an xor with a key, an odd product and a xor-shift, all invertible. So the episodes of one seed never
    repeat (k < 2**28), and those of another seed come in another order.

    Args:
        stream: Purpose of the episode.
        seed: Seed of the run, not negative.
        k: Index of the episode, below 2**28.

    Returns:
        The seed.

    Raises:
        ValueError: `seed` or `k` is out of range.
    """
    if not 0 <= k <= _MASK:
        raise ValueError(f"k must be 0..{_MASK}, got {k}")
    mixed = k
    for key in np.random.SeedSequence(seed).generate_state(3).tolist():
        mixed = (mixed ^ (key & _MASK)) * _ODD & _MASK
        mixed ^= mixed >> EPISODE_BITS // 2
    return mixed << STREAM_BITS | STREAMS.index(stream)


def action_generator(stream: Stream, seed: int, k: int) -> np.random.Generator:
    """Return the generator of a stochastic policy's actions in episode k, independent of the environment's own.

    Args:
        stream: Purpose of the episode.
        seed: Seed of the run.
        k: Index of the episode.

    Returns:
        The generator.
    """
    return np.random.default_rng((STREAMS.index(stream), seed, k))
