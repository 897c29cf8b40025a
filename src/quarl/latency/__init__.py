"""Latency of policies and their files: engines and runtimes take turns, one call on one thread."""
