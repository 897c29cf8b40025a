"""Parameters of Stable-Baselines models whose policies are of no kind that runs here: recurrent ones, TRPO, ..."""

from __future__ import annotations

from pathlib import Path

from quarl.arrays import Array
from quarl.inert.budget import reading
from quarl.inert.zip import member_names
from quarl.policy.layers import LayerWeights
from quarl.readers import sb2, sb3
from quarl.readers.weights_only import checked, names


def read(path: Path) -> tuple[LayerWeights, ...]:
    """Every weight in the zip or pickle at `path`, those of critics and targets too."""
    with reading(path):
        if "policy.pth" in member_names(path):
            return checked(names.layers(sb3.contents(path)[1]), path)
        _, arrays = sb2.contents(path)
        return checked(names.layers(arrays if isinstance(arrays, dict) else _numbered(arrays)), path)


def _numbered(arrays: list[Array]) -> dict[str, Array]:
    """Names for the nameless arrays of old files: a vector that follows a weight is its bias."""
    named: dict[str, Array] = {}
    weight = ""
    for number, array in enumerate(arrays):
        name = f"{number}/w"
        if array.ndim == 1 and weight and array.shape == named[weight].shape[-1:]:
            name = f"{weight.removesuffix('/w')}/b"
            weight = ""
        elif array.ndim >= 2:
            weight = name
        named[name] = array
    return named
