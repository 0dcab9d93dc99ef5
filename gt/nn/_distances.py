"""``gt.nn.functional``: distances, and losses of them."""

from __future__ import annotations

from typing import Any

from gt.client import pointwise, reductions
from gt.client.arguments import a_tensor, cast, refuse
from gt.client.tensor import Tensor
from gt.errors import ShapeError
from gt.nn._losses import chosen, met, reduced
from gt.types import float32

__all__ = [
    "cosine_embedding_loss", "cosine_similarity", "hinge_embedding_loss", "margin_ranking_loss", "pairwise_distance",
    "triplet_margin_loss", "triplet_margin_with_distance_loss",
]  # fmt: skip


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    return reductions.norm(x1 - x2 + eps, p, -1, keepdim)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    a, b = met("cosine_similarity", [a_tensor("cosine_similarity", x) for x in (x1, x2)])
    if a._type.dtype.kind != "f":
        a, b = cast(a, float32), cast(b, float32)
    lengths = [reductions.norm(x, 2, dim, True).clamp(min=eps) for x in (a, b)]
    return reductions.sum((a / lengths[0]) * (b / lengths[1]), dim)


def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    reduction = chosen(reduction, size_average, reduce)
    a, b = input1, input2
    if (a._type.ndim, target._type.ndim) not in ((1, 0), (2, 1)):
        raise refuse(ShapeError, "a target for each row", "cosine_embedding_loss", a, b, target)
    dim = target._type.ndim
    both = ((a * a).sum(dim) + 1e-12) * ((b * b).sum(dim) + 1e-12)
    cosine = (a * b).sum(dim) / pointwise.sqrt(both)
    near = pointwise.where(target == 1, 1 - cosine, 0.0)
    far = pointwise.where(target == -1, (cosine - margin).clamp(min=0), 0.0)
    return reduced(near + far, reduction)


def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    reduction = chosen(reduction, size_average, reduce)
    if not input1._type.ndim == input2._type.ndim == target._type.ndim:
        raise refuse(ShapeError, "all have the same dims", "margin_ranking_loss", input1, input2, target)
    return reduced((-target * (input1 - input2) + margin).clamp(min=0), reduction)


def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    reduction = chosen(reduction, size_average, reduce)
    far = pointwise.where(target != 1, (margin - input).clamp(min=0), 0.0)
    return reduced(far + pointwise.where(target != -1, input, 0.0), reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    reduction = chosen(reduction, size_average, reduce)
    return triplet_margin_with_distance_loss(
        anchor,
        positive,
        negative,
        distance_function=lambda a, b: pairwise_distance(a, b, p, eps),
        margin=margin,
        swap=swap,
        reduction=reduction,
    )


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Any = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    if margin <= 0:
        raise refuse(ShapeError, "the margin is greater than 0", "triplet_margin_loss", anchor, margin=margin)
    distance = pairwise_distance if distance_function is None else distance_function
    if not anchor._type.ndim == positive._type.ndim == negative._type.ndim:
        raise refuse(ShapeError, "all have the same dims", "triplet_margin_loss", anchor, positive, negative)
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = pointwise.minimum(far, distance(positive, negative))
    return reduced((near - far + margin).clamp(min=0), chosen(reduction))
