"""The instruction set: one declaration an op. Importing this package fills the table `OPS`."""

from gt.ops import (
    activations,
    arithmetic,
    compare,
    create,
    functions,
    index,
    linalg,
    order,
    pieces,
    pointwise,
    product,
    reduce,
    scan,
    scatter,
    select,
    shape,
    solve,
)
from gt.ops.core import OPS, Attrs, Op, frozen
from gt.ops.signature import Signature, sign

__all__ = ["OPS", "Attrs", "Op", "Signature", "frozen", "sign"]

_FAMILIES = (create, index, linalg, pieces, pointwise, reduce, scatter, select, shape, solve)
_MATH = (activations, arithmetic, compare, functions, order, product, scan)
