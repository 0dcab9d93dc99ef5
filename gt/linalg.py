"""``gt.linalg``: matrices, as in `torch.linalg`. The functions are in `gt.functions.linalg`."""

from gt.functions.factorizations import lu, lu_factor, lu_factor_ex, lu_solve
from gt.functions.linalg import *
from gt.functions.linalg import __all__ as _linalg_names
from gt.functions.linalg import trace
from gt.functions.matmul import outer, tensordot
from gt.functions.views import matrix_transpose
from gt.missing import absent

__all__ = ["matrix_transpose", "outer", "tensordot", "trace"]  # the array API has them here, torch does not
__all__ += _linalg_names
__all__ += ["lu", "lu_factor", "lu_factor_ex", "lu_solve"]

absent("linalg")
