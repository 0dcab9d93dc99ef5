"""Kernels for ATen's overloads, from functions and ops of GT and from torch's schemas.

A function takes GT's tensors and the arguments of the overload, and returns a new value. From it follow the kernels of
``foo`` (the value itself), ``foo_`` (written into the first argument) and ``foo.out`` (written into ``out``): the
schema says which arguments are written.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any
from warnings import warn

import torch

from gt.client.tensor.arguments import normalize_dim
from gt.client.tensor.arguments import operand as gt_operand
from gt.client.tensor.emit import binary, call, call_into, unary
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError
from gt.functions.derive import pair
from gt.functions.pointwise import scaled
from gt.ops import Attrs, Op
from gt.torch_device.backend import NAME, Kernel, is_on_device, new_tensor
from gt.torch_device.handles import TORCH_DTYPES, OperandError, dtype_of, operand, own, resolved, unwrap, wrap, write
from gt.torch_device.plans import planned
from gt.types import NUMBER_OF

Function = Callable[..., Any]
#: Arguments that say where and how torch stores a result.
STORAGE_ARGUMENTS = frozenset(("layout", "device", "pin_memory", "memory_format"))

#: The types of what `binary` takes as its second operand.
OPERANDS = frozenset((Tensor, *NUMBER_OF))
#: The types of arguments, as torch's schemas write them, that can be operands.
OPERAND_TYPES = ("Tensor", "Optional[Tensor]", "number")


# -- arguments and results -----------------------------------------------------------------


def convert(x: Any, tensors: list[Tensor]) -> Any:
    """An argument of a kernel as GT's functions take it; its tensors are added to the list."""
    if isinstance(x, torch.Tensor):
        tensors.append(resolved(x) if x.is_conj() or x.is_neg() else unwrap(x))
        return tensors[-1]
    if isinstance(x, list | tuple):
        return tuple([convert(item, tensors) for item in x])
    return dtype_of(x) if isinstance(x, torch.dtype) else x


def results_of(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the function returns for a kernel's arguments: values that nobody else holds."""
    tensors: list[Tensor] = []
    converted = [convert(x, tensors) for x in args]
    named = {name: convert(x, tensors) for name, x in kwargs.items() if name not in STORAGE_ARGUMENTS}
    try:
        results = function(*converted, **named)
    except DTypeError as error:
        raise OperandError(str(error)) from None
    return _map_tensors(results, lambda y: own(y, tuple(tensors)))


def _map_tensors(y: Any, function: Function) -> Any:
    if isinstance(y, Tensor):
        return function(y)
    return tuple([_map_tensors(item, function) for item in y]) if isinstance(y, list | tuple) else y


# -- from a function -----------------------------------------------------------------------


def functional(function: Function) -> Kernel:
    """The kernel of an overload that writes nothing."""
    return planned(function, results_of, lambda results: _map_tensors(results, wrap))


def in_place(function: Function) -> Kernel:
    """The kernel of an overload that writes into its first argument."""

    def kernel(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        value = results_of(function, (x, *args), kwargs)
        if value._type.shape != tuple(x.shape):
            raise OperandError(f"the result {value._type} does not fit into {x.dtype}{list(x.shape)}, which is written")
        check_cast(value, x)
        write(x, value)
        return x

    return kernel


def method(function: Function) -> Kernel:
    """The kernel of an overload that is a method of GT's tensor which writes into it."""

    def kernel(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        tensors: list[Tensor] = []
        named = {name: convert(value, tensors) for name, value in kwargs.items()}
        try:
            function(unwrap(x), *[convert(value, tensors) for value in args], **named)
        except DTypeError as error:
            raise OperandError(str(error)) from None
        return x

    return kernel


def with_out(function: Function, names: tuple[str, ...]) -> Kernel:
    """The kernel of an overload that writes into the keyword arguments of these names."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        outs = tuple([kwargs.pop(name) for name in names])
        values = results_of(function, args, kwargs)
        for out, value in zip(outs, values if isinstance(values, tuple) else (values,), strict=True):
            check_cast(value, out)
            write_out(out, value)
        return outs[0] if len(outs) == 1 else outs

    return kernel


def with_positions(kernel: Kernel) -> Kernel:
    """The kernel of an indexing: as on other devices of torch's, positions on the CPU are copied to the device."""

    def copying(x: torch.Tensor, positions: Any, *args: Any, **kwargs: Any) -> Any:
        moved = [i if i is None or is_on_device(i) else i.to(NAME) for i in positions]
        return kernel(x, moved if is_on_device(x) else positions, *args, **kwargs)

    return copying


def check_cast(value: Tensor, target: torch.Tensor) -> None:
    """Refuse a result that does not fit into the dtype of the tensor that is written, as torch does."""
    dtype = TORCH_DTYPES[value._type.dtype]
    if dtype is not target.dtype and not torch.can_cast(dtype, target.dtype):
        raise OperandError(f"result type {dtype} can't be cast to the desired output type {target.dtype}")


def write_out(out: torch.Tensor, value: Tensor) -> None:
    """Write a result into ``out``, which gets its shape, with a warning if it has another one already."""
    if tuple(out.shape) != value._type.shape:
        if out.numel():
            warn(f"an output of shape {list(out.shape)} was resized to {list(value._type.shape)}", stacklevel=3)
        out.data = wrap(value.to(dtype_of(out.dtype)))
    else:
        write(out, value)


# -- from an op ----------------------------------------------------------------------------


def attribute_names(op: Op) -> tuple[str, ...]:
    for rule in (op.infer, op.kernel):
        parameters = inspect.signature(rule).parameters.values()
        named = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("device", "out"))
        if named:
            return named
    return ()


def op_function(op: Op, schema: Any) -> Function | None:
    """The op as a function of the schema's arguments; None if its operands and attributes are others."""
    arguments = [a for a in schema.arguments if a.alias_info is None or not (a.alias_info.is_write and a.kwarg_only)]
    names = attribute_names(op)
    taken = [a for a in arguments if a.name in names]
    operands = [a for a in arguments if a.name not in names]
    if op.results or len(taken) != len(names) or any(str(a.type) not in OPERAND_TYPES for a in operands):
        return None
    return partial(_call_op, op, tuple(arguments), frozenset(names))


def _call_op(op: Op, arguments: tuple[Any, ...], names: frozenset[str], *args: Any, **kwargs: Any) -> Tensor:
    operands, attrs = split_arguments(arguments, names, args, kwargs)
    return call(op, operands, attrs)


def split_arguments(
    arguments: tuple[Any, ...], names: frozenset[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], Attrs]:
    """The operands and the attributes of an op in the arguments of a call, with torch's defaults."""
    operands: list[Any] = []
    attrs: list[tuple[str, Any]] = []
    for i, argument in enumerate(arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)
        if argument.name not in names:
            operands += [value] if value is not None else []
        else:
            is_dim = argument.name == "dim"
            attrs.append((argument.name, normalize_dim(value, operands[0]._type.ndim) if is_dim else value))
    return tuple(operands), tuple(attrs)


def op_in_place(op: Op, schema: Any) -> Kernel:
    """The kernel of an overload that is an op, written into its first operand."""
    arguments, names = tuple(schema.arguments), frozenset(attribute_names(op))

    def kernel(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        target = unwrap(x)
        tensors: list[Tensor] = []
        converted = (target, *[convert(value, tensors) for value in args])
        operands, attrs = split_arguments(arguments, names, converted, kwargs)
        call_into(op, target, operands[1:], attrs)
        return x

    return kernel


def scaled_in_place(op: Op) -> Kernel:
    """The same, written into the first argument."""

    def kernel(x: torch.Tensor, other: Any, alpha: Any = 1) -> torch.Tensor:
        try:
            value = _other(unwrap(x), other)
            if alpha != 1:
                value = scaled(op.name, unwrap(x), value, alpha)
            call_into(op, unwrap(x), (value,))
        except DTypeError as error:
            raise OperandError(str(error)) from None
        return x

    return kernel


# The ops of one and two operands without attributes are most of all calls, so they have kernels of their own.


def unary_kernel(op: Op) -> Kernel:
    return lambda x: wrap(unary(op, unwrap(x)))


def binary_kernel(op: Op, scaled: Function | None = None) -> Kernel:
    """``scaled`` takes a factor ``alpha`` too, which `add` and `sub` have."""

    def kernel(a: Any, b: Any, alpha: Any = 1) -> torch.Tensor:
        try:
            if alpha != 1:
                assert scaled is not None
                return wrap(scaled(operand(a), operand(b), alpha=alpha))
            try:
                x = a.untyped_storage()._gt
                other = b.untyped_storage()._gt if isinstance(b, torch.Tensor) else b  # type: ignore[attr-defined]
            except (AttributeError, NotImplementedError):  # a number first, or a tensor without a value
                y = pair(op, operand(a), operand(b))
            else:
                y = binary(op, x, other) if type(other) in OPERANDS else pair(op, x, other)
        except DTypeError as error:
            raise OperandError(str(error)) from None
        result = new_tensor(y._type.shape, TORCH_DTYPES[y._type.dtype])
        result.untyped_storage()._gt = y  # type: ignore[attr-defined]
        return result

    return kernel


def _other(target: Tensor, x: Any) -> Any:
    """The operand beside a target that is written. A complex number becomes a tensor."""
    return gt_operand(x, target) if type(x) is complex else operand(x)


def unary_in_place(op: Op) -> Kernel:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        call_into(op, unwrap(x), ())
        return x

    return kernel


def binary_in_place(op: Op) -> Kernel:
    def kernel(x: torch.Tensor, other: Any) -> torch.Tensor:
        try:
            target = unwrap(x)
            call_into(op, target, (_other(target, other),))
        except DTypeError as error:
            raise OperandError(str(error)) from None
        return x

    return kernel
