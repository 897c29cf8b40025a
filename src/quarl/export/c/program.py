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
from quarl.export.c.weight_words import KERNELS, words_per_group
from quarl.inert.reading_budget import MAX_NUMBERS

HEADER = """#ifndef POLICY_H
#define POLICY_H
#include <stdint.h>

{sizes}/* Observations are {x_are}, raw outputs the bits of float32 numbers, actions {a_are}.
   Both functions give 0; or -1, and nothing else, where the observation holds NaN or infinity. */
int policy_raw(const {x} *observation, uint32_t *raw);
int policy_act(const {x} *observation, {a} *action);
/* 0, or the number, from 1, of the first vector in policy_selftest.c for which policy_raw gives other bits. */
int policy_selftest(void);

#ifdef POLICY_FLOAT /* for callers who have floats: their bits, and back */
typedef union {{
    float number;
    uint32_t bits;
}} policy_float;
static inline uint32_t policy_bits(float number) {{
    policy_float value;
    value.number = number;
    return value.bits;
}}
static inline float policy_number(uint32_t bits) {{
    policy_float value;
    value.bits = bits;
    return value.number;
}}
#endif
#endif
"""
MEANINGS = {"uint8_t": "bytes", "int32_t": "whole numbers", "uint32_t": "the bits of float32 numbers"}
SIZES = "#define POLICY_OBSERVATION {observation}\n#define POLICY_RAW {raw}\n#define POLICY_ACTION {action}\n"
SOURCE = """/* {comment} */
#include "policy.h"

{sizes}
{body}
int policy_raw(const {x} *x, uint32_t *y) {{
    int16_t c[{codes}];
    real r[{reals}];
    (void)c, (void)r;
{check}{network}
    return 0;
}}

int policy_act(const {x} *x, {a} *a) {{
    real y[{raw}];
    if (policy_raw(x, y)) return -1;
{head}
    return 0;
}}
"""
NUMBER = r"(?P<{}>\d{{1,9}})"
PARTS = re.compile(
    r"/\* (?P<comment>[^*]*) \*/\n#include \"policy.h\"\n\n"
    + SIZES.format(**{name: NUMBER.format(name) for name in ("observation", "raw", "action")})
    + r"(?>(?P<body>.*?)\nint policy_raw\()const (?P<x>uint8_t|uint32_t) \*x, uint32_t \*y\) \{\n"
    + rf"    int16_t c\[{NUMBER.format('codes')}\];\n    real r\[{NUMBER.format('reals')}\];\n"
    + r"(?P<network>[^}]*)\}\n\nint policy_act\(const \w+ \*x, (?P<a>u?int32_t) \*a\) \{\n(?P<head>[^}]*)\}\n",
    re.S,
)
"""Parts from which a Program is parsed; the whole file is compared with the Program's own text afterwards.

Patterns take time in proportion to the file: the first policy_raw ends the body, any brace ends a table, and a call has
a line to itself.
"""
FUNCTION = re.compile(r"(?:/\*[^*]*\*/\n)?static \w+ (\w+)\(([^{]*)\) \{\n.*?\n\}\n\n?", re.S)
TABLE = re.compile(r"static const (u?int(?:8|16|32))_t ([a-z]+\d+)\[\d+\] = \{([^{}]*)\};\n")
CALL = re.compile(r"^    (\w+)\((.*)\);$", re.M)
POINTER = re.compile(r"([a-z]+\d*) \+ (\d{1,9})|([a-z]+\d+)")
WRITABLE = ("c", "r", "y", "a")


Extent = Callable[[Mapping[str, int]], int]


def _table(s: Mapping[str, int]) -> int:
    return -(-s["n"] // 4) * s["words"]


def _columns(k: int) -> int:
    """Return the number of columns that kernels read."""
    return -(-k // 4) * 4


EXTENTS: Mapping[tuple[str, str], Extent] = {
    ("quantize_bytes", "code"): lambda s: 256,
    ("look_up", "code"): lambda s: 256,
    ("dense", "w"): _table,
    ("dense", "x"): lambda s: _columns(s["k"]),
    ("dense", "y"): lambda s: (s["n"] - 1) * s["step"] + 1,
    ("last", "w"): _table,
    ("last", "x"): lambda s: _columns(s["k"]),
    ("convolve", "w"): _table,
    ("convolve", "x"): lambda s: s["c"] * s["h"] * s["wide"],
    ("convolve", "row"): lambda s: _columns(s["c"] * s["kh"] * s["kw"]),
    ("convolve", "y"): lambda s: s["n"] * s["oh"] * s["ow"],
    ("argmax", "y"): lambda s: 1,
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
    def sizes(self) -> dict[str, int]:
        """Return the whole numbers among the arguments by the names of the kernel's parameters."""
        named = zip(parameters(self.kernel), self.arguments, strict=True)
        return {p.name: int(a) for p, a in named if p.ctype == "int" and re.fullmatch(r"-?\d{1,9}", a)}


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Program:
    """A policy in C."""

    comment: str
    x: str
    """C type of a number of the observation; `a` is that of the action."""
    a: str
    observation: int
    """Size of the observation; the next two are those of the network's output and the action."""
    raw: int
    action: int
    codes: int
    """Places for codes, int16_t, and for real numbers, uint32_t, on the stack; at least one."""
    reals: int
    tables: Mapping[str, Array]
    """Constants by name, of the numpy type with C's name."""
    network: tuple[Call, ...]
    head: tuple[Call, ...]

    @property
    def ram(self) -> int:
        """Return the bytes of the buffers on the stack."""
        return 2 * self.codes + 4 * (self.reals + self.raw)

    @property
    def sizes(self) -> str:
        """Return the sizes as macros."""
        return SIZES.format(observation=self.observation, raw=self.raw, action=self.action)

    def header(self) -> str:
        """Return policy.h."""
        return HEADER.format(sizes=self.sizes, x=self.x, a=self.a, x_are=MEANINGS[self.x], a_are=MEANINGS[self.a])

    def source(self) -> str:
        """Return policy.c."""
        floats = self.x == "uint32_t"
        preamble, kernels = _kernels()
        named = {word for call in (*self.network, *self.head) for word in (call.kernel, call.arguments[0])}
        used = _closure([*(named & kernels.keys()), *["all_finite"] * floats])
        parts = [preamble, *(text for name, (text, _) in kernels.items() if name in used)]
        parts += map(numbers, self.tables, self.tables.values())
        fields = {name: getattr(self, name) for name in ("comment", "x", "a", "raw", "codes", "reals", "sizes")}
        fields |= {name: "\n".join(map(str, getattr(self, name))) for name in ("network", "head")}
        check = f"    if (!all_finite({self.observation}, x)) return -1;\n" if floats else ""
        return SOURCE.format(**fields, body="".join(parts), check=check)

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
        for calls, room in ((self.network, both | buffers), (self.head, both | {"a": (self.a, self.action)})):
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
    try:
        tables = {
            name: np.array([int(number, 0) for number in listed.split(",")], dtype)
            for dtype, name, listed in TABLE.findall(m["body"])
        }
    except (ValueError, OverflowError):
        raise QuarlError("policy.c has tables that hold more than numbers; export it again") from None
    parts: dict[str, Any] = {name: m[name] for name in ("comment", "x", "a")}
    parts |= {name: int(m[name]) for name in ("observation", "raw", "action", "codes", "reals")}
    program = Program(**parts, tables=tables, network=_calls(m["network"]), head=_calls(m["head"]))
    program.validate()
    if (ours := program.source()) != text:
        pairs = enumerate(zip(ours.split("\n"), text.split("\n"), strict=False), 1)
        line = next((number for number, (a, b) in pairs if a != b), 0)
        raise QuarlError(f"policy.c differs from quarl export's from line {line} on; export it again")
    return program


def numbers(name: str, values: Array) -> str:
    """Return a constant array of whole numbers in C."""
    flat = values.reshape(-1).tolist()
    texts = [f"0x{v:08x}" for v in flat] if values.dtype == np.uint32 else list(map(str, flat))
    lines = ",\n".join(",".join(texts[i : i + 24]) for i in range(0, len(texts), 24))
    return f"static const {values.dtype}_t {name}[{len(texts)}] = {{\n{lines}}};\n"


def parameters(kernel: str) -> tuple[Parameter, ...]:
    """Return the parameters of a kernel by name."""
    return _kernels()[1][kernel][1]


@functools.cache
def _kernels() -> tuple[str, dict[str, tuple[str, tuple[Parameter, ...]]]]:
    """Return the text before the kernels, and their text and parameters by name, in order."""
    text = importlib.resources.files(__package__).joinpath("kernels.c").read_text() + "\n"
    functions = list(FUNCTION.finditer(text))
    return text[: functions[0].start()], {
        m[1]: (m[0], tuple(_parameter(m[1], each) for each in re.split(r",\s+", m[2]))) for m in functions
    }


def _parameter(kernel: str, declaration: str) -> Parameter:
    m = re.fullmatch(r"(const )?(\w+) (\*?)(\w+)", declaration)
    assert m is not None, declaration
    if not m[3] or m[2] == "four_rows":
        return Parameter(bool(m[1]), m[2], m[4], None)
    extent = EXTENTS.get((kernel, m[4]), lambda s: s["n"])
    return Parameter(bool(m[1]), "uint32_t" if m[2] == "real" else m[2], m[4], extent)


def _calls(lines: str) -> tuple[Call, ...]:
    return tuple(Call(kernel, tuple(arguments.split(", "))) for kernel, arguments in CALL.findall(lines))


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
    given = {p.name: a for p, a in zip(wanted, call.arguments, strict=True)}
    sizes = call.sizes
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
        return True
    k = sizes["k"] if "k" in sizes else sizes["c"] * sizes["kh"] * sizes["kw"]
    return sizes["words"] == words_per_group(given["four"], k) and 0 <= sizes.get("shift", 0) < 32
