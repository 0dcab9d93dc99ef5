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
from gt.ops import files as _files
from gt.ops import nn_attention as _nn_attention
from gt.ops import nn_channels as _nn_channels
from gt.ops import nn_conv as _nn_conv
from gt.ops import nn_dropout as _nn_dropout
from gt.ops import nn_linear as _nn_linear
from gt.ops import nn_loss as _nn_loss
from gt.ops import nn_norm as _nn_norm
from gt.ops import nn_pool as _nn_pool
from gt.ops import nn_resample as _nn_resample
from gt.ops import optim as _optim
from gt.ops.core import OPS, Attrs, Op, frozen
from gt.ops.signature import Signature, sign

__all__ = ["OPS", "Attrs", "Op", "Signature", "frozen", "sign"]

_FAMILIES = (create, index, linalg, pieces, pointwise, reduce, scatter, select, shape, solve)
_NETWORKS = (_nn_attention, _nn_channels, _nn_conv, _nn_dropout, _nn_linear, _nn_loss, _nn_norm, _nn_pool, _nn_resample)
_MATH = (activations, arithmetic, compare, functions, order, product, scan)
_TRAINING = (_files, _optim)
