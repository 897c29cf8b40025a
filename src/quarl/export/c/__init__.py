"""A static policy as integer-only C99: no heap, no float operations, no headers but <stdint.h> and intrinsics."""

from __future__ import annotations

import numpy as np

from quarl.export.c import packages
from quarl.export.c.lowering import Lowering
from quarl.export.c.program import Program, check, numbers
from quarl.export.c.texts import LICENSE
from quarl.export.golden import Golden
from quarl.policy.graph import QuantizedPolicy

__all__ = ["check", "write"]

SELFTEST_VECTORS = 64
SELFTEST_NUMBERS = 2**16
"""Largest number of values in the observations of the self-test: images have fewer vectors."""
SELFTEST = (
    LICENSE
    + """#include "{name}.h"

{tables}
int {name}_selftest(void) {{
    uint32_t raw[{macro}_RAW];
    int i, j;
    for (i = 0; i < {count}; i++) {{
        if ({name}_raw(observations + i * {row}, raw))
            return i + 1;
        for (j = 0; j < {macro}_RAW; j++)
            if (raw[j] != outputs[i * {macro}_RAW + j])
                return i + 1;
    }}
    return 0;
}}

const {x} *{name}_golden(int number) {{
    return number < {count} ? observations + number * {row} : 0;
}}

#ifdef {macro}_MAIN /* as a program of its own */
int main(void) {{ return {name}_selftest(); }}
#endif
"""
)


def write(
    policy: QuantizedPolicy, comment: str, golden: Golden, name: str = "policy", package: str | None = None
) -> dict[str, bytes]:
    """Return NAME.h, NAME.c and NAME_selftest.c by name, with the package's files.

    Args:
        policy: The policy.
        comment: First comment of policy.c; it must be JSON, since asterisks are escaped.
        golden: Source of the self-test's vectors.
        name: Prefix of files, functions and, in capitals, macros.
        package: Project to write around them, one of PACKAGES; None writes none.

    Raises:
        UnsupportedError: The policy is not in static integers of at most 8 bits, or C lacks a kernel.
    """
    program = Lowering(policy).program(comment.replace("*", "\\u002a").replace("??", "?\\u003f"), name)
    program.validate()
    files = {
        f"{name}.h": program.header(),
        f"{name}.c": program.source(),
        f"{name}_selftest.c": _selftest(program, golden),
        **(packages.write(policy.head, program, package) if package else {}),
    }
    return {file: text.encode("ascii") for file, text in files.items()}


def _selftest(program: Program, golden: Golden) -> str:
    """Return NAME_selftest.c with evenly spaced golden vectors.

    Only finite vectors are usable, as it compares their results.
    """
    rows = golden.observations.reshape(len(golden.observations), -1)
    usable = np.flatnonzero(np.isfinite(rows).all(axis=1))
    count = max(1, min(SELFTEST_VECTORS, SELFTEST_NUMBERS // program.observation, len(usable)))
    chosen = usable[np.linspace(0, len(usable) - 1, count).round().astype(int)]
    x = rows[chosen].astype(np.uint8) if program.x == "uint8_t" else rows[chosen].astype(np.float32).view(np.uint32)
    y = golden.outputs[chosen].astype(np.float32).view(np.uint32)
    tables = numbers("observations", x) + numbers("outputs", y)
    return SELFTEST.format(
        name=program.name,
        macro=program.name.upper(),
        x=program.x,
        tables=tables,
        count=count,
        row=("({0}_OBSERVATION + {0}_STATE)" if program.state else "{0}_OBSERVATION").format(program.name.upper()),
    )
