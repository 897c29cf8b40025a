"""Targets of an export, and the writers of their files."""

from __future__ import annotations

import importlib
import re

from quarl.errors import QuarlError, extras
from quarl.export.golden import Golden
from quarl.policy.graph import QuantizedPolicy

TARGETS = ("tflite", "tflite-int16x8", "onnx", "onnx-qdq", "c")
"""All targets of an export."""
STATIC = ("tflite-int16x8", "onnx-qdq", "c")
"""Targets whose activations are on grids that are calibrated beforehand."""
FILES = {
    "tflite": "policy.tflite",
    "tflite-int16x8": "policy.tflite",
    "onnx": "policy.onnx",
    "onnx-qdq": "policy.onnx",
    "c": "policy.c",
}
"""File that runtimes run, by target; `file_of` knows its name in C."""
RESERVED = re.compile(
    "alignas|alignof|and|and_eq|asm|atomic|auto|bitand|bitor|bool|break|case|catch|char|class|compl|concept|"
    "const|constexpr|continue|decltype|default|delete|do|double|else|enum|explicit|export|extern|false|float|"
    "for|friend|goto|if|inline|int|long|mutable|namespace|new|noexcept|not|not_eq|nullptr|operator|or|or_eq|"
    "private|protected|public|register|requires|restrict|return|short|signed|sizeof|static|struct|switch|"
    "template|this|throw|true|try|typedef|typeid|typename|union|unsigned|using|virtual|void|volatile|wchar_t|"
    "while|xor|xor_eq"
)
"""Words of C and C++ that are no names."""
PACKAGES = ("cmake", "platformio", "esp-idf")
"""Projects around C, with a control loop."""
WRITERS = {
    "tflite": "quarl.engines.litert",
    "tflite-int16x8": "quarl.engines.litert.sixteen",
    "onnx": "quarl.engines.onnx",
    "onnx-qdq": "quarl.export.qdq",
}
METADATA = "quarl.contract"
"""Key of the contract inside a file that names its texts."""


def file_of(target: str, name: str = "policy", package: str | None = None) -> str:
    """Return the name of the file that runtimes run.

    Args:
        target: Runtime or language, one of TARGETS.
        name: Prefix of symbols and files in C.
        package: Project around C, one of PACKAGES.

    Raises:
        QuarlError: The name is not a C identifier, the package is unknown, or the target is not C.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,30}", name) or RESERVED.fullmatch(name):
        raise QuarlError(f"--name is {name[:40]!r}; use a C identifier of up to 31 letters, digits and underscores")
    if target != "c" and name != "policy":
        raise QuarlError("--name requires --to c, which alone has symbols")
    if package is not None and (target != "c" or package not in PACKAGES):
        raise QuarlError(f"--package is {str(package)[:40]!r}; it requires --to c, and is one of {', '.join(PACKAGES)}")
    return f"{name}.c" if target == "c" else FILES[target]


def reference_of(target: str) -> str:
    """Return the arithmetic of the golden vectors, in which the reference computes them."""
    return "int16x8" if target == "tflite-int16x8" else "f32-rne"


def write(
    policy: QuantizedPolicy,
    target: str,
    inner: str,
    vectors: Golden,
    name: str = "policy",
    package: str | None = None,
) -> dict[str, bytes]:
    """Return the files of the target by name, with the contract `inner` in them.

    Args:
        policy: The policy.
        target: Runtime or language, one of TARGETS.
        inner: Short form of the contract.
        vectors: Golden vectors, for the self-test of "c".
        name: Prefix of symbols and files of "c".
        package: Project around "c", one of PACKAGES.

    Raises:
        UnsupportedError: The target does not support the precision or an operator.
    """
    if target == "c":
        files: dict[str, bytes] = importlib.import_module("quarl.export.c").write(policy, inner, vectors, name, package)
        return files
    with extras(f"an export to {target}"):
        writer = importlib.import_module(WRITERS[target])
    return {FILES[target]: writer.write(policy, acts=True, metadata={METADATA: inner})}
