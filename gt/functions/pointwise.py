"""torch's functions that work element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.arguments import a_tensor, also_called, cast, operand, operands, refuse
from gt.client.tensor.emit import binary, call
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.ops import OPS, Attrs, Op
from gt.types import NUMBER_OF, DType, bool_, float64, promote, result_dtype

__all__ = [
    "abs", "absolute", "acos", "acosh", "add", "addcdiv", "addcmul", "arccos", "arccosh", "arcsin", "arcsinh",
    "arctan", "arctan2", "arctanh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_left_shift",
    "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "clamp", "clamp_max", "clamp_min",
    "clip", "clone", "copysign", "cos", "cosh", "deg2rad", "digamma", "div", "divide", "eq", "erf", "erfc", "erfinv",
    "exp", "exp2", "expm1", "fix", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frac", "gcd", "ge",
    "greater", "greater_equal", "gt", "heaviside", "hypot", "is_floating_point", "is_tensor", "isclose", "isfinite",
    "isinf", "isnan", "isneginf", "isposinf", "lcm", "ldexp", "le", "lerp", "less", "less_equal", "lgamma", "log",
    "log1p", "log2", "log10", "logaddexp", "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor",
    "logit", "lt", "masked_fill", "maximum", "minimum", "mul", "multiply", "nan_to_num", "ne", "neg", "negative",
    "nextafter", "not_equal", "numel", "polygamma", "positive", "pow", "promote_types", "rad2deg", "reciprocal",
    "relu", "remainder", "result_type", "round", "rsqrt", "rsub", "sgn", "sigmoid", "sign", "signbit", "sin", "sinc",
    "sinh", "sqrt", "square", "sub", "subtract", "tan", "tanh", "true_divide", "trunc", "where", "xlogy",
]  # fmt: skip

Function = Callable[..., Tensor]

ADD, SUB, MUL, DIV, POW = (OPS[name] for name in ("add", "sub", "mul", "div", "pow"))
TO, WHERE, CLAMP, CLONE, MASKED_FILL = (OPS[name] for name in ("to", "where", "clamp", "clone", "masked_fill"))
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


def _of_tensors(name: str) -> Function:
    """Those that take a number on neither side; operators do."""
    op = OPS[name]

    def function(input: Tensor, other: Tensor) -> Tensor:
        return binary(op, a_tensor(name, input), a_tensor(name, other))

    return _as_torch(function, name)


def _of_a_tensor(name: str) -> Function:
    """Those that take a number on the right only."""
    op = OPS[name]

    def function(input: Tensor, other: Any) -> Tensor:
        return pair(op, a_tensor(name, input), other)

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
erf = _unary("erf")
floor = _unary("floor")
ceil = _unary("ceil")
trunc = _unary("trunc")
isnan = _unary("isnan")
isinf = _unary("isinf")
isfinite = _unary("isfinite")
logical_not = _unary("logical_not")
bitwise_not = _unary("bitwise_not")
exp2 = _unary("exp2")
log10 = _unary("log10")
asin = _unary("asin")
acos = _unary("acos")
atan = _unary("atan")
sinh = _unary("sinh")
cosh = _unary("cosh")
asinh = _unary("asinh")
acosh = _unary("acosh")
atanh = _unary("atanh")
erfc = _unary("erfc")
erfinv = _unary("erfinv")
lgamma = _unary("lgamma")
digamma = _unary("digamma")
sinc = _unary("sinc")
frac = _unary("frac")
deg2rad = _unary("deg2rad")
rad2deg = _unary("rad2deg")
isposinf = _unary("isposinf")
isneginf = _unary("isneginf")
signbit = _unary("signbit")

mul = _binary("mul")
floor_divide = _binary("floor_divide")
remainder = _binary("remainder")
fmod = _of_a_tensor("fmod")
pow = also_called(_binary("pow"), exponent="other")
maximum = _of_tensors("maximum")
minimum = _of_tensors("minimum")
atan2 = _of_tensors("atan2")
eq = _of_a_tensor("eq")
ne = _of_a_tensor("ne")
lt = _of_a_tensor("lt")
le = _of_a_tensor("le")
gt = _of_a_tensor("gt")
ge = _of_a_tensor("ge")
logical_and = _of_tensors("logical_and")
logical_or = _of_tensors("logical_or")
logical_xor = _of_tensors("logical_xor")
bitwise_and = _binary("bitwise_and")
bitwise_or = _binary("bitwise_or")
bitwise_xor = _binary("bitwise_xor")
bitwise_left_shift = _binary("bitwise_left_shift")
bitwise_right_shift = _binary("bitwise_right_shift")
gcd = _of_tensors("gcd")
lcm = _of_tensors("lcm")
fmax = _of_tensors("fmax")
fmin = _of_tensors("fmin")
hypot = _of_tensors("hypot")
xlogy = _binary("xlogy")
logaddexp = _of_tensors("logaddexp")
logaddexp2 = _of_tensors("logaddexp2")
copysign = _of_a_tensor("copysign")
heaviside = also_called(_of_tensors("heaviside"), values="other")
nextafter = _of_tensors("nextafter")

absolute, negative, multiply, sgn, fix = abs, neg, mul, sign, trunc
arcsin, arccos, arctan, arctan2 = asin, acos, atan, atan2
arcsinh, arccosh, arctanh = asinh, acosh, atanh
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
    return sub(other, a_tensor("rsub", input), alpha=alpha)


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


def clamp_min(input: Tensor, min: Any) -> Tensor:
    return maximum(input, min) if truths(input, min) else clamp(input, min)


def clamp_max(input: Tensor, max: Any) -> Tensor:
    return minimum(input, max) if truths(input, max) else clamp(input, None, max)


def truths(*given: Any) -> bool:
    """torch clamps bools by bools, but only on one side."""
    return all(isinstance(x, Tensor) and x._type.dtype is bool_ for x in given)


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    x = a_tensor("round", input)
    return call(OPS["round_decimals"], (x,), (("decimals", decimals),)) if decimals else call(OPS["round"], (x,))


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    return call(OPS["logit"], (a_tensor("logit", input),), (("eps", eps),))


def polygamma(n: int, input: Tensor) -> Tensor:
    return call(OPS["polygamma"], (a_tensor("polygamma", input),), (("n", n),))


def nan_to_num_attributes(nan: float | None, posinf: float | None, neginf: float | None) -> Attrs:
    return (("nan", 0.0 if nan is None else nan), ("posinf", posinf), ("neginf", neginf))


def nan_to_num(
    input: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    x = a_tensor("nan_to_num", input)
    return call(OPS["nan_to_num"], (x,), nan_to_num_attributes(nan, posinf, neginf))


def positive(input: Tensor) -> Tensor:
    if input._type.dtype is bool_:
        raise refuse(DTypeError, "not defined for bool", "positive", input)
    return input


def float_power(input: Any, exponent: Any) -> Tensor:
    """`pow` in float64."""
    given = operands("float_power", input, exponent)
    a, b = (cast(x, float64) if isinstance(x, Tensor) else float(x) for x in given)
    return pair(POW, a, b)


def ldexp(input: Tensor, other: Any) -> Tensor:
    return mul(a_tensor("ldexp", input), pow(2.0, other))


def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    return call(OPS["lerp"], operands("lerp", input, end, weight))


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    return call(OPS["addcmul"], operands("addcmul", input, tensor1, tensor2, value))


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    return call(OPS["addcdiv"], operands("addcdiv", input, tensor1, tensor2, value))


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """With one argument ``nonzero(condition, as_tuple=True)``, which reads how many there are."""
    if input is None and other is None:
        from gt.functions.rearrange import nonzero

        return nonzero(condition, as_tuple=True)
    return call(WHERE, operands("where", condition, input, other))


_NUMBER: dict[str, Callable[[Any], Any]] = {"b": bool, "i": int, "u": int, "f": lambda value: value}


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """The value is brought to the tensor's dtype, never the other way round."""
    mask = a_tensor("masked_fill", mask)
    return call(MASKED_FILL, (input, mask, fitting("masked_fill", input, value)))


def fitting(name: str, x: Tensor, value: Any) -> Any:
    """A number, or a tensor without dims, in x's dtype."""
    _, value = operands(name, x, value)
    if not isinstance(value, Tensor):
        return _NUMBER[x._type.dtype.kind](value)
    if value._type.ndim:
        raise refuse(DTypeError, "the value is a number or a tensor without dims", name, x, value)
    return cast(value, x._type.dtype)


def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """How the copy lies in memory is the worker's business."""
    return call(CLONE, (a_tensor("clone", input),))


# -- comparing tensors with tolerance ------------------------------------------------------


def isclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    a, b = a_tensor("isclose", input), a_tensor("isclose", other)
    if a._type.dtype is not b._type.dtype:
        text = f"dtypes differ: {a._type.dtype.name} and {b._type.dtype.name}"
        raise refuse(DTypeError, text, "isclose", a, b)
    if rtol < 0 or atol < 0:
        raise refuse(ShapeError, "rtol and atol are not negative", "isclose", a, b, rtol=rtol, atol=atol)
    close = eq(a, b)
    if equal_nan and a._type.dtype.kind == "f":
        close = logical_or(close, logical_and(isnan(a), isnan(b)))
    if (rtol == 0 and atol == 0) or a._type.dtype is bool_:
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
