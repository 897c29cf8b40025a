"""A run: a learner, its evaluations, its checkpoints and its folder."""
