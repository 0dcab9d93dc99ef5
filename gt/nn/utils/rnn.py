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
__getattr__ = absent("nn.utils.rnn")


def pad_sequence(
    sequences: Iterable[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """One tensor of all, each filled up to the length of the longest."""
    given = tensor_list("pad_sequence", sequences)
    if padding_side not in ("left", "right"):
        raise DTypeError(f"pad_sequence(padding_side={padding_side!r}): it is 'left' or 'right'")
    longest = max(x.size(0) for x in given)

    def filled(x: Tensor) -> Tensor:
        more = longest - x.size(0)
        sides = (more, 0) if padding_side == "left" else (0, more)
        return pad(x, (0, 0) * (x._type.ndim - 1) + sides, value=padding_value) if more else x

    made = stack([filled(x) for x in given])
    return made if batch_first else transpose(made, 0, 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences again; lengths that are a tensor are read."""
    rows = padded_sequences if batch_first else transpose(padded_sequences, 0, 1)
    ends = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    return [row[:end] for row, end in zip(rows, ends, strict=True)]
