"""QuaRL: costs and gains of low precision in reinforcement learning.

>>> agent = quarl.load("CartPole-v1.zip")
>>> agent.quantize("int8").evaluate(episodes=5)
Evaluation(CartPole-v1 on litert, 5 episodes, seed 0: return 500.0 ± 0.0)
"""

from __future__ import annotations

import importlib

__all__ = [
    "Agent",
    "QuarlError",
    "actorq",
    "compare",
    "distill",
    "evaluate",
    "from_module",
    "from_sb3",
    "load",
    "ptq",
    "scheme",
]
__version__ = "0.1.0"
MODULES = {"QuarlError": "errors", "compare": "comparison", "ptq": "post_training.table", "scheme": "quant.schemes"}
"""Module of a name, if that is not `api`."""


def __getattr__(name: str) -> object:
    # Imported on first use: `quarl --help` must not wait for numpy and the runtimes. Types: __init__.pyi.
    if name == "actorq":
        return importlib.import_module("quarl.actorq")  # a package that can be called
    if name in __all__:
        return getattr(importlib.import_module(f"quarl.{MODULES.get(name, 'api')}"), name)
    raise AttributeError(f"module 'quarl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
