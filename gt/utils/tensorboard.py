"""``gt.utils.tensorboard``: torch's `SummaryWriter`, which accepts tensors of GT. It needs torch and tensorboard."""

from __future__ import annotations

from typing import Any

from torch.utils import tensorboard

from gt.interop.values import with_values

__all__ = ["FileWriter", "SummaryWriter"]

FileWriter = tensorboard.FileWriter


class SummaryWriter(tensorboard.SummaryWriter):
    """See `torch.utils.tensorboard.SummaryWriter`."""


def _accept_tensors(cls: Any) -> None:
    for name in (name for name in dir(cls) if name.startswith("add_")):
        setattr(cls, name, with_values(getattr(cls, name)))


_accept_tensors(SummaryWriter)
