"""Sequences of different lengths in one tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.tensor.arguments import tensor_list
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError
from gt.functions.joining import stack
from gt.functions.views import transpose
from gt.functions.windows import pad
from gt.missing import absent

__all__ = ["pad_sequence", "unpad_sequence"]
absent("nn.utils.rnn")


def pad_sequence(
    sequences: Iterable[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """One tensor of all sequences, each padded to the length of the longest. See `torch.nn.utils.rnn.pad_sequence`."""
    rows = tensor_list("pad_sequence", sequences)
    if padding_side not in ("left", "right"):
        raise DTypeError(f"pad_sequence(padding_side={padding_side!r}): it is 'left' or 'right'")
    longest = max(x.size(0) for x in rows)

    def padded(x: Tensor) -> Tensor:
        count = longest - x.size(0)
        sides = (count, 0) if padding_side == "left" else (0, count)
        return pad(x, (0, 0) * (x._type.ndim - 1) + sides, value=padding_value) if count else x

    batch = stack([padded(x) for x in rows])
    return batch if batch_first else transpose(batch, 0, 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences of a padded tensor. Lengths that are a tensor are read. See `torch.nn.utils.rnn.unpad_sequence`."""
    rows = padded_sequences if batch_first else transpose(padded_sequences, 0, 1)
    ends = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    return [row[:end] for row, end in zip(rows, ends, strict=True)]
