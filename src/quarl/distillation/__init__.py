"""Distillation of a policy into its own quantized self: no reward, only what the float policy would have done."""
