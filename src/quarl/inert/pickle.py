"""Plain values of a pickle: a small interpreter of its opcodes that imports nothing and calls nothing by name.

Containers, numbers, text and numeric numpy arrays are returned as such. Anything else that the file names (classes,
functions, cloudpickle's code objects, arrays of objects) becomes an `Inert` record of its description in the file.
Opcodes are decoded by `pickletools.genops`, which only reads.

Work is bounded by the file's budget; arrays are views of the bytes that were read, and all copies together are at most
as large as the pickle. Keys are scalars or inert objects. The hash of nested tuples would take time exponential in
their depth, and complex numbers and integers above 64 bits can be made to collide. A value can contain itself or be
nested without limit, so a reader looks up the entries it needs and never walks a value recursively.
"""

from __future__ import annotations

import base64
import io
import pickletools
import re
import struct
import warnings
from collections.abc import Callable
from typing import Any, Final

from quarl.errors import QuarlError
from quarl.inert.objects import Inert, Malformed, Speller, dtype_of, key
from quarl.inert.reading_budget import current

__all__ = ["Inert", "dtype_of", "read_pickle"]

PERSISTENT = "the file.persistent_load"
"""Path of an inert object that refers to data beside the pickle; its only argument is the reference."""
MAX_INTEGER_BITS = 4096
MAX_NAME = 255
_LITERALS: Final = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
    | {"STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
    | {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
)


def read_pickle(data: bytes, where: str) -> Any:
    """Return the value of the pickle `data` without executing anything; `where` names the file in errors."""
    try:
        return interpret(data, where)
    except Malformed as error:
        raise QuarlError(f"{where}: not a readable pickle ({error}); fetch the file again") from None


def read_base64(text: Any, where: str) -> Any:
    """Return the value of a pickle that a JSON document holds as text."""
    try:
        data = base64.b64decode(text, validate=True)
    except (ValueError, TypeError):  # binascii.Error is a ValueError
        raise QuarlError(f"{where} is not base64 text; the file is damaged") from None
    return read_pickle(data, where)


def interpret(
    data: bytes | io.BytesIO, where: str, allowed: re.Pattern[str] | None = None, beside: list[Any] | None = None
) -> Any:
    """Return the value of a pickle; raise Malformed if it cannot be read.

    Args:
        data: The pickle; a stream is left at the byte after it, where the next pickle starts.
        where: Name of the file in errors.
        allowed: Names ("module name") that the pickle may use. If given, the pickle may also refer to data beside it.
        beside: List that receives these references.
    """
    machine = _Machine(len(data) if isinstance(data, bytes) else len(data.getbuffer()), allowed, beside)
    budget, position = current(where), 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # bad escapes in old text opcodes warn
            for op, argument, start in pickletools.genops(data):
                position = start or 0
                budget.parse()
                machine.step(op.name, argument)
        return machine.stack[-1]
    except Malformed as error:
        cause = str(error)
    except (IndexError, KeyError):
        cause = "an operation lacks its operand"
    except (ValueError, TypeError, OverflowError, AttributeError, struct.error):
        cause = "the bytes do not follow the format"
    raise Malformed(f"{cause}, at byte {position}")


class _Machine:
    """The stack and the memo of the pickle machine (PEP 307, PEP 3154), over inert values."""

    def __init__(self, copies: int, allowed: re.Pattern[str] | None, beside: list[Any] | None) -> None:
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.speller = Speller(copies)
        self.allowed = allowed
        self.beside = [] if beside is None else beside

    def step(self, op: str, argument: Any) -> None:
        """Execute one opcode."""
        if op in _LITERALS:
            if isinstance(argument, int) and argument.bit_length() > MAX_INTEGER_BITS:
                raise Malformed(f"an integer has more than {MAX_INTEGER_BITS} bits")
            self.stack.append(argument)
        elif op in _OPERATIONS:
            _OPERATIONS[op](self)
        else:
            self.step_with_argument(op, argument)

    def step_with_argument(self, op: str, argument: Any) -> None:
        """Execute an opcode that names or numbers something; refuse EXT, persistent ids and buffers."""
        match op:
            case "BINGET" | "LONG_BINGET" | "GET":
                self.push(self.memo[argument])
            case "BINPUT" | "LONG_BINPUT" | "PUT":
                self.memoize(argument)
            case "GLOBAL":
                self.push_name(*argument.split(" ", 1))
            case "INST":
                args = tuple(self.pop_mark())
                self.push_name(*argument.split(" ", 1))
                self.push(self.call(self.stack.pop(), args))
            case "PROTO":
                if not 0 <= argument <= 5:
                    raise Malformed(f"its protocol is {argument}, and 0 to 5 are known")
            case "FRAME" | "STOP":
                pass
            case "BINPERSID" if self.allowed is not None:
                module, _, name = PERSISTENT.partition(".")
                self.beside.append(self.stack[-1])
                self.push(Inert(module, name, (self.stack.pop(),), called=True))
            case _:
                raise Malformed(f"operation {op} refers to something outside the file")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def push_name(self, module: Any, name: Any) -> None:
        if not isinstance(name, str) or not isinstance(module, str) or max(len(name), len(module)) > MAX_NAME:
            raise Malformed(f"a name is not text of at most {MAX_NAME} characters")
        if self.allowed is not None and not self.allowed.fullmatch(f"{module} {name}"):
            raise Malformed(f"it names {module}.{name}"[:100])
        self.push(Inert(module, name))

    def pop(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.pop_mark()

    def mark(self) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def pop_mark(self) -> list[Any]:
        """Return the values that were pushed since the last mark."""
        values = self.stack
        self.stack = self.marks.pop()
        return values

    def memoize(self, number: int) -> None:
        value = self.stack[-1]
        self.memo[number] = value
        if isinstance(value, Inert):
            value.memo_keys.append(number)

    def make_tuple(self, size: int) -> None:
        """Execute TUPLE1 to TUPLE3."""
        if len(self.stack) < size:
            raise IndexError
        self.stack[-size:] = [tuple(self.stack[-size:])]

    def make_dict(self) -> None:
        """Execute DICT: keys and values alternate behind one mark."""
        values = self.pop_mark()
        self.push({})
        self.set_items(values)

    def append(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Inert):
            target = target.items
        if not isinstance(target, list):
            raise Malformed("it appends to something that is not a list")
        target.extend(values)

    def set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        pairs = zip(values[::2], values[1::2], strict=True)
        if isinstance(target, Inert):
            target.items.extend(pairs)
        elif isinstance(target, dict):
            target.update((key(name), value) for name, value in pairs)
        else:
            raise Malformed("it sets keys of something that is not a dict")

    def add_items(self) -> None:
        values = self.pop_mark()
        target = self.stack[-1]
        if isinstance(target, Inert):
            target.items.extend(values)
        elif isinstance(target, set):
            target.update(map(key, values))
        else:
            raise Malformed("it adds elements to something that is not a set")

    def stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.push_name(module, name)

    def reduce(self) -> None:
        args, callee = self.stack.pop(), self.stack.pop()
        self.push(self.call(callee, args))

    def new_object(self, kwargs: Any = None) -> None:
        """Execute NEWOBJ and NEWOBJ_EX."""
        args, callee = self.stack.pop(), self.stack.pop()
        call = self.inert_call(callee, args)
        call.kwargs = kwargs if isinstance(kwargs, dict) else {}
        self.push(call)

    def new_object_marked(self) -> None:
        """Execute OBJ: the class and its arguments are behind one mark."""
        callee, *args = self.pop_mark()
        self.push(self.call(callee, tuple(args)))

    def call(self, callee: Any, args: Any) -> Any:
        call = self.inert_call(callee, args)
        return call if callee.called else self.speller.call(call)

    def inert_call(self, callee: Any, args: Any) -> Inert:
        if not isinstance(callee, Inert) or not isinstance(args, tuple):
            raise Malformed("it calls something that has no name")
        name = f"{callee.name[:MAX_NAME]}()" if callee.called else callee.name
        return Inert(callee.module, name, args, called=True)

    def build(self) -> None:
        """Execute BUILD: an inert object keeps the state.

        A reconstructed array replaces its object, also in the memo.
        """
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, dict) and self.allowed is not None:
            return  # PyTorch's dicts carry the versions of their modules as an attribute
        if not isinstance(target, Inert):
            raise Malformed("it sets the state of a plain value")
        target.state = state
        array = self.speller.built(target)
        if array is not None:
            self.stack[-1] = array
            self.memo.update(dict.fromkeys(target.memo_keys, array))
            target.memo_keys = []  # or a thousand copies of the target would walk a thousand keys each


_OPERATIONS: Final[dict[str, Callable[[_Machine], object]]] = {
    "NONE": lambda m: m.push(None),
    "NEWTRUE": lambda m: m.push(True),
    "NEWFALSE": lambda m: m.push(False),
    "MARK": _Machine.mark,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.pop_mark,
    "DUP": lambda m: m.push(m.stack[-1]),
    "MEMOIZE": lambda m: m.memoize(len(m.memo)),
    "EMPTY_TUPLE": lambda m: m.push(()),
    "EMPTY_LIST": lambda m: m.push([]),
    "EMPTY_DICT": lambda m: m.push({}),
    "EMPTY_SET": lambda m: m.push(set()),
    "TUPLE": lambda m: m.push(tuple(m.pop_mark())),
    "TUPLE1": lambda m: m.make_tuple(1),
    "TUPLE2": lambda m: m.make_tuple(2),
    "TUPLE3": lambda m: m.make_tuple(3),
    "LIST": lambda m: m.push(m.pop_mark()),
    "DICT": _Machine.make_dict,
    "FROZENSET": lambda m: m.push(set(map(key, m.pop_mark()))),
    "APPEND": lambda m: m.append([m.stack.pop()]),
    "APPENDS": lambda m: m.append(m.pop_mark()),
    "SETITEM": lambda m: m.set_items([m.stack.pop(-2), m.stack.pop()]),
    "SETITEMS": lambda m: m.set_items(m.pop_mark()),
    "ADDITEMS": _Machine.add_items,
    "STACK_GLOBAL": _Machine.stack_global,
    "REDUCE": _Machine.reduce,
    "NEWOBJ": _Machine.new_object,
    "NEWOBJ_EX": lambda m: m.new_object(m.stack.pop()),
    "OBJ": _Machine.new_object_marked,
    "BUILD": _Machine.build,
}
