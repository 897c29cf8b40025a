"""States of every random number generator that a learner's process draws from, its replay's apart."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm

from quarl.arrays import Array


def take_random(model: BaseAlgorithm) -> tuple[dict[str, Any], dict[str, Array]]:
    """JSON values and arrays: the global generators of Python, numpy and torch, and the action space's."""
    arrays = {"random/torch": torch.get_rng_state().numpy()}
    if model.device.type == "cuda":
        arrays["random/cuda"] = torch.cuda.get_rng_state(model.device).numpy()
    facts = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "action_space": model.action_space.np_random.bit_generator.state,
    }
    return facts, arrays


def give_random(model: BaseAlgorithm, facts: dict[str, Any], arrays: Mapping[str, Array]) -> None:
    """Continues every generator's sequence where `take_random` saw it."""
    version, words, gauss = facts["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(_numpy_state(facts["numpy"]))
    model.action_space.np_random.bit_generator.state = _numpy_state(facts["action_space"])
    torch.set_rng_state(torch.from_numpy(arrays["random/torch"].copy()))
    if model.device.type == "cuda" and "random/cuda" in arrays:
        torch.cuda.set_rng_state(torch.from_numpy(arrays["random/cuda"].copy()), model.device)


def _numpy_state(value: Any) -> Any:
    """A bit generator's state as numpy wants it; JSON made lists of its arrays."""
    if isinstance(value, dict):
        return {key: _numpy_state(entry) for key, entry in value.items()}
    return np.array(value, np.uint64) if isinstance(value, list) else value
