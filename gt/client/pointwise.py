"""torch's functions that work element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.arguments import a_tensor, cast, operand, operands, refuse
from gt.client.emit import binary, call
from gt.client.tensor import Tensor
from gt.errors import DTypeError
from gt.ops import OPS, Attrs, Op
from gt.types import NUMBER_OF, DType, promote, result_dtype

__all__ = [
    "abs", "absolute", "add", "atan2", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "clamp",
    "clip", "clone", "cos", "div", "divide", "eq", "erf", "exp", "expm1", "floor", "floor_divide", "fmod", "ge",
    "greater", "greater_equal", "gt", "is_floating_point", "is_tensor", "isclose", "isfinite", "isinf", "isnan", "le",
    "less", "less_equal", "log", "log1p", "log2", "logical_and", "logical_not", "logical_or", "logical_xor", "lt",
    "masked_fill", "maximum", "minimum", "mul", "multiply", "ne", "neg", "negative", "not_equal", "numel", "pow",
    "promote_types", "reciprocal", "relu", "remainder", "result_type", "round", "rsqrt", "rsub", "sigmoid", "sign",
    "sin", "sqrt", "square", "sub", "subtract", "tan", "tanh", "true_divide", "trunc", "where",
]  # fmt: skip

Function = Callable[..., Tensor]

ADD, SUB, MUL, DIV, POW = (OPS[name] for name in ("add", "sub", "mul", "div", "pow"))
TO, WHERE, CLAMP, CLONE, GELU = (OPS[name] for name in ("to", "where", "clamp", "clone", "gelu"))
TRUE_DIVISION: Attrs = (("rounding_mode", None),)


def _unary(name: str) -> Function:
    op = OPS[name]

    def function(input: Tensor) -> Tensor:
        if not isinstance(input, Tensor):
            input = a_tensor(op.name, input)
        return call(op, (input,))

    return _as_torch(function, name)


def _binary(name: str) -> Function:
    op = OPS[name]

    def function(input: Any, other: Any) -> Tensor:
        return pair(op, input, other)

    return _as_torch(function, name)


def _as_torch(function: Function, name: str) -> Function:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"See `torch.{name}`."
    return function


def pair(op: Op, a: Any, b: Any, attrs: Attrs = ()) -> Tensor:
    """A binary op with a tensor on either side, or on both."""
    if isinstance(a, Tensor):
        try:
            return binary(op, a, b, attrs)
        except KeyError:  # b is neither a tensor nor one of Python's own numbers
            pass
    return call(op, operands(op.name, a, b), attrs)


# -- one op, one line ---------------------------------------------------------------------

neg = _unary("neg")
abs = _unary("abs")
sign = _unary("sign")
exp = _unary("exp")
log = _unary("log")
log2 = _unary("log2")
log1p = _unary("log1p")
expm1 = _unary("expm1")
sqrt = _unary("sqrt")
rsqrt = _unary("rsqrt")
square = _unary("square")
reciprocal = _unary("reciprocal")
sin = _unary("sin")
cos = _unary("cos")
tan = _unary("tan")
tanh = _unary("tanh")
sigmoid = _unary("sigmoid")
relu = _unary("relu")
silu = _unary("silu")
erf = _unary("erf")
floor = _unary("floor")
ceil = _unary("ceil")
trunc = _unary("trunc")
round = _unary("round")
isnan = _unary("isnan")
isinf = _unary("isinf")
isfinite = _unary("isfinite")
logical_not = _unary("logical_not")
bitwise_not = _unary("bitwise_not")

mul = _binary("mul")
floor_divide = _binary("floor_divide")
remainder = _binary("remainder")
fmod = _binary("fmod")
pow = _binary("pow")
maximum = _binary("maximum")
minimum = _binary("minimum")
atan2 = _binary("atan2")
eq = _binary("eq")
ne = _binary("ne")
lt = _binary("lt")
le = _binary("le")
gt = _binary("gt")
ge = _binary("ge")
logical_and = _binary("logical_and")
logical_or = _binary("logical_or")
logical_xor = _binary("logical_xor")
bitwise_and = _binary("bitwise_and")
bitwise_or = _binary("bitwise_or")
bitwise_xor = _binary("bitwise_xor")

absolute, negative, multiply = abs, neg, mul
greater, greater_equal, less, less_equal, not_equal = gt, ge, lt, le, ne

# -- with options --------------------------------------------------------------------------


def scaled(name: str, input: Any, other: Any, alpha: float) -> Any:
    """``alpha * other``, as add and sub have it."""
    input, other = operands(name, input, other)
    whole = all_kinds(input, other) <= _WHOLE
    if isinstance(alpha, float) and whole:
        raise refuse(DTypeError, "alpha is a float, but the result is of integers", name, input, other, alpha=alpha)
    return alpha * other if not isinstance(other, Tensor) else pair(MUL, other, alpha)


_WHOLE = {"b", "u", "i"}


def all_kinds(*given: Any) -> set[str]:
    return {x._type.dtype.kind if isinstance(x, Tensor) else ("f" if isinstance(x, float) else "i") for x in given}


def add(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    return pair(ADD, input, other if alpha == 1 else scaled("add", input, other, alpha))


def sub(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    return pair(SUB, input, other if alpha == 1 else scaled("sub", input, other, alpha))


def rsub(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    return sub(other, input, alpha=alpha)


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    return pair(DIV, input, other, TRUE_DIVISION if rounding_mode is None else (("rounding_mode", rounding_mode),))


divide = true_divide = div
subtract = sub


def clamp_arguments(min: Any, max: Any) -> tuple[tuple[Any, ...], Attrs]:
    limits = tuple(x for x in (min, max) if x is not None)
    return limits, (("has_min", min is not None), ("has_max", max is not None))


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    limits, attrs = clamp_arguments(min, max)
    return call(CLAMP, operands("clamp", input, *limits), attrs)


clip = clamp


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    return call(GELU, (a_tensor("gelu", input),), (("approximate", approximate),))


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """With one argument ``nonzero(condition, as_tuple=True)``, which reads how many there are."""
    if input is None and other is None:
        from gt.client.functions import nonzero

        return nonzero(condition, as_tuple=True)
    return call(WHERE, operands("where", condition, input, other))


_NUMBER: dict[str, Callable[[Any], Any]] = {"b": bool, "i": int, "u": int, "f": lambda value: value}


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """The value is brought to the tensor's dtype, never the other way round."""
    mask = a_tensor("masked_fill", mask)
    return call(WHERE, (mask, fitting("masked_fill", input, value), input))


def fitting(name: str, x: Tensor, value: Any) -> Any:
    """A number, or a tensor without dims, in x's dtype."""
    _, value = operands(name, x, value)
    if not isinstance(value, Tensor):
        return _NUMBER[x._type.dtype.kind](value)
    if value._type.ndim:
        raise refuse(DTypeError, "the value is a number or a tensor without dims", name, x, value)
    return cast(value, x._type.dtype)


def clone(input: Tensor) -> Tensor:
    return call(CLONE, (a_tensor("clone", input),))


# -- comparing tensors with tolerance ------------------------------------------------------


def isclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    a, b = a_tensor("isclose", input), a_tensor("isclose", other)
    if a._type.dtype is not b._type.dtype:
        text = f"dtypes differ: {a._type.dtype.name} and {b._type.dtype.name}"
        raise refuse(DTypeError, text, "isclose", a, b)
    close = eq(a, b)
    if equal_nan and a._type.dtype.kind == "f":
        close = logical_or(close, logical_and(isnan(a), isnan(b)))
    if rtol == 0 and atol == 0:
        return close
    apart = abs(sub(a, b))
    near = le(apart, add(abs(mul(b, rtol)), atol))
    # an infinite distance is within any share of an infinite value
    return logical_or(close, logical_and(isfinite(apart), near))


# -- dtypes --------------------------------------------------------------------------------


def result_type(tensor1: Any, tensor2: Any) -> DType:
    pair = (operand(tensor1), operand(tensor2))
    return result_dtype(*(x._type if isinstance(x, Tensor) else NUMBER_OF[type(x)] for x in pair))


def promote_types(type1: DType, type2: DType) -> DType:
    return promote(type1, type2)


def is_tensor(obj: object) -> bool:
    return isinstance(obj, Tensor)


def is_floating_point(input: Tensor) -> bool:
    return input._type.dtype.kind == "f"


def numel(input: Tensor) -> int:
    return input._type.numel
