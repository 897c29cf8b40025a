"""Pickles written opcode by opcode, so that they can name what is not installed, and mutated opcode by opcode."""

from __future__ import annotations

import io
import pickle
import pickletools
import random
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Name:
    """A global of a pickle."""

    module: str
    name: str


@dataclass(frozen=True, eq=False)
class Call:
    """callee(*args), then __setstate__(state)."""

    callee: Any
    args: tuple[Any, ...] = ()
    state: Any = None
    opcode: bytes = pickle.REDUCE


class _Writer(pickle._Pickler):  # the C pickler cannot be taught to write names it does not import
    def save(self, value: Any, save_persistent_id: bool = True) -> None:
        if isinstance(value, Name | Call) and id(value) in self.memo:
            self.write(self.get(self.memo[id(value)][0]))
        elif isinstance(value, Name):
            self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
            self.memoize(value)
        elif isinstance(value, Call):
            self.save(value.callee)
            self.save(value.args)
            self.write(value.opcode)
            if value.state is not None:
                self.save(value.state)
                self.write(pickle.BUILD)
            self.memoize(value)
        else:
            super().save(value, save_persistent_id)


def pickled(value: Any, protocol: int = 4) -> bytes:
    """The pickle of plain values, arrays, Names and Calls."""
    buffer = io.BytesIO()
    _Writer(buffer, protocol).dump(value)
    return buffer.getvalue()


PICKLE_CODES = tuple(op.code.encode("latin-1") for op in pickletools.opcodes if op.arg is None)
"""Opcodes that stand alone."""
PICKLE_PIECES = (
    b"cos\nsystem\n",
    b"cbuiltins\neval\n",
    b"cnumpy.core.multiarray\n_reconstruct\n",
    b"cnumpy.core.multiarray\nscalar\n",
    b"cnumpy.core.numeric\n_frombuffer\n",
    b"cnumpy\ndtype\n",
    b"ccollections\nOrderedDict\n",
    b"c_codecs\nencode\n",
    b"cbuiltins\nset\n",
    b"ccopyreg\n_reconstructor\n",
    b"(S'true'\nios\nsystem\n",
    b"\x82\x01",
    b"Pmodule\n",
    b"K\x01",
    b"J\xff\xff\xff\xff",
    b"U\x02f8",
    b"C\x08abcdefgh",
    b"B\xff\xff\xff\x7f",
    b"\x8b\xff\xff\xff\x7f",
    b"\x8e" + b"\xff" * 8,
    b"G\x7f\xf8\x00\x00\x00\x00\x00\x00",
    b"I99999999999999999999999\n",
    b"L9999999999999999999999999L\n",
    b"h\x00",
    b"q\x00",
    b"S'\\777\\q'\n",
)


def pickle_opcodes(rng: random.Random, data: bytes) -> bytes:
    """The pickle with one to four opcodes removed, repeated, exchanged, inserted or given another argument."""
    try:
        starts = [start or 0 for _, _, start in pickletools.genops(data)]
    except ValueError:  # mutated before, within the same document
        return data[: rng.randrange(len(data) + 1)]
    ops = [data[a:b] for a, b in zip(starts, [*starts[1:], len(data)], strict=True)]
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(max(len(ops) - 1, 1))  # STOP stays
        match rng.randrange(7):
            case 0:
                del ops[at]
            case 1:
                ops.insert(at, rng.choice(ops[:-1] or ops))
            case 2:
                ops[at] = rng.choice(PICKLE_CODES)
            case 3:
                ops.insert(at, rng.choice(PICKLE_PIECES))
            case 4:
                other = rng.randrange(max(len(ops) - 1, 1))
                ops[at], ops[other] = ops[other], ops[at]
            case _ if len(ops[at]) > 1:
                changed = bytearray(ops[at])
                changed[rng.randrange(1, len(changed))] = rng.randrange(256)
                ops[at] = bytes(changed)
        if not ops:
            return b"."
    return b"".join(ops)
