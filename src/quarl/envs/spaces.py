"""Spaces: the algorithms that can learn in one, and the match between a policy and an environment."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from quarl.envs.checked import name_of
from quarl.envs.masks import UNMASKED, is_masked, masks_of
from quarl.envs.wrappers import FrameStack, Rows
from quarl.errors import QuarlError, note_once
from quarl.policy.graph import ActionHead, Policy
from quarl.policy.inputs import has_channels_last
from quarl.readers.observation import observe
from quarl.readers.plain_spaces import Box, Discrete, action_head, as_pairs, from_live, observation_box
from quarl.readers.sb3_network import LAYOUTS
from quarl.specs import LEARNERS

WAYS = (
    "choose the environment it was trained on with --env, or its options, if the command has them: --env-kwargs, "
    "--wrapper, --frame-stack"
)


def fits(algo: str, action_space: Any) -> str | None:
    """Return None if `algo` can learn in gymnasium's `action_space`; otherwise the reason, which makes the cell n/a."""
    layout = LAYOUTS[algo]
    if np.any(getattr(action_space, "start", 0)):
        return f"Stable-Baselines3 counts actions from 0, this space from {action_space.start}: wrap the environment"
    try:
        actions = from_live(action_space, "the action space")
        if isinstance(actions, Box) and actions.low.ndim > 1:
            return "actions of several axes are played, not trained: wrap the environment so that they are one row"
        if layout.values and not isinstance(actions, Discrete):
            return f"{algo} needs a discrete action space{'' if isinstance(actions, Box) else ', of one number'}"
        if layout.tanh and not isinstance(actions, Box):
            return f"{algo} needs a continuous action space"
        action_head(actions, "the action space", squashed=layout.tanh)
    except QuarlError as error:
        return str(error)
    return None


def fitting(action_space: Any) -> tuple[str, ...]:
    """Return the algorithms that can learn in the space."""
    return tuple(algo for algo in LEARNERS if fits(algo, action_space) is None)


def unreadable(observation_space: Any) -> str:
    """Return the reason that no policy can read observations of gymnasium's space; an empty string if one can."""
    where = "the observation space"
    try:
        observation_box(from_live(observation_space, where), where)
    except QuarlError as error:
        return str(error)
    return ""


def check_spaces(policy: Policy, env: gymnasium.Env[Any, Any]) -> None:
    """Raise QuarlError, naming both sides, unless observations and actions of the policy fit the environment."""
    name = name_of(env)
    if policy.inputs:
        _check_inputs(policy, env)
    elif not _observations_fit(policy, env.observation_space):
        ours = f"{policy.observation_dtype} {policy.seen}"
        stack = _frames(policy.seen, env)
        way = f"they are {stack} frames of it: --frame-stack {stack} (frame_stack={stack} in Python)" if stack else WAYS
        raise _mismatch("observations", ours, name, env.observation_space, way)
    if not _actions_fit(policy, env.action_space):
        raise _mismatch("actions", actions_of(policy), name, env.action_space, WAYS)
    if policy.head.zero_based:
        note_once(
            f"the actions of {name} begin at {policy.head.start}, but Stable-Baselines3 counts from 0: it gets "
            "numbers from 0, as in training"
        )
    if is_masked(policy) and masks_of(policy, env) is None:
        note_once(f"the policy may choose any action of {name}, because {UNMASKED}")


def _check_inputs(policy: Policy, env: gymnasium.Env[Any, Any]) -> None:
    """Raise QuarlError if the environment lacks an input of the policy, or has another one under its name."""
    space = env.env.observation_space if isinstance(env, Rows) else env.observation_space
    shown = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    for each in policy.inputs:
        if each.key not in shown:
            raise _mismatch("observations", f"with {each}", name_of(env), space, WAYS)
        theirs = observe(from_live(shown[each.key], "the observation space"), "the observation space").inputs[0]
        turned = has_channels_last(theirs.shape, each.shape)
        if replace(theirs, key=each.key, shape=each.shape if turned else theirs.shape) != each:
            raise _mismatch("observations", f"with {each}", name_of(env), shown[each.key], WAYS)


def _frames(shape: tuple[int, ...], env: gymnasium.Env[Any, Any]) -> int:
    """Return the number of stacked observations in one of `shape`, as VecFrameStack stacks them; 0 if none fits."""
    unstacked = env.env if isinstance(env, FrameStack) else env
    space = unstacked.observation_space
    size = math.prod(space.shape) if isinstance(space, spaces.Box) and space.shape else 0
    frames = math.prod(shape) // size if size else 0
    return frames if 1 < frames <= 64 and FrameStack(unstacked, frames).observation_space.shape == shape else 0


def head_in(head: ActionHead, space: spaces.Space[Any]) -> ActionHead:
    """Return the head with the space's own bounds.

    With bounds in float64 Stable-Baselines3 returns float64 actions, which float32 bounds would let out of the space.
    """
    return replace(head, low=space.low, high=space.high) if isinstance(space, spaces.Box) else head


def _observations_fit(policy: Policy, space: spaces.Space[Any]) -> bool:
    if not isinstance(space, spaces.Box) or space.shape != policy.seen:
        return False
    box = from_live(space, "observation space")
    return isinstance(box, Box) and box.observation_dtype == policy.observation_dtype


def _actions_fit(policy: Policy, space: spaces.Space[Any]) -> bool:
    head = policy.head
    if head.is_discrete:
        try:
            actions = from_live(space, "the action space")
            actions = as_pairs(actions) if head.segments else actions  # a masked policy has pairs
            theirs = action_head(actions, "the action space")
        except QuarlError:
            return False
        same = (theirs.kind, theirs.segments, theirs.start) == (head.kind, head.segments, head.start)
        return same and actions.width == policy.num_outputs
    # a bound written in float64 and read in float32 is the same bound
    return (
        isinstance(space, spaces.Box)
        and space.shape == head.low.shape
        and np.allclose(space.low, head.low)
        and np.allclose(space.high, head.high)
    )


def actions_of(policy: Policy) -> str:
    """Return the policy's actions in words."""
    head = policy.head
    if head.segments:
        return f"{len(head.segments)} numbers, each one of {', '.join(map(str, head.segments))}"
    if head.is_discrete:
        count = policy.num_outputs
        return f"{count} bits" if head.kind == "binary" else f"{count} discrete ones from {head.start}"
    return f"{head.low.size} numbers in [{float(head.low.min()):g}, {float(head.high.max()):g}]"


def _mismatch(what: str, ours: str, name: str, theirs: spaces.Space[Any], way: str) -> QuarlError:
    described = " ".join(str(theirs).split())  # numpy breaks long bounds into lines
    return QuarlError(f"the policy's {what} ({ours}) are not those of {name} ({described}); {way}")
