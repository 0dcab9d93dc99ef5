"""The loss of sequences: `ctc_loss`."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.arguments import cast, refuse, require_tensor
from gt.client.tensor.emit import call
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.functions import pointwise, views
from gt.functions.creation import as_tensor
from gt.nn._losses import choose_reduction, reduce_loss
from gt.ops import OPS
from gt.types import int64

__all__ = ["ctc_loss"]

CTC_LOSS = OPS["ctc_loss"]


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """The negative log probability of all alignments of a target with a sequence, for each sequence of a batch.

    ``targets`` has a row per sequence, or all targets one after the other. The lengths are tensors or Python numbers.
    See `torch.nn.functional.ctc_loss`.
    """
    x, classes = require_tensor("ctc_loss", log_probs), cast(require_tensor("ctc_loss", targets), int64)
    if x._type.ndim not in (2, 3):
        raise refuse(ShapeError, "log_probs are [times, classes] or [times, batch, classes]", "ctc_loss", x, classes)
    reduction = choose_reduction(reduction)
    ins, outs = (views.reshape(cast(as_tensor(n), int64), (-1,)) for n in (input_lengths, target_lengths))
    batched = x if x._type.ndim == 3 else views.unsqueeze(x, 1)
    attrs = (("blank", blank), ("zero_infinity", zero_infinity))
    losses = call(CTC_LOSS, (batched, classes, ins, outs), attrs)
    if x._type.ndim == 2:
        losses, outs = views.squeeze(losses, 0), views.squeeze(outs, 0)
    if reduction == "mean":  # per class of the target
        losses = losses / cast(pointwise.clamp(outs, min=1), losses._type.dtype)
    return reduce_loss(losses, reduction)
