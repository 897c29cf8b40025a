"""Algorithms that Stable-Baselines3 lacks, in its shape."""
