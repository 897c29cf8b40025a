"""Distillation of a policy into its own quantized version, which imitates the float policy's outputs without a
reward."""
