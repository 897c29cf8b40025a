"""Readers of trained agents: each file format becomes one graph."""
