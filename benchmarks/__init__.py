"""Benchmarks: each is a script of its own; ``core`` is what they share."""
