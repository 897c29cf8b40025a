"""C99 that is calls of kernels on tables of numbers and nothing else: written, and read back so that it can be trusted.

A file is taken apart into a Program, whose calls have to stay within their arrays, and has to be what that Program is
written as, byte for byte: no other C comes to a compiler.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quarl.arrays import Array
from quarl.errors import QuarlError

HEADER = """#ifndef POLICY_H
#define POLICY_H
#include <stdint.h>

{defines}
/* Observations are {x_are}, raw outputs the bits of float32 numbers, actions {a_are}.
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
FUNCTION = re.compile(r"(?:/\*[^*]*\*/\n)?static \w+ (\w+)\(([^{]*)\) \{\n.*?\n\}\n", re.S)
HEAD = re.compile(r'/\* ([^*]*) \*/\n#include "policy.h"\n\n((?:#define POLICY_[A-Z]+ \d+\n){3})')
TABLE = re.compile(r"static const (u?int(?:8|16|32))_t ([a-z]+\d+)\[\d+\] = \{([^}]*)\};\n")
BODY = re.compile(r"int policy_(?:raw|act)\(const (uint(?:8|32)_t) \*x, (u?int32_t) \*[ya]\) \{\n(.*?)\n\}\n", re.S)
CALL = re.compile(r"^    (\w+)\((.*)\);$", re.M)
BUFFER = re.compile(r"^    (?:int16_t|real) ([cr])\[(\d+)\];$", re.M)
POINTER = re.compile(r"([a-z]+\d*)(?: \+ (\d{1,9}))?")
WRITABLE = ("c", "r", "y", "a")


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of a kernel, as its declaration says it."""

    ctype: str
    name: str
    extent: str = ""
    """Elements that the kernel reads or writes, in terms of its whole numbers; empty: it is passed by value."""
    const: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of kernels.c."""

    text: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel and its arguments, as they are written."""

    kernel: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Program:
    """A policy in C."""

    comment: str
    observation: tuple[str, int]
    """C type of a number of the observation, and how many there are; as those below."""
    raw: int
    """Numbers that the network gives."""
    action: tuple[str, int]
    codes: int
    """Places for codes, int16_t, and for real numbers, uint32_t, on the stack."""
    reals: int
    tables: Mapping[str, Array]
    """Constants by name, of the numpy type that C's is called after."""
    network: tuple[Call, ...]
    head: tuple[Call, ...]

    @property
    def ram(self) -> int:
        """Bytes of the buffers on the stack."""
        return 2 * self.codes + 4 * self.reals + 4 * self.raw

    @property
    def flash(self) -> int:
        """Bytes of the tables."""
        return sum(values.nbytes for values in self.tables.values())

    @property
    def defines(self) -> str:
        """The sizes, as macros."""
        sizes = {"OBSERVATION": self.observation[1], "RAW": self.raw, "ACTION": self.action[1]}
        return "".join(f"#define POLICY_{name} {size}\n" for name, size in sizes.items())

    def source(self) -> str:
        """policy.c."""
        (x, size), (a, _) = self.observation, self.action
        check = [f"    if (!all_finite({size}, x + 0))\n        return -1;"] if x == "uint32_t" else []
        buffers = [f"    {what}[{n}];" for what, n in (("int16_t c", self.codes), ("real r", self.reals)) if n]
        preamble, kernels = _kernels()
        used = _closure([call.kernel for call in (*self.network, *self.head)] + ["all_finite"][: len(check)])
        parts = [
            f'/* {self.comment} */\n#include "policy.h"\n\n{self.defines}',
            preamble,
            *(kernel.text for name, kernel in kernels.items() if name in used),
            "".join(map(numbers, self.tables, self.tables.values())),
            "\n".join(
                [
                    f"int policy_raw(const {x} *x, uint32_t *y) {{",
                    *buffers,
                    *check,
                    *map(_written, self.network),
                    "    return 0;\n}\n",
                ]
            ),
            "\n".join(
                [
                    f"int policy_act(const {x} *x, {a} *a) {{\n    real y[{self.raw}];",
                    "    if (policy_raw(x, y))\n        return -1;",
                    *map(_written, self.head),
                    "    return 0;\n}\n",
                ]
            ),
        ]
        return "\n".join(parts)

    def validate(self) -> None:
        """Raises QuarlError for a call that is not one of a kernel within its arrays."""
        tables = {name: (f"{values.dtype}_t", values.size) for name, values in self.tables.items()}
        buffers = {"x": self.observation, "c": ("int16_t", self.codes), "r": ("uint32_t", self.reals)}
        raw = {"y": ("uint32_t", self.raw)}
        for calls, room in (
            (self.network, {**tables, **buffers, **raw}),
            (self.head, {**tables, **raw, "a": self.action}),
        ):
            for call in calls:
                kernel = _kernels()[1].get(call.kernel)
                if kernel is None or not _fits(call, kernel.parameters, room):
                    raise QuarlError(
                        f"policy.c has a call that reaches beyond its arrays: {_written(call).strip()[:80]}"
                    )


def header(program: Program) -> str:
    """policy.h."""
    x, a = program.observation[0], program.action[0]
    return HEADER.format(defines=program.defines, x=x, a=a, x_are=MEANINGS[x], a_are=MEANINGS[a])


def check(text: str) -> Program:
    """The Program that a policy.c is; QuarlError, with the line, where it is anything else than one."""
    head = HEAD.match(text)
    bodies = list(BODY.finditer(text))[-2:]
    if head is None or len(bodies) != 2:
        raise QuarlError("policy.c is not one that quarl export wrote; export it anew")
    network, act = bodies
    sizes = [int(line.split()[2]) for line in head[2].splitlines()]
    room = {name: int(size) for name, size in BUFFER.findall(network[3])}
    try:
        tables = {
            name: np.array([int(number, 0) for number in listed.split(",")], dtype)
            for dtype, name, listed in TABLE.findall(text)
        }
        program = Program(
            comment=head[1],
            observation=(network[1], sizes[0]),
            raw=sizes[1],
            action=(act[2], sizes[2]),
            codes=room.get("c", 0),
            reals=room.get("r", 0),
            tables=tables,
            network=_calls(network[3]),
            head=_calls(act[3]),
        )
        program.validate()
        lines = zip(program.source().split("\n"), text.split("\n"), strict=False)
    except (ValueError, KeyError, OverflowError):
        raise QuarlError("policy.c has tables that are no numbers; export it anew") from None
    if program.source() != text:
        line = next((i for i, (ours, theirs) in enumerate(lines, 1) if ours != theirs), 0)
        raise QuarlError(f"policy.c is not as quarl export wrote it, from line {line} on; export it anew")
    return program


def parameters(kernel: str) -> tuple[Parameter, ...]:
    """Of a kernel by name."""
    return _kernels()[1][kernel].parameters


def numbers(name: str, values: Array) -> str:
    """A constant array of whole numbers."""
    flat = values.reshape(-1).tolist()
    texts = [f"0x{v:08x}" for v in flat] if values.dtype == np.uint32 else list(map(str, flat))
    lines = ",\n".join(",".join(texts[i : i + 24]) for i in range(0, len(texts), 24))
    return f"static const {values.dtype}_t {name}[{len(texts)}] = {{\n{lines}}};\n"


@functools.cache
def _kernels() -> tuple[str, dict[str, Kernel]]:
    """What stands before the kernels, and the kernels by name, in order."""
    text = importlib.resources.files(__package__).joinpath("kernels.c").read_text()
    found = list(FUNCTION.finditer(text))
    return text[: found[0].start() - 1], {m[1]: Kernel(m[0], tuple(_parameters(m[2]))) for m in found}


def _parameters(declaration: str) -> Iterator[Parameter]:
    for each in re.sub(r"\s+", " ", declaration).split(", "):
        m = re.fullmatch(r"(const )?(\w+) \*?(\w+)(?:\[(.*)\])?", each)
        assert m is not None, each
        ctype = "uint32_t" if m[2] == "real" and m[4] else m[2]
        yield Parameter(ctype, m[3], m[4] or "", bool(m[1]))


def _closure(names: Sequence[str]) -> set[str]:
    """The kernels, and what they call."""
    _, kernels = _kernels()
    used: set[str] = set()
    waiting = list(names)
    while waiting:
        if (name := waiting.pop()) not in used:
            used.add(name)
            called = set(re.findall(r"\b(\w+)\(", kernels[name].text))
            waiting += called & kernels.keys()
    return used


def _fits(call: Call, wanted: tuple[Parameter, ...], room: Mapping[str, tuple[str, int]]) -> bool:
    """Whether its arguments are of the kernel's types and its arrays as long as the kernel reads and writes them."""
    if len(call.arguments) != len(wanted):
        return False
    pairs = list(zip(wanted, call.arguments, strict=True))
    numbers = {p.name: int(a) for p, a in pairs if p.ctype == "int" and re.fullmatch(r"-?\d{1,9}", a)}
    for parameter, argument in pairs:
        if not parameter.extent:
            real = parameter.ctype == "real" and re.fullmatch(r"0x[0-9a-f]{8}u", argument)
            if not real and parameter.name not in numbers:
                return False
            continue
        m = POINTER.fullmatch(argument)
        ctype, length = room.get(m[1], ("", 0)) if m else ("", 0)
        if m is None or ctype != parameter.ctype or not (parameter.const or m[1] in WRITABLE):
            return False
        # of the text of our own kernels
        extent = eval(parameter.extent.replace("/", "//"), {"__builtins__": {}}, numbers)
        if not 0 < extent <= length - int(m[2] or 0):
            return False
    return True


def _calls(body: str) -> tuple[Call, ...]:
    return tuple(Call(m[1], tuple(m[2].split(", "))) for m in CALL.finditer(body))


def _written(call: Call) -> str:
    return f"    {call.kernel}({', '.join(call.arguments)});"
