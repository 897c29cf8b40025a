"""Verbs: each module's `run(config)` does one, from reading the model to the last printed line."""
