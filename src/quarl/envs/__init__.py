"""One `make` for every suite, with wrappers honoured and no warning, checker or autoreset in between."""

from __future__ import annotations

from quarl.envs.environment import Environment, home_of, in_environment, make
from quarl.envs.names import resolve
from quarl.envs.spaces import check_spaces

__all__ = ["Environment", "check_spaces", "home_of", "in_environment", "make", "resolve"]
