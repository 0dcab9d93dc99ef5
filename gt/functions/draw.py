"""torch's random tensors. The numbers depend on the seed and the call, not on the workers that draw them."""

from __future__ import annotations

from typing import Any

from gt.client.stream import connect
from gt.client.tensor import random_state
from gt.client.tensor.arguments import cast, dtype_of, operand, refuse, require_real, require_tensor, sizes
from gt.client.tensor.emit import call, coded_call, create
from gt.client.tensor.random_state import Generator
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import pointwise
from gt.functions.creation import default_dtype, dtype_like, size_from, to_number, with_options
from gt.functions.sort import argsort, topk
from gt.functions.spectral.complex import view_as_complex
from gt.ops import OPS, Attrs
from gt.ops.infer import broadcast_shapes
from gt.types import NUMBER_OF, DType, Shape, float32, float64, int64, real_of

RAND, RANDN, RANDINT, LT = OPS["rand"], OPS["randn"], OPS["randint"], OPS["lt"]

__all__ = [
    "bernoulli", "binomial", "multinomial", "normal", "poisson", "rand", "rand_like", "randint", "randint_like",
    "randn", "randn_like", "randperm",
]  # fmt: skip


def _drawn(op: Any, shape: Shape, dtype: Any, generator: Generator | None, *limits: int) -> Tensor:
    if dtype_of(dtype).kind == "c" and op is not RANDINT:
        return _complex_drawn(op, shape, dtype_of(dtype), generator)
    attrs = (("shape", shape), ("dtype", dtype_of(dtype).name))
    session = connect.session()
    # the signature first: a call that is refused must not use up a stream of random numbers
    types = (NUMBER_OF[int],) * (2 + len(limits))
    coded_call(session, op, attrs, types, False)
    return create(op, (*random_state.key(generator), *limits), attrs, session)


def _complex_drawn(op: Any, shape: Shape, dtype: DType, generator: Generator | None) -> Tensor:
    """Both parts are drawn. Those of a normal number have a variance of 1/2 each, as in torch."""
    parts = _drawn(op, (*shape, 2), real_of(dtype), generator)
    return view_as_complex(parts * 0.5**0.5 if op is RANDN else parts)


@with_options
def rand(*shape: Any, size: Any = None, dtype: Any = None, generator: Generator | None = None) -> Tensor:
    """Random numbers, uniform in [0, 1)."""
    return _drawn(RAND, size_from(size, shape, "rand"), default_dtype(dtype), generator)


@with_options
def randn(*shape: Any, size: Any = None, dtype: Any = None, generator: Generator | None = None) -> Tensor:
    """Random numbers from the normal distribution of mean 0 and variance 1."""
    return _drawn(RANDN, size_from(size, shape, "randn"), default_dtype(dtype), generator)


@with_options
def randint(
    *limits_and_size: Any,
    low: int = 0,
    high: int | None = None,
    size: Any = None,
    dtype: Any = int64,
    generator: Generator | None = None,
) -> Tensor:
    """Random integers: ``randint(high, size)`` or ``randint(low, high, size)``; high is excluded."""
    arguments = list(limits_and_size)
    if size is None:
        size = arguments.pop() if arguments else ()
    if high is None:
        high = arguments.pop() if arguments else 0
    low, high = to_number("randint", arguments.pop() if arguments else low), to_number("randint", high)
    if high <= low:
        raise refuse(ShapeError, f"there is no integer from {low} to below {high}", "randint", low, high, size)
    return _drawn(RANDINT, sizes((size,), "randint"), int64 if dtype is None else dtype, generator, low, high)


@with_options
def rand_like(input: Tensor, *, dtype: Any = None, generator: Generator | None = None) -> Tensor:
    """Random numbers, uniform in [0, 1), in the shape of a tensor."""
    return _drawn(RAND, input._type.shape, dtype_like(input, dtype), generator)


@with_options
def randn_like(input: Tensor, *, dtype: Any = None, generator: Generator | None = None) -> Tensor:
    """Random numbers from the normal distribution, in the shape of a tensor."""
    return _drawn(RANDN, input._type.shape, dtype_like(input, dtype), generator)


@with_options
def randint_like(
    input: Tensor,
    *limits: int,
    low: int = 0,
    high: int | None = None,
    dtype: Any = None,
    generator: Generator | None = None,
) -> Tensor:
    """Random integers in [low, high), in the shape of a tensor."""
    arguments = limits if high is None else (*(limits or (low,)), high)
    return randint(*arguments, input._type.shape, dtype=dtype_like(input, dtype), generator=generator)


@with_options
def randperm(n: int, *, dtype: Any = int64, generator: Generator | None = None) -> Tensor:
    """The integers below n in random order."""
    return cast(argsort(rand(n, dtype=float64, generator=generator)), dtype_of(dtype))


def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
    """Random zeros and ones; each is 1 with the probability in the tensor, or with probability p."""
    input = require_tensor("bernoulli", input)
    dtype = input._type.dtype if input._type.dtype.kind == "f" else float32
    drawn = rand(input._type.shape, dtype=dtype, generator=generator)
    return cast(call(LT, (drawn, input if p is None else p)), input._type.dtype)


@with_options
def normal(
    mean: Any, std: Any = 1.0, size: Any = None, *, dtype: Any = None, generator: Generator | None = None
) -> Tensor:
    """Random numbers from normal distributions: ``normal(mean, std)`` with tensors, or ``normal(0.0, 1.0, (2, 3))``."""
    mean, std = operand(mean), operand(std)
    if isinstance(std, Tensor):
        require_real("normal", std)
    if size is None:
        if not isinstance(mean, Tensor) and not isinstance(std, Tensor):
            raise DTypeError("normal(): needs a tensor or a size")
        size = broadcast_shapes(*(x._type.shape if isinstance(x, Tensor) else () for x in (mean, std)))
        floating = [x._type.dtype for x in (mean, std) if isinstance(x, Tensor) and x._type.dtype.kind == "f"]
        dtype = floating[0] if dtype is None and floating else dtype
    drawn: Tensor = randn(size, dtype=dtype, generator=generator) * std + mean
    return drawn


def _sampled(op: Any, generator: Generator | None, *parameters: Tensor, attrs: Attrs = ()) -> Tensor:
    """Values drawn with these parameters."""
    types: tuple[Any, ...] = (*(x._type for x in parameters), *(NUMBER_OF[int],) * 2)
    coded_call(connect.session(), op, attrs, types, False)  # as in `_drawn`
    return call(op, (*parameters, *random_state.key(generator)), attrs)


def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Random numbers from Poisson distributions with these rates; NaN where a rate is negative."""
    return _sampled(OPS["poisson"], generator, require_tensor("poisson", input))


def binomial(count: Tensor, prob: Tensor, generator: Generator | None = None) -> Tensor:
    """How many of ``count`` trials succeed, at random, each with probability ``prob``; NaN for other numbers."""
    parameters = require_tensor("binomial", count), require_tensor("binomial", prob)
    return _sampled(OPS["binomial"], generator, *parameters)


def standard_gamma(concentration: Tensor, generator: Generator | None = None) -> Tensor:
    """Random numbers from gamma distributions of rate 1, with gradients of the concentration."""
    return _sampled(OPS["standard_gamma"], generator, concentration)


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """Random positions, drawn in proportion to weights; the weights are not checked to be 0 or more."""
    x = require_tensor("multinomial", input)
    if x._type.ndim not in (1, 2) or x._type.dtype.kind != "f":
        raise refuse(ShapeError, "needs floating weights, of one or two dims", "multinomial", x, num_samples)
    n = x._type.shape[-1]
    if num_samples < 1 or (num_samples > n and not replacement):
        text = f"cannot draw {num_samples} of {n} {'with' if replacement else 'without'} replacement"
        raise refuse(ShapeError, text, "multinomial", x, num_samples)
    if replacement:
        return drawn_positions(x, num_samples, generator)
    weights = cast(x.detach(), float64)
    # an exponential race: each position waits a random time with its weight as the rate, and the first ones win
    waits = pointwise.neg(pointwise.log1p(pointwise.neg(rand_like(weights, generator=generator))))
    return topk(weights / pointwise.clamp(waits, min=1e-300), num_samples, -1).indices


def drawn_positions(weights: Tensor, count: int, generator: Generator | None = None) -> Tensor:
    """Positions along the last dim, drawn with replacement; ``count`` of them take the place of that dim."""
    return _sampled(OPS["multinomial"], generator, weights, attrs=(("num_samples", count),))
