"""LiteRT and ONNX Runtime with the kernels that they have for older processors, in an emulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import networks
import require
from quarl.calibration import quantize
from quarl.engines.reference import Reference, _channels, _rows
from quarl.policy import artifact
from quarl.quant.affine import quantize_rows
from quarl.quant.spec import QuantSpec

NETWORKS = ["relu", "squashed", "convolutional"]
"""Those without a function that runtimes round differently."""


class Unfused(Reference):
    """The reference of processors without FMA: there XNNPACK's dynamic kernels multiply, round, and then add."""

    def _linear(self, op, x):
        if self.policy.spec.mode == "static":
            return super()._linear(op, x)
        codes, q = quantize_rows(x.reshape(len(x), -1), self.policy.spec.activation_bits)
        sums = np.float32(self._accumulate(op, x, codes, q.zero_point)) * _rows(q.scale, x.ndim)
        return sums * _channels(op.weight.scale, x.ndim) + _channels(op.bias, x.ndim)


SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
from quarl import engines
from quarl.policy import artifact

differ = {}
for path in sorted(Path(sys.argv[1]).glob("*.safetensors")):
    policy, numbers = artifact.read(path), np.load(path.with_suffix(".npz"))
    for name in ("litert", "onnx"):
        y = engines.run_all(engines.load(policy, name, batch=len(numbers["x"])), numbers["x"])
        differ[f"{name} {path.stem}"] = int((y != numbers[name]).sum())
print(json.dumps({"fused": np._core._multiarray_umath.__cpu_features__["FMA3"], "differ": differ}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("cpu", "fused"), [("Nehalem", False), ("Haswell", True)])
def test_integer_kernels_of_old_processors_are_the_references(cpu, fused, tmp_path):
    require.program("qemu-x86_64")
    require.package("onnxruntime")
    for name in NETWORKS:
        policy = networks.EVERY[name]()
        x = networks.observations(policy, 16)
        for precision in ("int8", "int4"):
            for mode in ("dynamic", "static"):
                made = quantize(policy, QuantSpec.parse(precision, scheme="per-channel", mode=mode), x)
                path = tmp_path / f"{name}-{precision}-{mode}.safetensors"
                artifact.write(made, path)
                exact = Reference(made, len(x)).run(x)
                litert = exact if fused else Unfused(made, len(x)).run(x)
                np.savez(path.with_suffix(".npz"), x=x, onnx=exact, litert=litert)
    command = ["qemu-x86_64", "-cpu", cpu, sys.executable, "-c", SCRIPT, str(tmp_path)]
    # OpenBLAS has to find the emulated processor, not one that a variable names
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    environment |= {"PYTHONPATH": str(Path(artifact.__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["fused"] is fused
    assert said["differ"] == dict.fromkeys(said["differ"], 0)
    assert len(said["differ"]) == 2 * 4 * len(NETWORKS)
