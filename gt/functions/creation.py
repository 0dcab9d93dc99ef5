"""torch's functions that create tensors: from Python values and arrays, filled with a number, or sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import ceil
from typing import Any

from gt.client.grad import leaves
from gt.client.stream import connect
from gt.client.tensor import foreign
from gt.client.tensor.arguments import (
    cast,
    check_device,
    convert,
    dtype_of,
    operand,
    refuse,
    sizes,
    to_int,
    upload_array,
)
from gt.client.tensor.emit import call, create, detached
from gt.client.tensor.parameters import show_parameters
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.ops import OPS
from gt.types import NUMBER_OF, DType, Shape, bool_, complex64, float32, float64, int64

__all__ = [
    "arange", "as_tensor", "asarray", "empty", "empty_like", "eye", "from_numpy", "full", "full_like", "linspace",
    "logspace", "ones", "ones_like", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like",
]  # fmt: skip

FULL, FULL_LIKE, ARANGE, CLONE = OPS["full"], OPS["full_like"], OPS["arange"], OPS["clone"]
EQ, FLIP, CAT, POW = OPS["eq"], OPS["flip"], OPS["cat"], OPS["pow"]

#: the dtype of a list of Python numbers, by the kind of the numpy array
_DEFAULTS = {"f": float32, "i": int64, "b": bool_, "c": complex64}
_REFUSED = {
    "u": "an int has more than 64 bits",
    "O": "elements must be numbers of at most 64 bits",
    "U": "elements must be numbers, not text",
    "S": "elements must be numbers, not bytes",
}


Maker = Callable[..., Tensor]


#: The keywords that `with_options` adds, and their defaults.
SHARED = {"requires_grad": False, "device": None, "layout": None, "pin_memory": False, "memory_format": None}


def with_options(make: Maker) -> Maker:
    """Add the keywords that torch's functions for new tensors share. A device is accepted and ignored."""

    @wraps(make)
    def maker(
        *args: Any,
        requires_grad: bool = False,
        device: Any = None,
        layout: Any = None,
        pin_memory: bool = False,
        memory_format: Any = None,
        **options: Any,
    ) -> Tensor:
        check_device(device)
        tensor = make(*args, **options)
        return leaves.requires_grad_(tensor) if requires_grad else tensor

    show_parameters(maker, make, SHARED, returns="Tensor")
    return maker


# -- from values ---------------------------------------------------------------------------


@with_options
def tensor(data: Any, dtype: Any = None) -> Tensor:
    """A tensor with a copy of the data: a number, nested lists, an array, or a tensor."""
    wanted = None if dtype is None else dtype_of(dtype)
    if isinstance(data, Tensor):
        return convert(call(CLONE, (detached(data),)), wanted or data._type.dtype)
    if type(data) in NUMBER_OF or type(data) is complex:
        return _filled("tensor", (), data, wanted)
    if foreign.is_torch_tensor(data):
        array, odd = foreign.array_from_torch(data)
        return upload_array(array, wanted or odd)
    if hasattr(data, "__array__"):
        import numpy as np

        return upload_array(np.asarray(data), wanted)
    return _from_lists(data, wanted)


def _from_lists(data: Any, wanted: DType | None) -> Tensor:
    import numpy as np

    if not _is_sequence(data):
        raise DTypeError(f"tensor({data!r}): cannot make a tensor of a {type(data).__name__}")
    first = _first_leaf(data)
    if isinstance(first, Tensor):
        result = _joined([tensor(x) for x in data])
        return result if wanted is None else cast(result, wanted)
    array = _array(np, data)
    # numpy's values keep their dtype, as in torch; Python's numbers take the default one
    keep = isinstance(first, np.generic | np.ndarray)
    default = _DEFAULTS.get(array.dtype.kind, float32)
    if array.dtype.kind == "c" and wanted is not None and wanted.kind != "c":
        raise DTypeError(f"tensor({_short(data)}): complex numbers do not fit into {wanted.name}")
    if wanted is not None and wanted.kind in "iu" and array.dtype.kind == "i":
        _check_range(array, wanted)
    return upload_array(array, wanted if wanted is not None or keep else default)


def _first_leaf(data: Any) -> Any:
    while _is_sequence(data) and len(data):
        data = data[0]
    return data


def _is_sequence(data: Any) -> bool:
    return isinstance(data, list | tuple | range) or (isinstance(data, Sequence) and not isinstance(data, str | bytes))


def _joined(rows: list[Tensor]) -> Tensor:
    """The rows along a new first dim."""
    for row in rows:
        if row._type.shape != rows[0]._type.shape:
            raise refuse(ShapeError, "the tensors must have equal shapes", "tensor", *rows)
    return call(CAT, tuple(row.unsqueeze(0) for row in rows), (("dim", 0),))


def _array(np: Any, data: Any) -> Any:
    try:
        array = np.array(data)
    except ValueError:
        raise ShapeError(f"tensor({_short(data)}): lists at the same depth must be equally long") from None
    except OverflowError:
        raise DTypeError(f"tensor({_short(data)}): {_REFUSED['u']}") from None
    if array.dtype.kind in _REFUSED:
        raise DTypeError(f"tensor({_short(data)}): {_REFUSED[array.dtype.kind]}")
    return array


def _check_range(array: Any, dtype: DType) -> None:
    most = 2 ** (8 * dtype.itemsize - (dtype.kind == "i")) - 1
    # torch accepts -1 for uint8, as the largest value
    least = -(2 ** (8 * dtype.itemsize - 1)) if dtype.kind == "i" else -most
    if array.size and not (least <= array.min() and array.max() <= most):
        raise DTypeError(f"tensor({_short(array.tolist())}, dtype={dtype}): a value does not fit into {dtype.name}")


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:57]}..."


@with_options
def from_numpy(array: Any) -> Tensor:
    """A tensor with a copy of a numpy array."""
    if not hasattr(array, "__array__") or isinstance(array, Tensor):
        raise DTypeError(f"from_numpy(): a numpy array is needed here, not {type(array).__name__}")
    return tensor(array)


@with_options
def as_tensor(data: Any, dtype: Any = None) -> Tensor:
    """A tensor from data; a tensor of the right dtype is returned as it is."""
    if isinstance(data, Tensor):
        return data if dtype is None else convert(data, dtype_of(dtype))
    return tensor(data, dtype)


@with_options
def asarray(obj: Any, *, dtype: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor from data; a tensor itself is returned as it is unless ``copy`` is set."""
    return tensor(obj, dtype) if copy else as_tensor(obj, dtype)


@with_options
def scalar_tensor(s: Any, *, dtype: Any = None) -> Tensor:
    """A tensor without dims."""
    return _filled("scalar_tensor", (), s, default_dtype(dtype))


# -- filled with one value -----------------------------------------------------------------


def default_dtype(dtype: Any) -> DType:
    return float32 if dtype is None else dtype_of(dtype)


def size_from(size: Any, shape: tuple[Any, ...], name: str) -> Shape:
    """``zeros(2, 3)``, ``zeros((2, 3))`` or ``zeros(size=(2, 3))``."""
    return sizes(shape if size is None else (size,), name)


def _filled(name: str, shape: Shape, value: Any, dtype: DType | None) -> Tensor:
    if isinstance(value, complex):
        if dtype is not None and dtype.kind != "c":
            raise DTypeError(f"{name}({value}): a complex number does not fit into {dtype.name}")
        attrs = (("shape", shape), ("dtype", (dtype or complex64).name))
        return create(FULL, (float(value.real), float(value.imag)), attrs, connect.session())
    value = operand(value)
    if isinstance(value, Tensor):
        return call(CLONE, (cast(value, dtype or value._type.dtype).expand(shape),))
    if type(value) not in NUMBER_OF:
        raise DTypeError(f"{name}(): a number is needed here, not {type(value).__name__}")
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise DTypeError(f"{name}({value}): {_REFUSED['u']}")
    attrs = (("shape", shape), ("dtype", (dtype or NUMBER_OF[type(value)].dtype).name))
    try:
        return create(FULL, (value,), attrs, connect.session())
    except ShapeError as error:  # its text names the op, not the function
        raise ShapeError(f"{name}({', '.join(map(str, shape))}): {str(error).partition('): ')[2]}") from None


@with_options
def full(size: Any, fill_value: Any, *, dtype: Any = None) -> Tensor:
    """A tensor filled with one value."""
    return _filled("full", sizes((size,), "full"), fill_value, None if dtype is None else dtype_of(dtype))


@with_options
def zeros(*shape: Any, size: Any = None, dtype: Any = None) -> Tensor:
    """A tensor of zeros."""
    return _filled("zeros", size_from(size, shape, "zeros"), 0, default_dtype(dtype))


@with_options
def ones(*shape: Any, size: Any = None, dtype: Any = None) -> Tensor:
    """A tensor of ones."""
    return _filled("ones", size_from(size, shape, "ones"), 1, default_dtype(dtype))


@with_options
def empty(*shape: Any, size: Any = None, dtype: Any = None) -> Tensor:
    """A tensor of zeros. Memory is never left uninitialised, because workers are shared."""
    return _filled("empty", size_from(size, shape, "empty"), 0, default_dtype(dtype))


def _filled_like(name: str, input: Tensor, value: Any, dtype: Any) -> Tensor:
    """A filled tensor that is placed like the input; one from `full` would not be."""
    wanted = dtype_like(input, dtype)
    if type(value) not in NUMBER_OF or not isinstance(input, Tensor):
        return _filled(name, input._type.shape, value, wanted)
    return call(FULL_LIKE, (input, value), (("dtype", wanted.name),))


@with_options
def full_like(input: Tensor, fill_value: Any, *, dtype: Any = None) -> Tensor:
    """A tensor of the same shape, filled with one value."""
    return _filled_like("full_like", input, fill_value, dtype)


@with_options
def zeros_like(input: Tensor, *, dtype: Any = None) -> Tensor:
    """A tensor of zeros of the same shape."""
    return _filled_like("zeros_like", input, 0, dtype)


@with_options
def ones_like(input: Tensor, *, dtype: Any = None) -> Tensor:
    """A tensor of ones of the same shape."""
    return _filled_like("ones_like", input, 1, dtype)


@with_options
def empty_like(input: Tensor, *, dtype: Any = None) -> Tensor:
    """A tensor of the same shape; its values are zeros."""
    return _filled_like("empty_like", input, 0, dtype)


def dtype_like(input: Tensor, dtype: Any) -> DType:
    return input._type.dtype if dtype is None else dtype_of(dtype)


# -- sequences -----------------------------------------------------------------------------


@with_options
def arange(start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None) -> Tensor:
    """Numbers from start to end (excluded) at a distance of step."""
    start, end = (0, start) if end is None else (start, end)
    start, end, step = (to_number("arange", x) for x in (start, end, step))
    if dtype is None:
        dtype = float32 if any(isinstance(x, float) for x in (start, end, step)) else int64
    elif dtype_of(dtype).kind != "f":
        start, end, step = int(start), int(end), int(step)
    if step == 0:
        raise refuse(ShapeError, "step must not be 0", "arange", start, end, step)
    if (end - start) * step < 0:
        raise refuse(ShapeError, f"a step of {step} does not lead from {start} to {end}", "arange", start, end, step)
    return _arange(
        start, step, ceil((end - start) / step) if _floats(start, end, step) else _count(start, end, step), dtype
    )


def _floats(*numbers: Any) -> bool:
    return any(isinstance(x, float) for x in numbers)


def _count(start: int, end: int, step: int) -> int:
    return len(range(start, end, step))


def _arange(start: Any, step: Any, n: int, dtype: Any) -> Tensor:
    return create(ARANGE, (start, step), (("n", n), ("dtype", dtype_of(dtype).name)), connect.session())


def to_number(name: str, x: Any) -> Any:
    """An int or a float for a number, or for a tensor of one element, which is read."""
    value = operand(x)
    if isinstance(value, Tensor):
        value = value.item()
    if type(value) not in NUMBER_OF:
        raise DTypeError(f"{name}(): a number is needed here, not {type(x).__name__}")
    return int(value) if isinstance(value, bool) else value


@with_options
def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None) -> Tensor:
    """Numbers at equal distances from start to end, both exact."""
    start, end = float(to_number("linspace", start)), float(to_number("linspace", end))
    if to_int(steps, "linspace(): steps are an int") < 0:
        raise refuse(ShapeError, "steps must not be negative", "linspace", start, end, steps)
    if default_dtype(dtype).kind != "f":
        start, end = int(start), int(end)
    step = (end - start) / (steps - 1) if steps > 1 else 0.0
    half = (steps + 1) // 2
    rising = _arange(start, step, half, float64)
    falling = call(FLIP, (_arange(end, -step, steps - half, float64),), (("dims", (0,)),))
    return cast(call(CAT, (rising, falling), (("dim", 0),)), default_dtype(dtype))


@with_options
def logspace(start: float, end: float, steps: int, base: float = 10.0, *, dtype: Any = None) -> Tensor:
    """Powers of base, with exponents at equal distances from start to end."""
    if default_dtype(dtype).kind != "f":
        start, end = int(start), int(end)
    powers = linspace(start, end, steps, dtype=float64)
    return cast(call(POW, (float(base), powers)), default_dtype(dtype))


def _triangle(name: str, row: int, col: int, offset: int, dtype: Any) -> Tensor:
    import numpy as np

    row, col, offset = (to_int(n, f"{name}(): sizes are ints") for n in (row, col, offset))
    if row < 0 or col < 0:
        raise refuse(ShapeError, "sizes are 0 or more", name, row, col, offset)
    return upload_array(np.stack(getattr(np, name)(row, offset, col)), dtype_of(dtype or int64))


@with_options
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None) -> Tensor:
    """The row and column numbers of the lower triangle of a matrix."""
    return _triangle("tril_indices", row, col, offset, dtype)


@with_options
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None) -> Tensor:
    """The row and column numbers of the upper triangle of a matrix."""
    return _triangle("triu_indices", row, col, offset, dtype)


@with_options
def eye(n: int, m: int | None = None, *, k: int = 0, dtype: Any = None) -> Tensor:
    """The identity matrix; ``k``, which the array API has, moves the ones to another diagonal."""
    rows, columns = arange(n), arange(n if m is None else m)
    return cast(call(EQ, ((rows + k).unsqueeze(1) if k else rows.unsqueeze(1), columns)), default_dtype(dtype))
