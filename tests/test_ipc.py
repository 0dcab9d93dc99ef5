"""Moves by shared memory between workers of one GPU: what can be checked without a GPU.

The exchange itself runs between real processes over gloo; only the memory that they share is that of the host.
`benchmarks/pipeline.py --only gpu` compares it with the way through the host, on a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import nullcontext
from multiprocessing import resource_tracker, shared_memory
from typing import Any

import msgspec
import pytest
import torch

from gt.dispatcher.core import Dispatcher
from gt.dispatcher.ledger import group_backend
from gt.wire.structures import WorkerInfo
from gt.worker.collectives.ipc import (
    MESSAGE_BYTES,
    HeldMemory,
    IpcMessage,
    SharedBlock,
    read_message,
    write_message,
)
from tests.support import plane_member as at
from tests.support.plane_member import Member, State, everywhere


def worker(id: int, gpu: str, host: str = "here") -> WorkerInfo:
    return WorkerInfo(id, "torch", "cuda:0" if gpu else "cpu", host, 1, gpu, "")


@pytest.mark.parametrize(
    ("gpus", "hosts", "without", "enabled"),
    [
        (("a", "a"), "hh", "gloo", "ipc"),
        (("a", "a", "a", "a"), "hhhh", "gloo", "ipc"),
        (("a", "b"), "hh", "nccl", "nccl"),
        (("a", "a", "b"), "hhh", "gloo", "gloo"),  # NCCL accepts one worker a GPU, IPC one GPU
        (("a", "a"), "hk", "gloo", "gloo"),  # a machine that was cloned
        (("", ""), "hh", "gloo", "gloo"),
        (("a", ""), "hh", "gloo", "gloo"),
    ],
)
def test_what_moves_tensors_in_a_group(gpus: tuple[str, ...], hosts: str, without: str, enabled: str) -> None:
    members = [worker(i, gpu, host) for i, (gpu, host) in enumerate(zip(gpus, hosts, strict=True))]
    assert group_backend(members, cuda_ipc=False) == without
    assert group_backend(members, cuda_ipc=True) == enabled


def test_it_is_off_unless_it_is_enabled() -> None:
    assert not Dispatcher()._cuda_ipc


# -- messages ---------------------------------------------------------------------------------------

BLOCK = SharedBlock(b"h" * 66, 1 << 40, 512, b"/torch_123_456_7", 3, b"e" * 64, True)


@pytest.mark.parametrize("message", [IpcMessage(0, None), IpcMessage((1 << 62) + 5, BLOCK)])
def test_messages(message: IpcMessage) -> None:
    buffer = torch.full((MESSAGE_BYTES,), 255, dtype=torch.uint8)
    write_message(buffer, message)
    assert read_message(buffer) == message


def test_messages_that_are_refused() -> None:
    buffer = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)
    with pytest.raises(ValueError, match="the description of shared memory has 1"):
        write_message(buffer, IpcMessage(0, msgspec.structs.replace(BLOCK, handle=b"h" * MESSAGE_BYTES)))
    with pytest.raises(ValueError, match="truncated"):
        read_message(buffer)


# -- how long memory is held ------------------------------------------------------------------------


class Flag:
    """An event that happens when the test says so."""

    def __init__(self) -> None:
        self.happened = False

    def query(self) -> bool:
        return self.happened


def test_memory_is_held_until_its_copy_is_complete() -> None:
    released: list[str] = []
    held, flags = HeldMemory(released.append), [Flag() for _ in range(3)]
    for name, flag in zip("abc", flags, strict=True):
        held.hold(name, flag)
    assert (released, len(held)) == ([], 3)
    flags[1].happened = True
    held.release_done()
    assert released == []  # copies complete in order
    flags[0].happened = True
    held.hold("d", Flag())
    assert (released, len(held)) == (["a", "b"], 2)
    flags[2].happened = True
    held.release_done()
    held.release_done()
    assert released == ["a", "b", "c"]


# -- between processes ------------------------------------------------------------------------------


class HostBlocks:
    """Blocks of host memory. A copy out of one counts as complete when the next one begins."""

    def __init__(self) -> None:
        self.held = HeldMemory(self._close)
        self.last = Flag()
        self.mapped: dict[int, shared_memory.SharedMemory] = {}
        self.released = 0

    def in_order(self) -> contextlib.AbstractContextManager[Any]:
        return nullcontext()

    def share(self, flat: torch.Tensor) -> SharedBlock:
        nbytes = flat.numel() * flat.itemsize
        memory = shared_memory.SharedMemory(create=True, size=nbytes)
        torch.frombuffer(memory.buf, dtype=torch.uint8)[:nbytes].copy_(flat.view(torch.uint8))
        block = SharedBlock(memory.name.encode(), nbytes, 0, b"", 0, b"", False)
        memory.close()
        resource_tracker.unregister(f"/{memory.name.lstrip('/')}", "shared_memory")  # the receiver removes it
        return block

    def map(self, block: SharedBlock) -> torch.Tensor:
        memory = shared_memory.SharedMemory(block.handle.decode())
        mapped = torch.frombuffer(memory.buf, dtype=torch.uint8)
        self.mapped[mapped.data_ptr()] = memory
        return mapped

    def copied(self, mapped: list[torch.Tensor]) -> None:
        self.last.happened = True
        self.last = Flag()
        self.held.hold(mapped, self.last)

    def _close(self, mapped: list[torch.Tensor]) -> None:
        memories = [self.mapped.pop(x.data_ptr()) for x in mapped]
        mapped.clear()
        for memory in memories:
            with contextlib.suppress(BufferError):  # the array that torch made of it ends later
                memory.close()
            memory.unlink()
            self.released += 1


def use_host_blocks(state: State, rank: int, group: int) -> None:
    state.blocks = HostBlocks()
    state.plane._adapter(group)._blocks = state.blocks


def released(state: State, rank: int) -> int:
    """How many blocks were released, after the last copy is complete as well."""
    state.blocks.copied([])
    state.blocks.copied([])
    assert not state.blocks.mapped
    return state.blocks.released


@pytest.fixture
def members() -> Iterator[list[Member]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Member())) for _ in range(3)]


def test_exchanges_by_shared_memory(members: list[Member]) -> None:
    """All rows of the table, with notes: every exchange goes through shared blocks, which are all released."""
    for rank, member in enumerate(members):
        member.ask(at.join, rank, 1, 3, members[0].ask(at.address), "ipc")
    everywhere(members, use_host_blocks, 1)
    everywhere(members, at.run_table, 1, 3, 4)
    assert min(everywhere(members, released)[1:]) > 10
    everywhere(members, at.leave, 1)


def test_a_sender_that_dies(members: list[Member]) -> None:
    pair = members[:2]
    for rank, member in enumerate(pair):
        member.ask(at.join, rank, 1, 2, pair[0].ask(at.address), "ipc")
    everywhere(pair, use_host_blocks, 1)
    everywhere(pair, at.start_exchange, 1, 10)
    assert pair[1].ask(at.finish_exchange, 1) == (10.0, 5)
    pair[1].ask(at.start_exchange, 1, 1, 10)
    pair[0].kill()
    assert "exchange among workers 10, 11: " in pair[1].ask(at.broken, 1)[0]
