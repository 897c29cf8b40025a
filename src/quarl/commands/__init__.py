"""Commands: each module's `run(config)` executes one, from reading the model to the last printed line."""
