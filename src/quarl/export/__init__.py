"""Policies as files for other runtimes and small boards, with what proves that they act alike."""
