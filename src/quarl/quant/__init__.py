"""The arithmetic: tensors in, tensors out. No RL, no files, no engines."""
