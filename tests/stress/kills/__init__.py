"""Real studies, killed inside their cells."""
