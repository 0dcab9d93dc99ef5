"""The instruction set: one declaration an op. Importing this package fills the table `OPS`."""

from gt.ops import (  # noqa: F401, importing a family declares its ops
    activations,
    activations_piecewise,
    arithmetic,
    blocks,
    compare,
    create,
    files,
    functions,
    gradients,
    index,
    linalg,
    nn_attention,
    nn_channels,
    nn_conv,
    nn_dropout,
    nn_gate,
    nn_linear,
    nn_loss,
    nn_nll,
    nn_norm,
    nn_pool,
    nn_resample,
    nn_rms,
    optim,
    order,
    pieces,
    placing,
    pointwise,
    product,
    reduce,
    scan,
    scatter,
    select,
    shape,
    solve,
)
from gt.ops.core import OPS, Attrs, Op
from gt.ops.signature import Signature, sign

__all__ = ["OPS", "Attrs", "Op", "Signature", "sign"]
