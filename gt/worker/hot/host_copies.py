"""Copies of tensors in the host's memory, while a trial changes the tensors themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

#: From this size on a copy is made in large pages, and from a GPU in pieces of the second size.
MIN_LARGE_BYTES, PIECE_BYTES = 4 << 20, 32 << 20


def to_host(x: Any) -> Any:
    """A copy on the host, also if the tensor is there already."""
    if x.nbytes < MIN_LARGE_BYTES or not x.is_contiguous():
        return x.to("cpu", copy=True)
    # numpy requests large pages: filling fresh memory page by page takes longer than the copy
    pages = torch.from_numpy(np.empty(x.nbytes, np.uint8))
    if x.is_cuda:
        _copy_in_pieces(x.view(-1).view(torch.uint8), pages)
        return pages.view(x.dtype).view(x.shape)
    return pages.view(x.dtype).view(x.shape).copy_(x)


def _copy_in_pieces(source: Any, target: Any) -> None:
    """While the host copies one piece out of a pinned buffer, the next arrives in the other: this takes a tenth of the
    time for a direct copy."""
    buffers = [torch.empty(min(PIECE_BYTES, source.numel()), dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    arrived: list[Any] = [torch.cuda.Event() for _ in buffers]  # type: ignore[no-untyped-call]
    pieces = list(zip(source.split(PIECE_BYTES), target.split(PIECE_BYTES), strict=True))
    with torch.cuda.device(source.device):
        for k in range(len(pieces) + 1):
            if k < len(pieces):
                piece = pieces[k][0]
                buffers[k % 2][: piece.numel()].copy_(piece, non_blocking=True)
                arrived[k % 2].record()
            if k > 0:
                arrived[(k - 1) % 2].synchronize()
                place = pieces[k - 1][1]
                place.copy_(buffers[(k - 1) % 2][: place.numel()])
