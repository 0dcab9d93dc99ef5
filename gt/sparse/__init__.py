"""``gt.sparse``: products and sums of sparse matrices, as in `torch.sparse`. Imports `gt.functions` and below.

`gt.sparse_coo_tensor`, `gt.sparse_csr_tensor`, ``x.to_sparse()`` and ``x.to_sparse_csr()`` create the matrices.
"""

from gt.missing import absent as _absent
from gt.sparse.create import DoubleTensor, FloatTensor, HalfTensor
from gt.sparse.products import addmm, mm, sum

__all__ = ["DoubleTensor", "FloatTensor", "HalfTensor", "addmm", "mm", "sum"]
__getattr__ = _absent("sparse")
