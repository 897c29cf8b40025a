"""Contexts in which simulators do not print: what some C libraries write on every start says nothing to a user."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def descriptors_muted() -> Iterator[None]:
    """File descriptors 1 and 2 lead nowhere inside (PyBullet prints its build time, and "argv[0]=" per client)."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    saved = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for descriptor in saved:
            os.dup2(nowhere, descriptor)
        yield
    finally:
        _flush_c_streams()  # C's buffer would otherwise come out after the descriptors are back
        for descriptor, original in saved.items():
            os.dup2(original, descriptor)
            os.close(original)
        os.close(nowhere)


@contextlib.contextmanager
def mujoco_muted() -> Iterator[None]:
    """MuJoCo's warnings are dropped inside.

    Current versions call attributes in gymnasium's own models deprecated, on stderr and in a file in the working
    directory.
    """
    mujoco: Any = importlib.import_module("mujoco")  # an extra, and it ships no annotations

    saved = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(saved)


def _flush_c_streams() -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no C library to ask for on some systems
        ctypes.CDLL(None).fflush(None)
