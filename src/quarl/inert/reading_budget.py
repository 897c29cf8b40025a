"""What reading one file may cost: bytes, copies of them and parsed values, counted together for all of its parts."""

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
"""Read, unpacked or made of these. The largest policies of the study are 50 MB, an ActorQ learner's zip has 300."""
MAX_VALUES = 200_000
"""Operations of pickles, fields of protocol buffers, values of JSON, operators and tensors. A Stable-Baselines 2 agent
has up to 1,000, the JSON of a Stable-Baselines3 zip 400, a frozen graph a few thousand."""
SPELT_OUT, SMALL_COPIES = 64, 2**24
"""Bytes that may be made of each byte read, and of any file: float32 takes 16 times the room of 2-bit codes."""
MAX_OPERATORS, MAX_NUMBERS, MAX_PRODUCTS = 1024, 2**22, 2**28
"""Of a network; the last two for one observation: all values, of which the Nature CNN makes 100,000, and what weights
are multiplied with, 42 million in the wide CNN."""


class Budget:
    """Counts what a file has cost; QuarlError beyond what any policy needs."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._read = self._copied = self._values = 0

    def read(self, count: int) -> None:
        """Bytes from the disk, or unpacked."""
        self._read += count
        self._check(self._read + self._copied, MAX_BYTES, "bytes")

    def copy(self, count: int) -> None:
        """Bytes made of those: one array can be named many times."""
        self._copied += count
        limit = min(SPELT_OUT * self._read + SMALL_COPIES, MAX_BYTES - self._read)
        self._check(self._copied, limit, "bytes to be made of its own")

    def parse(self, count: int = 1) -> None:
        """Values."""
        self._values += count
        self._check(self._values, MAX_VALUES, "values")

    def _check(self, spent: int, limit: int, what: str) -> None:
        if spent > limit:
            raise QuarlError(f"{self._where}: it has more than {limit:,} {what}, more than any policy needs")


_OPEN: ContextVar[Budget | None] = ContextVar("budget", default=None)


def current(where: str = "it") -> Budget:
    """The budget of the file that is being read; one of its own outside `reading`."""
    return _OPEN.get() or Budget(where)


@contextmanager
def reading(where: object) -> Iterator[None]:
    """Reads a file, with those in and beside it, on one budget and in silence; what it raises is a QuarlError."""
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
    """The JSON object, if it has no more values than a file may have; counted before anything is made of it."""
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    current(where).parse(sum(map(raw.count, (b"[", b"{", b",", b":"))))
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise QuarlError(f"{where} is not JSON ({str(error)[:80]}); the file is damaged") from None
    if not isinstance(document, dict):
        raise QuarlError(f"{where} holds a {type(document).__name__}, not values by name; it is damaged")
    return document
