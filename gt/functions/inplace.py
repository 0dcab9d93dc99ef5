"""The in-place methods of a tensor: the result of an op is written into its first operand."""

from __future__ import annotations

from functools import wraps
from math import log1p, pi
from typing import Any

from gt.client.tensor import tape
from gt.client.tensor.arguments import dtype_of, operands, refuse, require_real
from gt.client.tensor.emit import ViewRecipe, call_into
from gt.client.tensor.random_state import Generator
from gt.client.tensor.tensor import Tensor, on_cell
from gt.errors import DTypeError, GradError, ShapeError
from gt.functions import creation, derive, draw, indexing, matmul, pointwise, scatter, views
from gt.functions.derive import Function, documented, either_, second_operand, tensors_, with_prefix
from gt.functions.pointwise import ADD, CLAMP, DIV, SUB
from gt.ops import OPS, Attrs, Op
from gt.types import float64

COPY = OPS["copy"]


def _scaled_(op: Op) -> Function:
    def method(x: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
        if alpha != 1:
            other = pointwise.scaled(op.name + "_", x, other, alpha)
        return call_into(op, x, (second_operand(op, x, other),))

    return method


def _div_(x: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    return call_into(DIV, x, (second_operand(DIV, x, other),), (("rounding_mode", rounding_mode),))


def _clamp_(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    limits, attrs = pointwise.clamp_arguments(min, max)
    return call_into(CLAMP, x, operands("clamp_", x, *limits)[1:], attrs)


def _clamp_min_(x: Tensor, min: Any) -> Tensor:
    return call_into(OPS["maximum"], x, (min,)) if pointwise.all_bool(x, min) else _clamp_(x, min)


def _clamp_max_(x: Tensor, max: Any) -> Tensor:
    return call_into(OPS["minimum"], x, (max,)) if pointwise.all_bool(x, max) else _clamp_(x, None, max)


def _fill_(x: Tensor, value: Any) -> Tensor:
    """Fill the tensor with one value."""
    return call_into(COPY, x, (pointwise.fitting("fill_", x, value),))


def _zero_(x: Tensor) -> Tensor:
    """Fill the tensor with zeros."""
    return call_into(COPY, x, (0,))


def _masked_fill_(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """In place: write a value where the mask is true; the value is cast to the tensor's dtype."""
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
    def method(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
        if dtype is not None and dtype_of(dtype) is not x._type.dtype:
            text = f"the result is of {dtype_of(dtype).name}, and does not go into the tensor"
            raise refuse(DTypeError, text, op.name + "_", x, dim=dim)
        return call_into(op, x, (), (("dim", views.dim_of(op.name + "_", x, dim)),))

    return method


def _round_(x: Tensor, *, decimals: int = 0) -> Tensor:
    if decimals:
        return call_into(OPS["round_decimals"], x, (), (("decimals", decimals),))
    return call_into(OPS["round"], x, ())


def _scatter_add_(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """In place: add the elements of src at the positions in index."""
    dim = views.dim_of("scatter_add_", x, dim)
    return call_into(OPS["scatter_add"], x, operands("scatter_add_", x, index, src)[1:], (("dim", dim),))


def _triangle_(op: Op) -> Function:
    return lambda x, diagonal=0: call_into(op, x, (), (("diagonal", diagonal),))


def _uniform_(x: Tensor, a: float = 0.0, b: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill the tensor with random numbers, uniform between two limits."""
    if a > b:
        raise refuse(ShapeError, "the range ends before it starts", "uniform_", x, a, b)
    drawn = draw.rand_like(x, generator=generator)
    return call_into(COPY, x, (drawn if (a, b) == (0, 1) else drawn * (b - a) + a,))


def _normal_(x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill the tensor with random numbers from a normal distribution."""
    if std < 0:
        raise refuse(ShapeError, "std is not negative", "normal_", x, mean, std)
    drawn = draw.randn_like(x, generator=generator)
    return call_into(COPY, x, (drawn if (mean, std) == (0, 1) else drawn * std + mean,))


def _uniform_above_zero(x: Tensor, generator: Generator | None) -> Tensor:
    """Uniform in (0, 1], in float64: the logarithm of 0 would be infinite."""
    return 1 - draw.rand(x._type.shape, dtype=float64, generator=generator)


def _exponential_(x: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill the tensor with random numbers from an exponential distribution."""
    require_real("exponential_", x)
    if lambd <= 0:
        raise refuse(ShapeError, "lambd is greater than 0", "exponential_", x, lambd)
    return call_into(COPY, x, (pointwise.log(_uniform_above_zero(x, generator)) / -lambd,))


def _geometric_(x: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Fill the tensor with random numbers from a geometric distribution."""
    require_real("geometric_", x)
    if not 0 < p < 1:
        raise refuse(ShapeError, "p is between 0 and 1", "geometric_", x, p)
    return call_into(COPY, x, (pointwise.ceil(pointwise.log(_uniform_above_zero(x, generator)) / log1p(-p)),))


def _log_normal_(x: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None) -> Tensor:
    """Fill the tensor with random numbers whose logarithms are normal."""
    require_real("log_normal_", x)
    if std <= 0:
        raise refuse(ShapeError, "std is greater than 0", "log_normal_", x, mean, std)
    return call_into(COPY, x, (pointwise.exp(draw.randn_like(x, generator=generator) * std + mean),))


def _cauchy_(x: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill the tensor with random numbers from a Cauchy distribution."""
    require_real("cauchy_", x)
    if sigma <= 0:
        raise refuse(ShapeError, "sigma is greater than 0", "cauchy_", x, median, sigma)
    return call_into(COPY, x, (pointwise.tan(draw.rand_like(x, generator=generator) * pi - pi / 2) * sigma + median,))


def _random_(x: Tensor, *limits: int, generator: Generator | None = None) -> Tensor:
    """Fill the tensor with random integers: ``random_()``, ``random_(to)`` or ``random_(from, to)``."""
    bits = {"float64": 53, "float32": 24, "bfloat16": 8, "float16": 11, "bool": 1}
    require_real("random_", x)
    dtype = x._type.dtype
    most = 2 ** min(62, bits.get(dtype.name, 8 * dtype.itemsize - (dtype.kind == "i")))
    low, high = limits if len(limits) == 2 else (0, *(limits or (most,)))
    return call_into(COPY, x, (draw.randint(low, high, x._type.shape, generator=generator),))


def _bernoulli_(x: Tensor, p: float = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Fill the tensor with ones, each with probability p, and zeros."""
    require_real("bernoulli_", x)
    return call_into(COPY, x, (draw.rand(x._type.shape, generator=generator) < p,))


def _copied_(function: Function) -> Function:
    """The result of the function, computed and then copied into the tensor."""

    @wraps(function)
    def method(x: Tensor, *args: Any, **options: Any) -> Tensor:
        return call_into(COPY, x, (function(x, *args, **options),))

    method.__doc__ = f"In place: {function.__doc__}"
    return method


def _fill_diagonal_(x: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Fill the main diagonal with one value."""
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


def _apply_(x: Tensor, callable: Function) -> Tensor:
    """Replace each element by the function's value for it, in Python. Waits for the workers."""
    values = [callable(value) for value in x.detach().flatten().tolist()]
    return x.copy_(creation.tensor(values, x._type.dtype).reshape(x._type.shape))


def _map_(x: Tensor, tensor: Tensor, callable: Function) -> Tensor:
    """Replace each element by the function's value for it and for the tensor's element there, in Python. Waits."""
    others = tensor.expand(x._type.shape).flatten().tolist()
    values = [callable(a, b) for a, b in zip(x.detach().flatten().tolist(), others, strict=True)]
    return x.copy_(creation.tensor(values, x._type.dtype).reshape(x._type.shape))


def _all_dims(ndim: int) -> Attrs:
    return (("dims", tuple(range(ndim))), ("accumulate", False))


# -- methods that change the shape ----------------------------------------------------------
#
# They leave the elements where they are: the tensor becomes a view. If it is no view yet, a new object takes its place
# as the base, with the tensor's value and history. Views that were made before still name the tensor as their base;
# `ViewRecipe.base` leads them to the new one.


def _reshaped_(function: Function) -> Function:
    @wraps(function)
    def method(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if isinstance(x._node, tape.LeafNode):
            raise GradError("a leaf Variable that requires grad is being used in an in-place operation.")
        view = function(x if x._view is not None else _base_in_place_of(x), *args, **kwargs)
        x._cell, x._type, x._view = view._cell, view._type, view._view
        tape.set_node(x, view._node, view._index)
        return x

    method.__name__ = method.__qualname__ = f"{function.__name__}_"
    method.__doc__ = with_prefix("In place: ", function.__doc__)
    return method


def _base_in_place_of(x: Tensor) -> Tensor:
    follow_new_bases()
    base = on_cell(x._cell, x._type)
    base._node, base._index = x._node, x._index
    return base


def follow_new_bases() -> None:
    """From now on, a recipe whose base became a view itself uses the object that took its place.

    The check costs time at each use of a view, so it begins with the first call of such a method.
    """
    slot: Any = vars(ViewRecipe)["base"]
    if isinstance(slot, property):
        return

    def base(recipe: ViewRecipe) -> Tensor:
        found: Tensor = slot.__get__(recipe)
        return found if found._view is None else found._view.base

    type.__setattr__(ViewRecipe, "base", property(base, slot.__set__))


RESHAPED: dict[str, Function] = {
    f"{function.__name__}_": _reshaped_(function)
    for function in (views.squeeze, views.unsqueeze, views.t, views.transpose, views.swapaxes)
}
RESHAPED["swapdims_"] = RESHAPED["transpose_"]


# -- the table ------------------------------------------------------------------------------

#: the derived methods, and those that are more than an op
INPLACE: dict[str, Function] = {
    **derive.methods_in_place(),
    "copy_": documented(either_(COPY), "copy_", "Write the values of another tensor, or a number, into the tensor."),
    "pow_": either_(OPS["pow"]),
    "heaviside_": tensors_(OPS["heaviside"]),
    "add_": _scaled_(ADD),
    "sub_": _scaled_(SUB),
    "div_": _div_,
    "clamp_": _clamp_,
    "clamp_min_": _clamp_min_,
    "clamp_max_": _clamp_max_,
    "fill_": _fill_,
    "zero_": _zero_,
    "masked_fill_": _masked_fill_,
    "masked_scatter_": indexing.masked_scatter_,
    "scatter_add_": _scatter_add_,
    **scatter.INPLACE,
    **RESHAPED,
    "apply_": _apply_,
    "map_": _map_,
    "addmm_": _copied_(matmul.addmm),
    "baddbmm_": _copied_(matmul.baddbmm),
    "addbmm_": _copied_(matmul.addbmm),
    "addmv_": _copied_(matmul.addmv),
    "addr_": _copied_(matmul.addr),
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
    "round_": _round_,
    "uniform_": _uniform_,
    "normal_": _normal_,
    "bernoulli_": _bernoulli_,
    "exponential_": _exponential_,
    "geometric_": _geometric_,
    "log_normal_": _log_normal_,
    "cauchy_": _cauchy_,
    "random_": _random_,
}
#: torch's other names for them
ALIASES = {"clip_": "clamp_", "divide_": "div_", "subtract_": "sub_", "true_divide_": "div_"}
INPLACE |= {alias: INPLACE[name] for alias, name in ALIASES.items()}
