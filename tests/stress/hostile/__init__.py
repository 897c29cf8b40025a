"""Files that mean harm, of every mechanism that is known."""
