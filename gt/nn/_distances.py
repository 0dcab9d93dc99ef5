"""``gt.nn.functional``: distances, and losses based on distances or margins."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.arguments import cast, refuse, require_real, require_tensor
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import pointwise, scan, views
from gt.functions import reduce as reductions
from gt.functions.norm import norm, vector_norm
from gt.functions.scatter import gather, index_select
from gt.nn._losses import choose_reduction, reduce_loss, unify
from gt.types import float32, int64

__all__ = [
    "cosine_embedding_loss", "cosine_similarity", "hinge_embedding_loss", "margin_ranking_loss", "multi_margin_loss",
    "multilabel_margin_loss", "pairwise_distance", "triplet_margin_loss", "triplet_margin_with_distance_loss",
]  # fmt: skip


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of the difference of vectors. See `torch.nn.functional.pairwise_distance`."""
    return norm(x1 - x2 + eps, p, -1, keepdim)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along a dim. See `torch.nn.functional.cosine_similarity`."""
    a, b = unify("cosine_similarity", [require_tensor("cosine_similarity", x) for x in (x1, x2)])
    require_real("cosine_similarity", a)
    if a._type.dtype.kind != "f":
        a, b = cast(a, float32), cast(b, float32)
    lengths = [norm(x, 2, dim, True).clamp(min=eps) for x in (a, b)]
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
    """A loss that brings pairs of target 1 together and turns pairs of target -1 apart, by their cosine."""
    reduction = choose_reduction(reduction, size_average, reduce)
    a, b = input1, input2
    if (a._type.ndim, target._type.ndim) not in ((1, 0), (2, 1)):
        raise refuse(ShapeError, "needs one target per row", "cosine_embedding_loss", a, b, target)
    dim = target._type.ndim
    both = ((a * a).sum(dim) + 1e-12) * ((b * b).sum(dim) + 1e-12)
    cosine = (a * b).sum(dim) / pointwise.sqrt(both)
    near = pointwise.where(target == 1, 1 - cosine, 0.0)
    far = pointwise.where(target == -1, (cosine - margin).clamp(min=0), 0.0)
    return reduce_loss(near + far, reduction)


def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """A loss for the order of two inputs: the first is to be greater where the target is 1."""
    reduction = choose_reduction(reduction, size_average, reduce)
    if not input1._type.ndim == input2._type.ndim == target._type.ndim:
        raise refuse(ShapeError, "all must have the same number of dims", "margin_ranking_loss", input1, input2, target)
    return reduce_loss((-target * (input1 - input2) + margin).clamp(min=0), reduction)


def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The input where the target is 1, and max(0, margin - input) where it is -1, averaged."""
    reduction = choose_reduction(reduction, size_average, reduce)
    far = pointwise.where(target != 1, (margin - input).clamp(min=0), 0.0)
    return reduce_loss(far + pointwise.where(target != -1, input, 0.0), reduction)


def _as_batch(name: str, input: Tensor, target: Tensor, target_ndim: int) -> tuple[Tensor, Tensor]:
    """Input and target as a batch; a single example becomes a batch of one."""
    x, t = require_tensor(name, input), require_tensor(name, target)
    unbatched = x._type.ndim < 2
    if t._type.dtype is not int64:
        raise refuse(DTypeError, "the target must hold class numbers in int64", name, x, t)
    x = views.reshape(x, (1, -1)) if unbatched else x
    t = views.reshape(t, (1, -1) if target_ndim == 2 else 1) if unbatched else t
    if x._type.ndim != 2 or t._type.shape != x._type.shape[:target_ndim] or not x._type.shape[1]:
        raise refuse(ShapeError, "inconsistent target size", name, input, target)
    return x, t


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """A hinge loss of the right class against each other class. See `torch.nn.functional.multi_margin_loss`."""
    name, reduction = "multi_margin_loss", choose_reduction(reduction, size_average, reduce)
    if p not in (1, 2):
        raise refuse(ShapeError, "only p == 1 and p == 2 are supported", name, input, target, p)
    if weight is not None and weight._type.ndim != 1:
        raise refuse(ShapeError, "weight must be one-dimensional", name, input, target, weight)
    if weight is not None and weight._type.dtype is not input._type.dtype:
        raise refuse(DTypeError, "the weight must have the input's dtype", name, input, target, weight)
    x, t = _as_batch(name, input, target, 1)
    target_class = views.unsqueeze(t, 1)
    over = (margin - gather(x, 1, target_class) + x).clamp(min=0)
    over = over if p == 1 else over * over
    over = over if weight is None else over * views.unsqueeze(index_select(weight, 0, t), 1)
    each = reductions.sum(over.scatter(1, target_class, 0.0), 1) / x._type.shape[1]
    return reduce_loss(views.reshape(each, target._type.shape), reduction)


def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """A hinge loss of each right class against each other class. The target lists classes up to the first -1."""
    reduction = choose_reduction(reduction, size_average, reduce)
    x, t = _as_batch("multilabel_margin_loss", input, target, 2)
    listed = scan.cumprod(cast(t >= 0, int64), 1)
    classes = t * listed
    is_target = x.detach().new_zeros(x._type.shape, dtype=int64).scatter_add(1, classes, listed) > 0
    over = (1 - views.unsqueeze(gather(x, 1, classes), 2) + views.unsqueeze(x, 1)).clamp(min=0)
    counts = pointwise.logical_and(views.unsqueeze(listed, 2), pointwise.logical_not(views.unsqueeze(is_target, 1)))
    each = reductions.sum(pointwise.where(counts, over, 0.0), (1, 2)) / x._type.shape[1]
    return reduce_loss(views.reshape(each, target._type.shape[:-1]), reduction)


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
    """A loss that is 0 once the negative is farther from the anchor than the positive, by the margin."""
    reduction = choose_reduction(reduction, size_average, reduce)
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
    """The triplet loss with a distance function of the caller's."""
    if margin <= 0:
        raise refuse(ShapeError, "the margin must be greater than 0", "triplet_margin_loss", anchor, margin=margin)
    distance = pairwise_distance if distance_function is None else distance_function
    if not anchor._type.ndim == positive._type.ndim == negative._type.ndim:
        raise refuse(
            ShapeError, "all must have the same number of dims", "triplet_margin_loss", anchor, positive, negative
        )
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = pointwise.minimum(far, distance(positive, negative))
    return reduce_loss((near - far + margin).clamp(min=0), choose_reduction(reduction))


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """The distance of each row of x1 to each row of x2; ``compute_mode`` is ignored. See `torch.cdist`."""
    a, b = require_tensor("cdist", x1), require_tensor("cdist", x2)
    if a._type.ndim < 2 or b._type.ndim < 2:
        raise refuse(ShapeError, "needs tensors of at least two dims", "cdist", a, b)
    if a._type.shape[-1] != b._type.shape[-1]:
        raise refuse(ShapeError, "both need the same number of columns", "cdist", a, b)
    if a._type.dtype.kind != "f" or b._type.dtype.kind != "f":
        raise refuse(DTypeError, "needs floating tensors", "cdist", a, b)
    if p < 0:
        raise refuse(ShapeError, "p must not be negative", "cdist", a, b, p=p)
    return vector_norm(views.unsqueeze(a, -2) - views.unsqueeze(b, -3), p, -1)
