"""Registers the device: its kernels, one for each overload that GT has, and what torch's Python code needs.

The kernels in place and with ``out=`` follow from the functional ones. An overload that torch itself puts together from
others (CompositeImplicitAutograd) is left to torch, except for those in `WHOLE`.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from gt.client.stream import sites
from gt.functions import pointwise
from gt.torch_device import (
    attention,
    autocast,
    backend,
    copies,
    cross_entropy,
    fallback,
    kernels,
    optimizers,
    patches,
    products,
    questions,
    recurrent,
    storages,
    views,
    written_arguments,
)
from gt.torch_device.module import DeviceModule
from gt.torch_device.placement import modules, signals
from gt.torch_device.resolve import composition_of, function_of, method_in_place, op_of

#: torch would put these together from parts; as one instruction they can be sharded.
WHOLE = ("linear", "matmul")
#: torch's own kernels are right for these: they create nothing, or what they put together is one instruction too.
TORCHS_OWN = frozenset(("alias", "copy", "detach", "detach_", "full", "lift", "lift_fresh", "ones",
    "scalar_tensor", "set", "set_", "resize", "zeros", "fill", "zero", "is_pinned", "item", "to"))  # fmt: skip
#: ATen calls other functions by a name that GT has.
OTHER_FUNCTIONS = ("normal.out",)
#: Their second argument is a list of positions, which may be on the CPU.
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put")
#: Functions of GT that return no tensor.
NO_TENSOR = ("equal",)
#: Functions with a factor ``alpha``, which is 1 in most calls: name -> (op, function with alpha).
SCALED = {op.name: (op, function) for op, function in ((pointwise.ADD, pointwise.add), (pointwise.SUB, pointwise.sub))}

#: the overloads that have a kernel
OVERLOADS = backend.OVERLOADS


def register() -> None:
    """Register the device. Once in a process."""
    if OVERLOADS:
        return
    backend.register_device(DeviceModule(), signals.in_backward)
    for room in (views, copies, storages, optimizers, attention, written_arguments, questions):
        for overload, kernel in room.KERNELS.items():
            _add(overload, kernel)
    for overload in backend.overloads():
        if overload not in OVERLOADS:
            _derive(overload)
    backend.add_fallback(fallback.run)
    attention.register()
    cross_entropy.register()
    products.register()
    backend.in_forward_mode(WHOLE)
    recurrent.register()
    autocast.register()
    patches.install()
    storages.install()
    optimizers.install()
    signals.install()
    modules.install()
    sites.skip(os.path.dirname(torch.__file__) + os.sep)


def _add(overload: str, kernel: backend.Kernel) -> None:
    backend.add_kernel(overload, kernel)
    OVERLOADS.add(overload)


def _derive(overload: str) -> None:
    """Register the kernel that follows from the schema, if there is one."""
    base = overload.partition(".")[0]
    if overload in OTHER_FUNCTIONS:
        return
    is_composite = backend.has_kernel(overload, "CompositeImplicitAutograd") and base not in WHOLE
    if is_composite or base in TORCHS_OWN or base.startswith("new_") or base.endswith("_like"):
        return
    kernel = _kernel_of(overload, backend.schema_of(overload))
    if kernel is not None:
        _add(overload, kernels.with_positions(kernel) if base in INDEXING else kernel)
    elif backend.has_kernel(overload, "CompositeExplicitAutogradNonFunctional"):
        # torch would call the overload with ``out=`` instead, and the fallback would name that
        backend.add_kernel(overload, _missing(overload))


def _missing(overload: str) -> backend.Kernel:
    op = backend.overload_packet(overload)
    return lambda *args, **kwargs: fallback.run(op, *args, **kwargs)


def _kernel_of(overload: str, schema: Any) -> backend.Kernel | None:
    base, _, name = overload.partition(".")
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if not any("Tensor" in str(r.type) for r in schema.returns) and base not in NO_TENSOR:
        return None
    if not written:
        if any(r.alias_info is not None for r in schema.returns):
            return None  # a view
        return _functional(overload, schema)
    if all(a.kwarg_only for a in written):
        function = function_of(_functional_name(base, name), schema)
        return None if function is None else kernels.with_out(function, tuple(a.name for a in written))
    if base.endswith("_") and written == schema.arguments[:1]:
        return _in_place(base, name, schema)
    return None


def _functional_name(base: str, name: str) -> str:
    """The functional overload that belongs to one with ``out=``: "max.dim_max" -> "max.dim"."""
    for ending in ("_out", "out", "_max", "_min", "_values"):
        if name.endswith(ending):
            name = name.removesuffix(ending)
            break
    return f"{base}.{name}" if name else base


def _functional(overload: str, schema: Any) -> backend.Kernel | None:
    base = overload.partition(".")[0]
    if base in SCALED:
        return kernels.binary_kernel(*SCALED[base])
    op = op_of(overload)
    if op is not None and op.function and not op.results and len(schema.arguments) == len(op.function):
        return (kernels.unary_kernel if op.function == "t" else kernels.binary_kernel)(op)
    function = function_of(overload, schema)
    return None if function is None else kernels.functional(function)


def _in_place(base: str, name: str, schema: Any) -> backend.Kernel | None:
    functional = base[:-1] + (f".{name}" if name else "")
    if (composition := composition_of(base)) is not None:
        return kernels.in_place(composition)
    if base[:-1] in SCALED:
        return kernels.scaled_in_place(SCALED[base[:-1]][0])
    op = op_of(functional)
    if op is not None and op.function and len(schema.arguments) == len(op.function):
        return (kernels.unary_in_place if op.function == "t" else kernels.binary_in_place)(op)
    if op is not None and kernels.op_function(op, schema) is not None:
        return kernels.op_in_place(op, schema)
    if (method := method_in_place(base)) is not None:
        return kernels.method(method)
    function = function_of(functional, schema)
    return None if function is None else kernels.in_place(function)
