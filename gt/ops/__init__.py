"""The instruction set: one declaration an op. Importing this package fills the table `OPS`."""

# importing a family declares its ops
from gt.ops.math import (  # noqa: F401
    activations,
    activations_piecewise,
    arithmetic,
    compare,
    division,
    linalg,
    matmul,
    order,
    pointwise,
    product,
    reduce,
    scan,
    sort,
    special,
    unary,
)
from gt.ops.nn import (  # noqa: F401
    attention,
    channel_norm,
    conv,
    dropout,
    glu,
    linear,
    loss,
    nll,
    norm,
    pool,
    resample,
    rms_norm,
)
from gt.ops.op import OPS, Attrs, Op
from gt.ops.random import draw  # noqa: F401
from gt.ops.rule_names import check_op_names
from gt.ops.shape import creation, indexing, masks, scatter, slicing, views, windows  # noqa: F401
from gt.ops.signature import Signature, sign
from gt.ops.system import adam_step, blocks, files, gradient_norms, optimizer_steps, placed, upload  # noqa: F401

__all__ = ["OPS", "Attrs", "Op", "Signature", "sign"]

check_op_names(OPS)
