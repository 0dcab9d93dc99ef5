"""From torch's tensors to GT's and back.

GT's tensor is attached to the *storage* of torch's, so everything that shares the storage shares the value: ``x.data``,
``x.detach()``, a `Parameter`, what autograd saves. A view has a storage of its own and, on it, a view of GT's, which
knows its base: writes pass between them as GT's views do it. Its strides are those that torch expects.

A tensor of `torch.empty` has no handle until it is first used, so that filling it costs one instruction. Neither has a
counter of an optimizer: its storage holds the number (``_gt_number``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch

from gt.client.tensor.arguments import upload_array
from gt.client.tensor.emit import call, call_into
from gt.client.tensor.foreign import array_from_torch
from gt.client.tensor.strides import offset_of, strides_of
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, GtError
from gt.functions.creation import full, full_like
from gt.ops import OPS
from gt.torch_device.backend import NAME, new_tensor, with_strides
from gt.torch_device.placement import mapped_files
from gt.types import DTYPES, DType, TensorType

CLONE, COPY, CONJ = OPS["clone"], OPS["copy"], OPS["conj"]
#: Called once, before the first complex tensor is made.
BEFORE_COMPLEX: list[Callable[[], None]] = []


class _Dtypes(dict[Any, Any]):
    """A table of dtypes. Its complex ones are entered when they are first looked up."""

    def __init__(self, pairs: dict[Any, Any], is_complex: Callable[[Any], bool]) -> None:
        super().__init__({a: b for a, b in pairs.items() if not is_complex(a)})
        self._complex = {a: b for a, b in pairs.items() if is_complex(a)}

    def get(self, dtype: Any, default: Any = None) -> Any:
        return self[dtype] if dtype in self or dtype in self._complex else default

    def __missing__(self, dtype: Any) -> Any:
        counterpart = self._complex[dtype]
        self.update(self._complex)
        while BEFORE_COMPLEX:
            BEFORE_COMPLEX.pop()()
        return counterpart


_PAIRS: dict[DType, torch.dtype] = {dtype: getattr(torch, name) for name, dtype in DTYPES.items()}
TORCH_DTYPES: dict[DType, torch.dtype] = _Dtypes(_PAIRS, lambda dtype: dtype.is_complex)
GT_DTYPES: dict[torch.dtype, DType] = _Dtypes(
    {theirs: ours for ours, theirs in _PAIRS.items()}, lambda dtype: dtype.is_complex
)


class OperandError(GtError, RuntimeError):
    """An operand of the wrong dtype or device. Not a TypeError: torch would say that ``a + b`` is not supported."""


def wrap(y: Tensor) -> torch.Tensor:
    """A new tensor of torch's for one of GT's that is not shared with another."""
    type = y._type
    result = new_tensor(type.shape, TORCH_DTYPES[type.dtype])
    if (y._view is not None or y._strides is not None) and (strides := strides_of(y)) != result.stride():
        result = with_strides(result, type.shape, strides)
    result.untyped_storage()._gt = y  # type: ignore[attr-defined]
    return result


def unwrap(x: torch.Tensor) -> Tensor:
    """GT's tensor behind one of torch's."""
    try:
        return x.untyped_storage()._gt  # type: ignore[attr-defined, no-any-return]
    except (AttributeError, NotImplementedError):
        return _first_use(x)


def operand(x: Any) -> Any:
    """A tensor or a number as an operand of GT's."""
    return unwrap(x) if isinstance(x, torch.Tensor) else x


def _first_use(x: torch.Tensor) -> Tensor:
    if x.device.type != NAME:
        if x.ndim or x.layout is not torch.strided:
            text = f"{x.dtype}{list(x.shape)} is on {x.device}; move it with .to({NAME!r})"
            raise OperandError(f"expected all tensors to be on the same device: {text}")
        return upload(x)  # as on other devices of torch's, a tensor without dims may be on the CPU
    storage: Any = x.untyped_storage()
    number = storage.__dict__.get("_gt_number", 0)
    value = storage._gt = first_value(x, number)
    note_number(value, number)
    return value


def first_value(x: torch.Tensor, value: Any) -> Tensor:
    """A tensor filled with one value, for x, which has none yet: placed like the tensor that x was created like."""
    like: ref[Tensor] | None = getattr(x.untyped_storage(), "_gt_like", None)
    source = like() if like is not None else None
    if source is None:
        return full(tuple(x.shape), value, dtype=dtype_of(x.dtype))
    return full_like(source, value, dtype=dtype_of(x.dtype))


def note_number(value: Tensor, number: float) -> None:
    """The client knows the number in a tensor without dims, until that is written. `known_number` returns it."""
    if not value._type.ndim:
        value.__dict__["_number"] = (value._cell.version, number)


def known_number(x: torch.Tensor) -> float | None:
    """The number in a tensor without dims, if the client knows it: the counter of an optimizer's steps."""
    attributes = x.untyped_storage().__dict__
    value = attributes.get("_gt")
    if value is None:
        return attributes.get("_gt_number")
    version, number = value.__dict__.get("_number", (-1, 0))
    return number if version == value._cell.version else None


def note_like(x: torch.Tensor, source: torch.Tensor) -> None:
    """x has no value yet and was created like another tensor of the device."""
    x.untyped_storage()._gt_like = ref(unwrap(source))  # type: ignore[attr-defined]


def is_written(x: torch.Tensor) -> bool:
    """Whether a tensor of the device has a value, or comes from `torch.empty` and was not used yet."""
    return hasattr(x.untyped_storage(), "_gt")


def write(x: torch.Tensor, value: Tensor) -> None:
    """Write a value, which nobody else holds, into a tensor. One without a value simply gets it."""
    if value._type.dtype is GT_DTYPES[x.dtype] and value._type.shape == tuple(x.shape) and not is_written(x):
        x.untyped_storage()._gt = value  # type: ignore[attr-defined]
    else:
        call_into(COPY, unwrap(x), (value,))


def own(y: Tensor, arguments: tuple[Tensor, ...]) -> Tensor:
    """The result of a function that may be a view or one of its arguments, as a value of its own."""
    if y._view is not None or any(y._cell is x._cell for x in arguments):
        return call(CLONE, (y,))
    return y


def dtype_of(dtype: torch.dtype) -> DType:
    try:
        return GT_DTYPES[dtype]
    except KeyError:
        raise DTypeError(f"GT has no {dtype}; there are {', '.join(map(str, _PAIRS.values()))}") from None


# -- addresses -----------------------------------------------------------------------------

#: The bytes of all values that have an address so far. Each gets one when a program asks for it.
_addressed = 1 << 20


def storage_address(storage: Any) -> int:
    """The made-up address of the first element of a storage; views have that of their base."""
    global _addressed
    value: Tensor | None = getattr(storage, "_gt", None)
    if value is None:
        content = getattr(storage, "_bytes", None)  # not uploaded yet; otherwise nothing was written
        return 0 if content is None else int(content.data_ptr())
    base = value if value._view is None else value._view.base
    if (address := base.__dict__.get("_address")) is None:
        address = base.__dict__["_address"] = _addressed
        _addressed += base._type.nbytes + 1
    return int(address)


def address(x: torch.Tensor) -> int:
    """The same of a tensor, so that addresses show which tensors overlap."""
    value = unwrap(x)
    return storage_address(x.untyped_storage()) + offset_of(value) * x.itemsize


# -- between the CPU and the device --------------------------------------------------------


def upload(x: torch.Tensor) -> Tensor:
    """The values of a tensor on the CPU, as a new tensor of GT's."""
    dtype = dtype_of(x.dtype)
    if x.nbytes >= mapped_files.MIN_BYTES:
        value = mapped_files.read_by_workers(x, TensorType(tuple(x.shape), dtype))
        if value is not None:
            return value
    array, odd = array_from_torch(x)
    value = upload_array(array, odd)
    if not x.ndim and not dtype.is_complex:
        note_number(value, x.item())
    return value


def download(x: torch.Tensor) -> torch.Tensor:
    """The values of a tensor of the device, as a new tensor on the CPU. Waits for the workers."""
    value = resolved(x)
    array = value._readable()
    result = torch.from_numpy(array if array.flags.writeable else array.copy())
    return result if result.dtype is x.dtype else result.to(x.dtype)


def resolved(x: torch.Tensor) -> Tensor:
    """GT's tensor, with the conjugation and the sign that torch keeps as flags of x applied. Only copies need it: torch
    makes copies of tensors with flags for all other ops."""
    value = unwrap(x)
    if x.is_complex() and x.is_conj():
        value = call(CONJ, (value,))
    return -value if x.is_neg() else value
