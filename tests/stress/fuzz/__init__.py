"""Every parser against inputs that are mutated from valid ones."""
