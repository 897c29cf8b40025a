"""C99 that consists of calls of kernels on tables of numbers: written, and parsed so that it can be trusted.

A file is parsed into a Program, whose calls must stay within their arrays. It must also equal, byte for byte, the text
written for that Program: no other C reaches a compiler.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError
from quarl.export.c.texts import (
    CARRYING,
    FLOATS,
    FLOATS_OF_BYTES,
    FUNCTIONS,
    HEADER,
    LICENSE,
    MEANINGS,
    MEMORY,
    SIZES,
    SOURCE,
    STATE,
)
from quarl.export.c.weight_words import KERNELS, by_fours, words_per_group
from quarl.inert.reading_budget import MAX_NUMBERS

NUMBER = r"(?P<{}>\d{{1,9}})"
PARTS = re.compile(
    r"/\* (?P<comment>[^*]*) \*/\n"
    + re.escape(LICENSE)
    + r"#include \"(?P<name>[A-Za-z]\w{0,30}).h\"\n\n"
    + SIZES.format(macro=r"\w+", **{name: NUMBER.format(name) for name in ("observation", "raw", "action")})
    + rf"(?:#define \w+_STATE {NUMBER.format('state')}\n)?"
    + r"\nconst char (?P=name)_id\[\] = \"(?P<identity>[\w .+-]{0,200})\";\n"
    + r"(?>(?P<body>.*?)\nint (?P=name)_raw\()const (?P<x>uint8_t|uint32_t) \*x, uint32_t \*y\) \{\n"
    + rf"    int16_t c\[{NUMBER.format('codes')}\];\n    real r\[{NUMBER.format('reals')}\];\n"
    + r"(?P<network>[^}]*)\}\n\nint (?P=name)_act\((?:\w+ \*state, )?const \w+ \*\w+, (?P<a>u?int32_t) \*a\) \{\n"
    + r"(?P<head>[^}]*)\}\n(?:\nvoid [^}]* = (?P<start>start\d+)\[i\];\n\}\n)?",
    re.S,
)
"""Parts from which a Program is parsed; the whole file is compared with the Program's own text afterwards.

Patterns take time in proportion to the file: the first policy_raw ends the body, any brace ends a table, and a call has
a line to itself.
"""
FUNCTION = re.compile(r"(?:/\*[^*]*\*/\n)?static \w+ (\w+)\(([^{]*)\) \{\n.*?\n\}\n\n?", re.S)
TABLE = re.compile(r"(?:/\* ([\w.:/-]+) \*/\n)?static const (u?int(?:8|16|32))_t ([a-z]+\d+)\[\d+\] = \{([^{}]*)\};\n")
COUNT = "int grid", "int n", "const int16_t *x", "int low", "int high"
"""Parameters of the macro COUNT, which follows the calls whose codes are counted."""
CALL = re.compile(r"^    (\w+)\((.*)\);$", re.M)
SEEN = re.compile(r"^    return COUNTED\((outside)\((.*)\)\);$", re.M)
"""Last call of the head."""
POINTER = re.compile(r"([a-z]+\d*) \+ (\d{1,9})|([a-z]+\d+)")
WRITABLE = ("c", "r", "y", "a")


Extent = Callable[[Mapping[str, int]], int]


def _table(s: Mapping[str, int]) -> int:
    return by_fours(s["n"]) // 4 * s["words"]


EXTENTS: Mapping[tuple[str, str], Extent] = {
    ("quantize_bytes", "code"): lambda s: 256,
    ("look_up", "code"): lambda s: 256,
    ("threshold", "limit"): lambda s: 255,
    ("dense", "w"): _table,
    ("dense", "x"): lambda s: by_fours(s["k"]),
    ("dense", "y"): lambda s: (s["n"] - 1) * s["step"] + 1,
    ("last", "w"): _table,
    ("last", "x"): lambda s: by_fours(s["k"]),
    ("convolve", "w"): _table,
    ("convolve", "x"): lambda s: s["c"] * s["h"] * s["wide"],
    ("convolve", "row"): lambda s: by_fours(s["c"] * s["kh"] * s["kw"]),
    ("convolve", "y"): lambda s: s["n"] * s["oh"] * s["ow"],
    ("argmax", "y"): lambda s: 1,
    ("outside", "low"): lambda s: (s["n"] - 1) * s["step"] + 1,
    ("outside", "high"): lambda s: (s["n"] - 1) * s["step"] + 1,
}
"""Number of elements behind a pointer, by kernel and parameter; all others have `n`."""


class Parameter(NamedTuple):
    """Parameter of a kernel, from its declaration."""

    const: bool
    ctype: str
    name: str
    extent: Extent | None
    """Number of elements that the kernel reads or writes, by its whole numbers; None if it is passed by value."""


class Call(NamedTuple):
    """A kernel and its arguments, as text."""

    kernel: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"    {self.kernel}({', '.join(self.arguments)});"

    @property
    def named(self) -> dict[str, str]:
        """Return the arguments by the names of the kernel's parameters."""
        return {p.name: a for p, a in zip(parameters(self.kernel), self.arguments, strict=True)}

    @property
    def sizes(self) -> dict[str, int]:
        """Return the whole numbers among the arguments by the names of the kernel's parameters."""
        whole = [p.name for p in parameters(self.kernel) if p.ctype == "int"]
        return {name: int(a) for name, a in self.named.items() if name in whole and re.fullmatch(r"-?\d{1,9}", a)}

    def place(self, parameter: str) -> tuple[str, int]:
        """Return the array and the offset behind a pointer."""
        array, _, start = self.named[parameter].partition(" + ")
        return array, int(start or 0)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Program:
    """A policy in C."""

    comment: str
    name: str = "policy"
    """Prefix of functions, and in capitals of macros; the name of the files."""
    identity: str
    """Text in the binary, of letters, digits, blanks and ".+-"."""
    x: str
    """C type of a number of the observation; `a` is that of the action."""
    a: str
    observation: int
    """Size of the row that the network reads; the next two are those of its output and the action."""
    raw: int
    action: int
    state: int = 0
    """Numbers of the state at the ends of row and output; 0 without a memory."""
    start: str = ""
    """Table of the state at the start of an episode."""
    codes: int
    """Places for codes, int16_t, and for real numbers, uint32_t, on the stack; at least one."""
    reals: int
    tables: Mapping[str, Array]
    """Constants by name, of the numpy type with C's name."""
    layers: Mapping[str, str]
    """Layer of each table that has one, of letters, digits and ".:/-"."""
    network: tuple[Call, ...]
    """Calls of kernels, and of the macro COUNT, which is empty without NAME_COUNT."""
    head: tuple[Call, ...]
    seen: tuple[Call, ...] = ()
    """Call of `outside`, whose result is that of NAME_act; empty without a box."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """Return all calls of kernels in NAME_act."""
        return (*without_counts(self.network), *self.head, *self.seen)

    @property
    def grids(self) -> int:
        """Return the number of grids up to the last one whose codes are counted."""
        return 1 + max((call.sizes["grid"] for call in self.network if call.kernel == "COUNT"), default=0)

    @property
    def ram(self) -> int:
        """Return the bytes of the buffers on the stack, and of the state."""
        row = self.observation + self.state if self.state else 0
        return 2 * self.codes + 4 * (self.reals + self.raw + row)

    @property
    def sizes(self) -> str:
        """Return the sizes as macros."""
        texts = SIZES + STATE * bool(self.state)
        fields = {name: getattr(self, name) for name in ("raw", "action", "state")}
        return texts.format(macro=self.name.upper(), observation=self.observation - self.state, **fields)

    def header(self) -> str:
        """Return policy.h."""
        fields = {"name": self.name, "macro": self.name.upper(), "x": self.x, "a": self.a}
        fields |= {"x_are": MEANINGS[self.x], "a_are": MEANINGS[self.a]}
        fields |= {"owner": f"{self.name}_state *state, " * bool(self.state), "given": "state, " * bool(self.state)}
        floats = FLOATS if self.x == "uint32_t" else FLOATS_OF_BYTES if self.a == "uint32_t" else ""
        return HEADER.format(
            **fields,
            sizes=self.sizes,
            grids=self.grids,
            length=len(self.identity) + 1,
            functions=(MEMORY if self.state else FUNCTIONS).format(**fields),
            floats=floats.format(**fields, a_float=self.a if self.a == "int32_t" else "float"),
        )

    def source(self) -> str:
        """Return policy.c."""
        floats = self.x == "uint32_t"
        preamble, kernels = _kernels()
        named = {word for call in self.calls for word in (call.kernel, call.arguments[0])}
        used = _closure([*(named & kernels.keys()), *["all_finite"] * floats])
        parts = [preamble, *(text for name, (text, _) in kernels.items() if name in used)]
        parts += [numbers(name, values, self.layers.get(name, "")) for name, values in self.tables.items()]
        named_fields = ("comment", "name", "identity", "x", "a", "raw", "codes", "reals", "sizes", "state", "start")
        fields = {name: getattr(self, name) for name in named_fields}
        fields["macro"] = self.name.upper()
        fields |= {name: "\n".join(map(str, getattr(self, name))) for name in ("network", "head")}
        check = f"    if (!all_finite({self.observation}, x)) return -1;\n" if floats else ""
        seen = "".join(map(str, self.seen)).strip(" ;") or "0"
        fields |= {"row": self.observation, "observation": self.observation - self.state, "seen": seen}
        fields |= {"width": self.raw - self.state, "owner": f"{self.name}_state *state, " * bool(self.state)}
        fields |= {name: text.format(**fields) * bool(self.state) for name, text in CARRYING.items()}
        return SOURCE.format(**fields, body="".join(parts), check=check, read="observation" if self.state else "x")

    def validate(self) -> None:
        """Raise QuarlError unless each call is a kernel's within its arrays.

        Together, the calls must also use the stack arrays completely.
        """
        largest = max(self.observation, self.raw, self.action, self.codes, self.reals)
        if largest > MAX_NUMBERS:
            raise QuarlError(f"policy.c has an array of {largest:,} numbers; a policy has up to {MAX_NUMBERS:,}")
        reached = dict.fromkeys(WRITABLE, 0)
        tables = {name: (f"{values.dtype}_t", values.size) for name, values in self.tables.items()}
        both = {**tables, "y": ("uint32_t", self.raw)}
        buffers = {"x": (self.x, self.observation), "c": ("int16_t", self.codes), "r": ("uint32_t", self.reals)}
        heads = both | {"a": (self.a, self.action)}
        if self.state and (
            not 0 < self.state < min(self.observation, self.raw)
            or (self.start, "uint32_t", self.state) not in ((name, *table) for name, table in tables.items())
        ):
            raise QuarlError(f"policy.c has no start of its state of {self.state:,} numbers")
        for calls, room in ((self.network, both | buffers), (self.head, heads), (self.seen, tables | buffers)):
            for call in calls:
                if call.kernel not in _kernels()[1] or not _fits(call, room, reached):
                    raise QuarlError(f"policy.c has a call that reaches beyond its arrays: {str(call).strip()[:80]}")
        for name, size in (("c", self.codes), ("r", self.reals), ("y", self.raw), ("a", self.action)):
            if size != max(reached[name], 1):
                raise QuarlError(f"policy.c has {size:,} places in {name!r}, its calls reach {reached[name]:,}")


def check(text: str) -> Program:
    """Return the Program of a policy.c; raise QuarlError, with the line, if it is anything else."""
    m = PARTS.fullmatch(text)
    if m is None:
        raise QuarlError("quarl export did not write this policy.c; export it again")
    found = TABLE.findall(m["body"])
    try:
        tables = {
            name: np.array([int(number, 0) for number in listed.split(",")], dtype) for _, dtype, name, listed in found
        }
    except (ValueError, OverflowError):
        raise QuarlError("policy.c has tables that hold more than numbers; export it again") from None
    parts: dict[str, Any] = {name: m[name] for name in ("comment", "name", "identity", "x", "a")}
    parts["layers"] = {name: layer for layer, _, name, _ in found if layer}
    parts |= {name: int(m[name] or 0) for name in ("observation", "raw", "action", "state", "codes", "reals")}
    parts |= {"observation": parts["observation"] + parts["state"], "start": m["start"] or ""}
    parts |= {"network": _calls(m["network"]), "head": _calls(m["head"]), "seen": _calls(m["head"], SEEN)}
    program = Program(**parts, tables=tables)
    program.validate()
    if (ours := program.source()) != text:
        pairs = enumerate(zip(ours.split("\n"), text.split("\n"), strict=False), 1)
        line = next((number for number, (a, b) in pairs if a != b), 0)
        raise QuarlError(f"policy.c differs from quarl export's from line {line} on; export it again")
    return program


def without_counts(calls: Iterable[Call]) -> list[Call]:
    """Return the calls of kernels."""
    return [call for call in calls if call.kernel != "COUNT"]


def numbers(name: str, values: Array, comment: str = "") -> str:
    """Return a constant array of whole numbers in C.

    Args:
        name: Name of the array.
        values: Its elements.
        comment: Comment above it, if any.
    """
    flat = values.reshape(-1).tolist()
    texts = [f"0x{v:08x}" for v in flat] if values.dtype == np.uint32 else list(map(str, flat))
    lines = ",\n".join(",".join(texts[i : i + 24]) for i in range(0, len(texts), 24))
    above = f"/* {comment} */\n" if comment else ""
    return f"{above}static const {values.dtype}_t {name}[{len(texts)}] = {{\n{lines}}};\n"


def parameters(kernel: str) -> tuple[Parameter, ...]:
    """Return the parameters of a kernel by name."""
    return _kernels()[1][kernel][1]


@functools.cache
def _kernels() -> tuple[str, dict[str, tuple[str, tuple[Parameter, ...]]]]:
    """Return the text before the kernels, and their text and parameters by name, in order."""
    text = importlib.resources.files(__package__).joinpath("kernels.c").read_text() + "\n"
    functions = list(FUNCTION.finditer(text))
    declared = [(m[1], m[0], re.split(r",\s+", m[2])) for m in functions]
    return text[: functions[0].start()], {
        name: (function, tuple(_parameter(name, each) for each in listed))
        for name, function, listed in (*declared, ("COUNT", "", COUNT))
    }


def _parameter(kernel: str, declaration: str) -> Parameter:
    m = re.fullmatch(r"(const )?(\w+) (\*?)(\w+)", declaration)
    assert m is not None, declaration
    if not m[3] or m[2] == "four_rows":
        return Parameter(bool(m[1]), m[2], m[4], None)
    extent = EXTENTS.get((kernel, m[4]), lambda s: s["n"])
    return Parameter(bool(m[1]), "uint32_t" if m[2] == "real" else m[2], m[4], extent)


def _calls(lines: str, pattern: re.Pattern[str] = CALL) -> tuple[Call, ...]:
    return tuple(Call(kernel, tuple(arguments.split(", "))) for kernel, arguments in pattern.findall(lines))


def _closure(names: Iterable[str]) -> set[str]:
    """Return the kernels, and those that they call."""
    kernels, used, waiting = _kernels()[1], set[str](), list(names)
    while waiting:
        if (name := waiting.pop()) not in used:
            used.add(name)
            waiting += set(re.findall(r"\b(\w+)\(", kernels[name][0])) & kernels.keys()
    return used


def _fits(call: Call, room: Mapping[str, tuple[str, int]], reached: dict[str, int]) -> bool:
    """Return whether the arguments have the kernel's types, and its arrays the lengths that it reads and writes.

    Args:
        call: A call of a kernel.
        room: C type and length of each array, by name.
        reached: Updated with the ends of reads and writes, by name of a writable array.
    """
    wanted = parameters(call.kernel)
    if len(call.arguments) != len(wanted):
        return False
    given, sizes = call.named, call.sizes
    for const, ctype, name, extent in wanted:
        if extent is None:
            is_real = ctype == "real" and re.fullmatch(r"0x[0-9a-f]{8}u", given[name])
            if not (name in sizes or is_real or (ctype == "four_rows" and given[name] in KERNELS)):
                return False
            continue
        m = POINTER.fullmatch(given[name])
        array = (m[1] or m[3]) if m else ""
        actual, length = room.get(array, ("", 0))
        needed, start = extent(sizes), int(m[2] or 0) if m else 0
        if actual != ctype or not (const or array in WRITABLE) or not 0 < needed <= length - start:
            return False
        if array in reached:
            reached[array] = max(reached[array], start + needed)
    if "four" not in given:
        return (
            0 <= sizes.get("grid", 0) < MAX_NUMBERS
            and 0 <= sizes.get("shift", 0) < 31
            and abs(sizes.get("exponent", 0)) < 61
        )
    k = sizes["k"] if "k" in sizes else sizes["c"] * sizes["kh"] * sizes["kw"]
    return sizes["words"] == words_per_group(given["four"], k) and 0 <= sizes.get("shift", 0) < 32
