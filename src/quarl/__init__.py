"""QuaRL: what low precision costs and gains in reinforcement learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quarl.errors import QuarlError

if TYPE_CHECKING:
    from quarl.api import Agent, load

__all__ = ["Agent", "QuarlError", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Imported on first use: `quarl --help` must not wait for numpy and the runtimes.
    if name in ("Agent", "load"):
        from quarl import api

        return getattr(api, name)
    raise AttributeError(f"module 'quarl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
