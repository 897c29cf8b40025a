"""A static policy as integer-only C99: no heap, no float operations, no include but <stdint.h>."""

from __future__ import annotations

import numpy as np

from quarl.export.c.lowering import Lowering
from quarl.export.c.program import Program, check, numbers
from quarl.export.golden import Golden
from quarl.policy.graph import QuantizedPolicy

__all__ = ["check", "write"]

SELFTEST_VECTORS = 64
SELFTEST_NUMBERS = 2**16
"""Largest number of values in the observations of policy_selftest.c: images have fewer vectors."""
SELFTEST = """#include "policy.h"

{tables}
int policy_selftest(void) {{
    uint32_t raw[POLICY_RAW];
    int i, j;
    for (i = 0; i < {count}; i++) {{
        if (policy_raw(observations + i * POLICY_OBSERVATION, raw))
            return i + 1;
        for (j = 0; j < POLICY_RAW; j++)
            if (raw[j] != outputs[i * POLICY_RAW + j])
                return i + 1;
    }}
    return 0;
}}

#ifdef POLICY_MAIN /* as a program of its own */
int main(void) {{ return policy_selftest(); }}
#endif
"""


def write(policy: QuantizedPolicy, comment: str, golden: Golden) -> dict[str, bytes]:
    """Return policy.h, policy.c and policy_selftest.c by name.

    Args:
        policy: The policy.
        comment: First comment of policy.c; it must be JSON, since asterisks are escaped.
        golden: Source of the self-test's vectors.

    Raises:
        UnsupportedError: The policy is not in static integers of at most 8 bits, or C lacks a kernel.
    """
    program = Lowering(policy).program(comment.replace("*", "\\u002a").replace("??", "?\\u003f"))
    program.validate()
    files = {
        "policy.h": program.header(),
        "policy.c": program.source(),
        "policy_selftest.c": _selftest(program, golden),
    }
    return {name: text.encode("ascii") for name, text in files.items()}


def _selftest(program: Program, golden: Golden) -> str:
    """Return policy_selftest.c with evenly spaced golden vectors.

    Only finite vectors are usable, as it compares their results.
    """
    rows = golden.observations.reshape(len(golden.observations), -1)
    usable = np.flatnonzero(np.isfinite(rows).all(axis=1))
    count = max(1, min(SELFTEST_VECTORS, SELFTEST_NUMBERS // program.observation, len(usable)))
    chosen = usable[np.linspace(0, len(usable) - 1, count).round().astype(int)]
    x = rows[chosen].astype(np.uint8) if program.x == "uint8_t" else rows[chosen].astype(np.float32).view(np.uint32)
    y = golden.outputs[chosen].astype(np.float32).view(np.uint32)
    tables = numbers("observations", x) + numbers("outputs", y)
    return SELFTEST.format(tables=tables, count=count)
