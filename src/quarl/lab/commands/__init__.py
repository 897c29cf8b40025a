"""Verbs of the laboratory: each module's `run(config)` does one."""
