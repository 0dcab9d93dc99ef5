"""Losses as modules. Each holds the options of a function of `gt.nn.functional`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.nn import functional as F
from gt.nn.module import Module
from gt.nn.pooling import PairwiseDistance
from gt.nn.simple import FunctionModule, Options, layer

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CTCLoss", "CosineEmbeddingLoss", "CrossEntropyLoss", "GaussianNLLLoss",
    "HingeEmbeddingLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "MarginRankingLoss", "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss", "MultiMarginLoss", "NLLLoss", "PoissonNLLLoss", "SmoothL1Loss", "SoftMarginLoss",
    "TripletMarginLoss", "TripletMarginWithDistanceLoss",
]  # fmt: skip

#: The two deprecated options of torch, which ``reduction`` replaces.
DEPRECATED = ("size_average", "reduce")
#: (size_average, reduce) -> the reduction they stand for
REDUCTIONS = {(True, True): "mean", (False, True): "sum", (True, False): "none", (False, False): "none"}

WEIGHT: Options = {"weight": None}
REDUCTION: Options = {"size_average": None, "reduce": None, "reduction": "mean"}


def _without_deprecated(options: Options) -> Options:
    average, reduce = (options.get(name) for name in DEPRECATED)
    kept = {name: value for name, value in options.items() if name not in DEPRECATED}
    if average is None and reduce is None:
        return kept
    return {**kept, "reduction": REDUCTIONS[average is not False, reduce is not False]}


def _loss(
    name: str, doc: str, function: Callable[..., Any], options: Options = REDUCTION, inputs: str = "input target"
) -> type[FunctionModule]:
    passed = " ".join(option for option in options if option not in DEPRECATED)
    return layer(name, doc, function, options, passed=passed, inputs=inputs, prepare=_without_deprecated)


L1Loss = _loss("L1Loss", "The absolute difference of input and target, averaged.", F.l1_loss)
MSELoss = _loss("MSELoss", "The squared difference of input and target, averaged.", F.mse_loss)
SmoothL1Loss = _loss(
    "SmoothL1Loss",
    "A squared difference where it is below beta, and an absolute one elsewhere, averaged.",
    F.smooth_l1_loss,
    {**REDUCTION, "beta": 1.0},
)
HuberLoss = _loss(
    "HuberLoss",
    "A squared difference where it is below delta, and delta times an absolute one elsewhere, averaged.",
    F.huber_loss,
    {"reduction": "mean", "delta": 1.0},
)
NLL: Options = {**WEIGHT, "size_average": None, "ignore_index": -100, "reduce": None, "reduction": "mean"}
CrossEntropyLoss = _loss(
    "CrossEntropyLoss",
    "The cross entropy of logits and classes, or of logits and probabilities, averaged.",
    F.cross_entropy,
    {**NLL, "label_smoothing": 0.0},
)
NLLLoss = _loss("NLLLoss", "The negative log likelihood of classes, from log probabilities, averaged.", F.nll_loss, NLL)
BCELoss = _loss(
    "BCELoss",
    "The cross entropy of two classes, from probabilities, averaged.",
    F.binary_cross_entropy,
    {**WEIGHT, **REDUCTION},
)
BCEWithLogitsLoss = _loss(
    "BCEWithLogitsLoss",
    "The cross entropy of two classes, from logits, averaged.",
    F.binary_cross_entropy_with_logits,
    {**WEIGHT, **REDUCTION, "pos_weight": None},
)
KLDivLoss = _loss(
    "KLDivLoss",
    "The Kullback-Leibler divergence of the target from the input, which holds log probabilities.",
    F.kl_div,
    {**REDUCTION, "log_target": False},
)
CosineEmbeddingLoss = _loss(
    "CosineEmbeddingLoss",
    "A loss that brings pairs of target 1 together and turns pairs of target -1 apart, by their cosine.",
    F.cosine_embedding_loss,
    {"margin": 0.0, **REDUCTION},
    "input1 input2 target",
)
MarginRankingLoss = _loss(
    "MarginRankingLoss",
    "A loss for the order of two inputs: the first is to be greater where the target is 1.",
    F.margin_ranking_loss,
    {"margin": 0.0, **REDUCTION},
    "input1 input2 target",
)
HingeEmbeddingLoss = _loss(
    "HingeEmbeddingLoss",
    "The input where the target is 1, and max(0, margin - input) where it is -1, averaged.",
    F.hinge_embedding_loss,
    {"margin": 1.0, **REDUCTION},
)
SoftMarginLoss = _loss("SoftMarginLoss", "log(1 + exp(-target * input)), averaged.", F.soft_margin_loss)
TripletMarginLoss = _loss(
    "TripletMarginLoss",
    "A loss that is 0 once the negative is farther from the anchor than the positive, by the margin.",
    F.triplet_margin_loss,
    {"margin": 1.0, "p": 2.0, "eps": 1e-6, "swap": False, **REDUCTION},
    "anchor positive negative",
)
PoissonNLLLoss = _loss(
    "PoissonNLLLoss",
    "The negative log likelihood of counts under a Poisson distribution, averaged.",
    F.poisson_nll_loss,
    {"log_input": True, "full": False, "size_average": None, "eps": 1e-8, "reduce": None, "reduction": "mean"},
)
GaussianNLLLoss = _loss(
    "GaussianNLLLoss",
    "The negative log likelihood of a target under a normal distribution of this mean and variance, averaged.",
    F.gaussian_nll_loss,
    {"full": False, "eps": 1e-6, "reduction": "mean"},
    "input target var",
)
MultiMarginLoss = _loss(
    "MultiMarginLoss",
    "A hinge loss of the right class against each other class, averaged.",
    F.multi_margin_loss,
    {"p": 1, "margin": 1.0, **WEIGHT, **REDUCTION},
)
MultiLabelMarginLoss = _loss(
    "MultiLabelMarginLoss",
    "A hinge loss of each right class against each other class, averaged.",
    F.multilabel_margin_loss,
)
MultiLabelSoftMarginLoss = _loss(
    "MultiLabelSoftMarginLoss",
    "The cross entropy of several classes that are independent of each other, from logits, averaged.",
    F.multilabel_soft_margin_loss,
    {**WEIGHT, **REDUCTION},
)


CTCLoss = _loss(
    "CTCLoss",
    "The negative log probability of all alignments of a target with a sequence, averaged.",
    F.ctc_loss,
    {"blank": 0, "reduction": "mean", "zero_infinity": False},
    "log_probs targets input_lengths target_lengths",
)


class _Loss(Module):
    """Torch's base of losses, for losses of users. GT's own do not derive from it."""

    def __init__(self, size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> None:
        super().__init__()
        options = {"size_average": size_average, "reduce": reduce, "reduction": reduction}
        self.reduction: str = _without_deprecated(options)["reduction"]


class _WeightedLoss(_Loss):
    """A `_Loss` with weights of classes."""

    def __init__(
        self, weight: Any = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


class TripletMarginWithDistanceLoss(Module):
    """The triplet loss with a distance function of the caller's. See `torch.nn.TripletMarginWithDistanceLoss`."""

    def __init__(
        self, *, distance_function: Any = None, margin: float = 1.0, swap: bool = False, reduction: str = "mean"
    ) -> None:
        super().__init__()
        self.distance_function = PairwiseDistance() if distance_function is None else distance_function
        self.margin, self.swap, self.reduction = margin, swap, reduction

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_with_distance_loss(
            anchor,
            positive,
            negative,
            distance_function=self.distance_function,
            margin=self.margin,
            swap=self.swap,
            reduction=self.reduction,
        )
