"""The op that creates a tensor from the bytes that a client sends."""

from __future__ import annotations

from functools import cache
from typing import Any

from gt.ops.elements import buffer, from_bytes_numpy, from_bytes_torch
from gt.ops.op import op
from gt.ops.shape.creation import created

#: A copy of at least this many bytes to a GPU runs beside the kernels before it, in a stream of its own.
MIN_BESIDE_BYTES = 1 << 20


def _upload(torch: Any, data: Any, *, shape: tuple[int, ...], dtype: str, device: Any) -> Any:
    """Never wait for the GPU, which may have the kernels of several steps before it.

    A received value of more than a few bytes is in pinned memory, which torch does not give to others before the copy
    has ended. The driver keeps a copy of other memory, if it cannot copy at once.
    """
    host = from_bytes_torch(torch, buffer(data), shape, dtype)
    if host.nbytes < MIN_BESIDE_BYTES or torch.device(device).type != "cuda":
        return host.to(device, non_blocking=True)
    beside, stream = _copy_stream(torch, device), torch.cuda.current_stream(device)
    with torch.cuda.stream(beside):
        array = host.to(device, non_blocking=True)
    stream.wait_stream(beside)
    array.record_stream(stream)
    return array


@cache
def _copy_stream(torch: Any, device: Any) -> Any:
    return torch.cuda.Stream(device)


op(
    "upload",
    complex="rule",
    no_gradient="it reads no tensor",
    whole="its bytes are one message; the dispatcher cuts what it sends",
    operands="B",
    infer=created,
    creates=True,
    torch=_upload,
    kernel=lambda np, data, *, shape, dtype, device: from_bytes_numpy(np, buffer(data), shape, dtype),
)
