"""Ray clusters of several machines: raylets that are started here, and connections to those of other machines."""

from __future__ import annotations

import os
import sys

from quarl import __version__
from quarl.errors import QuarlError


def begin_here(version: str) -> str:
    """Return this machine's name, when an agent of Ray begins to start processes.

    Raises QuarlError if `version`, the caller's version of QuaRL, differs: a machine may have joined late with another
    version.
    """
    name = os.uname().nodename
    # Drop Ray's main file, which those processes would otherwise run.
    vars(sys.modules["__main__"]).pop("__file__", None)
    if version != __version__:
        raise QuarlError(f"{name} has QuaRL {__version__}, the runner {version}: install the same on all machines")
    return name
