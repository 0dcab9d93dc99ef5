"""Attaches the methods and operators of a tensor on import. Most are public functions; the others are here."""

from __future__ import annotations

from collections.abc import Callable
from sys import modules
from types import FunctionType
from typing import Any

from gt.client.grad import backward, leaves
from gt.client.tensor import html, layout, printing
from gt.client.tensor.arguments import Device, check_device, convert, dtype_of, operand, require_tensor, sizes
from gt.client.tensor.emit import binary, call, call_into, call_many, current, detached, view_of
from gt.client.tensor.foreign import find_dtype, is_torch_tensor
from gt.client.tensor.strides import VIEW
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, GradError
from gt.functions import (
    activations,
    composite,
    creation,
    derived,
    draw,
    factorizations,
    indexing,
    inplace,
    joining,
    matmul,
    norm,
    order,
    pointwise,
    reduce,
    scan,
    scatter,
    sort,
    views,
    windows,
)
from gt.functions.derive import TORCH_NAMES, Function, documented, with_prefix
from gt.functions.matmul import MATMUL
from gt.functions.pointwise import ADD, DIV, MUL, POW, SUB, TRUE_DIVISION
from gt.functions.spectral import complex, stft
from gt.missing import Missing
from gt.ops import OPS, Attrs, Op
from gt.ops.rule_names import check_rules
from gt.types import (
    NUMBER_OF,
    DType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)

#: The public functions of these modules are methods where torch's tensor has a method of that name.
MODULES = (
    derived, pointwise, activations, reduce, scan, order, norm, views, joining, windows, matmul, scatter, indexing,
    sort, draw, composite, complex, stft, factorizations,
)  # fmt: skip

#: operator -> op and attributes; each has a reflected form (``2 - x``)
ARITHMETIC: dict[str, tuple[Op, Attrs]] = {
    ADD.name: (ADD, ()),
    SUB.name: (SUB, ()),
    MUL.name: (MUL, ()),
    "truediv": (DIV, TRUE_DIVISION),
    "floordiv": (OPS["floor_divide"], ()),
    "mod": (OPS["remainder"], ()),
    POW.name: (POW, ()),
    "and": (OPS["bitwise_and"], ()),
    "or": (OPS["bitwise_or"], ()),
    "xor": (OPS["bitwise_xor"], ()),
    "lshift": (OPS["bitwise_left_shift"], ()),
    "rshift": (OPS["bitwise_right_shift"], ()),
    MATMUL.name: (MATMUL, ()),
}
COMPARISONS = (OPS["eq"], OPS["ne"], OPS["lt"], OPS["le"], OPS["gt"], OPS["ge"])

#: method -> the dtype it casts to
CASTS: dict[str, DType] = {
    "float": float32,
    "double": float64,
    "half": float16,
    "bfloat16": bfloat16,
    "long": int64,
    "int": int32,
    "short": int16,
    "char": int8,
    "byte": uint8,
    "bool": bool_,
    "cfloat": complex64,
    "cdouble": complex128,
}


# -- operators -----------------------------------------------------------------------------


def _operator(op: Op, attrs: Attrs) -> Function:
    def apply(a: Tensor, b: Any) -> Any:
        try:
            return binary(op, a, b, attrs)
        except KeyError:  # b is neither a tensor nor a Python number
            pass
        b = operand(b, a)
        return b if b is NotImplemented else binary(op, a, b, attrs)

    return apply


def _reflected(op: Op, attrs: Attrs) -> Function:
    def apply(a: Tensor, b: Any) -> Any:
        b = operand(b, a)
        return b if b is NotImplemented else call(op, (b, a), attrs)

    return apply


def _in_place(op: Op, attrs: Attrs) -> Function:
    def apply(a: Tensor, b: Any) -> Any:
        b = b if type(b) in NUMBER_OF else operand(b, a)
        return b if b is NotImplemented else call_into(op, a, (b,), attrs)

    return apply


def _invert(x: Tensor) -> Tensor:
    return call(OPS["bitwise_not"], (x,))


# -- dtypes and new tensors ----------------------------------------------------------------


def _caster(name: str, dtype: DType) -> Function:
    def method(x: Tensor) -> Tensor:
        return convert(x, dtype)

    return documented(method, name, f"The tensor in {dtype.name}; the tensor itself if that is its dtype.")


def _to(
    x: Tensor,
    *arguments: Any,
    device: Any = None,
    dtype: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Cast to a dtype: ``x.to(dtype)``, ``x.to(other)``, ``x.to(device, dtype)``. Devices are accepted and ignored."""
    wanted = None if dtype is None else dtype_of(dtype)
    check_device(device)
    for what in arguments:
        if isinstance(what, Tensor):
            wanted = what._type.dtype
        elif isinstance(what, str | int) and not isinstance(what, bool) and find_dtype(what) is None:
            check_device(what)
        elif isinstance(what, bool):  # non_blocking and copy may be positional
            copy = copy or (what is arguments[-1] and len([b for b in arguments if isinstance(b, bool)]) == 2)
        elif what is not None:
            wanted = dtype_of(what.dtype if is_torch_tensor(what) else what)
    wanted = wanted or x._type.dtype
    return pointwise.clone(x) if copy and wanted is x._type.dtype else convert(x, wanted)


def _set_data(x: Tensor, value: Tensor) -> None:
    """``x.data = value``: x gets another value, which the tape does not record."""
    if not isinstance(value, Tensor):
        raise DTypeError(f"x.data is a tensor, not a {type(value).__name__}")
    if x._view is not None:
        raise GradError("a view shares the data of its base; x.data.copy_(value) writes into it")
    current(value)
    value = pointwise.clone(detached(value)) if value._view is not None else value
    x._cell, x._type = value._cell, value._type


def _new_object(cls: type, *data: Any, device: Any = None, **options: Any) -> Any:
    """`Tensor.__new__`. A subclass has an ``__init__`` of its own."""
    if cls is not Tensor:
        return object.__new__(cls)
    from gt.functions import legacy  # `import gt` would create its classes, and then attach each method to all of them

    return legacy.make("Tensor", float32, data, device, **options)


def _typed(x: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """Cast to a dtype, also by ``gt.LongTensor`` or "torch.LongTensor"; without one, the name of the tensor's type."""
    from gt.functions import legacy

    if dtype is None:
        return f"gt.{legacy.BY_DTYPE[x._type.dtype].__name__}"
    if isinstance(dtype, str):
        dtype = legacy.BY_NAME.get(dtype.rpartition(".")[2], dtype)
    return convert(x, dtype_of(dtype.dtype if isinstance(dtype, legacy.TensorClass) else dtype))


def _split(x: Tensor, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Split the tensor along a dim into views: parts of one size, or parts of the given sizes."""
    return views.split(x, split_size, dim)


def _moved(x: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Tensor:
    """The tensor itself: it stays on its workers."""
    check_device(device)
    return x


def _to_device(x: Tensor, device: Any, /, *, stream: Any = None) -> Tensor:
    """The tensor itself: it stays on its workers. This is the array API's name for `to`."""
    check_device(device)
    return x


def _array_namespace(x: Tensor, /, *, api_version: str | None = None) -> Any:
    """`gt`, which has the functions of the array API standard of 2021.12, as far as torch's names allow."""
    if api_version not in (None, "2021.12"):
        raise ValueError(f"__array_namespace__: GT follows the array API of 2021.12, not {api_version}")
    return modules["gt"]


def _new_tensor(x: Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of the data, of this tensor's dtype unless ``dtype`` says otherwise."""
    return creation.tensor(data, x._type.dtype if dtype is None else dtype, device=device, requires_grad=requires_grad)


def _new_legacy(x: Tensor, *data: Any, device: Any = None) -> Tensor:
    """A tensor of these sizes, or of this data, of this tensor's dtype: torch's oldest form of `new_empty`."""
    from gt.functions import legacy

    return legacy.make("new", x._type.dtype, data, device)


def _new_full(
    x: Tensor, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor filled with one value, of this tensor's dtype unless ``dtype`` says otherwise."""
    dtype = x._type.dtype if dtype is None else dtype
    return creation.full(size, fill_value, dtype=dtype, device=device, requires_grad=requires_grad)


def _new(make: Callable[..., Tensor], alike: Callable[..., Tensor]) -> Function:
    def method(x: Tensor, *size: Any, dtype: Any = None, **options: Any) -> Tensor:
        if not options and size and sizes(size, make.__name__) == x._type.shape:
            return alike(x, dtype=dtype)  # placed as x is, which gradients need
        return make(*size, dtype=x._type.dtype if dtype is None else dtype, **options)

    name = make.__name__
    return documented(method, f"new_{name}", f"A tensor of this size as `gt.{name}` makes it, of this tensor's dtype.")


def _itself(x: Tensor) -> Tensor:
    return x


def _deep_copy(x: Tensor, memo: dict[int, Any]) -> Tensor:
    if not backward.is_leaf(x):
        raise GradError("only leaf tensors can be deep-copied; x.detach() is one")
    result = memo[id(x)] = pointwise.clone(detached(x))
    result.grad = None if x._grad is None else _deep_copy(x._grad, memo)
    return leaves.requires_grad_(result, x._node is not None)


def _op(x: Tensor, name: str, *rest: Any, **attrs: Any) -> Any:
    """An op by its name, for gradient rules, where no method of a tensor is that op."""
    op, arguments = OPS[name], tuple(attrs.items())
    if op is VIEW:  # a rule does not know the strides of the gradient
        return views.reshape(x, attrs["shape"])
    if op.view:
        return view_of(x, op, arguments, rest)
    return call(op, (x, *rest), arguments)


def _ops(x: Tensor, name: str, *rest: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """The same for an op with several results."""
    return call_many(OPS[name], (x, *rest), tuple(attrs.items()))


def _op_(x: Tensor, name: str, *rest: Any, **attrs: Any) -> Tensor:
    return call_into(OPS[name], x, rest, tuple(attrs.items()))


#: whether a tensor is on a kind of device; none is, because the tensor is on a worker
DEVICE_KINDS = [
    *("is_cpu", "is_cuda", "is_ipu", "is_maia", "is_mkldnn", "is_mps", "is_mtia", "is_vulkan", "is_xla", "is_xpu"),
]

OTHERS: dict[str, Any] = {
    **{name: property(lambda x: False, doc="Always False: the tensor is on a worker.") for name in DEVICE_KINDS},
    "__repr__": printing.format_tensor,
    "_repr_html_": html.tensor_html,
    "_op": _op,
    "_ops": _ops,
    "polygamma": lambda x, n: pointwise.polygamma(n, x),
    "_op_": _op_,
    "__getitem__": indexing.getitem,
    "__setitem__": indexing.setitem,
    "__neg__": pointwise.neg,
    "__pos__": _itself,
    "__abs__": pointwise.abs,
    "__invert__": _invert,
    "to": _to,
    "to_device": _to_device,
    "__array_namespace__": _array_namespace,
    "type": _typed,
    "split": _split,
    "data": property(detached, _set_data),
    "is_nonzero": bool,
    "real": property(complex.real),
    "imag": property(complex.imag),
    "ndimension": Tensor.dim,
    "nelement": pointwise.numel,
    "get_device": lambda x: -1,
    "pin_memory": _moved,
    "is_pinned": lambda x: False,
    "is_shared": lambda x: False,
    "is_inference": lambda x: False,
    "is_sparse": property(lambda x: False, doc="Always False: a sparse matrix is another object."),
    "is_sparse_csr": property(lambda x: False, doc="Always False: a sparse matrix is another object."),
    "is_quantized": property(lambda x: False, doc="Always False: GT has no quantized tensors."),
    "is_meta": property(lambda x: False, doc="Always False: every tensor has values."),
    "is_nested": property(lambda x: False, doc="Always False: GT has no nested tensors."),
    "type_as": lambda x, other: convert(x, require_tensor("type_as", other)._type.dtype),
    "cpu": _moved,
    "cuda": _moved,
    "device": property(lambda x: Device("gt"), doc="Always ``gt``: the dispatcher decides the placement."),
    "layout": property(layout.layout),
    "__copy__": pointwise.clone,
    "__deepcopy__": _deep_copy,
    "where": lambda x, condition, other: pointwise.where(condition, x, other),
    "new": _new_legacy,
    "new_tensor": _new_tensor,
    "new_full": _new_full,
    "new_zeros": _new(creation.zeros, creation.zeros_like),
    "new_ones": _new(creation.ones, creation.ones_like),
    "new_empty": _new(creation.empty, creation.empty_like),
    "T": property(views.reversed_dims),
    "mT": property(views.matrix_transpose),
    "H": property(lambda x: complex.conj(views.t(x)), doc="The conjugate transpose of a matrix."),
    "mH": property(views.adjoint),
}


def _rows() -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for module in MODULES:
        names = (*module.__all__, *getattr(module, "METHODS", ()))
        rows |= {name: getattr(module, name) for name in names if name in TORCH_NAMES["Tensor"]}
    for name, (op, attrs) in ARITHMETIC.items():
        rows[f"__{name}__"] = _operator(op, attrs)
        rows[f"__r{name}__"] = _reflected(op, attrs)
        rows[f"__i{name}__"] = _in_place(op, attrs)
    rows |= {f"__{op.name}__": _operator(op, ()) for op in COMPARISONS}
    rows |= {name: _caster(name, dtype) for name, dtype in CASTS.items()}
    return rows | inplace.INPLACE | OTHERS | backward.METHODS


#: The docstrings of methods that are lambdas.
DOCS = {
    "get_device": "Always -1: the tensor is on a worker.",
    "is_inference": "Always False: GT has no inference tensors.",
    "is_pinned": "Always False: the tensor is on a worker.",
    "is_shared": "Always False: the tensor is on a worker.",
    "polygamma": "The n-th derivative of the digamma function.",
    "type_as": "The tensor in the dtype of another one.",
    "where": "The tensor where the condition is true, and other elsewhere.",
}


def _document(rows: dict[str, Any]) -> None:
    """Give a docstring to lambdas, and to in-place methods that have none: that of the method they belong to."""
    for name, method in rows.items():
        if name in DOCS:
            documented(method, name, DOCS[name])
        elif name.endswith("_") and not name.startswith("_") and not method.__doc__ and name[:-1] in rows:
            documented(method, name, with_prefix("In place: ", rows[name[:-1]].__doc__))


_methods = _rows()
_document(_methods)
for _name, _method in _methods.items():
    setattr(Tensor, _name, _method)
    if (
        type(_method) is FunctionType
        and getattr(modules[_method.__module__], _method.__qualname__, None) is not _method
    ):
        _method.__module__, _method.__qualname__ = Tensor.__module__, f"Tensor.{_name}"  # where pickle finds it
for _name in TORCH_NAMES["Tensor"]:
    if not hasattr(Tensor, _name):
        setattr(Tensor, _name, Missing("Tensor", _name))
Tensor.__new__ = staticmethod(_new_object)  # type: ignore[method-assign]
check_rules(OPS, Tensor)
