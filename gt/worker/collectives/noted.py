"""The moves between meshes over gloo: exchanges and broadcasts. The note of a sender travels with the value.

An exchange is one message from each worker that has the value to each worker that needs it, with the note in its last 8
bytes. A large region that is contiguous is sent as it is, without a copy, and the note in a message of its own. Workers
that only send wait for nobody.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gt.worker.collectives.backends import COLLECTIVE_TIMEOUT
from gt.worker.collectives.operations import (
    KINDS,
    CollectiveCall,
    CollectivePlan,
    dtype_of,
    kept,
    pack,
    region,
    split,
)

NOTE_BYTES = 8
#: Up to this size the regions for one worker are copied into one message with the note.
INLINE_NOTE_BYTES = 256 << 10


class PairMessage(NamedTuple):
    """What one worker sends to another: the regions, one after the other, and the note of the sender."""

    peer: int
    #: bytes of the regions
    data: torch.Tensor
    #: one int64; None if the note travels elsewhere
    note: torch.Tensor | None = None
    #: what is sent, in order: one buffer with both, or two
    buffers: tuple[torch.Tensor, ...] = ()


class PairWorks:
    """The sends and receives of one exchange."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait(COLLECTIVE_TIMEOUT)  # without a limit, gloo would use the one for connecting


def broadcast(call: CollectiveCall) -> CollectivePlan:
    """The note is sent behind the value."""
    options = dist.BroadcastOptions()
    options.rootRank = call.options["root"]
    shape, dtype = tuple(call.options["shape"]), dtype_of(call.options["dtype"])
    nbytes = prod(shape) * dtype.itemsize
    buffer, data, note = _with_note(call, nbytes)
    out = data.view(dtype).view(shape)
    if call.array is not None:
        out.copy_(call.array)
        note.fill_(call.note)
    return CollectivePlan(lambda backend: backend.broadcast([buffer], options), lambda: out, lambda: int(note))


def exchange(call: CollectiveCall) -> CollectivePlan:
    options, me = call.options, call.rank
    dtype = call.array.dtype if call.array is not None else dtype_of(options["dtype"])
    targets = options["targets"] if me in options["sources"] else ()
    sources = options["sources"] if me in options["targets"] else ()
    sent = [_outgoing(call, peer, dtype) for peer in targets if peer != me]
    received = [_incoming(call, peer, dtype) for peer in sources if peer != me]

    def issue(backend: Any) -> PairWorks:
        tag = 2 * call.number
        works = [backend.recv([b], m.peer, tag + i) for m in received for i, b in enumerate(m.buffers)]
        works += [backend.send([b], m.peer, tag + i) for m in sent for i, b in enumerate(m.buffers)]
        return PairWorks(works)

    def note() -> int:
        return note_of(call, [int(m.note) for m in received if m.note is not None])

    return CollectivePlan(issue if sent or received else None, lambda: assemble(call, received, dtype), note)


def note_of(call: CollectiveCall, received: list[int]) -> int:
    """The largest note of this member and of those that it received."""
    return max([call.note, *received])


def assemble(call: CollectiveCall, received: list[PairMessage], dtype: torch.dtype) -> torch.Tensor | None:
    """The result of an exchange from the regions that were received and those that stayed on this rank. It may share
    the memory of a message."""
    shape, receives = call.options["shape"], call.options["receives"]
    if shape is None:
        return None
    if not call.options["keeps"] and len(receives) == 1 and tuple(receives[0][2]) == tuple(shape):
        (message,) = (m for m in received if m.peer == receives[0][0])
        return message.data.view(dtype).view(tuple(shape))
    out = kept(call, shape, dtype)
    assert out is not None
    for message in received:
        regions = [(starts, n) for source, starts, n in receives if source == message.peer]
        blocks = split(message.data.view(dtype), [prod(n) for _, n in regions]) if regions else []
        for block, (starts, n) in zip(blocks, regions, strict=True):
            region(out, starts, n).copy_(block.view(tuple(n)))
    return out


def _outgoing(call: CollectiveCall, peer: int, dtype: torch.dtype) -> PairMessage:
    regions = [region(call.operand, starts, n) for to, starts, n in call.options["sends"] if to == peer]
    nbytes = sum(x.numel() for x in regions) * dtype.itemsize
    if nbytes <= INLINE_NOTE_BYTES:
        message = _message(call, peer, nbytes)
        blocks = split(message.data.view(dtype), [x.numel() for x in regions]) if regions else []
        for block, x in zip(blocks, regions, strict=True):
            block.view(x.shape).copy_(x)
    else:
        packed, _ = pack(regions, call, dtype)
        message = _message(call, peer, nbytes, packed.view(-1).view(torch.uint8))
    assert message.note is not None
    message.note.fill_(call.note)
    return message


def _incoming(call: CollectiveCall, peer: int, dtype: torch.dtype) -> PairMessage:
    nbytes = sum(prod(n) for source, _, n in call.options["receives"] if source == peer) * dtype.itemsize
    if nbytes <= INLINE_NOTE_BYTES:
        return _message(call, peer, nbytes)
    return _message(call, peer, nbytes, call.empty((nbytes,), torch.uint8))


def _message(call: CollectiveCall, peer: int, nbytes: int, data: torch.Tensor | None = None) -> PairMessage:
    """With ``data``, a message of two buffers. Both ends decide alike, from the number of bytes."""
    if data is not None:
        note = call.empty((NOTE_BYTES,), torch.uint8)
        return PairMessage(peer, data, note.view(torch.int64), (data, note))
    buffer, data, note = _with_note(call, nbytes)
    return PairMessage(peer, data, note, (buffer,))


def _with_note(call: CollectiveCall, nbytes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A buffer for a value and a note, and its two parts."""
    aligned = -(-nbytes // NOTE_BYTES) * NOTE_BYTES
    buffer = call.empty((aligned + NOTE_BYTES,), torch.uint8)
    return buffer, buffer[:nbytes], buffer[aligned:].view(torch.int64)


#: the kinds of collectives over gloo
GLOO_KINDS = KINDS | {"broadcast": broadcast, "exchange": exchange}
