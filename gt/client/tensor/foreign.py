"""What comes from torch or numpy. Neither is imported to ask: what is not imported made nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from gt.errors import DTypeError
from gt.types import DTYPES, DType


def of_torch(x: Any) -> bool:
    return isinstance(x, getattr(sys.modules.get("torch"), "Tensor", ()))


def no_tensor(x: Any, otherwise: str) -> str:
    """Why this is no operand: ``otherwise``, or the way out for a tensor of torch's."""
    if not of_torch(x):
        return otherwise
    return f"{x.dtype}[{','.join(map(str, x.shape))}] is a tensor of torch's; gt.tensor(x) makes one of GT's of it"


def told(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for users: if it is given what is no tensor where it needs one, that is what it says."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except AttributeError as error:
            if error.name != "_type":
                raise
            text = no_tensor(error.obj, f"a tensor is needed here, not {type(error.obj).__name__}")
        raise DTypeError(f"{function.__name__}: {text}")

    return call


def dtype_called(dtype: Any) -> DType | None:
    """torch.float32, np.float32 and np.dtype("float32") by their names."""
    name = (
        str(dtype).removeprefix("torch.") if isinstance(dtype, getattr(sys.modules.get("torch"), "dtype", ())) else ""
    )
    numpy = sys.modules.get("numpy")
    if numpy is not None and (
        isinstance(dtype, numpy.dtype) or (isinstance(dtype, type) and issubclass(dtype, numpy.generic))
    ):
        name = numpy.dtype(dtype).name
    return DTYPES.get(name)


def array_of(x: Any) -> tuple[Any, DType | None]:
    """A tensor of torch's as an array, and the dtype it has if numpy does not."""
    x = x.detach().cpu()
    if str(x.dtype) == "torch.bfloat16":  # float32 holds all its values
        return x.float().numpy(), DTYPES["bfloat16"]
    return x.numpy(), None


def torch_function(cls: type, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """What torch calls if one of its functions is given a tensor of GT's: values may be copied out, and no more."""
    name = getattr(function, "__name__", str(function))
    if name == "copy_" and of_torch(args[0]):
        return args[0].copy_(sys.modules["torch"].from_numpy(args[1]._readable()))
    raise DTypeError(
        f"torch's {name} was given a tensor of GT's; use GT's own, or torch.tensor(x), which reads x from its worker"
    )
