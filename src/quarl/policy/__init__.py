"""The deployable policy: one graph of operators, whatever file or model it comes from."""
