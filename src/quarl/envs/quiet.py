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


@contextlib.contextmanager
def dm_control_muted() -> Iterator[None]:
    """DM Control is imported without a renderer, and MuJoCo's warnings are dropped inside.

    It looks for a renderer when it is imported, and GLFW warns where there is no display. A choice that the user made
    with MUJOCO_GL is kept; otherwise the variable is set for this import alone.
    """
    importlib.import_module("mujoco")  # reads the variable too: its own renderers stay as they were
    chosen = "MUJOCO_GL" in os.environ
    if not chosen:
        os.environ["MUJOCO_GL"] = "disable"
    try:
        importlib.import_module("dm_control.suite")  # installs a handler of MuJoCo's warnings, which prints them
    finally:
        if not chosen:
            os.environ.pop("MUJOCO_GL", None)
    with mujoco_muted():
        yield


@contextlib.contextmanager
def atari_muted() -> Iterator[None]:
    """The emulator says only what went wrong, from here on: every new one would begin with its name and version."""
    ale: Any = importlib.import_module("ale_py")  # an extra
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)
    yield


def _flush_c_streams() -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no C library to ask for on some systems
        ctypes.CDLL(None).fflush(None)
