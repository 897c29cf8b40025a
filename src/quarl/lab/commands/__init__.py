"""Commands of the laboratory: each module's `run(config)` executes one."""
