"""One deployable policy, from wherever it comes."""
