"""Several machines as one, by Ray: raylets that are started here, and what talks to those of others."""

from __future__ import annotations

import os
import sys

from quarl import __version__
from quarl.errors import QuarlError


def begin_here(version: str) -> str:
    """This machine's name, where an agent of Ray begins to start processes; QuarlError where versions differ.

    version: of QuaRL, as the one that asks has it. A machine may have joined late, and with another one.
    """
    name = os.uname().nodename
    vars(sys.modules["__main__"]).pop("__file__", None)  # Ray's, which those processes would begin with
    if version != __version__:
        raise QuarlError(f"{name} has QuaRL {__version__}, the runner {version}: install the same on all machines")
    return name
