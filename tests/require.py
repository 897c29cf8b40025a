"""Programs, packages and folders that some tests need: without them those tests are skipped, with what to install.

`QUARL_REQUIRE=gcc,agents,tract` names those whose absence is a failure instead, by the keys of PROGRAMS, MODULES and
FOLDERS.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import warnings
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

from quarl.export import runtimes
from quarl.export.c.boards import BOARDS

PROGRAMS = {
    "gcc": "gcc libc6-dev",
    **dict.fromkeys(("arm-none-eabi-gcc", "arm-none-eabi-g++"), "gcc-arm-none-eabi"),
    **dict.fromkeys(("clang", "clang++"), "clang"),
    "qemu-system-arm": "qemu-system-arm",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    "riscv64-linux-gnu-gcc": "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross",
    "qemu-aarch64": "qemu-user",
    "qemu-riscv64": "qemu-user",
    "qemu-x86_64": "qemu-user",
    "pdflatex": "texlive-latex-recommended",
    **{name: name for name in ("bash", "cmake", "fish", "g++", "zsh")},
}
"""Debian's packages, by the program that is looked for."""
MODULES = {
    "Box2D": "quarl[box2d]",
    "ai_edge_litert": "ai-edge-litert",
    "ale_py": "quarl[atari]",
    "codecarbon": "quarl[energy]",
    "cv2": "quarl[atari]",
    "dm_control": "quarl[dm-control]",
    "gymnasium": "gymnasium",
    "gymnasium_robotics": "quarl[robotics]",
    "huggingface_hub": "quarl[hub]",
    "imageio": "quarl[video]",
    "mujoco": "quarl[mujoco]",
    "onnxruntime": "quarl[onnx]",
    "onnxscript": "onnxscript",
    "openvino": "openvino",
    "panda_gym": "quarl[panda]",
    "pybullet_envs_gymnasium": "quarl[pybullet]",
    "pygame": "quarl[video]",
    "ray": "quarl[cluster]",
    "rl_zoo3": "quarl[zoo]",
    "rliable": "rliable",
    "sb3_contrib": "quarl[train]",
    "shimmy": "shimmy",
    "stable_baselines3": "quarl[train]",
    "tensorboard": "quarl[tensorboard]",
    "tflite_micro": "tflite-micro",
    "torch": "quarl[train]",
    "tract": "tract",
    "wandb": "quarl[wandb]",
}
"""What pip installs, by the package that is imported."""
SHARED = Path(__file__).resolve().parents[2] / "shared"
FOLDERS = {name: SHARED / name for name in ("agents", "agents-more", "agents-wild")}
"""Trained agents beside the checkout."""


def required() -> set[str]:
    """Return the names in QUARL_REQUIRE; an unknown one is an error of usage."""
    names = set(filter(None, os.environ.get("QUARL_REQUIRE", "").replace(" ", "").split(",")))
    if unknown := names - {*PROGRAMS, *MODULES, *FOLDERS}:
        raise pytest.UsageError(f"QUARL_REQUIRE has unknown names: {', '.join(sorted(unknown))}; see tests/require.py")
    return names


def missing(name: str, fix: str) -> NoReturn:
    """Skip the test, or the module at its top, for want of `name`; fail if it is required."""
    if name in required():
        pytest.fail(f"QUARL_REQUIRE names {name}, which is missing: {fix}", pytrace=False)
    pytest.skip(f"{name} is missing: {fix}", allow_module_level=True)


def program(*names: str) -> None:
    """Need the programs on PATH."""
    for name in names:
        if shutil.which(name) is None:
            missing(name, f"apt install {PROGRAMS[name]}")


def package(name: str) -> None:
    """Need an installed package, without importing it."""
    if importlib.util.find_spec(name) is None:
        missing(name, f"pip install '{MODULES[name]}'")


def module(name: str) -> ModuleType:
    """Import what the test needs; a package that is there and does not import is an error."""
    package(name.partition(".")[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other people's, while their packages are imported
        return importlib.import_module(name)


def folder(name: str) -> Path:
    """Return a folder of trained agents."""
    if not FOLDERS[name].is_dir():
        missing(name, f"no folder shared/{name} beside the checkout")
    return FOLDERS[name]


def installed(name: str) -> None:
    """Need what `quarl.export.runtimes` runs files with, under its name there."""
    if name in BOARDS:
        program(BOARDS[name].compiler, *{BOARDS[name].run.split()[0]} - {"./policy"})
    else:
        module(runtimes.RUNTIMES[name].module)


def runtime(name: str) -> None:
    """Need it as `installed` does, and on a processor on which it acts as the reference does."""
    installed(name)
    if name == "openvino" and runtimes.openvino_saturates():
        pytest.skip("OpenVINO's integer kernels saturate on this processor, which has no VNNI")
