"""Arguments from torch or numpy. Neither is imported here: if a library is not imported, no argument is from it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from gt.errors import DTypeError
from gt.types import DTYPES, DType, Size


def is_torch_tensor(x: Any) -> bool:
    return isinstance(x, getattr(sys.modules.get("torch"), "Tensor", ()))


class Sparse:
    """The base of the sparse matrices of `gt.sparse`, by which functions of dense tensors recognise them."""

    __slots__ = ()
    dtype: DType
    shape: Size
    ndim = 2


def non_tensor_text(x: Any, otherwise: str) -> str:
    """The error's text for an argument that is not a tensor of GT.

    For a tensor of torch and for a sparse matrix it says what to do instead.
    """
    if not is_torch_tensor(x):
        return f"{otherwise}; x.to_dense() is one" if isinstance(x, Sparse) else otherwise
    return f"{x.dtype}[{','.join(map(str, x.shape))}] is a tensor of torch; gt.tensor(x) makes a tensor of GT from it"


def report_non_tensors(function: Callable[..., Any], module: str) -> Callable[..., Any]:
    """The function, with a DTypeError in place of an AttributeError if an argument is not a tensor.

    The result is public in ``module`` under the function's own name: this is where pickle looks for it.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except AttributeError as error:
            if error.name != "_type":
                raise
            text = non_tensor_text(error.obj, f"a tensor is needed here, not {type(error.obj).__name__}")
        raise DTypeError(f"{function.__name__}: {text}")

    call.__module__ = module
    return call


def find_dtype(dtype: Any) -> DType | None:
    """The dtype of the same name as ``torch.float32``, ``np.float32`` or "float32"; None without one."""
    name = ""
    if isinstance(dtype, (str, getattr(sys.modules.get("torch"), "dtype", str))):
        name = str(dtype).removeprefix("torch.").removeprefix("gt.")
    numpy = sys.modules.get("numpy")
    if numpy is not None and (
        isinstance(dtype, numpy.dtype) or (isinstance(dtype, type) and issubclass(dtype, numpy.generic))
    ):
        name = numpy.dtype(dtype).name
    return DTYPES.get(name)


def array_from_torch(x: Any) -> tuple[Any, DType | None]:
    """A tensor of torch as a numpy array, and its dtype if numpy does not have that dtype."""
    x = x.detach().cpu().resolve_conj().resolve_neg()
    if str(x.dtype) == "torch.bfloat16":  # float32 holds all its values
        return x.float().numpy(), DTYPES["bfloat16"]
    return x.numpy(), None


def torch_function(cls: type, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Called by torch if one of its functions gets a tensor of GT. Only ``copy_`` into a tensor of torch works."""
    name = getattr(function, "__name__", str(function))
    if name == "copy_" and is_torch_tensor(args[0]):
        return args[0].copy_(sys.modules["torch"].from_numpy(args[1]._readable()))
    raise DTypeError(
        f"torch's {name} got a tensor of GT; use GT's own function, or torch.tensor(x), which reads x from its worker"
    )
