"""Trained agents of whatever kind, read as one graph."""
