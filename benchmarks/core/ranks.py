"""The processes of a run: how they start, agree, and above all end together.

If one rank fails, the others would wait in a collective forever, and a thread in a collective receives no signals. So
each rank has a guard: a thread that receives signals (through Python's wake-up descriptor) and failures of other ranks
(through a key in the launcher's store). It closes the record and ends the process, whatever the main thread waits for.
Exit codes: 0 complete, 1 failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.core import environment

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
#: how long a rank may be late at a collective: longer than the first step of the largest model
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
#: how long a rank may be idle
IDLE = timedelta(hours=2)
#: how often the guard checks for failures of other ranks
PERIOD = 0.2
#: how long a failed rank waits for rank 0 to close the record, before the launcher ends all ranks
GRACE = timedelta(seconds=5)
SIGNALS = {
    signal.SIGINT: "SIGINT: ended by the keyboard",
    signal.SIGTERM: "SIGTERM: ended from outside, or by the launcher because another rank was killed",
}
ORPHANED = "the launcher was killed"


class BadInput(Exception):
    """The user's input cannot be run: reported without a traceback, exit code 2. Every rank must reach this alike."""


class Problem(Exception):
    """One rank has a problem that is not a bug (a full disk): reported without a traceback, ends all ranks."""

    code = FAILED


@dataclass
class World:
    """This process among the processes of the run."""

    rank: int
    size: int
    local_rank: int
    device: torch.device
    backend: str
    #: the launcher's store, for messages that must arrive at any moment; None with one rank
    store: Any = None
    #: a group over CPUs, for communication between ranks beside the measured operations
    control: Any = None
    #: the group of the measured operations, if it is not that of all ranks
    group: Any = None
    #: one entry per rank: host, GPU and process
    members: list[dict[str, Any]] = field(default_factory=list)
    #: the number of ranks this process leads: all of them if one process leads the others
    ranks_led: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Is there no other process?"""
        return self.ranks_led == self.size

    def say(self, *words: object) -> None:
        """Print on the first rank only."""
        if self.first:
            print(*words, flush=True)

    def gather(self, value: Any) -> list[Any]:
        """One value from each process, on every process, by rank. A rank that is early blocks and does not spin."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def barrier(self) -> None:
        """A barrier on the device, before a timed operation."""
        if not self.alone:
            dist.barrier()

    def slowest(self, samples: Sequence[float] | None) -> list[float]:
        """The maximum over the ranks in each iteration: the time of the operation, before any statistics.

        A rank that took no part gives None.
        """
        series_by_rank = [
            series for series in self.gather(None if samples is None else list(samples)) if series is not None
        ]
        return [max(at) for at in zip(*series_by_rank, strict=True)]

    def ranks_per_gpu(self) -> int:
        """The largest number of ranks on one GPU; 0 on CPUs."""
        cards = [(member["host"], member["gpu"]) for member in self.members if member["gpu"]]
        return max(map(cards.count, cards), default=0)

    def nodes(self) -> int:
        return len({member["host"] for member in self.members})


def rank() -> int:
    """The settings of this process, before anything starts."""
    return int(os.environ.get("RANK", 0))


def choose_backend(name: str, cuda: bool) -> str:
    """``auto`` is nccl if there is a GPU, otherwise gloo."""
    if name == "nccl" and not cuda:
        raise BadInput("--backend nccl needs a GPU and torch sees none: use --backend gloo, or auto")
    return {"auto": "nccl" if cuda else "gloo"}.get(name, name)


def start(backend: str = "auto") -> World:
    """Join the other ranks, as torchrun's environment describes them; without torchrun, be the only rank."""
    chosen = choose_backend(backend, torch.cuda.is_available())
    local, size = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    world = World(rank(), size, local, _device(chosen, local), chosen)
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.update({name: value for name, value in alone.items() if name not in os.environ})
    bound = world.device if world.device.type == "cuda" else None
    dist.init_process_group(chosen, timeout=COLLECTIVE_TIMEOUT, device_id=bound)
    if size > 1:
        world.store = _store()
        world.control = dist.new_group(backend="gloo", timeout=IDLE)
    world.members = world.gather(_member(world.device))
    return world


def _store() -> Any:
    """A separate connection to the launcher's store: a connection that waits for a key blocks other calls."""
    store = dist.PrefixStore("benchmark", dist.distributed_c10d._get_default_store())
    return store.clone() if hasattr(store, "clone") else store


def _device(backend: str, local: int) -> torch.device:
    """gloo measures the CPU. If there are more ranks than GPUs, they share them, and the verdict says so."""
    if backend != "nccl":
        return torch.device("cpu")
    cards, ranks_here = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if ranks_here > cards:
        # NCCL refuses two ranks on one GPU of one host; with different host names they communicate over the network
        os.environ.setdefault("NCCL_HOSTID", f"{socket.gethostname()}-{local}")
    torch.cuda.set_device(local % cards)
    return torch.device("cuda", local % cards)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _member(device: torch.device) -> dict[str, Any]:
    gpu = environment.uuid(device.index) if device.type == "cuda" else None
    return {"host": socket.gethostname(), "gpu": gpu, "pid": os.getpid()}


# -- ending --------------------------------------------------------------------------------


class Guard:
    """Ends this process at a signal or when another rank has failed; ``close(status, why)`` closes the record first."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.close: Callable[[str, str], None] = lambda status, why: None
        self._failing = False
        self._launcher = os.getppid()
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)  # the descriptor below receives the signal
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="guard", daemon=True).start()

    def _watch(self) -> None:
        while True:
            ready = select.select([self._read], [], [], PERIOD)[0]
            heard = set(os.read(self._read, 64)) & set(SIGNALS) if ready else set()
            failed = None if self._failing else self._failure()
            if failed:
                self.end("failed", failed[1], failed[0])
            if heard:
                self.end("interrupted", SIGNALS[min(heard)], INTERRUPTED)
            if self._orphaned():
                self.end("interrupted", ORPHANED, INTERRUPTED)

    def _orphaned(self) -> bool:
        return self.world is not None and not self.world.alone and os.getppid() != self._launcher

    def _failure(self) -> tuple[int, str] | None:
        """The exit code of another rank, and its message."""
        store = self.world.store if self.world else None
        if store is None:
            return None
        with contextlib.suppress(RuntimeError):  # the launcher has ended, and its store with it
            if store.check(["failed"]):
                return _code_and_why(store.get("failed"))
        return None

    def end(self, status: str, why: str, code: int) -> None:
        """Close the record, report the reason, and end; wait for no rank except the first, which has the record."""
        with contextlib.suppress(Exception):
            self.close(status, why)
        store = self.world.store if self.world else None
        with contextlib.suppress(RuntimeError):
            if rank() == 0:
                print(f"\n{status}: {why}", file=sys.stderr)
                if store is not None:
                    store.set("closed", "")
            elif store is not None:
                # ending sooner would close connections, and the first rank would report that instead of the cause
                store.wait(["closed"], GRACE)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def fail(self, why: str, code: int = FAILED) -> None:
        """Announce the failure to the other ranks, and end."""
        self._failing = True
        if self._orphaned():
            self.end("interrupted", ORPHANED, INTERRUPTED)
        store = self.world.store if self.world else None
        if store is not None:
            with contextlib.suppress(RuntimeError):
                # the first failure is the cause; the failures of other ranks follow from it
                code, why = _code_and_why(store.compare_set("failed", "", f"{code} {why}"))
        self.end("failed", why, code)


def _code_and_why(message: bytes) -> tuple[int, str]:
    code, _, why = message.decode().partition(" ")
    return int(code), why


def run(main: Callable[[Guard], int | None]) -> None:
    """Run a suite on this rank to its end. Does not return."""
    guard = Guard()
    try:
        code = main(guard) or DONE
    except BadInput as error:
        if rank() == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
        else:
            # the launcher ends all ranks with the first that ends, which must be the one that reports the cause
            time.sleep(GRACE.total_seconds())
        code = BAD_INPUT
    except Problem as error:
        guard.fail(str(error), error.code)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else FAILED
    except BaseException as error:
        if not isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
            traceback.print_exc()
        guard.fail(f"rank {rank()}: {type(error).__name__}: {_first_line(error)}")
    sys.stdout.flush()
    sys.stderr.flush()
    if code == DONE and dist.is_initialized():
        dist.destroy_process_group()
    os._exit(code)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]


def powers_of_two(limit: int) -> Iterable[int]:
    """1, 2, 4, ... and the limit itself."""
    sizes = [2**k for k in range(limit.bit_length()) if 2**k <= limit]
    return sizes if limit in sizes else [*sizes, limit]
