"""Ops that only GT has: uploads, files, placement, optimizer steps. Imports `gt.ops` and `gt.types`."""
