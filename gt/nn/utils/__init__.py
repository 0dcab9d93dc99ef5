"""``gt.nn.utils``: gradients kept within bounds, and parameters as one vector."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from gt.client.grad.backward import no_grad
from gt.client.tensor.arguments import cast
from gt.client.tensor.emit import call, call_into_many, call_many
from gt.client.tensor.placing import workers_of
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import tensor
from gt.functions.joining import cat
from gt.functions.pointwise import clamp
from gt.missing import absent
from gt.nn.parameter import assign
from gt.nn.utils import rnn
from gt.ops import OPS

__all__ = [
    "clip_grad_norm_", "clip_grad_value_", "get_total_norm", "parameters_to_vector", "rnn", "vector_to_parameters",
]  # fmt: skip
__getattr__ = absent("nn.utils")

POWER_SUMS, TOTAL_POWER = OPS["power_sums"], OPS["total_power"]
SCALE_MANY, CLAMP_MANY = OPS["scale_many"], OPS["clamp_many"]

#: tensors one instruction takes
MOST = 2048


def _grads(parameters: Any) -> tuple[list[Tensor], list[Any]]:
    """The gradients there are, and on which workers their parameters were laid out."""
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    found = [(p.grad, workers_of(p)) for p in listed if p.grad is not None]
    return [g for g, _ in found], [place for _, place in found]


def _pieces(xs: list[Tensor], places: list[Any] | None = None) -> list[tuple[Tensor, ...]]:
    """Those of one dtype, in one place, together, and no more than fit into an instruction."""
    together: dict[Any, list[Tensor]] = {}
    for i, x in enumerate(xs):
        together.setdefault((x._type.dtype, places and places[i]), []).append(x)
    return [tuple(same[i : i + MOST]) for same in together.values() for i in range(0, len(same), MOST)]


@no_grad()
def get_total_norm(
    tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    return _total_norm(listed, None, float(norm_type), error_if_nonfinite)


def _total_norm(listed: list[Tensor], places: list[Any] | None, ord: float, error_if_nonfinite: bool) -> Tensor:
    """Added up place by place, so that one number leaves each."""
    if not listed:
        return tensor(0.0)
    how = (("ord", ord),)
    parts = [call(TOTAL_POWER, call_many(POWER_SUMS, piece, how), how) for piece in _pieces(listed, places)]
    if len(parts) > 1:
        parts = [call(TOTAL_POWER, tuple(cast(p, parts[0].dtype) for p in parts), how)]
    root = parts[0] if ord in (0, 1, inf, -inf) else parts[0] ** (1 / ord)
    total = root if root.dtype is listed[0].dtype else root.to(listed[0].dtype)
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(
            f"The total norm of order {ord} for gradients from `parameters` is non-finite, so it cannot be clipped. "
            "To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
    return total


@no_grad()
def clip_grad_norm_(
    parameters: Any,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """See `torch.nn.utils.clip_grad_norm_`. The norm is a tensor that nobody waited for."""
    grads, places = _grads(parameters)
    total = _total_norm(grads, places, float(norm_type), error_if_nonfinite)
    if grads:
        factor = clamp(float(max_norm) / (total + 1e-6), max=1.0)
        for piece in _pieces(_written(grads)):
            call_into_many(SCALE_MANY, piece, (factor,))
    return total


@no_grad()
def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    """See `torch.nn.utils.clip_grad_value_`."""
    limit = float(clip_value)
    for piece in _pieces(_written(_grads(parameters)[0])):
        call_into_many(CLAMP_MANY, piece, (-limit, limit))


def _written(grads: list[Tensor]) -> list[Tensor]:
    """A gradient that is a view gets a value of its own first: many tensors at once are not written through views."""
    for g in grads:
        if g._view is not None:
            assign(g, g)
            g._view = None
    return grads


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    return cat([p.reshape(-1) for p in parameters])


@no_grad()
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    start = 0
    for p in parameters:
        count = p._type.numel
        p.copy_(vec[start : start + count].reshape(p.shape))
        start += count
