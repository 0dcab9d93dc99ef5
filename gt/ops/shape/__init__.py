"""Ops that create tensors, view them, and read or write parts of them. Imports `gt.ops` and `gt.types`."""
