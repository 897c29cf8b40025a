"""Training in one process: a Stable-Baselines3 learner with its own environments, in the zoo's layout of folders."""
