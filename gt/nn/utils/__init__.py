"""``gt.nn.utils``: clipping of gradients, parameters as one vector, and weights that are computed from others.

It may import all of gt below gt.nn, and the modules of gt.nn.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from gt.client.grad.backward import no_grad
from gt.client.tensor.arguments import cast
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.multi_tensor import call_into_many
from gt.client.tensor.placing import workers_of
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import tensor
from gt.functions.joining import cat
from gt.functions.pointwise import clamp
from gt.missing import absent
from gt.nn.parameter import assign
from gt.nn.utils import fusion, parametrizations, parametrize, rnn
from gt.nn.utils.weights import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm
from gt.ops import OPS

__all__ = [
    "clip_grad_norm_", "clip_grad_value_", "fusion", "get_total_norm", "parameters_to_vector", "parametrizations",
    "parametrize", "remove_spectral_norm", "remove_weight_norm", "rnn", "spectral_norm", "vector_to_parameters",
    "weight_norm",
]  # fmt: skip
absent("nn.utils")

POWER_SUMS, TOTAL_POWER = OPS["power_sums"], OPS["total_power"]
SCALE_MANY, CLAMP_MANY = OPS["scale_many"], OPS["clamp_many"]

#: The most tensors in one instruction.
MAX_TENSORS = 2048


def _grads(parameters: Any) -> tuple[list[Tensor], list[Any]]:
    """The gradients that exist, and the workers on which their parameters are placed."""
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    pairs = [(p.grad, workers_of(p)) for p in listed if p.grad is not None]
    return [g for g, _ in pairs], [place for _, place in pairs]


def _batches(xs: list[Tensor], places: list[Any] | None = None) -> list[tuple[Tensor, ...]]:
    """Tensors of one dtype on the same workers, in batches that fit into one instruction."""
    groups: dict[Any, list[Tensor]] = {}
    for i, x in enumerate(xs):
        groups.setdefault((x._type.dtype, places and places[i]), []).append(x)
    return [tuple(group[i : i + MAX_TENSORS]) for group in groups.values() for i in range(0, len(group), MAX_TENSORS)]


@no_grad()
def get_total_norm(
    tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """The norm of all tensors as one vector. See `torch.nn.utils.get_total_norm`."""
    listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    return _total_norm(listed, None, float(norm_type), error_if_nonfinite)


def _total_norm(listed: list[Tensor], places: list[Any] | None, ord: float, error_if_nonfinite: bool) -> Tensor:
    """Powers are added up on each set of workers first, so that only one number leaves it."""
    if not listed:
        return tensor(0.0)
    attrs = (("ord", ord),)
    sums = [call(TOTAL_POWER, call_many(POWER_SUMS, batch, attrs), attrs) for batch in _batches(listed, places)]
    if len(sums) > 1:
        sums = [call(TOTAL_POWER, tuple(cast(s, sums[0].dtype) for s in sums), attrs)]
    root = sums[0] if ord in (0, 1, inf, -inf) else sums[0] ** (1 / ord)
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
    """Scale gradients so that their norm is at most max_norm, and return the norm before.

    The client does not wait for the norm unless ``error_if_nonfinite`` is set. See `torch.nn.utils.clip_grad_norm_`.
    """
    grads, places = _grads(parameters)
    total = _total_norm(grads, places, float(norm_type), error_if_nonfinite)
    if grads:
        factor = clamp(float(max_norm) / (total + 1e-6), max=1.0)
        for batch in _batches(without_views(grads)):
            call_into_many(SCALE_MANY, batch, (factor,), ())
    return total


@no_grad()
def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    """Clamp the elements of gradients between -clip_value and clip_value. See `torch.nn.utils.clip_grad_value_`."""
    limit = float(clip_value)
    for batch in _batches(without_views(_grads(parameters)[0])):
        call_into_many(CLAMP_MANY, batch, (), (-limit, limit))


def without_views(grads: list[Tensor]) -> list[Tensor]:
    """Replace each gradient that is a view by a copy: one instruction cannot write many tensors through views."""
    for g in grads:
        if g._view is not None:
            assign(g, g)
            g._view = None
    return grads


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters as one vector. See `torch.nn.utils.parameters_to_vector`."""
    return cat([p.reshape(-1) for p in parameters])


@no_grad()
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copy the parts of a vector into parameters. See `torch.nn.utils.vector_to_parameters`."""
    start = 0
    for p in parameters:
        count = p._type.numel
        p.copy_(vec[start : start + count].reshape(p.shape))
        start += count
