"""The device that a learner is on."""

from __future__ import annotations

import torch
from stable_baselines3.common.utils import get_device

from quarl.errors import QuarlError


def find_device(name: str) -> torch.device:
    """The device of that name, auto the GPU where there is one. Stable-Baselines3 takes the CPU without a word instead
    of a GPU that is not there; here that is a QuarlError."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise QuarlError(f"--device {name}: PyTorch finds no GPU here; use auto or cpu, or install a build for CUDA")
    device: torch.device = get_device(name)
    return device
