"""Which actions an environment allows at the moment: the masks that sb3-contrib's MaskablePPO was trained with."""

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
"""Of an environment, or of a wrapper around it: truths, as many as scores, of the actions that are allowed."""
UNMASKED = (
    f"it has no {METHOD}(), with which the policy was trained: register it inside its ActionMasker and name that with "
    "--env module:ID (in Python, env=ActionMasker(...) will do)"
)
"""How a user gives an environment its masks."""
FORBIDDEN = np.float32(-1e8)
"""The score of any other action, as sb3-contrib has it: where nothing is allowed, all actions are alike."""


def is_masked(policy: Policy) -> bool:
    """Whether the policy was trained with masks; others play as they did in training, without."""
    return policy.provenance.algo == "maskableppo"


def masks_of(policy: Policy, env: gymnasium.Env[Any, Any]) -> Callable[[], Any] | None:
    """What tells the masks; None where the policy takes none, or the environment has none."""
    has = is_masked(policy) and env.has_wrapper_attr(METHOD)
    return env.get_wrapper_attr(METHOD) if has else None


def allowed(scores: Array, masks: Any) -> Array:
    """The scores [B, n] with FORBIDDEN in place of those that masks, [B, n] or [n] for one row, do not allow.

    ValueError for another number of truths.
    """
    truths = np.asarray(masks)
    if truths.size != scores.size or truths.dtype.kind not in "biuf":
        raise ValueError(f"{METHOD} has {truths.size} values of {truths.dtype} for {scores.size} scores of actions")
    return np.where(truths.reshape(scores.shape), scores, FORBIDDEN)


def allowed_in(env: gymnasium.Env[Any, Any], masks: Callable[[], Any], scores: Array) -> Array:
    """As `allowed`, of the environment's own masks at the moment; its faults are said as those of its step."""
    try:
        said = masks()
    except RAISED as error:
        raise broken(env, error) from error
    try:
        return allowed(scores, said)
    except ValueError as error:
        raise BrokenEnvironmentError(f"{name_of(env)}: its {error}: mend it") from None
