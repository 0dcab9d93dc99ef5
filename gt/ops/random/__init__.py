"""Random draws: the generator, and the ops that draw. Imports `gt.ops`, `gt.ops.shape` and `gt.types`."""
