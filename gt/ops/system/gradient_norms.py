"""Ops on all gradients at once: their norm, clipping and unscaling."""

from __future__ import annotations

from math import inf, isnan
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.attributes import check_numbers
from gt.ops.nn.layer_norm import floating_input, statistic
from gt.ops.op import NUMBER, Types, op
from gt.ops.split import Apart, Split, elementwise, letters
from gt.ops.system.optimizer_steps import OFF_TAPE, alone, as_float
from gt.ops.varying import by_kernel
from gt.types import OperandType, TensorType, float32, float64


def _tensors(*operands: TensorType) -> tuple[TensorType, ...]:
    for t in operands:
        floating_input(t)
    return operands


# -- the norm of all -----------------------------------------------------------------------
# two ops and a root, not one op: the sums of sharded tensors are combined before the root is taken

#: orders whose norms are not combined by addition
_EXTREMES = {inf: "max", -inf: "min"}


def _power_types(*xs: TensorType, ord: float) -> Types:
    check_numbers(float64, ord=ord)
    if isnan(ord):
        raise ShapeError("ord is NaN")
    for x in xs:
        if ord in _EXTREMES and not x.numel:
            raise ShapeError(f"there is no extreme of {x}")
    return tuple(TensorType((), statistic(x.dtype)) for x in _tensors(*xs))


def _powers_numpy(np: Any, *xs: Any, ord: float) -> Any:
    wide = [np.abs(x.astype(np.promote_types(x.dtype, np.float32))) for x in xs]
    if ord in _EXTREMES:
        return alone(tuple(getattr(np, _EXTREMES[ord])(x) for x in wide))
    return alone(tuple((x != 0).sum() if ord == 0 else (x**ord).sum() for x in wide))


def _norm(torch: Any, x: Any, ord: float) -> Any:
    dtype = torch.promote_types(x.dtype, torch.float32)
    if not x.numel():  # a block may be empty, and torch has no norm of negative order for it
        return x.new_full((), 0 if ord > 0 else inf, dtype=dtype)
    return torch.linalg.vector_norm(x, ord, dtype=dtype)


def _powers_torch(torch: Any, *xs: Any, ord: float) -> Any:
    if ord not in (0, 1, 2, inf) or len({x.dtype for x in xs}) > 1:  # torch has no kernel for all of them at once
        norms = [_norm(torch, x, ord) for x in xs]
    else:
        norms = torch._foreach_norm(xs, ord, dtype=torch.promote_types(xs[0].dtype, torch.float32))
    return alone(tuple(norms if ord in (0, 1, inf, -inf) else torch._foreach_pow(norms, ord)))


def _powering(*xs: TensorType, ord: float) -> Apart:
    how = _EXTREMES.get(ord, "sum")
    names = [letters(x.ndim) for x in xs]
    parts = [Split(f"{n}->", reduce=how, filled="" if how == "sum" else n) for n in names]
    return Apart(tuple(((i,), (i,), part) for i, part in enumerate(parts)), calls="")


#: for each tensor, the sum of its elements' powers; for infinite orders, the greatest or the least element
op(
    "power_sums",
    no_gradient=OFF_TAPE,
    infer=_power_types,
    split=_powering,
    torch=_powers_torch,
    kernel=_powers_numpy,
)


def _put_together(*xs: TensorType, ord: float) -> TensorType:
    check_numbers(float64, ord=ord)
    if any(x is not xs[0] or x.ndim for x in _tensors(*xs)):
        raise DTypeError("takes tensors of one dtype, without dims")
    return xs[0]


def _adding(*xs: TensorType, ord: float) -> Split:
    return Split(f"{',' * (len(xs) - 1)}->", linear=() if ord in _EXTREMES else (tuple(range(len(xs))),))


def _together_torch(torch: Any, *xs: Any, ord: float) -> Any:
    return getattr(torch, _EXTREMES.get(ord, "sum"))(torch.stack(xs))


def _together_numpy(np: Any, *xs: Any, ord: float) -> Any:
    return getattr(np, _EXTREMES.get(ord, "sum"))(np.stack(xs))


op(
    "total_power",
    no_gradient=OFF_TAPE,
    infer=_put_together,
    split=_adding,
    torch=_together_torch,
    kernel=_together_numpy,
)

# -- scaled and kept within bounds ---------------------------------------------------------


def _scale_many_(torch: Any, *xs: Any) -> Any:
    torch._foreach_mul_(list(xs[:-1]), xs[-1])
    return alone(xs[:-1])


def _scaling(*xs: TensorType) -> Apart:
    last = len(xs) - 1
    each = (((i, last), (i,), elementwise(x, xs[last], linear=((0,),))) for i, x in enumerate(xs[:-1]))
    return Apart(tuple(each), calls="")


def _scaled(*xs: TensorType) -> Types:
    if xs[-1].ndim:
        raise ShapeError(f"the factor is a tensor without dims, not {xs[-1]}")
    return _tensors(*xs)[:-1]


op(
    "scale_many",
    no_gradient=OFF_TAPE,
    operands="tt+",
    infer=_scaled,
    split=_scaling,
    kernel=lambda xp, *xs: alone(tuple(xp.astype(x * xs[-1], x.dtype, copy=False) for x in xs[:-1])),
    inplace=_scale_many_,
)


def _clamp_many_(torch: Any, *operands: Any) -> Any:
    *xs, low, high = operands
    low, high = as_float(low), as_float(high)
    torch._foreach_clamp_min_(xs, low)
    torch._foreach_clamp_max_(xs, high)
    return alone(tuple(xs))


op(
    "clamp_many",
    no_gradient=OFF_TAPE,
    operands=f"t+{NUMBER}{{2}}",
    infer=lambda *xs: _tensors(*xs[:-2]),
    split=lambda *xs: Apart(tuple(((i,), (i,), elementwise(x)) for i, x in enumerate(xs[:-2])), calls=""),
    kernel=lambda xp, *xs: alone(tuple(xp.clip(x, *map(as_float, xs[-2:])) for x in xs[:-2])),
    inplace=_clamp_many_,
)


def _unscale_types(*operands: OperandType) -> tuple[TensorType, ...]:
    *xs, flag, _ = operands
    if flag is not TensorType((), float32):
        raise DTypeError(f"the flag for gradients that are not finite is a 0-d tensor of float32, not {flag}")
    return _tensors(*xs, flag)  # type: ignore[arg-type]


def _unscale(xp: Any, *operands: Any) -> Any:
    *xs, flag, factor = operands
    factor = as_float(factor)
    bad = sum(((~xp.isfinite(x)).sum() for x in xs), start=xp.zeros_like(flag)) > 0
    return alone((*(x * factor for x in xs), xp.where(bad, xp.ones_like(flag), flag)))


def _unscale_(torch: Any, *operands: Any) -> Any:
    *xs, flag, factor = operands
    by_dtype: dict[Any, list[Any]] = {}
    for x in xs:
        by_dtype.setdefault(x.dtype, []).append(x)
    if isinstance(factor, torch.Tensor):  # as in compiled code
        number = factor.to(torch.float32).view(1)
    else:
        number = torch.full((1,), as_float(factor), dtype=torch.float32, device=flag.device)
    for some in by_dtype.values():
        torch._amp_foreach_non_finite_check_and_unscale_(some, flag.view(1), number)
    return alone((*xs, flag))


def _unscaling(*operands: OperandType) -> Apart:
    """Each worker reports for its blocks; the reports are combined by their maximum."""
    xs = operands[:-2]
    flag = Split("->", reduce="max", terms=True)
    return Apart((*(((i,), (i,), elementwise(x)) for i, x in enumerate(xs)), ((len(xs),), (len(xs),), flag)))


#: gradients times a number; the last result is 1 if any of them was not finite, else as it was
op(
    "amp_unscale",
    varying=by_kernel(always=(0,)),
    no_gradient=OFF_TAPE,
    operands=f"t+{NUMBER}",
    infer=_unscale_types,
    split=_unscaling,
    kernel=_unscale,
    inplace=_unscale_,
)
