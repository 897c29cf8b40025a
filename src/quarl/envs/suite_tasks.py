"""The tasks of DM Control's suite: known without the package, so that a name is understood before any import."""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "dm_control/"
DOMAINS: Mapping[str, tuple[str, ...]] = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}
"""Domain -> its tasks, of dm_control 1.0.50."""
TASKS: Mapping[str, tuple[str, str]] = {
    f"{PREFIX}{domain}-{task}-v0": (domain, task) for domain, tasks in DOMAINS.items() for task in tasks
}
"""Id, spelt as shimmy spells it -> (domain, task)."""


def modern(env_id: str) -> str:
    """The id that the "suite,name" of the 2020 code stands for, known or not; any other name as it is.

    A domain may hold underscores as its tasks do, so it is the longest known one that the name begins with.

    >>> modern("dm_control,ball_in_cup_catch"), modern("gym,CartPole-v1")
    ('dm_control/ball_in_cup-catch-v0', 'CartPole-v1')
    """
    suite, _, name = env_id.partition(",")
    if suite == "gym" and name:
        return name
    if suite == "dm_control" and name:
        domain = max((known for known in DOMAINS if name.startswith(f"{known}_")), key=len, default="")
        return f"{PREFIX}{domain}-{name[len(domain) + 1 :]}-v0" if domain else f"{PREFIX}{name}-v0"
    return env_id
