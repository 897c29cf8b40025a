"""Dense layers and convolutions in C of every width and size, against sums of Python's integers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import require
from quarl.arrays import Array
from quarl.export import runtimes
from quarl.export.c import boards
from quarl.export.c.program import Call, Program
from quarl.export.c.weight_words import KERNELS, multipliers, pack

ROWS, SMALL, WIDE, IMAGE, LONG = 9, 255, 32767, (3, 5, 6), 6004
WINDOWS = [(1, 1, 1), (2, 1, 3), (1, 3, 3), (3, 2, 2), (2, 3, 3), (3, 3, 3)]
"""Channels, height and width of kernels, at steps of 2 and 1 in images with a margin of 1."""
SANITIZED = {
    "c-sanitized": "-O1 -fsanitize=undefined,address -fno-sanitize-recover=all",
    "c-plain": "-O1 -U__SSE2__ -fsanitize=undefined,address -fno-sanitize-recover=all",
}
"""Flags of the compiler, with and without eight half words at once."""
Layer = tuple[Array, Array, Array]
"""Codes [ROWS, k], biases and multipliers."""


def layer(kernel: str, k: int, reach: int, rng: np.random.Generator) -> Layer:
    """Return a layer that becomes that kernel."""
    half = 2 ** (KERNELS[kernel] - 1)
    codes = rng.integers(-half, half, (ROWS, k))
    codes[0, rng.integers(k)] = -half
    codes = 2 * codes + 1 if kernel.startswith("odd") else codes
    if kernel == "wide8":
        codes[0] = -128
    # Every second multiplier is a power of two, for ties; one is far too large, another far too small.
    sizes = np.abs(codes).sum(axis=1) * reach * rng.uniform(0.2, 1, ROWS)
    multiplier = np.float32(rng.uniform(64, 512, ROWS) / sizes.clip(1))
    multiplier[::2] = 2.0 ** np.round(np.log2(multiplier[::2]))
    multiplier[rng.choice(ROWS, 2, replace=False)] = 40, 1e-20
    return codes.astype(np.int8), rng.integers(-900, 900, ROWS).astype(np.int32), multiplier


def exact(of: Layer, x: list[int]) -> list[int]:
    """Return the codes of a row: an exact sum as float32, a float32 product, ties to even."""
    sums = [sum(int(w) * v for w, v in zip(row, x, strict=True)) + int(b) for row, b in zip(of[0], of[1], strict=True)]
    products = [np.float32(each) * m for each, m in zip(sums, of[2], strict=True)]
    return [max(-128, min(127, round(float(product)))) for product in products]


def exact_windows(of: Layer, kernel: tuple[int, ...], x: list[int]) -> list[int]:
    """Return the codes of a convolution [ROWS, height, width]."""
    image = np.pad(np.reshape(x[: np.prod(IMAGE)], IMAGE)[: kernel[0]], ((0, 0), (1, 1), (1, 1)))
    tall, wide = (7 - kernel[1]) // 2 + 1, 9 - kernel[2]
    parts = [image[:, 2 * u : 2 * u + kernel[1], v : v + kernel[2]] for u in range(tall) for v in range(wide)]
    return [code for row in zip(*(exact(of, part.reshape(-1).tolist()) for part in parts), strict=True) for code in row]


def every_layer() -> tuple[Program, list[tuple[int, Callable[[list[int]], list[int]]]]]:
    """Return a program of all layers, each of which writes its codes as numbers, and the oracle of each."""
    rng, tables, calls, oracles, written = np.random.default_rng(7), dict[str, Array](), list[Call](), [], 0
    count = int(np.prod(IMAGE))
    for at, reach in enumerate((SMALL, WIDE)):
        calls.append(
            Call(
                "quantize_shift",
                (f"{count}", f"x + {count * at}", "0x3f800000u", f"{-reach}", f"{reach}", f"c + {count * at}"),
            )
        )

    def add(kernel: str, arguments: list[Any], n: int, oracle: tuple[int, Any]) -> None:
        nonlocal written
        calls.append(Call(kernel, tuple(map(str, [*arguments, f"c + {2 * count + 28}"]))))
        calls.append(Call("dequantize", (f"{n}", f"c + {2 * count + 28}", "0x3f800000u", f"y + {written}")))
        oracles.append(oracle)
        written += n

    for kernel in KERNELS:
        at, reach = (count, WIDE) if kernel == "wide8" else (0, SMALL)
        for k in (*((1, 1, k) for k in range(1, 34)), *WINDOWS):
            of = layer(kernel, int(np.prod(k)), reach, rng)
            words, most = pack(of[0].reshape(ROWS, -1), reach), np.abs(of[0].astype(int)).sum(axis=1) * reach
            shift, codes = multipliers(of[2], float((most + abs(of[1])).max()))
            assert words.kernel == kernel or k[2] < 3
            begin, names = [words.kernel, words.offset, words.words, shift], [f"{role}{len(tables)}" for role in "wbm"]
            rest = [*names, f"c + {at}", -128, 127]
            if k in WINDOWS[1:]:
                tall, wide = (7 - k[1]) // 2 + 1, 9 - k[2]
                ends = [ROWS, k[0], *IMAGE[1:], *k[1:], 2, 1, 1, 1, tall, wide, *rest, f"c + {2 * count}"]
                add("convolve", [*begin, *ends], ROWS * tall * wide, (at, partial(exact_windows, of, k)))
            for n in () if k[0] * k[1] > 1 else range(1, ROWS + 1) if k[2] in (5, 33) else (1 + k[2] % ROWS,):
                add("dense", [*begin, n, k[2], *rest, 1], n, (at, lambda x, of=of, n=n, k=k: exact(of, x[: k[2]])[:n]))
            tables |= dict(zip(names, (words.table.reshape(-1), of[1], codes), strict=True))
    codes = 2 * count + 28 + max(int(call.arguments[0]) for call in calls if call.kernel == "dequantize")
    return program_of(tables, calls, observation=2 * count, raw=written, codes=codes), oracles


def program_of(tables: dict[str, Array], calls: list[Call], **sizes: int) -> Program:
    return Program(
        comment="{}",
        identity="sums",
        layers={},
        x="uint32_t",
        a="int32_t",
        action=1,
        reals=1,
        tables=tables,
        network=tuple(calls),
        head=(Call("argmax", ("1", "y + 0", "0", "a + 0")),),
        **sizes,
    )


def long_layers() -> tuple[Program, list[tuple[int, Callable[[list[int]], list[int]]]]]:
    """Return the same for two layers of 3 bits whose sums leave 32 bits if all columns are added 16 times."""
    tables, calls, oracles = dict[str, Array](), list[Call](), []
    calls.append(Call("quantize_shift", (f"{LONG}", "x + 0", "0x3f800000u", f"{-WIDE}", f"{WIDE}", "c + 0")))
    for at, (kernel, most) in enumerate((("four3", 3), ("odd3", 7))):
        codes = np.full((ROWS, LONG), most, np.int8)
        codes[1::2, ::3] = -most - 1 + at  # grids with 0 hold one code more below it
        of = codes, np.zeros(ROWS, np.int32), np.full(ROWS, 2.0**-23, np.float32)
        words = pack(codes, WIDE)
        assert words.kernel == kernel
        shift, multiplier = multipliers(of[2], float(np.abs(codes.astype(int)).sum(axis=1).max()) * WIDE)
        begin, names = [kernel, words.offset, words.words, shift], [f"{role}{at}" for role in "wbm"]
        arguments = [*begin, ROWS, LONG, *names, "c + 0", -128, 127, 1, f"c + {LONG}"]
        calls.append(Call("dense", tuple(map(str, arguments))))
        calls.append(Call("dequantize", (f"{ROWS}", f"c + {LONG}", "0x3f800000u", f"y + {ROWS * at}")))
        oracles.append((0, partial(exact, of)))
        tables |= dict(zip(names, (words.table.reshape(-1), of[1], multiplier), strict=True))
    return program_of(tables, calls, observation=LONG, raw=2 * ROWS, codes=LONG + ROWS), oracles


@pytest.mark.slow
@pytest.mark.parametrize("layers", [every_layer, long_layers])
@pytest.mark.parametrize("board", ["c", "c-sanitized", "c-plain", "c-aarch64", "c-m4", "c-m0"])
def test_layers_of_every_size_give_exact_sums(board, layers, tmp_path: Path, monkeypatch):
    if board in SANITIZED:
        monkeypatch.setitem(boards.BOARDS, "c", boards.BOARDS["c"]._replace(flags=SANITIZED[board]))
        board = "c"
    require.runtime(board)
    program, oracles = layers()
    (tmp_path / "policy.c").write_text(program.source())
    rng, count = np.random.default_rng(3), program.observation // 2
    x = np.concatenate([rng.integers(-reach, reach + 1, (3, count)) for reach in (SMALL, WIDE)], axis=1)
    x[0] = [-SMALL] * count + [WIDE] * count
    raw, _ = runtimes.load(board, tmp_path / "policy.c").both(x)
    for row, found in zip(x.tolist(), raw.tolist(), strict=True):
        assert found == [code for at, oracle in oracles for code in oracle(row[at:])]
