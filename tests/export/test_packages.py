"""Projects around C: built as their users do, run here and in qemu; the control loop is driven through faults."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import networks
import require
from quarl.calibration import quantize
from quarl.cli import main
from quarl.errors import QuarlError
from quarl.export import c, export, golden
from quarl.export.c.boards import BARE, LAYOUT, QEMU, STRICT
from quarl.export.targets import PACKAGES
from quarl.export.verification import VerifyRow, verify
from quarl.policy import artifact
from quarl.policy.graph import QuantizedPolicy
from quarl.quant.spec import QuantSpec

LOOP = Path(__file__).parent / "boards" / "loop.c"
STM32 = (
    "-mcpu=cortex-m4 -mthumb -mfpu=fpv4-sp-d16 -mfloat-abi=hard -ffreestanding -O2 -std=gnu++17 -x c++ -Werror -Wall"
)
STM32 += " -ffunction-sections -fdata-sections -fno-rtti -fno-exceptions -fno-use-cxa-atexit -fno-threadsafe-statics"
ESP32 = (
    "-O2 -std=gnu++17 -x c++ -fno-rtti -fno-exceptions -ffunction-sections -fdata-sections -fstrict-volatile-bitfields"
)
ESP32 += (
    " -Werror=all -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -fno-jump-tables -fno-tree-switch-conversion"
)
"""Flags of Arduino's core for STM32 and of ESP-IDF 5, as far as every gcc has them."""


def static(name: str, **head) -> tuple[QuantizedPolicy, np.ndarray]:
    """Return a network of tests/networks.py in static int8, with observations."""
    policy = networks.EVERY[name]()
    policy = replace(policy, head=replace(policy.head, **head))
    x = networks.observations(policy, 40)
    return quantize(policy, QuantSpec.parse("int8", mode="static"), x), x


def written(folder: Path, package: str, name: str = "squashed", **head) -> golden.Golden:
    """Write a network as C named hover with a package; return its golden vectors."""
    policy, x = static(name, **head)
    vectors = golden.record(policy, x)
    for file, content in c.write(policy, "{}", vectors, "hover", package).items():
        (folder / file).write_bytes(content)
    return vectors


def ran(words: str, folder: Path, *more: str) -> str:
    done = subprocess.run([*words.split(), *more], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_hold_glue_of_forty_lines_that_is_not_compiled_here(package, tmp_path):
    written(tmp_path, package)
    loop = {"hover.c", "hover.h", "hover_selftest.c", "hover_control.c", "hover_control.h"}
    glue = {path.name: path.read_text() for path in tmp_path.iterdir() if path.name not in loop}
    assert len(glue) == 2
    for name, text in glue.items():
        assert "@" not in text
        assert package == "cmake" or ("not compiled here" in text and len(text.splitlines()) <= 40), name


@pytest.mark.parametrize(
    ("head", "limits"),
    [
        ({"kind": "argmax", "start": 5, "low": np.zeros(0), "high": np.zeros(0)}, "{5} {6} {5}"),
        ({"kind": "binary", "low": np.zeros(0), "high": np.zeros(0)}, "{0, 0} {1, 1} {0, 0}"),
        ({"low": np.float32([0.1, -np.inf]), "high": np.float32([np.inf, -3])}, None),
    ],
)
def test_limits_and_the_safe_action_are_those_of_the_head(head, limits, tmp_path):
    written(tmp_path, "cmake", **{"kind": "clip", **head})
    listed = [
        line.partition(" = ")[2].strip(";") for line in (tmp_path / "hover_control.c").read_text().splitlines()[10:13]
    ]
    most = "3.4028235e+38f"
    assert " ".join(listed) == (limits or f"{{0.1f, -{most}}} {{{most}, -3.0f}} {{0.1f, -3.0f}}")


def test_a_package_requires_c_and_a_known_name(tmp_path, capsys):
    policy, x = static("squashed")
    artifact.write(policy, tmp_path / "p.quarl")
    assert main(["export", str(tmp_path / "p.quarl"), "--package", "cmake", "-o", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("quarl: --package is 'cmake'; it requires --to c, and is one of cmake,")
    with pytest.raises(QuarlError, match=r"--package is '../cmake'; it requires --to c"):
        export(policy, "c", tmp_path / "out", observations=x, package="../cmake")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "head"),
    [("squashed", {}), ("padded", {}), ("padded", {"kind": "clip", "low": -np.ones(4), "high": np.ones(4)})],
    ids=["floats", "image", "image with floats"],
)
@pytest.mark.parametrize("prefix", ["", "aarch64-linux-gnu-", "riscv64-linux-gnu-"])
def test_a_cmake_package_replays_its_golden_actions(name, head, prefix, tmp_path):
    qemu = f"qemu-{prefix.partition('-')[0]}"
    require.program("cmake", f"{prefix}gcc", *[qemu] * bool(prefix))
    vectors = written(tmp_path, "cmake", name, **head)
    cross = f"-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_CROSSCOMPILING_EMULATOR={qemu} -DCMAKE_EXE_LINKER_FLAGS=-static"
    strict = f"-DCMAKE_C_FLAGS={STRICT}"
    ran(f"cmake -S . -B build -DCMAKE_C_COMPILER={prefix}gcc {cross if prefix else ''}", tmp_path, strict)
    ran("cmake --build build", tmp_path)
    assert "100% tests passed" in ran("ctest --test-dir build", tmp_path)
    printed = np.loadtxt(ran(f"{qemu if prefix else ''} build/hover_replay", tmp_path).splitlines(), ndmin=2)
    finite = np.isfinite(vectors.observations.reshape(len(vectors.outputs), -1)).all(axis=1)
    actions = vectors.given if head or name == "squashed" else vectors.outputs.argmax(axis=1)[:, None]
    assert len(printed) == min(64, finite.sum())
    np.testing.assert_allclose(printed, actions[finite][: len(printed)], atol=3e-6)


SANITIZED = "-Wall -Wextra -Wpedantic -Wconversion -Wvla -Werror -fsanitize=undefined,address -fno-sanitize-recover=all"


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc -std=c99", "gcc -std=c11", "g++ -x c++ -std=c++17"])
def test_the_loop_survives_faults_in_c_and_in_cpp(compiler, tmp_path):
    require.program("gcc", "g++")
    written(tmp_path, "cmake")
    ran(f"{compiler} {SANITIZED} -I. {LOOP} hover.c hover_control.c -o loop", tmp_path)
    ran("./loop", tmp_path)


@pytest.mark.slow
def test_the_loop_survives_faults_on_a_bare_cortex_m4(tmp_path):
    require.program("cmake", "arm-none-eabi-gcc", "qemu-system-arm")
    written(tmp_path, "cmake")
    flags = f"-mcpu=cortex-m4 -mfloat-abi=soft {BARE}"
    bare = "-DCMAKE_SYSTEM_NAME=Generic -DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY"
    ran(f"cmake -S . -B build {bare} -DCMAKE_C_COMPILER=arm-none-eabi-gcc", tmp_path, f"-DCMAKE_C_FLAGS={flags}")
    ran("cmake --build build", tmp_path)
    ran(f"arm-none-eabi-gcc -std=c99 {flags} -I. {LOOP} build/libhover.a {LAYOUT} -o policy", tmp_path)
    ran(QEMU, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "flags"), [("platformio", f"arm-none-eabi-g++ {STM32}"), ("esp-idf", f"g++ {ESP32}")], ids=PACKAGES[1:]
)
def test_policy_and_loop_compile_with_the_flags_of_frameworks(package, flags, tmp_path):
    require.program(flags.split()[0])
    written(tmp_path, package)
    for file in ("hover", "hover_control", "hover_selftest"):
        ran(f"{flags} -c {file}.c -o {file}.o", tmp_path)


@pytest.mark.slow
def test_verify_regenerates_the_files_of_a_package(tmp_path, capsys):
    policy, x = static("squashed")
    said = export(policy, "c", tmp_path, observations=x, name="hover", package="cmake")
    assert said["package"] == "cmake"
    assert "add_subdirectory gives the library hover" in (tmp_path / "README.md").read_text()
    (row,) = (each for each in verify(tmp_path, ["c"], episodes=0) if getattr(each, "check", "") == "sources")
    assert isinstance(row, VerifyRow)
    assert row.count == 7
    for name in ("CMakeLists.txt", "hover_control.c"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole + b"\n")
        with pytest.raises(QuarlError, match=f"{name} does not match .* damaged in line .*--edited"):
            list(verify(tmp_path, ["c"], episodes=0))
        list(verify(tmp_path, ["c"], episodes=0, edited=True))
        (tmp_path / name).write_bytes(whole)
