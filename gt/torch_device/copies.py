"""New tensors, fills, and copies: on the device, to it and from it."""

from __future__ import annotations

from typing import Any

import torch

from gt.client.tensor.arguments import convert
from gt.client.tensor.emit import call, call_into, unary
from gt.client.tensor.tensor import Tensor
from gt.functions import creation, joining
from gt.ops import OPS
from gt.torch_device.backend import NAME, Kernel, new_tensor
from gt.torch_device.handles import (
    CLONE,
    COPY,
    TORCH_DTYPES,
    download,
    dtype_of,
    first_value,
    is_written,
    note_like,
    operand,
    resolved,
    unwrap,
    upload,
    wrap,
    write,
)

TO = OPS["to"]
#: dtypes of real numbers -> the attributes of a cast to them
_CASTS = {theirs: (("dtype", ours.name),) for ours, theirs in TORCH_DTYPES.items() if not ours.is_complex}

# -- new tensors ---------------------------------------------------------------------------


def _empty(size: Any, *, dtype: torch.dtype | None = None, **storage: Any) -> torch.Tensor:
    dtype = dtype or torch.get_default_dtype()
    dtype_of(dtype)
    return new_tensor(tuple(size), dtype)


def _empty_strided(size: Any, order: Any, **options: Any) -> torch.Tensor:
    """With strides, or an order of dims, which have no effect."""
    return _empty(size, **options)


def _empty_like(x: torch.Tensor, *, dtype: Any = None, device: Any = None, **storage: Any) -> torch.Tensor:
    if device is not None and device.type != NAME:
        return torch.empty(x.shape, dtype=dtype or x.dtype, device=device)
    result = _empty(x.shape, dtype=dtype or x.dtype)
    if x.device.type == NAME and is_written(x):
        note_like(result, x)
    return result


def _full_like(
    x: torch.Tensor, value: Any, *, dtype: torch.dtype | None = None, device: Any = None, **storage: Any
) -> torch.Tensor:
    """One instruction with x as an operand: the result is placed where x is, such as the state of an optimizer."""
    dtype = dtype or x.dtype
    if device is not None and device.type != NAME:
        return torch.full(x.shape, value, dtype=dtype, device=device)
    return wrap(creation.full_like(unwrap(x), value, dtype=dtype_of(dtype)))


def _zeros_like(x: torch.Tensor, **options: Any) -> torch.Tensor:
    return _full_like(x, 0, **options)


def _ones_like(x: torch.Tensor, **options: Any) -> torch.Tensor:
    return _full_like(x, 1, **options)


def _resize_(x: torch.Tensor, size: Any, *, memory_format: Any = None) -> torch.Tensor:
    """The first elements in another shape; more of them are zeros."""
    shape = tuple(size)
    if shape == tuple(x.shape):
        return x
    result = new_tensor(shape, x.dtype)
    if is_written(x) and x.numel() and result.numel():
        flat = unwrap(x).reshape(-1)
        missing = result.numel() - x.numel()
        if missing > 0:
            flat = joining.cat([flat, creation.zeros(missing, dtype=flat._type.dtype)])
        write(result, call(CLONE, (flat[: result.numel()].reshape(shape),)))
    x.data = result
    return x


def _set_(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    x.data = source
    return x


# -- fills ---------------------------------------------------------------------------------


def _fill_(x: torch.Tensor, value: Any) -> torch.Tensor:
    if is_written(x):
        unwrap(x).fill_(operand(value))
    else:
        write(x, first_value(x, operand(value)))
    return x


def _zero_(x: torch.Tensor) -> torch.Tensor:
    if is_written(x):
        call_into(COPY, unwrap(x), (0,))
    else:
        unwrap(x)  # the first use of a tensor without a value makes it zeros
    return x


# -- copies --------------------------------------------------------------------------------


def _clone(x: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
    value = resolved(x)
    return wrap(value if value is not unwrap(x) else call(CLONE, (value,)))


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """``target.copy_(source)``, where one of the two is on the device."""
    if target.device.type != NAME:
        target.copy_(download(source))
    elif source.device.type != NAME:
        _write_copy(target, upload(source.expand(target.shape) if target.shape != source.shape else source))
    else:
        value = resolved(source)
        _write_copy(target, value if is_written(target) else call(CLONE, (value,)))
    return target


def _write_copy(target: torch.Tensor, value: Tensor) -> None:
    """Write a value of any dtype, and of any shape that can be expanded to the target's."""
    if target.is_complex() and target.is_conj():
        value = value.conj()
    elif target.is_neg():  # the imaginary part of a conjugate
        value = -value
    write(target, convert(value, dtype_of(target.dtype)))


def _copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return _copy_from(source, target)


def _copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    target.resize_(source.shape)
    return _copy_from(source, target)


def _to_copy(
    x: torch.Tensor, *, dtype: torch.dtype | None = None, device: torch.device | None = None, **storage: Any
) -> torch.Tensor:
    if dtype in _CASTS and x.dtype in _CASTS and x.dtype is not dtype and not x.is_neg():  # most calls: autocast
        value = x.untyped_storage().__dict__.get("_gt")
        if value is not None and (device is None or device.type == NAME):
            y = unary(TO, value, _CASTS[dtype])
            result = new_tensor(y._type.shape, dtype)
            result.untyped_storage()._gt = y  # type: ignore[attr-defined]
            return result
    if x.device.type != NAME:
        return wrap(convert(upload(x), dtype_of(dtype or x.dtype)))
    value = resolved(x) if dtype is None else convert(resolved(x), dtype_of(dtype))
    if device is not None and device.type != NAME:
        return download(wrap(value)).to(device)
    return wrap(call(CLONE, (value,)) if value is unwrap(x) or value._view is not None else value)


def _local_scalar_dense(x: torch.Tensor) -> Any:
    return resolved(x).item()


#: overload -> kernel
KERNELS: dict[str, Kernel] = {
    "_copy_from": _copy_from,
    "_copy_from_and_resize": _copy_from_and_resize,
    "_efficientzerotensor": _empty,  # whose first use makes it zeros
    "_local_scalar_dense": _local_scalar_dense,
    "_to_copy": _to_copy,
    "clone": _clone,
    "copy_": _copy_,
    "empty.memory_format": _empty,
    "empty_like": _empty_like,
    "empty_permuted": _empty_strided,
    "empty_strided": _empty_strided,
    "fill_.Scalar": _fill_,
    "fill_.Tensor": _fill_,
    "full_like": _full_like,
    "ones_like": _ones_like,
    "resize_": _resize_,
    "set_.source_Tensor": _set_,
    "zero_": _zero_,
    "zeros_like": _zeros_like,
}
