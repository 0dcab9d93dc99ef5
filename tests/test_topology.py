"""What workers report about their place, how they measure links, and what the dispatcher makes of it."""

from __future__ import annotations

import pathlib
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

import gt
from gt.dispatcher.plan.hierarchy import LinkSpeed
from gt.dispatcher.plan.layouts import Mesh
from gt.dispatcher.plan.topology import MAX_LATENCY_US, MAX_MEASURED_HOSTS, UNMEASURED, Topology
from gt.wire.link_messages import LinkMeasured, MeasureLink, OpenProbe, ProbeOpen
from gt.wire.structures import Message, WorkerInfo, WorkerPlace
from gt.worker.collectives import link_probe
from gt.worker.collectives.link_probe import LinkProbe
from gt.worker.collectives.place import find_place, nvlink_neighbours, parse_cores, short_pci
from tests.support.processes import System, wait_until

# -- places --------------------------------------------------------------------------------


def add_device(root: pathlib.Path, path: str, vendor: str = "0x10de", kind: str = "0x030200", node: str = "1") -> None:
    """A PCI device as in /sys; ``path``: the devices above it, and itself."""
    folder = root / "sys/devices" / path
    folder.mkdir(parents=True)
    for name, text in (("vendor", vendor), ("class", kind), ("numa_node", node)):
        (folder / name).write_text(f"{text}\n")
    link = root / "sys/bus/pci/devices" / folder.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)


def test_a_gpu_knows_its_node_and_those_below_its_switch(tmp_path: pathlib.Path) -> None:
    switch = "pci0000:16/0000:16:01.0/0000:17:00.0"
    add_device(tmp_path, f"{switch}/0000:18:00.0/0000:19:00.0")
    add_device(tmp_path, f"{switch}/0000:18:01.0/0000:1a:00.0")
    add_device(tmp_path, f"{switch}/0000:18:02.0/0000:1b:00.0", vendor="0x15b3", kind="0x020000")  # a network card
    add_device(tmp_path, "pci0000:16/0000:16:02.0/0000:2a:00.0")  # below the same host bridge only
    place = find_place("0000:19:00.0", tmp_path)
    assert (place.numa, place.pci, place.pcie) == (1, "0000:19:00.0", ("0000:1a:00.0",))
    assert str(place) == f"{socket.gethostname()}, NUMA node 1, PCI 0000:19:00.0, PCIe to 0000:1a:00.0"


def test_what_the_machine_does_not_tell_stays_empty(tmp_path: pathlib.Path) -> None:
    assert find_place("", tmp_path) == WorkerPlace(socket.gethostname(), socket.gethostname())
    assert find_place("0000:19:00.0", tmp_path).numa == -1
    assert str(WorkerPlace()) == ""


def test_a_worker_without_a_gpu_reports_the_node_of_its_cores(tmp_path: pathlib.Path) -> None:
    for node, cores in (("node0", "9000-9003"), ("node1", "0-4095,5000")):
        folder = tmp_path / "sys/devices/system/node" / node
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")
    assert find_place("", tmp_path).numa == 1
    assert parse_cores("0-2,7") == {0, 1, 2, 7}
    assert parse_cores("") == set()


#: Three GPUs: the first one has NVLink to the third one only.
NVML = """
#include <string.h>
typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char busId[32]; } Pci;
static const char *ids[] = {"00000000:19:00.0", "00000000:1A:00.0", "00000000:4C:00.0"};
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **d) {
    for (long i = 0; i < 3; i++) if (!strcmp(id, ids[i] + 4)) { *d = (void *)(i + 1); return 0; }
    return 6;
}
int nvmlDeviceGetP2PStatus(void *a, void *b, int index, int *status) {
    *status = (long)a + (long)b == 4 && index == 2 ? 0 : 5;
    return 0;
}
int nvmlDeviceGetPciInfo_v3(void *d, Pci *pci) { strcpy(pci->busId, ids[(long)d - 1]); return 0; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_nvlink_neighbours_by_nvml(tmp_path: pathlib.Path) -> None:
    """A library with NVML's functions, called as the driver's would be: there is no machine with NVLink here."""
    (tmp_path / "nvml.c").write_text(NVML)
    library = str(tmp_path / "nvml.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(tmp_path / "nvml.c")], check=True, timeout=60)
    assert nvlink_neighbours("0000:19:00.0", library) == ("0000:4c:00.0",)
    assert nvlink_neighbours("0000:1A:00.0", library) == ()
    assert nvlink_neighbours("0000:99:00.0", library) == (), "a GPU that the driver does not know"
    assert nvlink_neighbours("", library) == ()
    assert nvlink_neighbours("0000:19:00.0", str(tmp_path / "none.so")) == ()
    assert short_pci("00000001:4C:00.0") == "0001:4c:00.0"


def test_gt_workers_shows_the_place(stack: Any) -> None:
    system = System(stack)
    system.worker("--backend", "numpy")
    client = system.client("""
        (worker,) = gt.workers()
        say(worker.place.hostname, bool(worker.place.machine), worker)
    """)
    name = socket.gethostname()
    assert client.expect(name).startswith(f"{name} True Worker(id=0, device='cpu'")
    assert f"at='{name}" in client.lines[-1]
    assert client.end() == 0


# -- measuring -----------------------------------------------------------------------------


@pytest.fixture
def probes() -> tuple[LinkProbe, LinkProbe]:
    accepting, measuring = (LinkProbe("127.0.0.1", range(1), lambda: None) for _ in range(2))
    return accepting, measuring


def message_of(probe: LinkProbe) -> Any:
    """The next message of a probe."""
    (message,) = wait_until(probe.finished, what="a message of the probe")
    return message


def test_two_workers_measure_their_link(probes: tuple[LinkProbe, LinkProbe]) -> None:
    accepting, measuring = probes
    accepting.handle(OpenProbe(2))
    opened: ProbeOpen = message_of(accepting)
    for number in (3, 4):
        measuring.handle(MeasureLink(number, opened.address, opened.key))
        measured: LinkMeasured = message_of(measuring)
        assert measured.worker == number
        assert 0 < measured.latency_us < 1e6
        assert measured.bytes_per_us > 0
    host, port = opened.address.split(":")
    wait_until(lambda: not listens(host, int(port)), what="the end of the probe")


def listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def test_a_stranger_gets_nothing_and_blocks_nobody(probes: tuple[LinkProbe, LinkProbe]) -> None:
    accepting, measuring = probes
    accepting.handle(OpenProbe(1))
    opened: ProbeOpen = message_of(accepting)
    measuring.handle(MeasureLink(1, opened.address, bytes(16)))
    assert message_of(measuring) == LinkMeasured(1, 0.0, 0.0)
    measuring.handle(MeasureLink(1, opened.address, opened.key))
    assert message_of(measuring).latency_us > 0


def test_a_message_that_is_too_long_ends_the_connection(probes: tuple[LinkProbe, LinkProbe]) -> None:
    accepting, _ = probes
    accepting.handle(OpenProbe(1))
    opened: ProbeOpen = message_of(accepting)
    host, port = opened.address.split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(opened.key + struct.pack("!Q", 1 << 40))
        assert connection.recv(8) == b""


def test_a_link_that_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_probe, "CONNECTION_S", 0.5)
    with socket.socket() as taken, socket.create_server(("127.0.0.1", 0)) as silent:
        taken.bind(("127.0.0.1", 0))  # it does not listen
        measuring = LinkProbe("127.0.0.1", range(1), lambda: None)
        for address in (taken, silent):
            measuring.handle(MeasureLink(1, f"127.0.0.1:{address.getsockname()[1]}", bytes(16)))
            assert message_of(measuring) == LinkMeasured(1, 0.0, 0.0)
        port = silent.getsockname()[1]
        accepting = LinkProbe("127.0.0.1", range(port, port + 1), lambda: None)
        accepting._accept(OpenProbe(1))  # its only port is taken
        assert accepting.finished() == []


# -- the dispatcher's side -----------------------------------------------------------------


class Worker:
    """A worker, as far as the topology looks at it."""

    def __init__(self, id: int, host: str) -> None:
        self.id, self.info = id, WorkerInfo(id, "numpy", "cpu", "", 1, store="s", place=WorkerPlace(host))


class Desk:
    """A topology, and what it sends."""

    def __init__(self) -> None:
        self.workers: dict[int, Any] = {}
        self.sent: list[tuple[int, Message]] = []
        send: Callable[[Any, Message], None] = lambda worker, message: self.sent.append((worker.id, message))
        self.topology = Topology(self.workers, send)

    def join(self, *hosts: str) -> list[tuple[int, Message]]:
        """Workers join; returns what was sent."""
        for host in hosts:
            worker = self.workers[len(self.workers)] = Worker(len(self.workers), host)
            self.topology.joined(worker)
        sent, self.sent = self.sent, []
        return sent

    def open(self, id: int) -> list[tuple[int, Message]]:
        self.topology.probe_open(self.workers[id], ProbeOpen("there", b"k"), ())
        sent, self.sent = self.sent, []
        return sent

    def measured(self, id: int, other: int, *figures: float) -> None:
        self.topology.measured(self.workers[id], LinkMeasured(other, *figures), ())

    def link(self, *workers: int) -> LinkSpeed:
        """The link between hosts with two workers each."""
        profile = self.topology.profile(Mesh(workers), 0)
        assert profile is not None
        return profile.between


def test_who_measures() -> None:
    desk = Desk()
    assert desk.join("a", "a", "a") == [], "with one host nothing is measured"
    assert desk.join("b") == [(3, OpenProbe(1)), (1, OpenProbe(1))], "the new host, and within the first one"
    assert desk.join("b") == [(4, OpenProbe(1))]
    assert desk.join("b") == []
    assert desk.join("c") == [(6, OpenProbe(2))]
    assert desk.open(6) == [(0, MeasureLink(6, "there", b"k")), (3, MeasureLink(6, "there", b"k"))]
    assert desk.open(5) == [], "nobody has asked it"
    many = Desk()
    many.join(*(f"host {i}" for i in range(MAX_MEASURED_HOSTS + 5)))
    assert many.join("new") == [(MAX_MEASURED_HOSTS + 5, OpenProbe(MAX_MEASURED_HOSTS))]


def test_figures_are_set_once_and_bounded() -> None:
    desk = Desk()
    desk.join("a", "a", "b", "b", "c", "c")
    desk.measured(0, 2, 7000.0, 50.0)
    desk.measured(0, 2, 1.0, 1.0)
    desk.measured(2, 0, 1.0, 1.0)  # nobody has asked it
    assert desk.link(0, 1, 2, 3) == LinkSpeed(7000.0, 1 / 50)
    assert desk.link(0, 1, 4, 5) == UNMEASURED
    desk.measured(0, 4, 7000.0, 50.0)
    assert desk.link(0, 1, 4, 5) == UNMEASURED, "a link that was used keeps its figures"
    desk.measured(2, 4, 1e300, 1e-300)
    assert desk.link(2, 3, 4, 5).latency_us == MAX_LATENCY_US
    failing = Desk()
    failing.join("a", "a", "b", "b")
    failing.measured(0, 2, 0.0, 0.0)
    assert failing.link(0, 1, 2, 3) == UNMEASURED


def test_lines_that_make_no_difference_have_no_profile() -> None:
    desk = Desk()
    desk.join("a", "a", "b", "b", "b", "c")
    profile = desk.topology.profile
    assert profile(Mesh((0, 1)), 0) is None, "one host"
    assert profile(Mesh((0, 2)), 0) is None, "one worker on each"
    assert profile(Mesh((0, 1, 2, 3, 4)), 0) is None, "not the same number on each"
    mixed = profile(Mesh((0, 2, 1, 3)), 0)
    assert mixed is not None
    assert (mixed.hosts, mixed.crossings) == (((0, 2), (1, 3)), 2)
    straight = profile(Mesh((0, 1, 2, 3)), 0)
    assert straight is not None
    assert (straight.hosts, straight.crossings) == (((0, 1), (2, 3)), 1)
    assert profile(Mesh((0, 1, 2, 3), (2, 2)), 0) is None, "each line has one worker on each host"
    desk.topology.flat = True
    assert profile(Mesh((0, 1, 2, 3)), 0) is None


def test_a_host_keeps_its_place_while_its_workers_come_and_go() -> None:
    desk = Desk()
    desk.join("a", "b", "a", "b")
    assert desk.topology.ordered() == [0, 2, 1, 3]
    for id in (0, 2):
        del desk.workers[id]
        desk.topology.gone(id)
    assert desk.topology.ordered() == [1, 3]
    desk.workers[9] = Worker(9, "a")
    desk.topology.joined(desk.workers[9])
    assert desk.topology.ordered() == [9, 1, 3]


def test_explain_of_a_local_system_says_nothing_of_hosts() -> None:
    with gt.testing.Cluster(4).client():
        gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(0)))
        try:
            with gt.signal.context("rows"):
                x = gt.ones(8, 4)
            y = x.sum(0) * x.sum(0)
            assert "by all_reduce; about" in gt.debug.explain(y)
        finally:
            gt.load_config(None)
