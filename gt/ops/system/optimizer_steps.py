"""The steps of optimizers: ops that work on many tensors at once.

The operands of a step are columns of ``n`` tensors each: the parameters, then each kind of state, then the gradients;
after them the numbers, which change with a schedule and so are not attributes. The results are the new parameters and
states. An optimizer writes them in place: torch does that with its fused and ``foreach`` kernels, numpy one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan, pow, sqrt
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.attributes import MAX_INT32, check_flags, check_int
from gt.ops.op import NUMBER, op
from gt.ops.split import Apart, Split, letters
from gt.ops.varying import by_kernel
from gt.types import OperandType, Shape, TensorType

#: one parameter's new values: (xp, parameter, *states, gradient, *numbers, **flags) -> (parameter, *states)
Rule = Callable[..., Any]
Columns = list[list[Any]]

#: why the ops of optimizers have no gradient
OFF_TAPE = "it is used by optimizers, off the tape"


def declare_step(
    name: str, count_results: Rule, numbers: int, rule: Rule, many: Rule | None = None, states: Rule | None = None,
    by_rows: bool = False, **fields: Any,
) -> None:  # fmt: skip
    """Declare a step on ``count_results(**flags)`` columns of parameters and states, one of gradients, and numbers.

    ``many``: writes the results of all columns in place; without it, torch runs ``rule`` for one parameter at a time.
    ``states``: (a parameter's shape, **flags) -> the shapes of its states, where they differ from the parameter's.
    ``by_rows``: the step of an element depends on the gradients of its whole row, the elements with its index in dim 0.
    """

    write = many or _one_by_one(rule, numbers)

    def in_columns(operands: tuple[Any, ...], n: int, flags: dict[str, Any]) -> tuple[Columns, tuple[Any, ...]]:
        return _columns(operands, n, count_results(**flags) + 1, numbers)

    def infer(*operands: OperandType, n: int, **flags: Any) -> tuple[TensorType, ...]:
        check_int("n", n, 1, MAX_INT32)
        check_flags(**flags)
        columns, _ = in_columns(operands, n, flags)
        for p, *rest in zip(*columns, strict=True):
            _check_parameter(p, rest, states(p.shape, **flags) if states else [p.shape] * (len(rest) - 1))
        return tuple(t for column in columns[:-1] for t in column)

    def kernel(xp: Any, *operands: Any, n: int, **flags: Any) -> Any:
        columns, rest = in_columns(operands, n, flags)
        rows = [rule(xp, *row, *rest, **flags) for row in zip(*columns, strict=True)]
        return alone(tuple(row[k] for k in range(len(columns) - 1) for row in rows))

    def inplace(torch: Any, *operands: Any, n: int, **flags: Any) -> Any:
        columns, rest = in_columns(operands, n, flags)
        write(torch, *columns, *rest, **flags)
        return alone(operands[: n * (len(columns) - 1)])

    def split(*operands: OperandType, n: int, **flags: Any) -> Apart:
        return _parameters(in_columns(operands, n, flags)[0], n, by_rows)

    fields |= {"split": split} if states is None else {}
    fields |= {"operands": f"t+{NUMBER}{{{numbers}}}", "steps": True, "no_gradient": OFF_TAPE}
    op(name, infer=infer, kernel=kernel, inplace=inplace, **fields)


def _one_by_one(rule: Rule, numbers: int) -> Rule:
    def write(torch: Any, *operands: Any, **flags: Any) -> None:
        columns, rest = operands[: len(operands) - numbers], operands[len(operands) - numbers :]
        for row in zip(*columns, strict=True):
            for target, new in zip(row[:-1], rule(torch, *row, *rest, **flags), strict=True):
                target.copy_(new)

    return write


def _columns(operands: tuple[Any, ...], n: int, count: int, numbers: int) -> tuple[Columns, tuple[Any, ...]]:
    """The tensors in columns of ``n``, and the numbers."""
    if len(operands) != n * count + numbers:
        raise ShapeError(f"takes {count} times {n} tensors and {numbers} numbers, not {len(operands)} operands")
    rest = tuple(map(as_float, operands[n * count :]))
    return [list(operands[k * n : k * n + n]) for k in range(count)], rest


def _check_parameter(p: TensorType, rest: list[TensorType], shapes: list[Shape]) -> None:
    """Refuses states and gradients that torch's fused kernels would read, or write, beyond their end."""
    *states, g = rest
    if p.dtype.kind != "f":
        raise DTypeError(f"not defined for {p.dtype.name}")
    if g is not p:
        raise ShapeError(f"a gradient {g} does not belong to a parameter {p}")
    for state, shape in zip(states, shapes, strict=True):
        if state is not TensorType(shape, p.dtype):
            raise ShapeError(f"a state {state} does not belong to a parameter {p}")


def as_float(number: Any) -> Any:
    """An int as a float: torch converts no int of more than 64 bits. A 0-d tensor, in compiled code, stays one."""
    return float(number) if isinstance(number, int) else number


def power(base: Any, exponent: Any) -> Any:
    """The power as in C: an overflow is an infinity, and an undefined result is NaN."""
    if not isinstance(base, float) or not isinstance(exponent, float):
        return base**exponent
    try:
        return pow(base, exponent)
    except OverflowError:
        return inf
    except ValueError:
        return nan if base else inf


def root(x: Any) -> float:
    return sqrt(x) if x >= 0 else nan


def over(a: Any, b: Any) -> Any:
    """a / b as in C."""
    if isinstance(b, float) and not b:
        return a * inf
    return a / b


def _parameters(columns: Columns, n: int, by_rows: bool) -> Apart:
    """Each parameter is split independently, by elements or by rows, with its states and its gradient."""
    parts = []
    for i, row in enumerate(zip(*columns, strict=True)):
        alike = all(t.shape == row[0].shape for t in row)
        dims = [letters(t.ndim) if alike else "." * t.ndim for t in row]
        names = [name[:1] + "." * len(name[1:]) for name in dims] if by_rows else dims
        at = tuple(k * n + i for k in range(len(row)))
        parts.append((at, at[:-1], Split(f"{','.join(names)}->{','.join(names[:-1])}")))
    return Apart(tuple(parts), calls="n")


def alone(results: tuple[Any, ...]) -> Any:
    """The results; a single one is not in a tuple."""
    return results if len(results) > 1 else results[0]


def same_strides(torch: Any, params: list[Any], *others: list[Any]) -> tuple[list[Any], ...]:
    """torch's fused kernels need equal strides: tensors with other strides are copied first."""
    return tuple(
        [x if x.stride() == p.stride() else torch.empty_like(p).copy_(x) for p, x in zip(params, xs, strict=True)]
        for xs in others
    )


def decayed_gradients(
    torch: Any, params: list[Any], grads: list[Any], weight_decay: float, maximize: bool
) -> list[Any]:
    """The gradients with weight decay and sign; fresh memory if they differ from the originals."""
    if maximize:
        grads = torch._foreach_neg(grads)
    if isinstance(weight_decay, torch.Tensor):
        decayed: list[Any] = torch._foreach_add(grads, torch._foreach_mul(params, weight_decay))
        return decayed
    return torch._foreach_add(grads, params, alpha=weight_decay) if weight_decay else grads


def add_scaled_(torch: Any, xs: list[Any], ys: list[Any], factor: Any) -> None:
    """xs += ys * factor; in compiled code a factor that changes from run to run is a 0-d tensor."""
    if isinstance(factor, torch.Tensor):
        torch._foreach_add_(xs, torch._foreach_mul(ys, factor))
    else:
        torch._foreach_add_(xs, ys, alpha=factor)


def decayed_gradient(p: Any, g: Any, weight_decay: float, maximize: bool) -> Any:
    g = -g if maximize else g
    return g + p * weight_decay if weight_decay else g


# -- SGD -----------------------------------------------------------------------------------


def _sgd(xp: Any, p: Any, *rest: Any, momentum: bool, nesterov: bool, maximize: bool) -> tuple[Any, ...]:
    *states, g, lr, decay, factor, dampening = rest
    g = decayed_gradient(p, g, decay, maximize)
    if not momentum:
        return (p - lr * g,)
    buffer = states[0] * factor + (1 - dampening) * g
    return p - lr * (g + factor * buffer if nesterov else buffer), buffer


def _sgd_many(torch: Any, params: list[Any], *rest: Any, momentum: bool, nesterov: bool, maximize: bool) -> None:
    *states, grads, lr, decay, factor, dampening = rest
    grads = decayed_gradients(torch, params, grads, decay, maximize)
    if momentum:
        torch._foreach_mul_(states[0], factor)
        add_scaled_(torch, states[0], grads, 1 - dampening)
        grads = decayed_gradients(torch, states[0], grads, factor, False) if nesterov else states[0]
    add_scaled_(torch, params, grads, -lr)


declare_step("sgd_step", lambda momentum, **_: 1 + momentum, 4, _sgd, _sgd_many, varying=by_kernel(always=(0,)))


# -- Adagrad, RMSprop, Lion ----------------------------------------------------------------


def _adagrad(xp: Any, p: Any, total: Any, g: Any, lr: float, decay: float, eps: float, *, maximize: bool) -> Any:
    g = decayed_gradient(p, g, decay, maximize)
    total = total + g * g
    return p - lr * g / (xp.sqrt(total) + eps), total


def _adagrad_many(
    torch: Any, params: Any, totals: Any, grads: Any, lr: float, decay: float, eps: float, *, maximize: bool
) -> None:
    grads = decayed_gradients(torch, params, grads, decay, maximize)
    torch._foreach_addcmul_(totals, grads, grads, value=1)
    deviations = torch._foreach_sqrt(totals)
    torch._foreach_add_(deviations, eps)
    torch._foreach_addcdiv_(params, torch._foreach_mul(grads, -lr), deviations)


#: its lr is already the one of this step
declare_step(
    "adagrad_step", lambda **_: 2, 3, _adagrad, _adagrad_many, varying=by_kernel(always=(0,), may_change=(0, 1))
)


def _rmsprop(xp: Any, p: Any, square: Any, *rest: Any, momentum: bool, centered: bool, maximize: bool) -> Any:
    *states, g, lr, alpha, eps, decay, factor = rest
    g = decayed_gradient(p, g, decay, maximize)
    square = square * alpha + g * g * (1 - alpha)
    new, variance = [square], square
    if centered:
        mean = states[0] + (g - states[0]) * (1 - alpha)
        new.append(mean)
        variance = square - mean * mean
    step = g / (xp.sqrt(variance) + eps)
    if momentum:
        step = states[-1] * factor + step
        new.append(step)
    return (p - lr * step, *new)


def _rmsprop_many(
    torch: Any, params: Any, squares: Any, *rest: Any, momentum: bool, centered: bool, maximize: bool
) -> None:
    *states, grads, lr, alpha, eps, decay, factor = rest
    grads = decayed_gradients(torch, params, grads, decay, maximize)
    torch._foreach_mul_(squares, alpha)
    torch._foreach_addcmul_(squares, grads, grads, value=1 - alpha)
    if centered:
        torch._foreach_lerp_(states[0], grads, 1 - alpha)
        deviations = torch._foreach_addcmul(squares, states[0], states[0], value=-1)
        torch._foreach_sqrt_(deviations)
    else:
        deviations = torch._foreach_sqrt(squares)
    torch._foreach_add_(deviations, eps)
    if momentum:
        torch._foreach_mul_(states[-1], factor)
        torch._foreach_addcdiv_(states[-1], grads, deviations)
        add_scaled_(torch, params, states[-1], -lr)
    elif isinstance(lr, torch.Tensor):
        add_scaled_(torch, params, torch._foreach_div(grads, deviations), -lr)
    else:
        torch._foreach_addcdiv_(params, grads, deviations, value=-lr)


declare_step(
    "rmsprop_step",
    lambda momentum, centered, **_: 2 + momentum + centered,
    5,
    _rmsprop,
    _rmsprop_many,
    varying=by_kernel(always=(0,), may_change=(0, 3, 4)),
)


def _lion(
    xp: Any, p: Any, m: Any, g: Any, lr: float, beta1: float, beta2: float, decay: float, *, maximize: bool
) -> Any:
    g = -g if maximize else g
    direction = m * beta1 + g * (1 - beta1)
    one = xp.ones_like(direction)
    # as in torch, the sign of NaN is 0
    sign = xp.where(direction > 0, one, xp.where(direction < 0, -one, xp.zeros_like(direction)))
    return p * (1 - lr * decay) - lr * sign, m * beta2 + g * (1 - beta2)


def _lion_many(
    torch: Any, params: Any, means: Any, grads: Any, lr: float, beta1: float, beta2: float, decay: float,
    *, maximize: bool,
) -> None:  # fmt: skip
    grads = torch._foreach_neg(grads) if maximize else grads
    torch._foreach_mul_(params, 1 - lr * decay)
    directions = torch._foreach_mul(means, beta1)
    torch._foreach_add_(directions, grads, alpha=1 - beta1)
    torch._foreach_sign_(directions)
    add_scaled_(torch, params, directions, -lr)
    torch._foreach_mul_(means, beta2)
    torch._foreach_add_(means, grads, alpha=1 - beta2)


declare_step("lion_step", lambda **_: 2, 4, _lion, _lion_many, varying=by_kernel(always=(0,), may_change=(0, 3)))


# -- Adafactor -----------------------------------------------------------------------------


def _adafactor(xp: Any, p: Any, *rest: Any, factored: bool, maximize: bool) -> tuple[Any, ...]:
    *states, g, lr, beta2_decay, eps1, eps2, d, decay, step = rest
    g = -g if maximize else g
    fresh = power(step, beta2_decay)
    scale = _root_mean(xp, p)
    alpha = xp.where(scale > eps2, scale, xp.zeros_like(scale) + eps2) * min(lr, over(1.0, root(step)))
    p = p * (1 - lr * decay) if decay else p
    squares = g * g
    if factored:
        row, column = states
        row = row + (xp.mean(squares, axis=-1, keepdims=True) - row) * fresh
        column = column + (xp.mean(squares, axis=-2, keepdims=True) - column) * fresh
        mean = xp.mean(row, axis=-2, keepdims=True)
        estimate = row @ column / xp.where(mean > eps1, mean, xp.zeros_like(mean) + eps1)
        states = [row, column]
    else:
        estimate = states[0] + (squares - states[0]) * fresh
        states = [estimate]
    floor = xp.zeros_like(estimate) + eps1 * eps1
    update = g / xp.sqrt(xp.where(estimate > floor, estimate, floor))
    excess = _root_mean(xp, update) / d
    return (p - update * (alpha / xp.where(excess > 1, excess, xp.zeros_like(excess) + 1)), *states)


def _root_mean(xp: Any, x: Any) -> Any:
    return xp.sqrt(xp.mean(x * x))


def _adafactor_states(shape: Shape, factored: bool, maximize: bool) -> list[Shape]:
    if not factored:
        return [shape]
    if len(shape) < 2:
        raise ShapeError(f"a parameter of {len(shape)} dims has no rows and columns; use factored=False")
    return [(*shape[:-1], 1), (*shape[:-2], 1, shape[-1])]


declare_step(
    "adafactor_step",
    lambda factored, **_: 2 + factored,
    7,
    _adafactor,
    states=_adafactor_states,
    whole="a step depends on the mean of a whole parameter's squares",
)
