"""The methods and operators of a tensor, each one row of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client import (
    activations,
    autograd,
    creation,
    finding,
    functions,
    indexing,
    joining,
    picking,
    pointwise,
    products,
    quantiles,
    reductions,
    solving,
    views,
)
from gt.client.arguments import Device, cast, device_of, dtype_of, operand, operands, refuse
from gt.client.emit import binary, call, call_into, detached, view_of
from gt.client.pointwise import ADD, CLAMP, DIV, MUL, POW, SUB, TRUE_DIVISION, Function
from gt.client.tensor import Tensor
from gt.errors import GradError, ShapeError
from gt.ops import OPS, Attrs, Op
from gt.types import NUMBER_OF, DType, bfloat16, bool_, float16, float32, float64, int8, int16, int32, int64, uint8

#: Functions that are methods too: the first argument is the tensor.
METHODS = {
    pointwise: (
        "abs absolute add atan2 bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clip clone cos div divide "
        "eq erf exp expm1 floor floor_divide fmod ge greater greater_equal gt is_floating_point isclose isfinite "
        "isinf isnan le less less_equal log log1p log2 logical_and logical_not logical_or logical_xor lt masked_fill "
        "maximum minimum mul multiply ne neg negative not_equal numel pow reciprocal relu remainder round rsqrt "
        "sigmoid sign sin sqrt square sub subtract tan tanh true_divide trunc acos acosh addcdiv addcmul arccos "
        "arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atanh bitwise_left_shift bitwise_right_shift "
        "clamp_max clamp_min copysign cosh deg2rad digamma erfc erfinv exp2 fix float_power fmax fmin frac gcd "
        "heaviside hypot isneginf isposinf lcm lerp lgamma log10 logaddexp logaddexp2 logit nan_to_num nextafter "
        "positive rad2deg sgn signbit sinc sinh xlogy"
    ),
    activations: "hardshrink prelu",
    reductions: (
        "all allclose amax amin any argmax argmin count_nonzero cumsum equal log_softmax logsumexp max mean min norm "
        "prod softmax std sum var aminmax cummax cummin cumprod diff dist logcumsumexp median mode nanmean "
        "nanmedian nansum"
    ),
    quantiles: "nanquantile quantile",
    views: (
        "adjoint broadcast_to chunk contiguous diagonal expand expand_as flatten is_contiguous moveaxis movedim narrow "
        "permute ravel reshape reshape_as select split squeeze stride swapaxes swapdims t transpose unbind unflatten "
        "unfold unsqueeze view view_as"
    ),
    functions: (
        "argsort argwhere flip gather index_select masked_select nonzero repeat roll scatter_add sort tile topk tril "
        "triu"
    ),
    products: (
        "addbmm addmm addmv addr baddbmm bmm cross dot ger inner kron matmul matrix_power mm mv outer trace vdot"
    ),
    joining: ("diag diag_embed diagflat dsplit fliplr flipud hsplit repeat_interleave rot90 tensor_split vsplit"),
    picking: (
        "diagonal_scatter index_add index_copy index_fill index_put index_reduce masked_scatter put scatter "
        "scatter_reduce select_scatter slice_scatter take take_along_dim"
    ),
    finding: "bincount histc kthvalue msort multinomial unique unique_consecutive",
    solving: "corrcoef cov det inverse logdet pinverse slogdet",
}

#: Ops of one tensor that have an in-place form, which is called as they are with a ``_``.
INPLACE_UNARY = (
    "abs ceil cos erf exp expm1 floor log log1p log2 logical_not bitwise_not neg reciprocal relu round rsqrt sigmoid "
    "sign sin sqrt square tan tanh trunc exp2 log10 asin acos atan sinh cosh asinh acosh atanh erfc erfinv lgamma "
    "digamma sinc frac deg2rad rad2deg"
)
INPLACE_BINARY = (
    "atan2 bitwise_and bitwise_or bitwise_xor copy eq floor_divide fmod ge gt le logical_and logical_or logical_xor lt "
    "mul ne pow remainder bitwise_left_shift bitwise_right_shift gcd lcm hypot xlogy copysign heaviside nextafter"
)

#: operator -> op and attributes; each has a reflected form (``2 - x``)
ARITHMETIC: dict[str, tuple[Op, Attrs]] = {
    "add": (ADD, ()),
    "sub": (SUB, ()),
    "mul": (MUL, ()),
    "truediv": (DIV, TRUE_DIVISION),
    "floordiv": (OPS["floor_divide"], ()),
    "mod": (OPS["remainder"], ()),
    "pow": (POW, ()),
    "and": (OPS["bitwise_and"], ()),
    "or": (OPS["bitwise_or"], ()),
    "xor": (OPS["bitwise_xor"], ()),
    "lshift": (OPS["bitwise_left_shift"], ()),
    "rshift": (OPS["bitwise_right_shift"], ()),
    "matmul": (OPS["matmul"], ()),
}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

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
}


# -- operators -----------------------------------------------------------------------------


def _operator(op: Op, attrs: Attrs) -> Function:
    def apply(a: Tensor, b: Any) -> Any:
        try:
            return binary(op, a, b, attrs)
        except KeyError:  # b is neither a tensor nor one of Python's own numbers
            pass
        b = operand(b)
        return b if b is NotImplemented else binary(op, a, b, attrs)

    return apply


def _reflected(op: Op, attrs: Attrs) -> Function:
    def apply(a: Tensor, b: Any) -> Any:
        b = operand(b)
        return b if b is NotImplemented else call(op, (b, a), attrs)

    return apply


def _in_place(op: Op, attrs: Attrs) -> Function:
    def apply(a: Tensor, b: Any) -> Any:
        b = b if type(b) in NUMBER_OF else operand(b)
        return b if b is NotImplemented else call_into(op, a, (b,), attrs)

    return apply


def _invert(x: Tensor) -> Tensor:
    return call(OPS["bitwise_not"], (x,))


# -- in place ------------------------------------------------------------------------------


def _unary_(op: Op) -> Function:
    return lambda x: call_into(op, x, ())


def _second(op: Op, x: Tensor, other: Any) -> Any:
    """The other operand; most are what they should be already."""
    if isinstance(other, Tensor) or type(other) in NUMBER_OF:
        return other
    return operands(op.name + "_", x, other)[1]


def _binary_(op: Op) -> Function:
    return lambda x, other: call_into(op, x, (_second(op, x, other),))


def _scaled_(op: Op) -> Function:
    def method(x: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
        if alpha != 1:
            other = pointwise.scaled(op.name + "_", x, other, alpha)
        return call_into(op, x, (_second(op, x, other),))

    return method


def _div_(x: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    return call_into(DIV, x, (_second(DIV, x, other),), (("rounding_mode", rounding_mode),))


def _clamp_(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    limits, attrs = pointwise.clamp_arguments(min, max)
    return call_into(CLAMP, x, operands("clamp_", x, *limits)[1:], attrs)


def _clamp_min_(x: Tensor, min: Any) -> Tensor:
    return _clamp_(x, min)


def _clamp_max_(x: Tensor, max: Any) -> Tensor:
    return _clamp_(x, None, max)


def _fill_(x: Tensor, value: Any) -> Tensor:
    return call_into(OPS["copy"], x, (pointwise.fitting("fill_", x, value),))


def _zero_(x: Tensor) -> Tensor:
    return call_into(OPS["copy"], x, (0,))


def _masked_fill_(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return call_into(OPS["masked_fill"], x, (mask, pointwise.fitting("masked_fill_", x, value)))


def _lerp_(x: Tensor, end: Tensor, weight: Any) -> Tensor:
    return call_into(OPS["lerp"], x, operands("lerp_", x, end, weight)[1:])


def _three_(op: Op) -> Function:
    def method(x: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
        return call_into(op, x, operands(op.name + "_", x, tensor1, tensor2, value)[1:])

    return method


def _nan_to_num_(
    x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    return call_into(OPS["nan_to_num"], x, (), pointwise.nan_to_num_attributes(nan, posinf, neginf))


def _logit_(x: Tensor, eps: float | None = None) -> Tensor:
    return call_into(OPS["logit"], x, (), (("eps", eps),))


def _scan_(op: Op) -> Function:
    return lambda x, dim: call_into(op, x, (), (("dim", views.dim_of(op.name + "_", x, dim)),))


def _scatter_add_(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    dim = views.dim_of("scatter_add_", x, dim)
    return call_into(OPS["scatter_add"], x, operands("scatter_add_", x, index, src)[1:], (("dim", dim),))


def _triangle_(op: Op) -> Function:
    return lambda x, diagonal=0: call_into(op, x, (), (("diagonal", diagonal),))


def _uniform_(x: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    drawn = creation.rand_like(x)
    return call_into(OPS["copy"], x, (drawn if (a, b) == (0, 1) else drawn * (b - a) + a,))


def _normal_(x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    drawn = creation.randn_like(x)
    return call_into(OPS["copy"], x, (drawn if (mean, std) == (0, 1) else drawn * std + mean,))


def _bernoulli_(x: Tensor, p: float = 0.5) -> Tensor:
    return call_into(OPS["copy"], x, (creation.rand(x._type.shape) < p,))


def _beta_(name: str) -> Function:
    """``addmm_`` and its kin: few write where they read, so the result is computed and copied."""
    function = getattr(products, name)

    def method(x: Tensor, *args: Any, **options: Any) -> Tensor:
        return call_into(OPS["copy"], x, (function(x, *args, **options),))

    return method


def _fill_diagonal_(x: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    if x._type.ndim < 2 or (x._type.ndim > 2 and len(set(x._type.shape)) > 1):
        text = "needs at least two dims, of one size if there are more"
        raise refuse(ShapeError, text, "fill_diagonal_", x, fill_value)
    rows, columns = x._type.shape[0], x._type.shape[-1]
    if x._type.ndim > 2:
        every = creation.arange(rows)
        return call_into(OPS["index_put"], x, (fill_value, *(every,) * x._type.ndim), _all_dims(x._type.ndim))
    x.diagonal().fill_(fill_value)
    for top in range(columns + 1, rows, columns + 1) if wrap else ():
        x[top:].diagonal().fill_(fill_value)
    return x


def _all_dims(ndim: int) -> Attrs:
    return (("dims", tuple(range(ndim))), ("accumulate", False))


INPLACE: dict[str, Function] = {
    **{name + "_": _unary_(OPS[name]) for name in INPLACE_UNARY.split()},
    **{name + "_": _binary_(OPS[name]) for name in INPLACE_BINARY.split()},
    "add_": _scaled_(ADD),
    "sub_": _scaled_(SUB),
    "div_": _div_,
    "true_divide_": _div_,
    "clamp_": _clamp_,
    "clip_": _clamp_,
    "fill_": _fill_,
    "zero_": _zero_,
    "masked_fill_": _masked_fill_,
    "scatter_add_": _scatter_add_,
    **picking.INPLACE,
    **{name + "_": _beta_(name) for name in ("addmm", "baddbmm", "addbmm", "addmv", "addr")},
    "fill_diagonal_": _fill_diagonal_,
    "tril_": _triangle_(OPS["tril"]),
    "triu_": _triangle_(OPS["triu"]),
    "cumsum_": _scan_(OPS["cumsum"]),
    "cumprod_": _scan_(OPS["cumprod"]),
    "lerp_": _lerp_,
    "addcmul_": _three_(OPS["addcmul"]),
    "addcdiv_": _three_(OPS["addcdiv"]),
    "nan_to_num_": _nan_to_num_,
    "logit_": _logit_,
    "clamp_min_": _clamp_min_,
    "clamp_max_": _clamp_max_,
    "uniform_": _uniform_,
    "normal_": _normal_,
    "bernoulli_": _bernoulli_,
}


# -- dtypes and new tensors ----------------------------------------------------------------


def _caster(dtype: DType) -> Function:
    return lambda x: cast(x, dtype)


def _to(
    x: Tensor,
    *given: Any,
    device: Any = None,
    dtype: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """``x.to(dtype)``, ``x.to(other)``, ``x.to(device, dtype)``. Where a tensor lives is not for the program to say."""
    wanted = None if dtype is None else dtype_of(dtype)
    device_of(device)
    for what in given:
        if isinstance(what, Tensor):
            wanted = what._type.dtype
        elif isinstance(what, str | int) and not isinstance(what, bool):
            device_of(what)
        elif isinstance(what, bool):  # non_blocking and copy may stand there too
            copy = copy or (what is given[-1] and len([b for b in given if isinstance(b, bool)]) == 2)
        elif what is not None:
            wanted = dtype_of(what)
    wanted = wanted or x._type.dtype
    return pointwise.clone(x) if copy and wanted is x._type.dtype else cast(x, wanted)


def _moved(x: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Tensor:
    """`cpu` and `cuda`: the tensor stays where the system has put it."""
    device_of(device)
    return x


def _new_tensor(x: Tensor, data: Any, *, dtype: Any = None, **options: Any) -> Tensor:
    return creation.tensor(data, x._type.dtype if dtype is None else dtype, **options)


def _new_full(x: Tensor, size: Any, fill_value: Any, *, dtype: Any = None, **options: Any) -> Tensor:
    return creation.full(size, fill_value, dtype=x._type.dtype if dtype is None else dtype, **options)


def _new(make: Callable[..., Tensor]) -> Function:
    def method(x: Tensor, *size: Any, dtype: Any = None, **options: Any) -> Tensor:
        return make(*size, dtype=x._type.dtype if dtype is None else dtype, **options)

    return method


def _itself(x: Tensor) -> Tensor:
    return x


def _deep_copy(x: Tensor, memo: dict[int, Any]) -> Tensor:
    if not autograd.is_leaf(x):
        raise GradError("only leaf tensors can be deep-copied; x.detach() is one")
    made = memo[id(x)] = pointwise.clone(detached(x))
    return autograd.requires_grad_(made, x._node is not None)


def _op(x: Tensor, name: str, *rest: Any, **attrs: Any) -> Any:
    """An op by its name: what gradients are written in where no method of torch's would do."""
    op, given = OPS[name], tuple(attrs.items())
    if op.view:
        return view_of(x, op, given, rest)
    return call(op, (x, *rest), given)


def _op_(x: Tensor, name: str, *rest: Any, **attrs: Any) -> Tensor:
    return call_into(OPS[name], x, rest, tuple(attrs.items()))


OTHERS: dict[str, Any] = {
    "_op": _op,
    "ldexp": pointwise.ldexp,
    "polygamma": lambda x, n: pointwise.polygamma(n, x),
    "_op_": _op_,
    "bernoulli": creation.bernoulli,
    "__getitem__": indexing.getitem,
    "__setitem__": indexing.setitem,
    "__neg__": pointwise.neg,
    "__pos__": _itself,
    "__abs__": pointwise.abs,
    "__invert__": _invert,
    "to": _to,
    "type_as": lambda x, other: cast(x, other._type.dtype),
    "cpu": _moved,
    "cuda": _moved,
    "device": property(lambda x: Device("gt")),
    "is_cuda": property(lambda x: False),
    "__copy__": pointwise.clone,
    "__deepcopy__": _deep_copy,
    "where": lambda x, condition, other: pointwise.where(condition, x, other),
    "new_tensor": _new_tensor,
    "new_full": _new_full,
    "new_zeros": _new(creation.zeros),
    "new_ones": _new(creation.ones),
    "new_empty": _new(creation.empty),
    "T": property(views.reversed_dims),
    "mT": property(views.matrix_transpose),
    "H": property(views.t),
    "mH": property(views.matrix_transpose),
}


def _rows() -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for module, names in METHODS.items():
        rows |= {name: getattr(module, name) for name in names.split()}
    for name, (op, attrs) in ARITHMETIC.items():
        rows[f"__{name}__"] = _operator(op, attrs)
        rows[f"__r{name}__"] = _reflected(op, attrs)
        rows[f"__i{name}__"] = _in_place(op, attrs)
    rows |= {f"__{name}__": _operator(OPS[name], ()) for name in COMPARISONS}
    rows |= {name: _caster(dtype) for name, dtype in CASTS.items()}
    return rows | INPLACE | OTHERS | autograd.METHODS


for _name, _method in _rows().items():
    setattr(Tensor, _name, _method)
