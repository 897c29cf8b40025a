"""Objects named by a pickle, kept as data, and the few calls in a pickle that only build numbers and containers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_NUMERIC: Final = re.compile(r"[<>|=]?(\?|b1|i[1248]|u[1248]|f[248]|c8|c16)")
_NUMPY_TYPES: Final = frozenset(
    ["bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
)
_RECONSTRUCTORS: Final = (
    "copy_reg._reconstructor",
    "copyreg._reconstructor",
    "copy_reg.__newobj__",
    "copyreg.__newobj__",
)
MAX_DIMENSIONS = 8


class Malformed(Exception):
    """Reason to refuse a file; its reader adds the path."""


class Inert:
    """Data of an object that a pickle names: the name itself, or the arguments of a call."""

    __slots__ = ("args", "called", "items", "kwargs", "memo_keys", "module", "name", "state")

    def __init__(self, module: str, name: str, args: tuple[Any, ...] = (), *, called: bool = False) -> None:
        self.module = module
        self.name = name
        self.args = args
        """Positional arguments of the call; () for a bare name."""
        self.kwargs: dict[Any, Any] = {}
        self.called = called
        """False for the class or function itself, True for the result of a call of it."""
        self.state: Any = None
        """Argument of __setstate__, usually a dict of attributes."""
        self.items: list[Any] = []
        """Appended elements, or (key, value) pairs that were set."""
        self.memo_keys: list[int] = []
        """Memo keys of this object in the interpreter; empty once the array that replaces it is known."""

    @property
    def path(self) -> str:
        """Return the dotted name, with numpy's renamed core under its old name."""
        return f"{self.module}.{self.name}".replace("numpy._core.", "numpy.core.", 1)

    @property
    def attributes(self) -> Mapping[Any, Any]:
        """Return the attributes that `state` would set; empty unless it is a dict (or a pair of dicts, for slots)."""
        parts = self.state if isinstance(self.state, tuple) and len(self.state) == 2 else (self.state,)
        merged: dict[Any, Any] = {}
        for part in parts:
            merged.update(part if isinstance(part, dict) else {})
        return merged

    def __repr__(self) -> str:
        return f"<inert {self.path[:80]}{'()' if self.called else ''}>"


def numeric_dtype(text: str) -> np.dtype[Any] | None:
    """Return the numpy dtype for a text such as "<f4"; None if it is not a plain number or boolean."""
    return np.dtype(text) if _NUMERIC.fullmatch(text) else None


def dtype_of(value: Any) -> np.dtype[Any] | None:
    """Return the numpy dtype of an inert `numpy.dtype(...)`; None if it is not a plain number or boolean."""
    if not isinstance(value, Inert):
        return None
    if value.module == "numpy" and not value.called and value.name in _NUMPY_TYPES:
        return np.dtype(value.name)
    if value.path != "numpy.dtype" or not value.args or not isinstance(value.args[0], str):
        return None
    dtype = numeric_dtype(value.args[0])
    if dtype is None:
        return None
    order = value.state[1] if isinstance(value.state, tuple) and len(value.state) > 1 else "="
    if isinstance(order, str) and order in ("<", ">"):
        return dtype.newbyteorder("<" if order == "<" else ">")
    return dtype


def key(value: Any) -> Any:
    """Return the value if its hash is cheap and its type cannot be made to collide; raise Malformed otherwise."""
    hashable = isinstance(value, str | bytes | int | float | Inert | np.generic | None)
    if not hashable or isinstance(value, np.complexfloating):
        raise Malformed(f"a {type(value).__name__} is a key")
    if isinstance(value, int) and value.bit_length() > 64:
        raise Malformed("an integer key has more than 64 bits")
    return value


class Speller:
    """Builder of the plain values of calls that only describe data, within a budget of copied bytes and elements."""

    def __init__(self, budget: int) -> None:
        self._budget = budget

    def call(self, instance: Inert) -> Any:
        """Return the value of the call if it only describes data; otherwise return `instance` itself."""
        args = instance.args
        match instance.path:
            case "collections.OrderedDict" if not args:
                return {}
            case "collections.OrderedDict" if len(args) == 1 and isinstance(args[0], list):
                return dict(map(self._pair, self._elements(args[0])))
            case "builtins.set" | "__builtin__.set" | "builtins.frozenset" | "__builtin__.frozenset" if args:
                return set(map(key, self._elements(args[0])))
            case "_codecs.encode" if len(args) == 2 and args[1] in ("latin1", "latin-1"):
                return self._raw(args[0])
            case "builtins.bytes" | "__builtin__.bytes" if not args:
                return b""
            case "numpy.core.multiarray.scalar" if len(args) == 2:
                array = self._array((), args[0], args[1], "C")
                return instance if array is None else array.astype(array.dtype.newbyteorder("="))[()]
            case "numpy.core.numeric._frombuffer" if len(args) == 4:
                array = self._array(args[2], args[1], args[0], args[3])
                return instance if array is None else array
            case path if path in _RECONSTRUCTORS and args and isinstance(args[0], Inert) and not args[0].called:
                return Inert(args[0].module, args[0].name, called=True)
        return instance

    def built(self, target: Inert) -> NDArray[Any] | None:
        """Return the array that numpy's reconstruction yields once `target` has its state; None for anything else."""
        state = target.state
        if target.path != "numpy.core.multiarray._reconstruct" or not isinstance(state, tuple) or len(state) != 5:
            return None
        _, shape, dtype, fortran, raw = state
        return self._array(shape, dtype, raw, "F" if fortran is True else "C")

    def _array(self, shape: Any, dtype: Any, raw: Any, order: Any) -> NDArray[Any] | None:
        """Return a read-only view of the numbers in `raw`; None (it stays inert) if the dtype is not a plain number."""
        kind = dtype_of(dtype)
        if kind is None:
            return None
        if not isinstance(shape, tuple) or len(shape) > MAX_DIMENSIONS:
            raise Malformed("an array has an impossible shape")
        if not all(type(n) is int and 0 <= n < 2**40 for n in shape):
            raise Malformed("an array has an impossible shape")
        data = self._raw(raw)
        if math.prod(shape) * kind.itemsize != len(data) or order not in ("C", "F"):
            raise Malformed("an array's shape does not match its bytes")
        array: NDArray[Any] = np.ndarray(shape, kind, buffer=data, order=order)
        array.flags.writeable = False
        return array

    def _raw(self, value: Any) -> bytes | bytearray:
        """Return bytes, also from the latin-1 text that Python 2 and old protocols wrote for them."""
        if isinstance(value, str):
            self._charge(len(value))
            return value.encode("latin-1")
        if not isinstance(value, bytes | bytearray):
            raise Malformed("an array's contents are not bytes")
        return value

    def _elements(self, value: Any) -> Iterable[Any]:
        if not isinstance(value, list | tuple):
            raise Malformed("a container is not made of a list")
        self._charge(len(value))
        return value

    def _pair(self, value: Any) -> tuple[Any, Any]:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise Malformed("a dict is made of something that is not a pair")
        return key(value[0]), value[1]

    def _charge(self, amount: int) -> None:
        self._budget -= amount
        if self._budget < 0:
            raise Malformed("it repeats its contents more often than a real one does")
