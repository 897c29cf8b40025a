"""Integer-only C: the same bits as the reference gives, from files that hold nothing but kernels, tables and calls."""

from __future__ import annotations

import re

import numpy as np
import pytest

import networks
from quarl.calibration import quantize
from quarl.errors import QuarlError, UnsupportedError
from quarl.export import c, golden
from quarl.policy.graph import QuantizedPolicy
from quarl.quant.spec import QuantSpec

MISSING = [name for name in networks.EVERY if "pool" in name or name == "softmax"]


def static(name: str, precision: str = "int8") -> tuple[QuantizedPolicy, np.ndarray]:
    """A network of tests/networks.py on static grids, and observations."""
    policy = networks.EVERY[name]()
    x = networks.observations(policy, 300)
    return quantize(policy, QuantSpec.parse(precision, mode="static"), x), x


def written(name: str, precision: str = "int8") -> dict[str, str]:
    """Its files."""
    policy, x = static(name, precision)
    return {file: content.decode() for file, content in c.write(policy, "{}", golden.record(policy, x)).items()}


@pytest.mark.parametrize("name", MISSING)
def test_what_c_has_no_kernel_for_is_named_with_the_targets_that_have_one(name):
    with pytest.raises(UnsupportedError, match=r"C has no kernel for .* 'pool.0'|'shares'.*targets tflite and onnx"):
        written(name)


def test_dynamic_integers_and_floats_are_refused():
    policy = networks.EVERY["relu"]()
    x = networks.observations(policy, 8)
    for spec in (QuantSpec.parse("int8"), QuantSpec.parse("fp16")):
        quantized = quantize(policy, spec, x)
        with pytest.raises(UnsupportedError, match="--mode static"):
            c.write(quantized, "{}", golden.record(quantized, x))


def test_what_is_read_back_is_the_program_that_was_written():
    text = written("dueling", "int4")["policy.c"]
    assert c.check(text).source() == text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sum += (int32_t)w[j] * x[j];", 'sum += (int32_t)w[j] * x[j] + system("true");'),
        ("    return 0;\n}\n", '    system("true");\n    return 0;\n}\n'),
        ('#include "policy.h"', '#include "policy.h"\n#include "/etc/passwd"'),
        ("/* {} */", "/* {} */ int x; /* */"),
        (r"re:dense8\(16, 5,", "dense8(16, 6,"),
        (r"re:dense8\(16, 5,", "dense8(1600, 5,"),
        (r"re:c \+ (\d+)\);", r"c + 9\1);"),
        (r"re:argmax\(3, y \+ 0", "argmax(4, y + 0"),
        (r"re:argmax\(3, y \+ 0", "argmax(3, w0 + 0"),
        (r"re:\{\n-?\d+,", "{\n300,"),
        (r"re:\{\n-?\d+,", "{\nabort(),"),
    ],
)
def test_c_that_quarl_did_not_write_is_not_taken(old, new):
    text = written("relu")["policy.c"]
    changed = re.sub(old[3:], new, text, count=1) if old.startswith("re:") else text.replace(old, new, 1)
    assert changed != text
    with pytest.raises(QuarlError, match=r"policy\.c"):
        c.check(changed)
