"""The instruction set: one entry per op, in the file of its family. Importing this package fills the table `OPS`.

In a family's file, the form of a name shows its role. For `slice`: `_sliced` infers the type of the result, `_slice` is
the kernel (`_slice_torch` and `_slice_numpy` where there are two), and `_slice_back` is the gradient rule. In the files
`split.py` and ``splits_….py``, `slicing` is the split rule, and `sliced` gives the attributes of one worker's share.

Imports `gt.types` and `gt.errors`; torch and numpy only inside kernels, when they run.
"""

# importing a family declares its ops
from gt.ops.math import (  # noqa: F401
    activations,
    activations_piecewise,
    arithmetic,
    compare,
    complex,
    division,
    factors,
    fft,
    incomplete_gamma,
    linalg,
    matmul,
    matrix_functions,
    norm,
    order,
    pointwise,
    product,
    reduce,
    rounding,
    scan,
    sort,
    sparse,
    special,
    unary,
)
from gt.ops.nn import (  # noqa: F401
    attention,
    channel_norm,
    conv,
    cross_entropy,
    ctc,
    dropout,
    glu,
    grid_sample,
    layer_norm,
    linear,
    loss,
    nll,
    pool,
    recurrent,
    resample,
    rms_norm,
)
from gt.ops.op import OPS, Attrs, Op
from gt.ops.random import draw, sample  # noqa: F401
from gt.ops.shape import creation, indexing, indexing_masks, joining, scatter, slicing, views, windows  # noqa: F401
from gt.ops.signature import Signature, sign
from gt.ops.system import (  # noqa: F401
    adadelta_asgd_rprop,
    adam_step,
    adam_variants,
    blocks,
    file_blocks,
    files,
    gradient_norms,
    optimizer_steps,
    placed,
    upload,
)

__all__ = ["OPS", "Attrs", "Op", "Signature", "sign"]
