"""What works between the parts of a running system, and how fast: an ordinary client that moves small tensors.

First every pair of workers exchanges a few bytes, all pairs at once: a pair whose network is cut waits long for its
failure. Then the pairs that work are measured one after another, because they share links. Nothing else is used than
what programs use, so the figures are those that programs get, with NCCL where workers have GPUs of their own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any

import gt
from gt.client.stream.connect import session
from gt.client.stream.pending import PendingValue
from gt.errors import ConnectionLost, GtError, NoWorkers
from gt.wire.addresses import split_address
from gt.wire.structures import WorkerInfo
from gt.wire.words import FETCH

#: Workers give up a pair before this: 30 s to meet, then five attempts of 3 s to connect.
FAILURE_TIMEOUT_S = 60.0
#: Answers of a single worker.
ANSWER_TIMEOUT_S = 20.0
#: How often a time is taken; the shortest counts. Exchanges there and back in one measurement of latency.
REPEATS, EXCHANGES = 5, 4
#: Sizes in bytes, smallest first. A larger one is measured only if the one before took less than the limit.
SIZES, QUICK_S = (1 << 16, 1 << 20, 8 << 20), 0.05


@dataclass(slots=True)
class WorkerPath:
    """Between the server and a worker."""

    id: int
    address: str
    device: str
    backend: str
    pid: int
    #: there and back
    latency_ms: float | None = None
    #: values on their way from the worker through the server to this client
    mb_s: float | None = None
    error: str = ""
    #: host, NUMA node and neighbours of its GPU, as far as the worker reports them
    place: str = ""


@dataclass(slots=True)
class PairPath:
    """From one worker to another. Without an error and without figures: it works, and there was no time to measure."""

    source: int
    target: int
    latency_ms: float | None = None
    mb_s: float | None = None
    error: str = ""


@dataclass(slots=True)
class ClusterFacts:
    server: str
    #: between this client and the server, there and back
    server_ms: float
    workers: list[WorkerPath] = field(default_factory=list)
    pairs: list[PairPath] = field(default_factory=list)
    #: how long the examination took
    seconds: float = 0.0


def examine_cluster(seconds: float) -> ClusterFacts:
    """Examine the system that this process is connected to. ``seconds`` bounds the measurements of pairs."""
    return _Examination(seconds).run()


class _Examination:
    def __init__(self, seconds: float) -> None:
        self._session, self._began = session(), time.monotonic()
        self._seconds = seconds
        connection = self._session.connection
        if not connection.workers:
            raise NoWorkers(f"the server at {connection.name} has no workers")
        for worker in connection.workers:
            gt.register_config(_signal(worker.id), gt.SignalConfig(shard=gt.ShardConfig(0, [worker.id])))
        self._facts = ClusterFacts(connection.name, self._server_ms())
        self._facts.workers = [_describe(worker) for worker in connection.workers]

    def run(self) -> ClusterFacts:
        facts = self._facts
        for worker in facts.workers:
            worker.error = self._try(partial(self._examine_worker, worker))
        answering = [worker.id for worker in facts.workers if not worker.error]
        self._reach([*combinations(answering, 2)])
        works = {(p.source, p.target): p for p in facts.pairs if not p.error}
        deadline = time.monotonic() + self._seconds
        for (a, b), forth in works.items():
            if a < b and (back := works.get((b, a))) and time.monotonic() < deadline:
                forth.error = back.error = self._try(partial(self._measure, forth, back))
        facts.seconds = time.monotonic() - self._began
        return facts

    def _try(self, examine: Callable[[], object]) -> str:
        """The error, or an empty text."""
        try:
            examine()
        except ConnectionLost:
            raise
        except GtError as error:
            return _first_cause(error)
        return ""

    # -- reading with a limit --------------------------------------------------------------

    def _begin_read(self, x: Any) -> int:
        """Request a value, and do not wait for it."""
        request = self._session.replies.expect(PendingValue(x.nbytes))
        self._session.outbox.cut((FETCH, request, x._cell.id))
        return request

    def _finish_read(self, request: int, seconds: float) -> bytes:
        replies, connection = self._session.replies, self._session.connection
        pending = replies.pending[request]
        if not connection.wait(lambda: pending.done or pending.likely_error is not None, seconds):
            replies.abandon(request)
            raise GtError(f"no answer within {seconds:.0f} s")
        pending = replies.wait(request)
        if pending.error is not None:
            raise pending.error
        return bytes(pending.buffer)

    def _read(self, x: Any) -> bytes:
        return self._finish_read(self._begin_read(x), ANSWER_TIMEOUT_S)

    # -- the server and single workers -----------------------------------------------------

    def _server_ms(self) -> float:
        x = gt.zeros(1)
        return _shortest(lambda: self._session.locate(x._cell.id, (1,))) * 1e3

    def _examine_worker(self, worker: WorkerPath) -> None:
        with gt.signal.context(_signal(worker.id)):
            x = gt.zeros(1)
            self._read(x)
            round_trip = _shortest(lambda: self._read(x))
            worker.latency_ms = max(0.0, round_trip * 1e3 - self._facts.server_ms)
            for nbytes in SIZES:
                large = gt.zeros(nbytes // 4)
                self._read(large[:1])
                began = time.perf_counter()
                self._read(large)
                seconds = time.perf_counter() - began
                worker.mb_s = _rate(nbytes, seconds, round_trip)
                if seconds > QUICK_S:
                    break

    # -- pairs -----------------------------------------------------------------------------

    def _reach(self, pairs: list[tuple[int, int]]) -> None:
        """Every worker sends a number to every other one. All groups are created at the same time."""
        sources = {}
        for worker in sorted({worker for pair in pairs for worker in pair}):
            with gt.signal.context(_signal(worker)):
                sources[worker] = gt.full((1,), float(worker))
        arrived = {}
        for source, target in [*pairs, *((b, a) for a, b in pairs)]:
            with gt.signal.context(_signal(target)):
                arrived[source, target] = sources[source] + 1
        requests = {pair: self._begin_read(x) for pair, x in arrived.items()}
        deadline = time.monotonic() + FAILURE_TIMEOUT_S
        for (source, target), request in sorted(requests.items()):
            left = max(0.1, deadline - time.monotonic())
            error = self._try(partial(self._finish_read, request, left))
            self._facts.pairs.append(PairPath(source, target, error=error))

    def _measure(self, forth: PairPath, back: PairPath) -> None:
        forth.latency_ms = back.latency_ms = self._latency(forth.source, forth.target) * 1e3
        for pair in (forth, back):
            pair.mb_s = self._bandwidth(pair.source, pair.target)

    def _latency(self, a: int, b: int) -> float:
        """Seconds from one worker to the other: half of an exchange."""

        def exchange(times: int) -> Callable[[], None]:
            def run() -> None:
                with gt.signal.context(_signal(a)):
                    x = gt.zeros(1)
                for _ in range(times):
                    for worker in (b, a):
                        with gt.signal.context(_signal(worker)):
                            x = x + 1
                self._read(x)

            return run

        exchange(1)()
        many = _shortest(exchange(1 + EXCHANGES), 3)
        return max(0.0, many - _shortest(exchange(1), 3)) / (2 * EXCHANGES)

    def _bandwidth(self, source: int, target: int) -> float:
        """MB/s of the largest tensor that travels in a short time."""
        rate = 0.0
        for nbytes in SIZES:
            with gt.signal.context(_signal(source)):
                small, large = gt.zeros(1), gt.zeros(nbytes // 4)
                self._read(large[:1])
            seconds = []
            for x in (small, large):
                began = time.perf_counter()
                with gt.signal.context(_signal(target)):
                    self._read(x.sum())
                seconds.append(time.perf_counter() - began)
            rate = _rate(nbytes, seconds[1], seconds[0])
            if seconds[1] > QUICK_S:
                break
        return rate


def _signal(worker: int) -> str:
    return f"gt doctor: worker {worker}"


def _describe(worker: WorkerInfo) -> WorkerPath:
    address = split_address(worker.store.partition(" ")[0])[0] if worker.store else ""
    return WorkerPath(worker.id, address, worker.device, worker.backend, worker.pid, place=str(worker.place))


def _shortest(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """Seconds of the shortest run: what disturbs a run only adds to it, and differences are taken of these."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def _rate(nbytes: int, seconds: float, overhead: float) -> float:
    """MB/s. An overhead that was measured as almost everything was disturbed, and does not count."""
    return nbytes / (seconds - overhead if overhead < 0.9 * seconds else seconds) / 1e6


def _first_cause(error: GtError) -> str:
    """The first line, without the move in which it happened."""
    return re.sub(r".*exchange among workers [\d, ]+: ", "", str(error).split("\n")[0])
