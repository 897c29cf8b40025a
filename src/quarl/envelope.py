"""Observations that calibrate a policy: those of its own episodes, and an envelope around them."""

from __future__ import annotations

from typing import Any

import numpy as np

from quarl.arguments import recorded_rows
from quarl.arrays import Array
from quarl.envs.environment import Environment, home_of
from quarl.errors import QuarlError, UnsupportedError, note
from quarl.evaluation import record, sample
from quarl.off_path import away, off_path
from quarl.policy.graph import Policy, QuantizedPolicy
from quarl.quant.spec import Mode
from quarl.specs import PATH, ROWS, check_envelope, visited_factor

FALLBACK = 1.5
"""Factor K of visited*K in place of states that cannot be sampled."""


def met_in(
    envelope: str | Array,
    policy: Policy,
    environment: Environment | None = None,
    *,
    recorded: Array | None = None,
    seed: int = 0,
    engine: str = "litert",
) -> Array:
    """Return the observations [N, *shape] that calibrate a policy: those on its path, then those around it.

    Args:
        envelope: path, visited*K or env; or the rows [M, *shape] to add.
        policy: The policy.
        environment: The environment to record in; None means the policy's own.
        recorded: Raw observations [N, *shape] of the path; None records the policy's own episodes.
        seed: Seed of the episodes and of the rows around them.
        engine: Name of the engine that acts.

    Raises:
        QuarlError: The environment does not fit the policy.
    """
    where: Any = {"environment": environment, "seed": seed, "engine": engine}
    path = record(policy, **where) if recorded is None else recorded
    if not isinstance(envelope, str):
        return np.concatenate([path, sample(policy, envelope)])
    if envelope == PATH:
        return path
    if (factor := visited_factor(envelope)) is not None:
        return np.concatenate([path, away(path, factor, seed=seed)])
    if recorded is not None:
        note(f"envelope env has no environment beside recorded observations: visited*{FALLBACK} replaces it")
        return np.concatenate([path, away(path, FALLBACK, seed=seed)])
    where |= {"environment": environment or home_of(policy), "count": -(-len(path) // 3), "stream": "calibration"}
    rows = [off_path(policy, kind=kind, **where) for kind in ("perturbed", "starts")]
    try:
        rows.append(off_path(policy, kind="box", **where))
    except UnsupportedError as error:
        note(f"envelope env has {error}; visited*{FALLBACK} replaces it")
        rows.append(away(path, FALLBACK, seed=seed))
    return np.concatenate([path, *rows])


def asked(policy: Policy, envelope: Any, mode: Mode | None) -> str | Array:
    """Return the envelope that a Python caller asks for: its name, or its rows as the policy reads them.

    Args:
        policy: The policy.
        envelope: path, visited*K or env, or observations as the environment returns them.
        mode: Mode of the activations; None if it depends on the policy.

    Raises:
        QuarlError: The name is unknown, the rows do not fit the policy, or dynamic mode has no grids.
    """
    named = isinstance(envelope, str)
    try:
        check_envelope(envelope if named else f"rows{ROWS[0]}", mode, files=not named)
    except QuarlError as error:
        raise QuarlError(str(error).removeprefix("--")) from None
    return envelope if named else recorded_rows(policy, envelope)


def check_covered(envelope: str | Array, policy: Policy, made: QuantizedPolicy) -> None:
    """Raise QuarlError if there is an envelope, and quantization has `made` no grids: nothing would cover it."""
    if not (isinstance(envelope, str) and envelope == PATH) and (made is policy or not made.grids):
        why = "keeps its own grids" if made.grids else f"has none, as {made.spec.in_words}"
        raise QuarlError(f"an envelope is for new grids of static mode, and the policy {why}: drop the envelope")
