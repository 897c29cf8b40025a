"""Real runs of `quarl actorq` and their checkpoints, killed, stopped, poisoned and damaged."""
