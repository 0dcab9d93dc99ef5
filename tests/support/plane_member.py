"""A process that is a member of groups. Its parent sends it calls over a pipe, and waits for answers with a timeout."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import time
from typing import Any

from gt.worker.collectives.interface import NOTED, CollectiveHandle, GroupBroken
from gt.worker.collectives.processes import ProcessPlane

#: Seconds; only a hang reaches this.
LONG = 60.0
#: Seconds; less than any wait of leaving or closing: for a collective, or for a group that is being created.
PROMPT = 10.0

_context = multiprocessing.get_context("forkserver")
# imported once for all members
_context.set_forkserver_preload(
    ["torch", "gt.worker.collectives.adapter", "tests.support.planes", "tests.support.plane_member"]
)


class State:
    """A member's plane, and the collectives it has not waited for yet."""

    def __init__(self, engine: str, device: str) -> None:
        self.plane = ProcessPlane(engine=engine, device=device)
        self.plane.admit(b"the members' secret")
        self.numpy, self.device = engine == "numpy", device
        self.handles: list[CollectiveHandle] = []
        self.strangers: list[Any] = []

    def wait(self, handle: CollectiveHandle) -> Any:
        if handle.done():
            return handle.result()
        poll, deadline = select.poll(), time.monotonic() + LONG
        poll.register(self.plane.wake_fd(), select.POLLIN)
        while not handle.done():
            left = deadline - time.monotonic()
            assert left > 0, f"a collective did not complete within {LONG} s"
            poll.poll(left * 1000)
            self.plane.drain()
        return handle.result()

    def outcome(self, handle: CollectiveHandle) -> str:
        """The error of a broken collective; "" if it is not broken."""
        try:
            self.wait(handle)
        except GroupBroken as error:
            return str(error)
        return ""


class Member:
    """The parent's end: ``tell`` calls a function (state, *arguments) in the member, ``hear`` returns its result."""

    def __init__(self, engine: str = "torch", device: str = "cpu") -> None:
        self._pipe, there = _context.Pipe()
        self.process = _context.Process(target=_serve, args=(there, engine, device), daemon=True)
        self.process.start()
        there.close()

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def tell(self, function: Any, *arguments: Any) -> None:
        self._pipe.send((function, arguments))

    def hear(self, seconds: float = LONG + 10) -> Any:
        assert self._pipe.poll(seconds), f"no answer within {seconds} s"
        error, value = self._pipe.recv()
        if error is not None:
            raise error
        return value

    def ask(self, function: Any, *arguments: Any) -> Any:
        self.tell(function, *arguments)
        return self.hear()

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.kill()
        self.process.join(10)

    def close(self) -> None:
        self.kill()
        self._pipe.close()


def _serve(pipe: Any, engine: str, device: str) -> None:
    import torch

    torch.set_num_threads(1)
    state = State(engine, device)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = None, function(state, *arguments)
        except Exception as error:
            answer = AssertionError(f"{type(error).__name__}: {error}"), None
        pipe.send(answer)


def everywhere(members: list[Member], function: Any, *arguments: Any) -> list[Any]:
    """The same call at all members at once; the rank is the first argument."""
    for rank, member in enumerate(members):
        member.tell(function, rank, *arguments)
    return [member.hear() for member in members]


# -- what members do ---------------------------------------------------------------------------


def address(state: State) -> str:
    return state.plane.address


def join(state: State, rank: int, group: int, size: int, store: str, backend: str = "gloo") -> None:
    state.plane.join(group, tuple(range(10, 10 + size)), rank, store, backend)


def run_table(state: State, rank: int, group: int, size: int, together: int) -> int:
    """All rows, with ``together`` pending collectives at a time. The arguments must not change."""
    import torch

    from tests.support.planes import check, copy_of, fits, rows

    pending: list[Any] = []

    def finish_oldest() -> None:
        row, argument, handle = pending.pop(0)
        got = state.wait(handle)
        if state.device != "cpu" and got is not None:
            assert got.device == torch.device(state.device), f"{row.name}: on {got.device}"
            got = got.cpu()
        check(row, rank, got, state.numpy)
        if row.kind in NOTED and got is not None:
            assert handle.note() == max(_note(row, r) for r in range(size)), row.name
        if argument is not None and not row.hows[rank].get("overwrite"):
            same = torch.as_tensor(argument).cpu().nan_to_num(77), row.arrays[rank].nan_to_num(77)
            assert torch.equal(*same), f"{row.name}: its argument was changed"

    count = 0
    for row in rows(size):
        if not fits(row, state.numpy):
            continue
        count += 1
        argument = copy_of(row.arrays[rank], state.numpy)
        if argument is not None and state.device != "cpu":
            argument = argument.to(state.device)
        handle = state.plane.start(group, row.kind, argument, row.hows[rank], note=_note(row, rank))
        pending.append((row, argument, handle))
        if len(pending) >= together:
            finish_oldest()
    while pending:
        finish_oldest()
    return count


def _note(row: Any, rank: int) -> int:
    """The note of a rank in a row; it does not fit into 32 bits."""
    return (1 << 62) + 3 * rank if row.arrays[rank] is not None else 0


def start_sum(state: State, rank: int, group: int, value: float = 1.0, length: int = 4) -> None:
    import torch

    x = torch.full((length,), float(value), device=state.device)
    state.handles.append(state.plane.start(group, "all_reduce", x.numpy() if state.numpy else x, {"op": "sum"}))


def start_exchange(state: State, rank: int, group: int, length: int) -> None:
    """Rank 0 sends an array to rank 1, with 5 as its note."""
    import torch

    whole = ((0,), (length,))
    how = {
        "sends": (),
        "receives": (),
        "keeps": (),
        "shape": None,
        "dtype": "float32",
        "sources": (0,),
        "targets": (1,),
    }
    how |= {"sends": ((1, *whole),)} if rank == 0 else {"receives": ((0, *whole),), "shape": (length,)}
    x = torch.ones(length) if rank == 0 else None
    state.handles.append(state.plane.start(group, "exchange", x, how, note=5 if rank == 0 else 0))


def finish_exchange(state: State, rank: int) -> tuple[float, int]:
    handle = state.handles.pop()
    return float(state.wait(handle).sum()), handle.note()


def finish_send(state: State, rank: int) -> None:
    state.wait(state.handles.pop())


def gather_and_write(state: State, rank: int, group: int, size: int, length: int) -> list[float]:
    """Gather blocks of a rank's number, and write into the own block at once. The least and the largest element."""
    import torch

    x = torch.full((length,), float(rank), device=state.device)
    handle = state.plane.start(group, "all_gather", x, {"dim": 0, "sizes": (length,) * size})
    while not handle.done():
        time.sleep(0.001)
    handle.wait_on_device()
    x.fill_(7.0)
    blocks = handle.result().view(size, length)
    return [float(x) for block in blocks for x in (block.min(), block.max())]


def finish_sum(state: State, rank: int) -> list[float]:
    handles, state.handles = state.handles, []
    return [float(state.wait(handle)[0]) for handle in handles]


def broken(state: State, rank: int) -> list[str]:
    handles, state.handles = state.handles, []
    return [state.outcome(handle) for handle in handles]


def leave(state: State, rank: int, group: int) -> float:
    begun = time.monotonic()
    state.plane.leave(group)
    return time.monotonic() - begun


def possessions(state: State, rank: int) -> int:
    """Open files and threads."""
    return len(os.listdir("/proc/self/fd")) + len(os.listdir("/proc/self/task"))


def share_gpus(state: State) -> None:
    os.environ["GT_NCCL_SHARED"] = "1"


def settle(state: State, rank: int) -> float:
    """Take the results, broken or not, and wait for the GPU; returns the seconds it took."""
    import torch

    begun = time.monotonic()
    everything = broken(state, rank)
    torch.cuda.synchronize()
    assert everything
    return time.monotonic() - begun


def close(state: State, rank: int) -> float:
    begun = time.monotonic()
    state.plane.close()
    return time.monotonic() - begun


def be_patient_for(state: State, seconds: float) -> float:
    """Set the timeout for joining; returns the old one."""
    from gt.worker.collectives import backends

    before, backends.JOIN_TIMEOUT_S = backends.JOIN_TIMEOUT_S, seconds
    return before


def let_a_stranger_in(state: State, rank: int) -> None:
    """A connection to the port of each group of gloo, from somebody who is no member."""
    import socket

    from gt.worker.collectives import backends

    make_device, strangers = backends._gloo_device, state.strangers

    def with_stranger(host: str) -> Any:
        device, port = make_device(host)
        strangers.append(socket.create_connection((host, port)))
        return device, port

    backends._gloo_device = with_stranger


def stranger_is_cut_off(state: State, rank: int) -> bool:
    """Whether all of these connections were closed by the member."""
    for stranger in state.strangers:
        stranger.setblocking(False)
        try:
            if stranger.recv(1):
                return False
        except BlockingIOError:
            return False
        except ConnectionError:
            continue
    return bool(state.strangers)
