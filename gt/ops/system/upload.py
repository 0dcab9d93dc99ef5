"""The op that creates a tensor from the bytes that a client sends."""

from __future__ import annotations

from gt.ops.elements import buffer, from_bytes_numpy, from_bytes_torch
from gt.ops.op import op
from gt.ops.shape.creation import created

op(
    "upload",
    complex="rule",
    no_gradient="it reads no tensor",
    whole="its bytes are one message; the dispatcher cuts what it sends",
    operands="B",
    infer=created,
    creates=True,
    torch=lambda torch, data, *, shape, dtype, device: from_bytes_torch(torch, buffer(data), shape, dtype).to(device),
    kernel=lambda np, data, *, shape, dtype, device: from_bytes_numpy(np, buffer(data), shape, dtype),
)
