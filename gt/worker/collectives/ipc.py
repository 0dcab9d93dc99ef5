"""An exchange between workers that share one GPU, by CUDA IPC: the value never leaves the GPU.

The sender copies the regions for a worker into memory of their own, and sends where that memory is: a short message
over gloo, with the note. The receiver maps the memory and copies the regions out of it. Both copies are ordered by CUDA
events, so neither process waits for the GPU. torch counts who uses the memory: the sender's part is freed after the
receiver has released it. The receiver releases it when its copy is complete (`HeldMemory`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import prod
from typing import Any, NamedTuple, Protocol

import msgspec
import torch

from gt.worker.collectives.noted import PairMessage, PairWorks, assemble, note_of
from gt.worker.collectives.operations import CollectiveCall, CollectivePlan, dtype_of, region, split

#: The size of a message that says where the memory is. It has two handles of CUDA and the name of a file.
MESSAGE_BYTES = 1024
_LENGTH_BYTES = 4


class SharedBlock(msgspec.Struct, frozen=True, array_like=True):
    """Memory of another process: the arguments of torch's function that maps it, except for the device."""

    handle: bytes
    nbytes: int
    offset: int
    counter: bytes
    counter_offset: int
    event: bytes
    has_event: bool


class IpcMessage(msgspec.Struct, frozen=True, array_like=True):
    """What a sender tells a receiver. ``block`` is None if there is nothing to copy."""

    note: int
    block: SharedBlock | None


def write_message(buffer: torch.Tensor, message: IpcMessage) -> None:
    """Write a message into a buffer of `MESSAGE_BYTES` on the host."""
    body = msgspec.msgpack.encode(message)
    text = len(body).to_bytes(_LENGTH_BYTES, "little") + body
    if len(text) > MESSAGE_BYTES:
        raise ValueError(f"the description of shared memory has {len(text)} bytes; at most {MESSAGE_BYTES} fit")
    buffer[: len(text)].copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))


def read_message(buffer: torch.Tensor) -> IpcMessage:
    """The message in a buffer. Raises ValueError if it does not decode."""
    text = bytes(buffer.numpy())
    end = _LENGTH_BYTES + int.from_bytes(text[:_LENGTH_BYTES], "little")
    return msgspec.msgpack.decode(text[_LENGTH_BYTES:end], type=IpcMessage)


# -- the lifetime of mapped memory ---------------------------------------------------------------


class DeviceEvent(Protocol):
    """A point in the work of a device, such as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether the work before it is complete. Never blocks."""


class HeldBlock(NamedTuple):
    block: Any
    event: DeviceEvent


class HeldMemory:
    """Mapped memory of other processes, held until the copies out of it are complete.

    ``release`` is called with each block once, in the order in which they were held.
    """

    def __init__(self, release: Callable[[Any], None]) -> None:
        self._release = release
        self._held: deque[HeldBlock] = deque()

    def hold(self, block: Any, event: DeviceEvent) -> None:
        """Hold a block until the event, and release those whose event has happened."""
        self._held.append(HeldBlock(block, event))
        self.release_done()

    def release_done(self) -> None:
        while self._held and self._held[0].event.query():
            self._release(self._held.popleft().block)

    def __len__(self) -> int:
        return len(self._held)


# -- the exchange --------------------------------------------------------------------------------


class BlockMapper(Protocol):
    """Shares memory of this process, and maps that of others. `CudaBlocks` does it on a GPU."""

    def in_order(self) -> AbstractContextManager[Any]:
        """Inside it, copies are ordered with the work of this worker, in any thread."""

    def share(self, flat: torch.Tensor) -> SharedBlock: ...

    def map(self, block: SharedBlock) -> torch.Tensor:
        """The bytes of the block."""

    def copied(self, mapped: list[torch.Tensor]) -> None:
        """The copies out of these were started: release them when they are complete."""


class CudaBlocks:
    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        # torch waits for the current stream when it releases memory of others: here for one without any work
        self._idle: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._stream: Any = torch.cuda.current_stream(self._device)
        self._held = HeldMemory(self._drop)

    def in_order(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream)

    def share(self, flat: torch.Tensor) -> SharedBlock:
        storage: Any = flat.untyped_storage()
        _, *where = storage._share_cuda_()
        return SharedBlock(*where)

    def map(self, block: SharedBlock) -> torch.Tensor:
        storage = torch.UntypedStorage._new_shared_cuda(self._device.index or 0, *msgspec.structs.astuple(block))
        return torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage)

    def copied(self, mapped: list[torch.Tensor]) -> None:
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._held.hold(mapped, event)

    def _drop(self, mapped: list[torch.Tensor]) -> None:
        with torch.cuda.stream(self._idle):
            mapped.clear()


def exchange(call: CollectiveCall, blocks: BlockMapper) -> CollectivePlan:
    options, me = call.options, call.rank
    dtype = call.array.dtype if call.array is not None else dtype_of(options["dtype"])
    targets = options["targets"] if me in options["sources"] else ()
    sources = options["sources"] if me in options["targets"] else ()
    with blocks.in_order():
        sent = {peer: _described(call, peer, dtype, blocks) for peer in targets if peer != me}
    received = {peer: torch.empty(MESSAGE_BYTES, dtype=torch.uint8) for peer in sources if peer != me}
    messages: dict[int, IpcMessage] = {}

    def issue(backend: Any) -> PairWorks:
        works = [backend.recv([buffer], peer, 2 * call.number) for peer, buffer in received.items()]
        works += [backend.send([buffer], peer, 2 * call.number) for peer, buffer in sent.items()]
        return PairWorks(works)

    def finish() -> torch.Tensor | None:
        messages.update((peer, read_message(buffer)) for peer, buffer in received.items())
        with blocks.in_order():
            return _copied_out(call, messages, dtype, blocks)

    return CollectivePlan(
        issue if sent or received else None, finish, lambda: note_of(call, [m.note for m in messages.values()])
    )


def _described(call: CollectiveCall, peer: int, dtype: torch.dtype, blocks: BlockMapper) -> torch.Tensor:
    """The message for a receiver: where a copy of its regions is."""
    regions = [region(call.operand, starts, n) for to, starts, n in call.options["sends"] if to == peer]
    count = sum(x.numel() for x in regions)
    block = None
    if count:
        flat = torch.empty(count, dtype=dtype, device=call.operand.device)
        for target, x in zip(split(flat, [x.numel() for x in regions]), regions, strict=True):
            target.view(x.shape).copy_(x)
        block = blocks.share(flat)
    buffer = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)
    write_message(buffer, IpcMessage(call.note, block))
    return buffer


def _copied_out(
    call: CollectiveCall, messages: dict[int, IpcMessage], dtype: torch.dtype, blocks: BlockMapper
) -> torch.Tensor | None:
    mapped: list[PairMessage] = []
    for peer, message in messages.items():
        if message.block is not None:
            count = sum(prod(n) for source, _, n in call.options["receives"] if source == peer) * dtype.itemsize
            mapped.append(PairMessage(peer, blocks.map(message.block)[:count]))
    result = assemble(call, mapped, dtype)
    if result is not None and any(_same_memory(result, m.data) for m in mapped):
        result = result.clone()
    blocks.copied([m.data for m in mapped])
    return result


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
