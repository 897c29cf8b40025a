"""Keys and types of the rows of `quarl bench mixed-precision`."""

from __future__ import annotations

from collections.abc import Mapping

NULL = type(None)

MIXED_PRECISION: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "bench mixed-precision updates": {
        "policy": (str,),
        "filters": (int,),
        "width": (int,),
        "parameters": (int,),
        "dtype": (str,),
        "native": (bool,),
        "device": (str,),
        "threads": (int,),
        "batch": (int,),
        "updates": (int,),
        "ms_per_update": (float,),
        "ci_low": (float, NULL),
        "ci_high": (float, NULL),
        "speedup": (float, NULL),
        "speedup_low": (float, NULL),
        "speedup_high": (float, NULL),
    },
    "bench mixed-precision learning": {
        "policy": (str,),
        "filters": (int,),
        "width": (int,),
        "dtype": (str,),
        "env_id": (str,),
        "seeds": (int,),
        "env_steps": (int,),
        "updates": (int,),
        "episodes": (int,),
        "before": (float,),
        "mean": (float,),
        "ci_low": (float,),
        "ci_high": (float,),
        "difference": (float, NULL),
        "difference_low": (float, NULL),
        "difference_high": (float, NULL),
        "equal": (bool, NULL),
        "minutes": (float,),
    },
}
"""By the document's `command`."""
