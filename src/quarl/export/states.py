"""States on which a policy is compared with its file, with float32 and with dynamic mode: on its path and off it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from quarl.arrays import Array
from quarl.calibration import quantize
from quarl.engines import load_fitting, reference, run_all
from quarl.envs.environment import Environment, home_of
from quarl.errors import QuarlError, UnsupportedError, note
from quarl.evaluation import record
from quarl.export import golden
from quarl.export.equal import VerifyRow
from quarl.export.golden import Golden
from quarl.off_path import KINDS, away, off_path
from quarl.policy.graph import ActionHead, Policy, QuantizedPolicy, is_quantized
from quarl.quant.affine import TINY
from quarl.quant.spec import EXACT

NUM_STATES = 2000
"""Number of states of each kind in a report."""


def rollout(policy: QuantizedPolicy, environment: Environment, seed: int) -> Array:
    """Return observations [NUM_RECORDED, *shape] of the policy's own episodes.

    Args:
        policy: The quantized policy.
        environment: Environment to play in.
        seed: Seed of the episodes.
    """
    return record(policy, "fidelity", seed=seed, environment=environment, num=golden.NUM_RECORDED, min_episodes=3)


def golden_observations(
    policy: QuantizedPolicy,
    agent: Policy | None,
    environment: Environment | None,
    observations: Array | None,
    seed: int,
    arithmetic: str,
) -> tuple[Array, Array]:
    """Return observations [N, *shape] on the path of a policy, and [M, *shape] off it, for golden vectors.

    The latter are recorded ones that are moved away if no environment is played, or if a caller has lent it.

    Args:
        policy: The quantized policy.
        agent: The policy before quantization; a float one is compared with off the path, for a note.
        environment: Environment to play in; None is the policy's own.
        observations: Raw observations [N, *shape]; None records them in the environment.
        seed: Seed of the episodes.
        arithmetic: Arithmetic of the quantized policy.

    Raises:
        QuarlError: There are neither observations nor an environment.
    """
    if observations is not None:
        return observations, away(observations, 2.0)
    environment = environment or home_of(policy, recordable=True)
    met = rollout(policy, environment, seed)
    if environment.lent is not None:
        return met, away(met, 2.0)  # it may be a robot: no random actions
    beyond = np.concatenate(
        [
            off_path(policy, environment, kind, count=golden.NUM_RECORDED, seed=seed, min_episodes=3)
            for kind in KINDS[:2]
        ]
    )
    if agent is not None and policy.grids and not is_quantized(agent):
        found = compared(policy, quantize(agent, EXACT), beyond, arithmetic)
        if found["static_largest"] > max(1.5 * found["dynamic_largest"], 0.5 if policy.head.is_discrete else 5):
            note(
                "off the path, the largest error of static mode is {static_largest:.3g}, that of dynamic mode "
                "{dynamic_largest:.3g} {unit}: see quarl verify --envelope".format(
                    **found, unit="median gaps" if policy.head.is_discrete else "% of the range"
                )
            )
    return met, beyond


def disagreements(
    policy: QuantizedPolicy,
    exact: QuantizedPolicy,
    met: Golden,
    environment: Environment | None,
    seed: int,
    arithmetic: str,
) -> Iterator[VerifyRow | str]:
    """Compare a static policy, and its weights in dynamic mode, with float32 on the path and off it.

    Args:
        policy: The static policy.
        exact: The agent in float32, which acts.
        met: Vectors with observations on the path, for lack of an environment.
        environment: Environment to play in; None only moves these observations away.
        seed: Seed of the states.
        arithmetic: Arithmetic of the static policy.

    Yields:
        A row for each kind of state, or the reason for leaving one out.

    Raises:
        QuarlError: The policy is not static, or its agent is not in float32.
    """
    if not policy.grids or is_quantized(exact):
        raise QuarlError(
            f"--envelope compares a static policy with its agent in fp32, not {policy.spec.in_words} with "
            f"{exact.spec.in_words}: export the float agent with --mode static"
        )
    states = {"path": met.observations[: len(met.observations) - met.edges - met.off_path]}
    if environment is None:
        yield f"left out, because they need an environment: {', '.join(KINDS)} (only recorded states are moved away)"
    else:
        states["path"] = record(exact, "fidelity", num=NUM_STATES, environment=environment, seed=seed)
        for kind in KINDS:
            try:
                states[kind] = off_path(exact, environment, kind, count=NUM_STATES, seed=seed)
            except UnsupportedError as error:
                yield f"left out: {error}"
    states["visited*1.5"] = away(states["path"], seed=seed)
    for name, x in states.items():
        yield VerifyRow(
            check=f"against fp32: {name}",
            count=len(x),
            result="reported",
            **compared(policy, exact, x, arithmetic),
        )


def compared(
    policy: QuantizedPolicy, exact: QuantizedPolicy, observations: Array, arithmetic: str = "f32-rne"
) -> dict[str, Any]:
    """Return the fields of a row on the errors of a static policy, and of the same weights in dynamic mode.

    Args:
        policy: The static policy.
        exact: The agent in float32.
        observations: Raw observations [N, *shape].
        arithmetic: Arithmetic of the static policy.
    """
    spec = replace(policy.spec, mode="dynamic", symmetric_activations=False)
    outputs, *others = (
        run_all(engine, observations)
        for engine in (
            load_fitting(exact, batch=64),
            reference.load(policy, 64, arithmetic),
            load_fitting(QuantizedPolicy.of(policy, policy.ops, spec, {}), batch=64),
        )
    )
    (static, largest), dynamic = (error_of(policy.head, outputs, other) for other in others)
    return {"static": static, "static_largest": largest, "dynamic": dynamic[0], "dynamic_largest": dynamic[1]}


def error_of(head: ActionHead, exact: Array, outputs: Array) -> tuple[float, float]:
    """Return the error of a network's outputs [N, n], and the largest one.

    They are the RMS and the largest error of continuous actions in percent of their range. For discrete actions they
    are the percentage that differs, and the largest decision gap of the exact outputs among them, in median gaps.

    Args:
        head: The action head.
        exact: Outputs in float32.
        outputs: Outputs of the quantized network.
    """
    away_by = head.distance(head(exact), head(outputs))
    if not head.is_discrete:
        return 100 * math.sqrt(np.square(away_by).mean()), 100 * float(away_by.max())
    parts = np.split(exact, np.cumsum(head.segments, dtype=int)[:-1], axis=1)
    leads = np.stack([np.ptp(np.sort(part, axis=1)[:, -2:], axis=1) for part in parts], axis=1)
    gaps, differs = np.abs(exact) if head.kind == "binary" else leads, away_by > 0
    return 100 * float(differs.any(axis=1).mean()), float(gaps[differs].max(initial=0) / max(np.median(gaps), TINY))
