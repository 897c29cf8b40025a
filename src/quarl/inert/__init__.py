"""Files as data: nothing in them is imported, looked up by name or called, and the cost of reading is bounded."""
