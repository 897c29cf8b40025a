"""One `make` for every suite, which honors wrappers and adds no warning, checker or autoreset."""

from __future__ import annotations

from quarl.envs.environment import Environment, home_of, in_environment, make
from quarl.envs.names import resolve
from quarl.envs.spaces import check_spaces

__all__ = ["Environment", "check_spaces", "home_of", "in_environment", "make", "resolve"]
