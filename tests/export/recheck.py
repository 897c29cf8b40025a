"""A second opinion on proof.json: bounds of a policy.c in Python's integers, by none of the package's code.

`python recheck.py FOLDER` prints the first difference; the exit code is then 1.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
import sys
from itertools import product
from pathlib import Path

LARGEST, NORMAL = 2.0**128 - 2.0**104, 2.0**-126
LIMITS = {"index": (0, 255), "code": (-(2**15), 2**15 - 1), "shift": (0, 31), "numbers": (1, 2**16)}
LIMITS |= dict.fromkeys(("step", "inverse", "epsilon", "least"), (NORMAL, LARGEST))
LIMITS["weight behind the last"] = (0, 0)
FORMATS = {"int8": "b", "int32": "i", "uint32": "I"}


def single(x: float) -> float:
    """Round to float32; beyond its range, 2**128."""
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(2.0**128, x)


def real(word: int | str) -> float:
    """Return the number whose bits are a word of a table, or an argument."""
    return struct.unpack("<f", struct.pack("<I", word if isinstance(word, int) else int(word[:-1], 16)))[0]


def ends(*values: float) -> tuple[float, float]:
    return min(values), max(values)


class Recheck:
    """Intervals of all numbers of a policy.c for observations in a box, and the bounds of each call."""

    def __init__(self, text: str, box: list[list[float]] | None = None) -> None:
        found = re.findall(r"static const (u?int\d+)_t (\w+)\[\d+\] = \{([^}]*)\}", text)
        self.types = {name: ctype for ctype, name, _ in found}
        self.tables = {name: [int(each, 0) for each in numbers.split(",")] for _, name, numbers in found}
        every = (0, 255) if "_raw(const uint8_t" in text else (-LARGEST, LARGEST)
        pairs = zip(*box, strict=True) if box else [every] * int(re.search(r"_OBSERVATION (\d+)", text)[1])
        self.room = {("x", i): pair for i, pair in enumerate(pairs)}
        self.calls, self.grids, self.box = [], [], None
        for kernel, arguments in re.findall(
            r"^    (?:return COUNTED\()?(?!COUNT\()(\w+)\(([^()]*)\)\)?;$", text[text.index("    int16_t c[") :], re.M
        ):
            given = [int(each) if re.fullmatch(r"-?\d+", each) else each for each in arguments.split(", ")]
            self.calls.append((f"{kernel}({arguments})", getattr(self, kernel)(*given) or {}))

    def at(self, pointer: str, index: int):
        array, _, start = pointer.partition(" + ")
        index += int(start or 0)
        return self.tables[array][index] if array in self.tables else self.room[array, index]

    def put(self, y: str, values, step: int = 1) -> None:
        array, _, start = y.partition(" + ")
        self.room |= {(array, int(start) + i * step): ends(*each) for i, each in enumerate(list(values))}

    def clipped(self, y: str, codes, low: int, high: int, step: int = 1) -> None:
        self.grids.append((low, high, *ends(*(v for pair in codes for v in pair))))
        self.put(y, ([min(max(v, low), high) for v in pair] for pair in codes), step)

    def scale(self, n, x, factor, y):
        self.put(y, ([single(v * real(self.at(factor, i))) for v in self.at(x, i)] for i in range(n)))

    def sum(self, n, a, b, y):
        other = [each if isinstance(each, tuple) else (real(each),) * 2 for each in (self.at(b, i) for i in range(n))]
        self.put(y, ([single(v + w) for v, w in zip(self.at(a, i), other[i], strict=True)] for i in range(n)))

    def clip(self, n, x, low, high, y):
        self.put(y, ([min(max(v, real(low)), real(high)) for v in self.at(x, i)] for i in range(n)))

    def dequantize(self, n, x, step, y):
        self.put(y, ([single(v * real(step)) for v in self.at(x, i)] for i in range(n)))

    def quantize(self, n, x, step, low, high, y):
        self.clipped(y, [[round(single(v / real(step))) for v in self.at(x, i)] for i in range(n)], low, high)
        return {"step": (real(step),) * 2, "code": (low, high)}

    def quantize_shift(self, n, x, inverse, low, high, y):
        self.clipped(y, [[round(single(v * real(inverse))) for v in self.at(x, i)] for i in range(n)], low, high)
        return {"inverse": (real(inverse),) * 2, "code": (low, high)}

    def look_up(self, n, x, first, code, zero, y):
        places = [[v - first for v in self.at(x, i)] for i in range(n)]
        entries = [self.at(code, i) - zero for i in range(256)]
        self.put(y, (entries[low : high + 1] for low, high in places))
        return {"index": ends(*(v for pair in places for v in pair)), "code": ends(*entries)}

    def quantize_bytes(self, n, x, code, zero, y):
        return self.look_up(n, x, 0, code, zero, y)

    def sums(self, four, offset, words, n, k, w, windows):
        """Bound each row's sum for each window; weights are taken out of their words one by one."""
        bits, quads = int(four[-1]), -(-k // 4)

        def field(plane: int, width: int, i: int, j: int) -> int:
            place = (j // 2 * 4 + i % 4) * width
            return self.at(w, i // 4 * words + plane + place // 16) >> (place % 16 + j % 2 * 16) & (2**width - 1)

        def weight(i: int, j: int) -> int:
            value = field(0, 2, i, j) + 4 * field(quads, 1, i, j) if bits == 3 else field(0, bits, i, j)
            if four == "four8" and i % 2:
                return value - 256 * (value > 127)
            return value * (2 if four.startswith("odd") else 1) - (offset if j < k else 0)

        rows = [[weight(i, j) for j in range(4 * quads)] for i in range(n)]
        sums = [
            [
                [sum(v * pair[(v > 0) == up] for v, pair in zip(row, window, strict=False)) for up in (0, 1)]
                for row in rows
            ]
            for window in windows
        ]
        found = {"weight behind the last": ends(0, *(v for row in rows for v in row[k:]))}
        if four == "four8":
            found["second sum times 256"] = ends(0, *(256 * v for each in sums for pair in each[1::2] for v in pair))
        return sums, found

    def layer(self, four, offset, words, shift, n, k, w, b, m, windows, low, high, step, y):
        sums, found = self.sums(four, offset, words, n, k, w, windows)
        sums = [[[v + self.at(b, i) for v in pair] for i, pair in enumerate(each)] for each in sums]
        multipliers = [self.at(m, i) for i in range(n)]
        factors = [(2**23 + (v >> 7) % 2**23) * 2.0 ** (v % 128 + 93 + shift - 150) for v in multipliers]
        codes = [[round(single(single(v) * factors[i])) for v in each[i]] for i in range(n) for each in sums]
        self.clipped(y, codes, low, high, step)
        every = [v for each in sums for pair in each for v in pair]
        found |= {"sum": ends(*every), "shifted sum": ends(*(v << shift for v in every)), "shift": (shift, shift)}
        return found | {"multiplier": ends(*multipliers), "code": (low, high)}

    def dense(self, four, offset, words, shift, n, k, w, b, m, x, low, high, step, y):
        window = [self.at(x, j) for j in range(k)]
        return self.layer(four, offset, words, shift, n, k, w, b, m, [window], low, high, step, y)

    def convolve(self, four, offset, words, shift, n, *numbers):
        c, h, wide, kh, kw, sh, sw, ph, pw, oh, ow, w, b, m, x, low, high, _, y = numbers

        def pixel(i: int, u: int, v: int) -> tuple[int, int]:
            return self.at(x, (i * h + u) * wide + v) if 0 <= u < h and 0 <= v < wide else (0, 0)

        inside = list(product(range(c), range(kh), range(kw)))
        corners = [(u * sh - ph, v * sw - pw) for u, v in product(range(oh), range(ow))]
        windows = [[pixel(i, top + u, left + v) for i, u, v in inside] for top, left in corners]
        return self.layer(four, offset, words, shift, n, len(inside), w, b, m, windows, low, high, 1, y)

    def last(self, four, offset, words, n, k, w, unit, b, x, y):
        (sums,), found = self.sums(four, offset, words, n, k, w, [[self.at(x, j) for j in range(k)]])
        units, biases = ([real(self.at(table, i)) for i in range(n)] for table in (unit, b))
        self.put(y, ([single(single(single(v) * units[i]) + biases[i]) for v in sums[i]] for i in range(n)))
        return found | {"sum": ends(*(v for pair in sums for v in pair))}

    def layer_norm(self, n, x, share, epsilon, gain, offset, y):
        lows, highs = zip(*(self.at(x, i) for i in range(n)), strict=True)
        total, reach = (n * min(lows), n * max(highs)), math.sqrt(n - 1) * (1 + (n + 16) * 2.0**-21)
        center = [round(single(single(v) * real(share))) for v in total]
        furthest = max(max(highs) - center[0], center[1] - min(lows))
        scales = [(reach * real(self.at(gain, i)), real(self.at(offset, i))) for i in range(n)]
        self.put(y, ([single(v * scale + start) for v in (-1, 1)] for scale, start in scales))
        found = {"numbers": (n, n), "share": (real(share),) * 2, "epsilon": (real(epsilon),) * 2}
        return found | {"sum": ends(0, *total), "sum of squares": (0, n * furthest**2)}

    def l2_norm(self, n, x, least, y):
        largest = max(abs(v) for i in range(n) for v in self.at(x, i))
        self.put(y, [(-1 - 2.0**-21, 1 + 2.0**-21)] * n)
        return {"sum of squares": (0, n * largest**2), "least": (real(least),) * 2}

    def argmax(self, n, x, start, y):
        return {"number": (start, start + n - 1)}

    def outside(self, n, step, x, low, high):
        self.box = [[real(self.at(table, i * step)) for i in range(n)] for table in (low, high)]

    def positive(self, *arguments):
        """All of its numbers fit, as those of squash."""

    squash = positive


def recheck(folder: Path, file: str = "policy.c") -> str:
    """Return the first difference between proof.json and this program; "" if there is none."""
    proof, content = json.loads((folder / "proof.json").read_text()), (folder / file).read_bytes()
    ours, holds = Recheck(content.decode()), True
    packed = {
        name: struct.pack(f"<{len(each)}{FORMATS[ours.types[name]]}", *each) for name, each in ours.tables.items()
    }
    if proof["sha256"] != {name: hashlib.sha256(each).hexdigest() for name, each in ({file: content} | packed).items()}:
        return "the proof is of other tables"
    for each, (call, found) in zip(proof["calls"], ours.calls, strict=True):
        theirs = {k: v[:2] for k, v in each["bounds"].items() if not k.startswith("unwritten") or v[1]}
        if each["call"] != call or theirs != {name: [*map(float, pair)] for name, pair in found.items()}:
            return f"{each['call']}: {theirs} in place of {call}: {found}"
        limits = LIMITS | {"share": (single(1 / found.get("numbers", [1])[0]),) * 2}
        for name, (low, high) in found.items():
            least, most = limits.get(name, (-(2**31), 2**31 - 1))
            holds &= least <= low <= high <= most
    if holds != (proof["result"] == "proven"):
        return f"the calls are {proof['result']} there, and {holds} here"
    if proof["box"] != ours.box:
        return f"the box is {proof['box']} there, {ours.box} here"
    grids = Recheck(content.decode(), ours.box).grids if ours.box and holds else []
    for each, (low, high, *codes) in zip(proof["grids"], grids, strict=True):
        if [each["low"], each["high"], *each["codes"]] != [low, high, *codes]:
            return f"the codes of {each['layer']} are {each['codes']} there, {codes} here"
        if each["result"] == "cannot saturate" and (codes[1] > high or codes[0] < low < 0):
            return f"{each['layer']} can saturate"
    return ""


if __name__ == "__main__":
    sys.exit(recheck(Path(sys.argv[1])) or 0)
