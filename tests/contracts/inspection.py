"""Keys and types of the rows that `quarl inspect` writes."""

from __future__ import annotations

from collections.abc import Mapping

NULL = type(None)

INSPECT: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "inspect": {
        "layer": (str,),
        "operator": (str,),
        "shape": (list,),
        "precision": (str,),
        "scheme": (str,),
        "min": (float,),
        "max": (float,),
        "range": (float,),
        "levels": (int,),
        "sqnr_db": (float, NULL),
        "saturation": (float,),
        "histogram": (dict,),
    },
    "inspect models": {
        "model": (str,),
        "weights": (int,),
        "precision": (str,),
        "scheme": (str,),
        "min": (float,),
        "max": (float,),
        "range": (float,),
        "std": (float,),
        "spread": (float, NULL),
        "sqnr_db": (float, NULL),
        "histogram": (dict,),
        "layers": (list,),
    },
}
"""By the document's `command`."""
