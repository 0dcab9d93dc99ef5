"""``gt.backends``: torch's switches for its backends. They are accepted and ignored: the workers compute.

Here belong torch's global switches; `settings` has those at torch's top level. It may import everything below it.
"""

from gt.backends import cuda, cudnn, mkl, mkldnn, mps, openmp, opt_einsum
from gt.missing import absent as _absent

__all__ = ["cuda", "cudnn", "mkl", "mkldnn", "mps", "openmp", "opt_einsum"]
_absent("backends")
