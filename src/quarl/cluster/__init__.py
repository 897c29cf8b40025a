"""Ray clusters of several machines: raylets that are started here, and connections to those of other machines."""

from __future__ import annotations

import sys

from quarl.cluster import connection


def begin_here() -> str:
    """Return this machine's name, when an agent of Ray begins to start processes."""
    # Drop Ray's main file, which those processes would otherwise run.
    vars(sys.modules["__main__"]).pop("__file__", None)
    return connection.own_name()
