"""What torch has at its top too, with its arguments in another order, and with reductions as numbers."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.arguments import a_tensor, refuse
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import views
from gt.functions.norm import vector_norm
from gt.nn import functional as F

__all__ = [
    "alpha_dropout", "batch_norm", "binary_cross_entropy_with_logits", "cdist", "cosine_embedding_loss", "dropout",
    "embedding", "feature_alpha_dropout", "feature_dropout", "hinge_embedding_loss", "instance_norm", "kl_div",
    "margin_ranking_loss", "poisson_nll_loss", "triplet_margin_loss",
]  # fmt: skip


def _reduction(number: int) -> str:
    """By the number torch's own functions have for it. Left out it is none, in torch too, whose help says mean."""
    if number not in (0, 1, 2):
        raise ShapeError(f"reduction is 0 (none), 1 (mean) or 2 (sum), and {number!r} is not")
    return ("none", "mean", "sum")[number]


def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def instance_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    return F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """A negative ``padding_idx`` is none."""
    pad = None if padding_idx < 0 else padding_idx
    return F.embedding(indices, weight, pad, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)


def dropout(input: Tensor, p: float, train: bool) -> Tensor:
    return F.dropout(input, p, train)


def alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    return F.alpha_dropout(input, p, train)


def feature_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    return F.dropout2d(input, p, train)


def feature_alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    return F.feature_alpha_dropout(input, p, train)


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = 0
) -> Tensor:
    return F.cosine_embedding_loss(input1, input2, target, margin, reduction=_reduction(reduction))


def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, reduction: int = 0) -> Tensor:
    return F.hinge_embedding_loss(input, target, margin, reduction=_reduction(reduction))


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = 0
) -> Tensor:
    return F.margin_ranking_loss(input1, input2, target, margin, reduction=_reduction(reduction))


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: int = 0,
) -> Tensor:
    return F.triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap, reduction=_reduction(reduction))


def kl_div(input: Tensor, target: Tensor, reduction: int = 0, *, log_target: bool = False) -> Tensor:
    return F.kl_div(input, target, reduction=_reduction(reduction), log_target=log_target)


def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Any = None, pos_weight: Any = None, reduction: int = 0
) -> Tensor:
    how = {"reduction": _reduction(reduction), "pos_weight": pos_weight}
    return F.binary_cross_entropy_with_logits(input, target, weight, **how)


def poisson_nll_loss(input: Tensor, target: Tensor, log_input: bool, full: bool, eps: float, reduction: int) -> Tensor:
    return F.poisson_nll_loss(input, target, log_input, full, eps=eps, reduction=_reduction(reduction))


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """The distance of each row of the one to each row of the other, whatever ``compute_mode`` says of the way."""
    a, b = a_tensor("cdist", x1), a_tensor("cdist", x2)
    if a._type.ndim < 2 or b._type.ndim < 2:
        raise refuse(ShapeError, "needs tensors of at least two dims", "cdist", a, b)
    if a._type.shape[-1] != b._type.shape[-1]:
        raise refuse(ShapeError, "both need as many columns", "cdist", a, b)
    if a._type.dtype.kind != "f" or b._type.dtype.kind != "f":
        raise refuse(DTypeError, "needs floating tensors", "cdist", a, b)
    if p < 0:
        raise refuse(ShapeError, "p is not negative", "cdist", a, b, p=p)
    return vector_norm(views.unsqueeze(a, -2) - views.unsqueeze(b, -3), p, -1)
