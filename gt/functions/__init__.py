"""torch's functions and methods of tensors. A function that is just an op is derived from the op's entry.

Imports `gt.client` up to gradients, and `gt.ops`; nothing above, such as `gt.nn`.
"""
