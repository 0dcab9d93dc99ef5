"""The instruction set: one declaration an op. Importing this package fills the table `OPS`."""

from gt.ops import (
    activations,
    arithmetic,
    compare,
    create,
    functions,
    index,
    linalg,
    nn_attention,
    nn_channels,
    nn_conv,
    nn_dropout,
    nn_gate,
    nn_linear,
    nn_loss,
    nn_norm,
    nn_pool,
    nn_resample,
    order,
    pointwise,
    product,
    reduce,
    scan,
    select,
    shape,
)
from gt.ops.core import OPS, Attrs, Op
from gt.ops.signature import Signature, sign

__all__ = ["OPS", "Attrs", "Op", "Signature", "sign"]

_FAMILIES = (
    activations,
    arithmetic,
    compare,
    create,
    functions,
    index,
    linalg,
    nn_attention,
    nn_channels,
    nn_conv,
    nn_dropout,
    nn_gate,
    nn_linear,
    nn_loss,
    nn_norm,
    nn_pool,
    nn_resample,
    order,
    pointwise,
    product,
    reduce,
    scan,
    select,
    shape,
)
