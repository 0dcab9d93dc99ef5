"""Functions that torch has at its top level with other arguments than in `torch.nn.functional`.

Each has torch's top-level signature, and calls the function of `gt.nn.functional`.
"""

from __future__ import annotations

from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.nn import functional as F
from gt.nn._distances import cdist

__all__ = [
    "alpha_dropout", "batch_norm", "binary_cross_entropy_with_logits", "cdist", "cosine_embedding_loss", "dropout",
    "embedding", "feature_alpha_dropout", "feature_dropout", "hinge_embedding_loss", "instance_norm", "kl_div",
    "margin_ranking_loss", "poisson_nll_loss", "triplet_margin_loss",
]  # fmt: skip


def _reduction(number: int) -> str:
    """torch's top-level functions take a reduction as a number. The default is 0, although torch's help says mean."""
    if number not in (0, 1, 2):
        raise ShapeError(f"reduction is 0 (none), 1 (mean) or 2 (sum), and {number!r} is not")
    return ("none", "mean", "sum")[number]


def alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """Dropout that keeps the mean and variance of selu. See `torch.alpha_dropout`."""
    return F.alpha_dropout(input, p, train)


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
    """Normalise each channel over a batch. See `torch.batch_norm`."""
    return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = 0
) -> Tensor:
    """The cross entropy of two classes, from logits. See `torch.binary_cross_entropy_with_logits`."""
    return F.binary_cross_entropy_with_logits(
        input, target, weight, reduction=_reduction(reduction), pos_weight=pos_weight
    )


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = 0
) -> Tensor:
    """A loss that brings pairs of target 1 together and turns pairs of target -1 apart, by their cosine.

    See `torch.cosine_embedding_loss`.
    """
    return F.cosine_embedding_loss(input1, input2, target, margin, reduction=_reduction(reduction))


def dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """Set elements to 0 with probability p, and scale the others by 1 / (1 - p). See `torch.dropout`."""
    return F.dropout(input, p, train)


def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """Rows of a table by their numbers; a negative ``padding_idx`` means none. See `torch.embedding`."""
    row = None if padding_idx < 0 else padding_idx
    return F.embedding(indices, weight, row, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)


def feature_alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """Alpha dropout of whole channels. See `torch.feature_alpha_dropout`."""
    return F.feature_alpha_dropout(input, p, train)


def feature_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """Dropout of whole channels. See `torch.feature_dropout`."""
    return F.dropout2d(input, p, train)


def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, reduction: int = 0) -> Tensor:
    """The input where the target is 1, and max(0, margin - input) where it is -1. See `torch.hinge_embedding_loss`."""
    return F.hinge_embedding_loss(input, target, margin, reduction=_reduction(reduction))


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
    """Normalise each channel of each example. See `torch.instance_norm`."""
    return F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def kl_div(input: Tensor, target: Tensor, reduction: int = 0, *, log_target: bool = False) -> Tensor:
    """The Kullback-Leibler divergence of the target from the input, which holds log probabilities.

    See `torch.kl_div`.
    """
    return F.kl_div(input, target, reduction=_reduction(reduction), log_target=log_target)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = 0
) -> Tensor:
    """A loss for the order of two inputs: the first is to be greater where the target is 1.

    See `torch.margin_ranking_loss`.
    """
    return F.margin_ranking_loss(input1, input2, target, margin, reduction=_reduction(reduction))


def poisson_nll_loss(input: Tensor, target: Tensor, log_input: bool, full: bool, eps: float, reduction: int) -> Tensor:
    """The negative log likelihood of counts under a Poisson distribution. See `torch.poisson_nll_loss`."""
    return F.poisson_nll_loss(input, target, log_input, full, eps=eps, reduction=_reduction(reduction))


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
    """A loss that is 0 once the negative is farther from the anchor than the positive, by the margin.

    See `torch.triplet_margin_loss`.
    """
    return F.triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap, reduction=_reduction(reduction))
