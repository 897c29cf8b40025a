"""The type of all arrays in QuaRL; each use documents their shape and number type."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
