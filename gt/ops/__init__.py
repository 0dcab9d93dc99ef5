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
from gt.ops.shape import creation, index, masks, scatter, views, windows  # noqa: F401
from gt.ops.signature import Signature, sign
from gt.ops.system import blocks, files, gradient_norms, optimizer_steps, placed  # noqa: F401

__all__ = ["OPS", "Attrs", "Op", "Signature", "sign"]
