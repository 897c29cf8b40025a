"""Instructions of a dense layer of CMSIS-NN on emulated Cortex-M cores: python -m stress.cmsis_nn FOLDER

FOLDER is a checkout of CMSIS-NN, compiled as `python -m stress.boards --only layers/` compiles the exporter's layers.
"""

import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

import results
from quarl.export.c import boards
from stress.boards import WIDTHS

COPY = "#include <stddef.h>\nvoid *memcpy(void *, const void *, size_t);\nvoid *memset(void *, int, size_t);\n"
HEADERS = {"string.h": COPY, "math.h": "", "assert.h": ""}
"""Headers of the C library, which the compiler's package for bare boards does not contain."""


def instructions(source: Path, core: str, width: int, bits: int) -> int:
    """Return the instructions of one layer, requantization included."""
    board, places = boards.BOARDS[core], ("FullyConnectedFunctions", "NNSupportFunctions")
    files = [path for place in places for path in (source / "Source" / place).glob("*_s[48].c")]
    with tempfile.TemporaryDirectory() as folder:
        for name, text in HEADERS.items():
            (Path(folder) / name).write_text(text)
        words = f"{board.flags} -ffunction-sections -I. -DN={width} -DLAYER=arm_fully_connected_s{bits}"
        command = [board.compiler, *words.split(), f"-I{source / 'Include'}", Path(__file__).with_suffix(".c"), *files]
        command += [*board.link.split(), "-Wl,--gc-sections,--undefined=vectors", "-o", "policy"]
        subprocess.run(command, cwd=folder, check=True)
        ticks = subprocess.run(board.run.split(), cwd=folder, check=True, stderr=subprocess.PIPE, text=True).stderr
        return boards.INSTRUCTIONS * int(ticks)


if __name__ == "__main__":
    checkout, made = Path(sys.argv[1]).resolve(), []
    for core, width, bits in itertools.product(("c-m4", "c-m0"), WIDTHS, (8, 4)):
        row = {"name": f"{core} {width} int{bits}", "runtime": core, "width": width, "precision": f"int{bits}"}
        made.append({**row, "instructions": instructions(checkout, core, width, bits)})
    results.write("boards", f"python -m stress.cmsis_nn {sys.argv[1]}", cmsis_nn=made)
