"""The drone's policies as C on bare Cortex-M boards in qemu: instructions of an action, bytes of flash and of stack.

    python -m stress.drone AGENT.zip [AGENT.zip ...] FILE.json

Raw outputs are compared bit for bit with the reference. Ends with 1 where one differs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from quarl.calibration import quantize
from quarl.envs import home_of
from quarl.evaluation import record
from quarl.quant.spec import QuantSpec
from quarl.readers.load import read
from stress.boards import many, measured

ENVIRONMENT, OBSERVATIONS = "quarl/Quadrotor-v0", 100


def main(*paths: str) -> int:
    """1 where a raw output differs in a bit."""
    *agents, file = map(Path, paths)
    rows = []
    for path in agents:
        policy = read(path)
        met = record(policy, "calibration", environment=home_of(policy, ENVIRONMENT))
        for precision in ("int8", "int4e8", "int4e4"):
            quantized = quantize(policy, QuantSpec.parse(precision, mode="static"), met)
            for board in ("c-m4", "c-m0"):
                rows.append(measured(path.stem, quantized, many(policy, met, OBSERVATIONS), board))
                print(*(f"{key} {value}" for key, value in rows[-1].items() if key != "name"), sep=", ", flush=True)
    file.write_text(json.dumps({"rows": rows}))
    return int(any(row["rows_that_differ"] for row in rows))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
