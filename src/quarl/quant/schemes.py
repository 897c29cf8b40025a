"""Schemes of the user's own code: functions that turn weights into codes, by the names that `--scheme` takes.

A module is imported only if the user typed its name. The function's source is hashed: the hash is part of the scheme,
so that results of a changed function are never taken for those of the old one.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from quarl.errors import QuarlError, own_module
from quarl.quant.spec import OWN, SCHEMES, Scheme

Function = TypeVar("Function", bound=Callable[..., Any])
FUNCTIONS: dict[Scheme, Callable[..., Any]] = {}
"""Functions of own schemes, each from float32 weights [out, ...] and bits to codes, scales and zero points."""


def scheme(name: str) -> Callable[[Function], Function]:
    """Return a decorator that registers a function as the scheme `module:name`, after the function's module.

    The function takes the weights of a layer, float32 [out, in, ...], and their bits. It returns integer codes of the
    same shape, within -2**(bits - 1)..2**(bits - 1) - 1, and scales and zero points, [out] each. A weight's value is
    (code - zero point) * scale. The first and the last layers may have other bits.

    >>> @quarl.scheme("one-step")
    ... def one_step(weights, bits):
    ...     scales = np.full(len(weights), 1 / 16)
    ...     return np.rint(weights * 16).clip(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), scales, np.zeros(len(weights))
    """
    if not re.fullmatch(r"[\w-]+", name):
        raise QuarlError(f"{name[:60]!r} cannot name a scheme; use letters, digits, - and _")
    if name in SCHEMES:
        raise QuarlError(f"scheme {name!r} is one of QuaRL's; give yours another name")

    def register(function: Function) -> Function:
        title = f"{function.__module__}:{name}"
        try:
            source = inspect.getsource(function)
        except (OSError, TypeError):
            raise QuarlError(f"the source of scheme {title!r} cannot be read: define a function in a file") from None
        own = Scheme(name=title, symmetric=False, source=hashlib.sha256(source.encode()).hexdigest())
        if title in SCHEMES and FUNCTIONS[SCHEMES[title]].__qualname__ != function.__qualname__:
            raise QuarlError(f"two functions are called scheme {title!r}; rename one of them")
        SCHEMES[title], FUNCTIONS[own] = own, function
        return function

    return register


def typed_by_user(name: str) -> str:
    """Return the full name of a scheme whose name the user typed, after importing the module that it names.

    The name without its module is enough for a scheme that is registered already.
    """
    if name not in SCHEMES and (match := OWN.fullmatch(name)):
        own_module(match[1], f"scheme {name!r}")
        if name not in SCHEMES:
            raise QuarlError(
                f"module {match[1]!r} defines no scheme {match[2]!r}; decorate a function in it with "
                f"@quarl.scheme({match[2]!r})"
            )
    known = [title for title in SCHEMES if title.endswith(f":{name}")]
    return known[0] if len(known) == 1 else name
