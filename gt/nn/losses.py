"""Losses as modules."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.nn import functional as F
from gt.nn.module import Module
from gt.nn.pooling import PairwiseDistance

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "MarginRankingLoss",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "NLLLoss",
    "PoissonNLLLoss",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
]  # fmt: skip


#: how torch's deprecated pair (size_average, reduce) says what ``reduction`` says now
REDUCTIONS = {(True, True): "mean", (False, True): "sum", (True, False): "none", (False, False): "none"}


def _reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    if size_average is None and reduce is None:
        return reduction
    return REDUCTIONS[size_average is not False, reduce is not False]


class _Loss(Module):
    """A function of the same kind with the same options, which are attributes."""

    function = ""
    #: options with their defaults, in torch's order; ``weight`` and ``pos_weight`` are buffers
    options: tuple[tuple[str, Any], ...] = (("size_average", None), ("reduce", None), ("reduction", "mean"))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        if len(args) > len(self.options):
            raise TypeError(f"{type(self).__name__}() takes at most {len(self.options)} arguments")
        given = dict(self.options) | dict(zip((name for name, _ in self.options), args, strict=False))
        for name, value in kwargs.items():
            if name not in given:
                raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument '{name}'")
            given[name] = value
        old = given.pop("size_average", None), given.pop("reduce", None)
        given["reduction"] = _reduction(*old, given["reduction"])
        for name, value in given.items():
            if name.endswith("weight"):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)
        self.__dict__["_given"] = tuple(given)

    def forward(self, *inputs: Tensor) -> Tensor:
        made: Tensor = getattr(F, self.function)(*inputs, **{name: getattr(self, name) for name in self._given})
        return made


PLAIN = _Loss.options


def _with(*more: tuple[str, Any], first: bool = False) -> tuple[tuple[str, Any], ...]:
    return (*more, *PLAIN) if first else (*PLAIN, *more)


class L1Loss(_Loss):
    function = "l1_loss"


class MSELoss(_Loss):
    function = "mse_loss"


class SmoothL1Loss(_Loss):
    function = "smooth_l1_loss"
    options = _with(("beta", 1.0))


class HuberLoss(_Loss):
    function = "huber_loss"
    options = (("reduction", "mean"), ("delta", 1.0))


class CrossEntropyLoss(_Loss):
    function = "cross_entropy"
    options = (
        ("weight", None), ("size_average", None), ("ignore_index", -100), ("reduce", None), ("reduction", "mean"),
        ("label_smoothing", 0.0),
    )  # fmt: skip


class NLLLoss(_Loss):
    function = "nll_loss"
    options = CrossEntropyLoss.options[:-1]


class BCELoss(_Loss):
    function = "binary_cross_entropy"
    options = _with(("weight", None), first=True)


class BCEWithLogitsLoss(_Loss):
    function = "binary_cross_entropy_with_logits"
    options = (("weight", None), *PLAIN, ("pos_weight", None))


class KLDivLoss(_Loss):
    function = "kl_div"
    options = _with(("log_target", False))


class CosineEmbeddingLoss(_Loss):
    function = "cosine_embedding_loss"
    options = _with(("margin", 0.0), first=True)


class MarginRankingLoss(_Loss):
    function = "margin_ranking_loss"
    options = _with(("margin", 0.0), first=True)


class HingeEmbeddingLoss(_Loss):
    function = "hinge_embedding_loss"
    options = _with(("margin", 1.0), first=True)


class SoftMarginLoss(_Loss):
    function = "soft_margin_loss"


class TripletMarginLoss(_Loss):
    function = "triplet_margin_loss"
    options = _with(("margin", 1.0), ("p", 2.0), ("eps", 1e-6), ("swap", False), first=True)


class PoissonNLLLoss(_Loss):
    function = "poisson_nll_loss"
    options = (
        ("log_input", True), ("full", False), ("size_average", None), ("eps", 1e-8), ("reduce", None),
        ("reduction", "mean"),
    )  # fmt: skip


class GaussianNLLLoss(_Loss):
    function = "gaussian_nll_loss"
    options = (("full", False), ("eps", 1e-6), ("reduction", "mean"))


class MultiMarginLoss(_Loss):
    function = "multi_margin_loss"
    options = (("p", 1), ("margin", 1.0), ("weight", None), *PLAIN)


class MultiLabelMarginLoss(_Loss):
    function = "multilabel_margin_loss"


class MultiLabelSoftMarginLoss(_Loss):
    function = "multilabel_soft_margin_loss"
    options = _with(("weight", None), first=True)


class TripletMarginWithDistanceLoss(_Loss):
    function = "triplet_margin_with_distance_loss"
    options = ()

    def __init__(
        self, *, distance_function: Any = None, margin: float = 1.0, swap: bool = False, reduction: str = "mean"
    ) -> None:
        Module.__init__(self)
        self.distance_function = PairwiseDistance() if distance_function is None else distance_function
        self.margin, self.swap, self.reduction = margin, swap, reduction
        self.__dict__["_given"] = ("distance_function", "margin", "swap", "reduction")
