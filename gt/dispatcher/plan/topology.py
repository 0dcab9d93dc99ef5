"""Which worker is on which host, and how quick the links between hosts are.

When the first worker of a host joins, the first workers of the other hosts measure their links to it. When the second
one joins, the first one of the same host does. With one host nothing is measured. All this happens beside the programs:

    dispatcher ──OpenProbe──▶ new worker ──ProbeOpen──▶ dispatcher ──MeasureLink──▶ others ──LinkMeasured──▶ dispatcher

Links decide how sums are added, so their figures must not change while programs run. A link gets its figures once: the
measured ones, or `UNMEASURED` if a collective needs them first, or if the measurement fails. It keeps them as long as
the server runs, also while no worker of the host is connected. So the same program on the same workers adds in the same
order, as often as it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gt.dispatcher.plan.hierarchy import LineProfile, LinkSpeed
from gt.dispatcher.plan.layouts import Mesh
from gt.wire.link_messages import LinkMeasured, MeasureLink, OpenProbe, ProbeOpen
from gt.wire.structures import Message, WorkerInfo

#: What is assumed of links between hosts and within one: a fast Ethernet of a data centre, and shared memory.
UNMEASURED, UNMEASURED_WITHIN = LinkSpeed(50.0, 1e-3), LinkSpeed(20.0, 2.5e-4)
#: A new host's links to at most this many other hosts are measured: those that came last before it.
MAX_MEASURED_HOSTS = 16
#: Figures beyond these are not believed. They bound what a worker can cause.
MIN_LATENCY_US, MAX_LATENCY_US, MIN_BYTES_PER_US, MAX_BYTES_PER_US = 1.0, 60e6, 1e-6, 1e6

HostPair = tuple[str, str]


class PlacedWorker(Protocol):
    """A worker, as `gt.dispatcher.state.WorkerState` describes it."""

    id: int
    info: WorkerInfo


class Topology:
    """The hosts of all workers that have ever joined, and the links between hosts."""

    def __init__(self, workers: Mapping[int, PlacedWorker], send: Callable[[Any, Message], None]) -> None:
        self._workers, self._send = workers, send
        #: whether all collectives are flat, whatever the hosts are
        self.flat = False
        #: worker -> its host, also of workers that are gone
        self._host_of: dict[int, str] = {}
        #: host -> its number, in the order of their first workers; and its connected workers
        self._hosts: dict[str, int] = {}
        self._members: dict[str, list[int]] = {}
        self._order: list[int] = []
        #: (host, address) -> a connected worker there; empty: it must be computed again
        self._addresses: dict[tuple[str, str], WorkerInfo] = {}
        self._links: dict[HostPair, LinkSpeed] = {}
        #: worker whose probe is open -> the workers that measure their link to it
        self._measuring: dict[int, list[int]] = {}

    # -- workers ---------------------------------------------------------------------------

    def joined(self, worker: PlacedWorker) -> None:
        """A worker has joined. If it is the first or the second one of its host, links of the host are measured."""
        host = worker.info.place.machine
        self._host_of[worker.id] = host
        self._hosts.setdefault(host, len(self._hosts))
        members = self._members.setdefault(host, [])
        members.append(worker.id)
        self._order = []
        if self._addresses:
            self._addresses.setdefault(_address(worker.info), worker.info)
        if len(self._members) < 2 or not host:
            return
        if len(members) == 1:
            others = [name for name in self._members if name and name != host]
            self._measure(worker.id, [self._members[name][0] for name in others[-MAX_MEASURED_HOSTS:]])
            if len(others) == 1 and len(first := self._members[others[0]]) > 1:
                self._measure(first[1], first[:1])
        elif len(members) == 2:
            self._measure(worker.id, members[:1])

    def gone(self, worker: int) -> None:
        host = self._host_of[worker]
        self._members[host].remove(worker)
        if not self._members[host]:
            del self._members[host]
        self._measuring.pop(worker, None)
        self._order, self._addresses = [], {}

    def one_of_each_address(self) -> list[WorkerInfo]:
        """A connected worker for each host and address: with thousands of workers, a new one is compared with these."""
        if not self._addresses:
            self._addresses = {_address(worker.info): worker.info for worker in self._workers.values()}
        return list(self._addresses.values())

    def ordered(self) -> list[int]:
        """The connected workers as a mesh of all of them has them: those of one host follow each other."""
        if not self._order:
            self._order = sorted(self._workers, key=lambda worker: (self._hosts[self._host_of[worker]], worker))
        return self._order

    # -- measurements ----------------------------------------------------------------------

    def _measure(self, worker: int, peers: list[int]) -> None:
        """Let the peers measure their links to a worker, except for those that have figures."""
        peers = [peer for peer in peers if _pair(self._host_of[worker], self._host_of[peer]) not in self._links]
        if peers:
            self._measuring[worker] = peers
            self._send(self._workers[worker], OpenProbe(len(peers)))

    def probe_open(self, worker: PlacedWorker, m: ProbeOpen, rest: object) -> None:
        for peer in self._measuring.get(worker.id, ()):
            if peer in self._workers:
                self._send(self._workers[peer], MeasureLink(worker.id, m.address, m.key))

    def measured(self, worker: PlacedWorker, m: LinkMeasured, rest: object) -> None:
        peers = self._measuring.get(m.worker, [])
        if worker.id not in peers:
            return
        peers.remove(worker.id)
        if m.latency_us > 0 and m.bytes_per_us > 0:
            latency = min(max(m.latency_us, MIN_LATENCY_US), MAX_LATENCY_US)
            rate = min(max(m.bytes_per_us, MIN_BYTES_PER_US), MAX_BYTES_PER_US)
            pair = _pair(self._host_of[worker.id], self._host_of[m.worker])
            self._links.setdefault(pair, LinkSpeed(latency, 1 / rate))

    def _link(self, a: str, b: str) -> LinkSpeed:
        """The figures of a link, from here on for ever."""
        return self._links.setdefault(_pair(a, b), UNMEASURED_WITHIN if a == b else UNMEASURED)

    # -- lines of workers ------------------------------------------------------------------

    @property
    def several_hosts(self) -> bool:
        return len(self._hosts) > 1

    def profile(self, mesh: Mesh, axis: int) -> LineProfile | None:
        """How the lines along an axis lie on hosts; None if it makes no difference or differs from line to line."""
        if self.flat:
            return None
        lines = mesh.lines(axis)
        patterns = {self._pattern(line) for line in lines}
        if len(patterns) > 1:
            return None
        hosts = patterns.pop()
        if len(hosts) == 1 or len(hosts[0]) == 1 or len({len(ranks) for ranks in hosts}) > 1:
            return None
        within, between = [], []
        for line in lines:
            names = [self._host_of[line[ranks[0]]] for ranks in hosts]
            within += [self._link(name, name) for name in names]
            between += [self._link(name, names[i - 1]) for i, name in enumerate(names)]
        return LineProfile(hosts, _crossings(hosts), _slowest(within), _slowest(between))

    def _pattern(self, line: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        ranks: dict[str, list[int]] = {}
        for rank, worker in enumerate(line):
            ranks.setdefault(self._host_of[worker], []).append(rank)
        return tuple(map(tuple, ranks.values()))


def _address(info: WorkerInfo) -> tuple[str, str]:
    """Its host, and the address of its store without the port."""
    return info.host, info.store.partition(" ")[0].rpartition(":")[0]


def _pair(a: str, b: str) -> HostPair:
    return (a, b) if a <= b else (b, a)


def _slowest(links: list[LinkSpeed]) -> LinkSpeed:
    return LinkSpeed(max(link.latency_us for link in links), max(link.us_per_byte for link in links))


def _crossings(hosts: tuple[tuple[int, ...], ...]) -> int:
    """The most steps of the ring 0, 1, … that leave one host."""
    count = sum(map(len, hosts))
    return max(sum((rank + 1) % count not in ranks for rank in ranks) for ranks in map(set, hosts))
