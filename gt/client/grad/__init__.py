"""Gradients: the backward pass, grad modes, checkpoints, functions with their own backward, and gradient checks.

May import `gt.client.tensor` and the packages below it.
"""
