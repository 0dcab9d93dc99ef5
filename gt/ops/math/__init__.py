"""Ops that compute: pointwise functions, reductions, scans, sorting and matrices. Imports `gt.ops` and `gt.types`."""
