"""Ops of neural networks, each with its gradient as an op. Imports `gt.ops`, its `math` and `random`, `gt.types`."""
