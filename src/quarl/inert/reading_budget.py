"""Limits for reading one file: bytes, copies of them and parsed values, counted together for all of its parts."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from quarl.errors import QuarlError, in_one_line

MAX_BYTES = 2**30
"""Largest number of bytes read, unpacked or created from them. The largest policies of the study take 50 MB, and the
zip of an ActorQ learner 300."""
MAX_VALUES = 200_000
"""Largest number of pickle operations, protocol buffer fields, JSON values, operators and tensors. A Stable-Baselines 2
agent has up to 1,000, the JSON of a Stable-Baselines3 zip 400."""
SPELT_OUT, SMALL_COPIES = 64, 2**24
"""Bytes that may be created for each byte read, and for any file: float32 takes 16 times the space of 2-bit codes."""
MAX_OPERATORS, MAX_NUMBERS, MAX_PRODUCTS = 1024, 2**22, 2**28
"""Limits of a network; the last two count one observation. They are all values (the Nature CNN computes 100,000) and
all products with weights (42 million in the wide CNN)."""


class Budget:
    """A counter of the cost of a file; it raises QuarlError beyond the needs of any policy."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._read = self._copied = self._values = 0

    def read(self, count: int) -> None:
        """Count bytes from the disk, or unpacked ones."""
        self._read += count
        self._check(self._read + self._copied, MAX_BYTES, "bytes")

    def copy(self, count: int) -> None:
        """Count bytes created from those: one array can be named many times."""
        self._copied += count
        limit = min(SPELT_OUT * self._read + SMALL_COPIES, MAX_BYTES - self._read)
        self._check(self._copied, limit, "bytes to be made of its own")

    def parse(self, count: int = 1) -> None:
        """Count parsed values."""
        self._values += count
        self._check(self._values, MAX_VALUES, "values")

    def _check(self, spent: int, limit: int, what: str) -> None:
        if spent > limit:
            raise QuarlError(f"{self._where}: it has more than {limit:,} {what}, more than any policy needs")


_OPEN: ContextVar[Budget | None] = ContextVar("budget", default=None)


def current(where: str = "it") -> Budget:
    """Return the budget of the file that is being read; outside `reading`, a new one."""
    return _OPEN.get() or Budget(where)


@contextmanager
def reading(where: object) -> Iterator[None]:
    """Read a file and those in and beside it on one budget, without warnings.

    Unexpected errors become QuarlError.
    """
    if _OPEN.get() is not None:
        yield
        return
    token = _OPEN.set(Budget(str(where)))
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    except (QuarlError, OSError):
        raise
    except Exception as error:
        raise QuarlError(f"{where} is damaged ({in_one_line(error)[:120]}); fetch it again") from error
    finally:
        _OPEN.reset(token)


def read_json(text: str | bytes, where: str) -> dict[str, Any]:
    """Return the JSON object if it has no more values than a file may have; they are counted before parsing."""
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    current(where).parse(sum(map(raw.count, (b"[", b"{", b",", b":"))))
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise QuarlError(f"{where} is not JSON ({str(error)[:80]}); the file is damaged") from None
    if not isinstance(document, dict):
        raise QuarlError(f"{where} holds a {type(document).__name__}, not values by name; it is damaged")
    return document
