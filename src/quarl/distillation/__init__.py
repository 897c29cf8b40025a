"""Distillation of a policy into its own quantized version, which imitates the float outputs without a reward."""
