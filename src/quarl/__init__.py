"""QuaRL: what low precision costs and gains in reinforcement learning.

>>> agent = quarl.load("CartPole-v1.zip")
>>> agent.quantize("int8").evaluate(episodes=5)
Evaluation(CartPole-v1 on litert, 5 episodes, seed 0: return 500.0 ± 0.0)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from quarl.errors import QuarlError

__all__ = ["Agent", "QuarlError", "distill", "evaluate", "from_module", "from_sb3", "load", "ptq"]
__version__ = "0.1.0"

if TYPE_CHECKING:
    from quarl.api import Agent, distill, evaluate, from_module, from_sb3, load
    from quarl.commands.table import ptq
else:  # a name that is not there is a mistake for type checkers, too

    def __getattr__(name: str) -> object:
        # Imported on first use: `quarl --help` must not wait for numpy and the runtimes.
        if name in __all__:
            return getattr(importlib.import_module("quarl.commands.table" if name == "ptq" else "quarl.api"), name)
        raise AttributeError(f"module 'quarl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
