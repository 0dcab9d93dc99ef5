"""``gt.func``: torch's transforms of functions, and modules as functions. It may import `gt.nn` and below."""

from gt.func.modules import functional_call, stack_module_state
from gt.func.transforms import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from gt.missing import absent as _absent

__all__ = [
    "functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "stack_module_state", "vjp",
    "vmap",
]  # fmt: skip
_absent("func")
