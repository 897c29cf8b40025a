"""Options that were removed, with the values that older runs, checkpoints and studies may still contain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quarl.errors import QuarlError

REMOVED: Mapping[str, tuple[Any, ...]] = {
    **{"qat_ranges": ("minmax",), "qat_affine": (False,), "qat_per_tensor": (False,), "max_times_sampled": (None,)},
    **{"ranges": ("minmax",), "symmetric": (True,), "per_channel": (True,)},  # the same, as checkpoints spell them
    "vec_env": ("auto", "dummy"),
}
"""Values that are still read, by name; the first is the former default."""


def without_removed(options: Mapping[str, Any], where: object) -> dict[str, Any]:
    """Return saved options without the removed ones; raise QuarlError, naming `where`, if one has another value."""
    for name, read in REMOVED.items():
        value = options.get(name, read[0])
        if not any(type(value) is type(one) and value == one for one in read):
            raise QuarlError(
                f"{where} sets {name} to {str(value)[:60]!r}: this option was removed, and only "
                f"{' and '.join(map(repr, read))} can still be read"
            )
    return {name: value for name, value in options.items() if name not in REMOVED}
