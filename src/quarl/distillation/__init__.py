"""Distillation of a policy into its own quantised self: no reward, only what the float policy would have done."""
