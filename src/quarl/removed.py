"""Options that were removed, with the only value that older runs, checkpoints and studies may still contain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quarl.errors import QuarlError

REMOVED: Mapping[str, Any] = {
    **{"qat_ranges": "minmax", "qat_affine": False, "qat_per_tensor": False, "max_times_sampled": None},
    **{"ranges": "minmax", "symmetric": True, "per_channel": True},  # the same, as checkpoints spell them
}
"""Former defaults by name."""


def without_removed(options: Mapping[str, Any], where: object) -> dict[str, Any]:
    """Return saved options without the removed ones; raise QuarlError, naming `where`, if one has another value."""
    for name, default in REMOVED.items():
        value = options.get(name, default)
        if type(value) is not type(default) or value != default:
            raise QuarlError(
                f"{where} sets {name} to {str(value)[:60]!r}: this option was removed, and only its former default "
                f"{default!r} is still read"
            )
    return {name: value for name, value in options.items() if name not in REMOVED}
