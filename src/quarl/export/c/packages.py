"""Projects around a policy.c: a control loop, and the files of a build system."""

from __future__ import annotations

import importlib.resources
import re

import numpy as np

from quarl.arrays import Array
from quarl.export.c.program import Program
from quarl.policy.graph import ActionHead


def write(head: ActionHead, program: Program, package: str) -> dict[str, str]:
    """Return the files of a package by name.

    Args:
        head: Head of the policy, with the bounds of its actions.
        program: The policy in C.
        package: Folder of templates besides that of the control loop.
    """
    floats, remembers, low, high = program.a == "uint32_t", program.state > 0, *_limits(head, program)
    words = {
        "name": program.name,
        "macro": program.name.upper(),
        "number": "uint8_t" if program.x == "uint8_t" else "float",
        "result": "float" if floats else "int32_t",
        "act": "act" if program.x == "uint8_t" and not floats else "act_float",
        "given": "&c->state, " * remembers,
        "init": f"\n    {program.name}_reset(&c->state);" * remembers,
        "late": f"\n        {program.name}_reset(&c->state);" * remembers,
        "memory": f"\n    {program.name}_state state; /* reset at the start and when observations end */" * remembers,
        **{
            word: _listed(x)
            for word, x in (("low", low), ("high", high), ("safe", np.clip(np.zeros_like(low), low, high)))
        },
    }
    return {
        file.name.replace("policy", program.name): re.sub("@([a-z]+)@", lambda m: words[m[1]], file.read_text())
        for folder in ("loop", package)
        for file in importlib.resources.files(__package__).joinpath("templates", folder).iterdir()
    }


def _limits(head: ActionHead, program: Program) -> tuple[Array, Array]:
    """Return the smallest and largest number [n] that `head` gives for each of an action; floats are finite."""
    if not head.is_discrete:
        return np.nan_to_num(head.low.astype(np.float32).ravel()), np.nan_to_num(head.high.astype(np.float32).ravel())
    low = np.full(program.action, head.first)
    return low, low + (1 if head.kind == "binary" else np.array(head.segments or [program.raw - program.state]) - 1)


def _listed(values: Array) -> str:
    """Return the numbers as elements of an array in C."""
    return ", ".join(f"{v!s}f" if values.dtype.kind == "f" else str(v) for v in values)
