"""Training with actors or learners of several precisions, measured in turns on one machine."""
