"""torch's functions that work element by element and are more than one op.

Those that are just an op come from `gt.functions.derived`, and can be used as ``pointwise.exp`` too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.arguments import cast, operand, operands, refuse, require_tensor
from gt.client.tensor.emit import call
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions.derive import pair
from gt.functions.derived import *  # noqa: F403
from gt.functions.derived import abs, eq, isfinite, isnan, le, logical_and, logical_or, maximum, minimum, mul
from gt.ops import OPS, Attrs
from gt.types import NUMBER_OF, DType, bool_, complex128, float64, promote, result_dtype

__all__ = [
    "add", "addcdiv", "addcmul", "clamp", "clamp_max", "clamp_min", "clip", "clone", "div", "divide", "float_power",
    "heaviside", "is_floating_point", "is_tensor", "isclose", "ldexp", "lerp", "logit", "masked_fill", "nan_to_num",
    "numel", "polygamma", "positive", "pow", "promote_types", "result_type", "round", "rsub", "sub", "subtract",
    "true_divide", "where",
]  # fmt: skip

Function = Callable[..., Tensor]

ADD, SUB, MUL, DIV, POW = OPS["add"], OPS["sub"], OPS["mul"], OPS["div"], OPS["pow"]
TO, WHERE, CLAMP, CLONE, MASKED_FILL = OPS["to"], OPS["where"], OPS["clamp"], OPS["clone"], OPS["masked_fill"]
TRUE_DIVISION: Attrs = (("rounding_mode", None),)


# -- with options --------------------------------------------------------------------------


def scaled(name: str, input: Any, other: Any, alpha: float) -> Any:
    """``alpha * other``, for add and sub."""
    input, other = operands(name, input, other)
    whole = all_kinds(input, other) <= _WHOLE
    if isinstance(alpha, float) and whole:
        raise refuse(DTypeError, "alpha is a float, but the result is of integers", name, input, other, alpha=alpha)
    if isinstance(alpha, complex) and "c" not in all_kinds(input, other):
        raise refuse(DTypeError, "alpha is complex, but the operands are not", name, input, other, alpha=alpha)
    return alpha * other if not isinstance(other, Tensor) else pair(MUL, other, alpha)


_WHOLE = {"b", "u", "i"}


def all_kinds(*arguments: Any) -> set[str]:
    return {x._type.dtype.kind if isinstance(x, Tensor) else ("f" if isinstance(x, float) else "i") for x in arguments}


def add(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """input + alpha * other."""
    return pair(ADD, input, other if alpha == 1 else scaled("add", input, other, alpha))


def sub(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """input - alpha * other."""
    return pair(SUB, input, other if alpha == 1 else scaled("sub", input, other, alpha))


def rsub(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """other - alpha * input."""
    return sub(other, require_tensor("rsub", input), alpha=alpha)


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """input / other; ``rounding_mode`` "trunc" or "floor" rounds the result."""
    return pair(DIV, input, other, TRUE_DIVISION if rounding_mode is None else (("rounding_mode", rounding_mode),))


divide = true_divide = div
subtract = sub


def pow(input: Any, exponent: Any) -> Tensor:
    """input to the power of exponent."""
    return pair(POW, input, exponent)


def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 where the input is negative, 1 where it is positive, and the value where it is 0."""
    return call(OPS["heaviside"], (require_tensor("heaviside", input), require_tensor("heaviside", values)))


def clamp_arguments(min: Any, max: Any) -> tuple[tuple[Any, ...], Attrs]:
    limits = tuple(x for x in (min, max) if x is not None)
    return limits, (("has_min", min is not None), ("has_max", max is not None))


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Limit each element to the range from min to max."""
    limits, attrs = clamp_arguments(min, max)
    return call(CLAMP, operands("clamp", input, *limits), attrs)


clip = clamp


def clamp_min(input: Tensor, min: Any) -> Tensor:
    """Limit each element to at least min."""
    return maximum(input, min) if all_bool(input, min) else clamp(input, min)


def clamp_max(input: Tensor, max: Any) -> Tensor:
    """Limit each element to at most max."""
    return minimum(input, max) if all_bool(input, max) else clamp(input, None, max)


def all_bool(*arguments: Any) -> bool:
    """True if all are bool tensors, which torch clamps on one side only."""
    return all(isinstance(x, Tensor) and x._type.dtype is bool_ for x in arguments)


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Round to the nearest integer, or to this many decimals; halves go to the even neighbour."""
    x = require_tensor("round", input)
    return call(OPS["round_decimals"], (x,), (("decimals", decimals),)) if decimals else call(OPS["round"], (x,))


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)); with ``eps``, x is limited to the range from eps to 1 - eps."""
    return call(OPS["logit"], (require_tensor("logit", input),), (("eps", eps),))


def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of the digamma function."""
    return call(OPS["polygamma"], (require_tensor("polygamma", input),), (("n", n),))


def nan_to_num_attributes(nan: float | None, posinf: float | None, neginf: float | None) -> Attrs:
    return (("nan", 0.0 if nan is None else nan), ("posinf", posinf), ("neginf", neginf))


def nan_to_num(
    input: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Replace NaNs and infinities by numbers."""
    x = require_tensor("nan_to_num", input)
    return call(OPS["nan_to_num"], (x,), nan_to_num_attributes(nan, posinf, neginf))


def positive(input: Tensor) -> Tensor:
    """The tensor itself."""
    if input._type.dtype is bool_:
        raise refuse(DTypeError, "not defined for bool", "positive", input)
    return input


def float_power(input: Any, exponent: Any) -> Tensor:
    """input to the power of exponent, computed in float64, or in complex128 if one of them is complex."""
    arguments = operands("float_power", input, exponent)
    wide = complex128 if "c" in all_kinds(*arguments) else float64
    a, b = (cast(x, wide) if isinstance(x, Tensor) else float(x) for x in arguments)
    return pair(POW, a, b)


def ldexp(input: Tensor, other: Any) -> Tensor:
    """input * 2 ** other."""
    return mul(require_tensor("ldexp", input), pow(2.0, other))


def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    """input + weight * (end - input)."""
    return call(OPS["lerp"], operands("lerp", input, end, weight))


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value * tensor1 * tensor2."""
    if isinstance(value, complex):
        tensor1, value = mul(tensor1, value), 1
    return call(OPS["addcmul"], operands("addcmul", input, tensor1, tensor2, value))


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value * tensor1 / tensor2."""
    if isinstance(value, complex):
        tensor1, value = mul(tensor1, value), 1
    return call(OPS["addcdiv"], operands("addcdiv", input, tensor1, tensor2, value))


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """The input where the condition is true, and the other elsewhere.

    With one argument, ``nonzero(condition, as_tuple=True)``, which reads how many elements there are.
    """
    if input is None and other is None:
        return require_tensor("where", condition).nonzero(as_tuple=True)
    return call(WHERE, operands("where", condition, input, other))


_NUMBER: dict[str, Callable[[Any], Any]] = {
    "b": bool,
    "i": int,
    "u": int,
    "f": lambda value: value,
    "c": lambda value: value,
}


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """A copy with a value written where the mask is true; the value is cast to the tensor's dtype."""
    mask = require_tensor("masked_fill", mask)
    return call(MASKED_FILL, (input, mask, fitting("masked_fill", input, value)))


def fitting(name: str, x: Tensor, value: Any) -> Any:
    """A number, or a tensor without dims, in x's dtype."""
    _, value = operands(name, x, value)
    if not isinstance(value, Tensor):
        return _NUMBER[x._type.dtype.kind](value)
    if value._type.ndim:
        raise refuse(DTypeError, "the value is a number or a tensor without dims", name, x, value)
    if value._type.dtype.kind == "c" != x._type.dtype.kind:
        raise refuse(DTypeError, f"a complex value does not fit into {x._type.dtype.name}", name, x, value)
    return cast(value, x._type.dtype)


def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """A copy of the tensor; ``memory_format`` is ignored."""
    return call(CLONE, (require_tensor("clone", input),))


# -- comparing tensors with tolerance ------------------------------------------------------


def isclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """Whether each pair of elements differs by at most atol + rtol * abs(other)."""
    a, b = require_tensor("isclose", input), require_tensor("isclose", other)
    if a._type.dtype is not b._type.dtype:
        text = f"dtypes differ: {a._type.dtype.name} and {b._type.dtype.name}"
        raise refuse(DTypeError, text, "isclose", a, b)
    if rtol < 0 or atol < 0:
        raise refuse(ShapeError, "rtol and atol are not negative", "isclose", a, b, rtol=rtol, atol=atol)
    close = eq(a, b)
    if equal_nan and a._type.dtype.kind in "fc":
        close = logical_or(close, logical_and(isnan(a), isnan(b)))
    if (rtol == 0 and atol == 0) or a._type.dtype is bool_:
        return close
    apart = abs(sub(a, b))
    near = le(apart, add(abs(mul(b, rtol)), atol))
    # an infinite distance would be within any fraction of an infinite value
    return logical_or(close, logical_and(isfinite(apart), near))


# -- dtypes --------------------------------------------------------------------------------


def result_type(tensor1: Any, tensor2: Any) -> DType:
    """The dtype of an operation on two tensors or numbers."""
    pair = (operand(tensor1, tensor2), operand(tensor2, tensor1))
    return result_dtype(*(x._type if isinstance(x, Tensor) else NUMBER_OF[type(x)] for x in pair))


def promote_types(type1: DType, type2: DType) -> DType:
    """The common dtype of two dtypes."""
    return promote(type1, type2)


def is_tensor(obj: object) -> bool:
    """Whether an object is a tensor of GT."""
    return isinstance(obj, Tensor)


def is_floating_point(input: Tensor) -> bool:
    """Whether the dtype is floating."""
    return input._type.dtype.kind == "f"


def numel(input: Tensor) -> int:
    """The number of elements."""
    return input._type.numel
