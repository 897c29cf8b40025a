"""Files as data: nothing in them is imported, looked up by name or called, and what one may cost is bounded."""
