"""The type of the arrays that QuaRL computes with: their shapes and number types stand where each is described."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
