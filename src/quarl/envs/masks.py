"""Masks of the actions that an environment allows at present, as for sb3-contrib's MaskablePPO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from quarl.arrays import Array
from quarl.envs.checked import BrokenEnvironmentError, broken, name_of
from quarl.errors import RAISED
from quarl.policy.graph import Policy

METHOD = "action_masks"
"""Method of an environment or a wrapper around it that returns one boolean per action, True if it is allowed."""
UNMASKED = (
    f"it has no {METHOD}(), which the policy was trained with: register it inside its ActionMasker and name that with "
    "--env module:ID (in Python, pass env=ActionMasker(...))"
)
"""The fix for an environment without masks."""
FORBIDDEN = np.float32(-1e8)
"""Score of a forbidden action, as in sb3-contrib: if none is allowed, all actions are equal."""


def is_masked(policy: Policy) -> bool:
    """Return True if the policy was trained with masks; others play as in training, without them."""
    return policy.provenance.algo == "maskableppo"


def masks_of(policy: Policy, env: gymnasium.Env[Any, Any]) -> Callable[[], Any] | None:
    """Return the function that gives the masks; None if the policy uses none or the environment has none."""
    has = is_masked(policy) and env.has_wrapper_attr(METHOD)
    return env.get_wrapper_attr(METHOD) if has else None


def allowed(scores: Array, masks: Any) -> Array:
    """Return scores [B, n] with FORBIDDEN in place of the actions that masks [B, n], or [n] for one row, do not allow.

    Raises:
        ValueError: The number of masks differs.
    """
    truths = np.asarray(masks)
    if truths.size != scores.size or truths.dtype.kind not in "biuf":
        raise ValueError(f"{METHOD} has {truths.size} values of {truths.dtype} for {scores.size} scores of actions")
    return np.where(truths.reshape(scores.shape), scores, FORBIDDEN)


def allowed_in(env: gymnasium.Env[Any, Any], masks: Callable[[], Any], scores: Array) -> Array:
    """Return the scores after the environment's present masks, as `allowed` does.

    Args:
        env: The environment.
        masks: Its method that returns the masks.
        scores: Scores [B, n] of the actions.

    Returns:
        The scores with FORBIDDEN for other actions.

    Raises:
        BrokenEnvironmentError: The environment raised, or its masks have another size.
    """
    try:
        said = masks()
    except RAISED as error:
        raise broken(env, error) from error
    try:
        return allowed(scores, said)
    except ValueError as error:
        raise BrokenEnvironmentError(f"{name_of(env)}: its {error}: fix it") from None
