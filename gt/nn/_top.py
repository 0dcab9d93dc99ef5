"""Functions that torch has at its top level with other arguments than in `torch.nn.functional`.

Each is one row: what it computes, and the call of the function of `gt.nn.functional`. A lambda has torch's top-level
signature.
"""

from __future__ import annotations

from collections.abc import Callable

from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.nn import functional as F
from gt.nn._distances import cdist


def _reduction(number: int) -> str:
    """torch's top-level functions take a reduction as a number. The default is 0, although torch's help says mean."""
    if number not in (0, 1, 2):
        raise ShapeError(f"reduction is 0 (none), 1 (mean) or 2 (sum), and {number!r} is not")
    return ("none", "mean", "sum")[number]


def _embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    row = None if padding_idx < 0 else padding_idx
    return F.embedding(indices, weight, row, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)


def _triplet(
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


#: name -> (what it computes, torch's signature as a call of the functional)
TOP_LEVEL: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "alpha_dropout": (
        "Dropout that keeps the mean and variance of selu.",
        lambda input, p, train: F.alpha_dropout(input, p, train),
    ),
    "batch_norm": (
        "Normalise each channel over a batch.",
        lambda input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled: F.batch_norm(
            input, running_mean, running_var, weight, bias, training, momentum, eps
        ),
    ),
    "binary_cross_entropy_with_logits": (
        "The cross entropy of two classes, from logits.",
        lambda input, target, weight=None, pos_weight=None, reduction=0: F.binary_cross_entropy_with_logits(
            input, target, weight, reduction=_reduction(reduction), pos_weight=pos_weight
        ),
    ),
    "cdist": ("The distance of each row of x1 to each row of x2; ``compute_mode`` is ignored.", cdist),
    "cosine_embedding_loss": (
        "A loss that brings pairs of target 1 together and turns pairs of target -1 apart, by their cosine.",
        lambda input1, input2, target, margin=0.0, reduction=0: F.cosine_embedding_loss(
            input1, input2, target, margin, reduction=_reduction(reduction)
        ),
    ),
    "dropout": (
        "Set elements to 0 with probability p, and scale the others by 1 / (1 - p).",
        lambda input, p, train: F.dropout(input, p, train),
    ),
    "embedding": ("Rows of a table by their numbers; a negative ``padding_idx`` means none.", _embedding),
    "feature_alpha_dropout": (
        "Alpha dropout of whole channels.",
        lambda input, p, train: F.feature_alpha_dropout(input, p, train),
    ),
    "feature_dropout": ("Dropout of whole channels.", lambda input, p, train: F.dropout2d(input, p, train)),
    "hinge_embedding_loss": (
        "The input where the target is 1, and max(0, margin - input) where it is -1.",
        lambda input, target, margin=1.0, reduction=0: F.hinge_embedding_loss(
            input, target, margin, reduction=_reduction(reduction)
        ),
    ),
    "instance_norm": (
        "Normalise each channel of each example.",
        lambda input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled: (
            F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
        ),
    ),
    "kl_div": (
        "The Kullback-Leibler divergence of the target from the input, which holds log probabilities.",
        lambda input, target, reduction=0, *, log_target=False: F.kl_div(
            input, target, reduction=_reduction(reduction), log_target=log_target
        ),
    ),
    "margin_ranking_loss": (
        "A loss for the order of two inputs: the first is to be greater where the target is 1.",
        lambda input1, input2, target, margin=0.0, reduction=0: F.margin_ranking_loss(
            input1, input2, target, margin, reduction=_reduction(reduction)
        ),
    ),
    "poisson_nll_loss": (
        "The negative log likelihood of counts under a Poisson distribution.",
        lambda input, target, log_input, full, eps, reduction: F.poisson_nll_loss(
            input, target, log_input, full, eps=eps, reduction=_reduction(reduction)
        ),
    ),
    "triplet_margin_loss": (
        "A loss that is 0 once the negative is farther from the anchor than the positive, by the margin.",
        _triplet,
    ),
}

for _name, (_doc, _function) in TOP_LEVEL.items():
    _function.__name__ = _function.__qualname__ = _name
    _function.__doc__ = f"{_doc} See `torch.{_name}`."
    globals()[_name] = _function
