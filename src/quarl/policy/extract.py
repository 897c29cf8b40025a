"""The former place of `from_model` and `from_module`, for programs that import them from here."""

from quarl.readers.extract import from_model, from_module

__all__ = ["from_model", "from_module"]
