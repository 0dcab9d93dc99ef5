"""Gradients: the backward pass over the tape, grad mode, functions of one's own, checkpoints, gradcheck.

It imports `gt.client.tensor` and what is below it.
"""
