"""A worker on the CPU runs out of memory: the instruction fails, and nobody else notices."""

from __future__ import annotations

import contextlib
import pathlib
from typing import Any

import pytest

import gt
from gt.launch.cgroup import cgroup_free_bytes
from gt.testing import Cluster
from gt.worker.__main__ import memory_size
from gt.worker.engines import host_memory
from gt.worker.engines.host_memory import HostMemory, NoHostMemory
from tests.support.processes import System

MIB = 1 << 20

FILL = """
    kept = []
    try:
        while True:
            kept.append(gt.ones(4 << 20))  # 16 MiB
            kept[-1].sum().item()
    except gt.OutOfMemory as error:
        say("full:", str(error).splitlines()[0])
    say("kept", len(kept) - 1)
    go()
    kept.clear()
    say("again", gt.ones(4 << 20).sum().item())
"""

SCRATCH = """
    x = gt.ones(10 << 20)  # 40 MiB
    x.sum().item()
    try:
        say("median", x.median().item())
    except gt.OutOfMemory as error:
        say("scratch:", str(error).splitlines()[0])
    say("goes on", gt.ones(3).sum().item())
"""


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_worker_keeps_some_memory_free(stack: contextlib.ExitStack, backend: str) -> None:
    """One client takes all that it can; its own instruction fails. The other one goes on, and the worker too."""
    system = System(stack)
    worker = system.worker("--backend", backend, "--device", "cpu", "--threads", "1", "--memory", "256MiB")
    neighbour = system.client("""
        x = gt.arange(1000)
        go()
        say("neighbour", (x + 1).sum().item())
    """)
    client = system.client(FILL)
    said = client.expect("full:")
    assert "out of memory: this needs 16 MiB, and " in said
    assert "This client holds" in said
    kept = int(client.expect("kept").split()[-1])
    assert 6 <= kept <= 12  # 64 of 256 MiB stay free
    neighbour.tell()
    neighbour.expect("neighbour 500500")
    client.tell()
    client.expect("again 4194304.0")
    assert client.end() == 0
    assert neighbour.end() == 0
    assert worker.popen.poll() is None


def test_what_kernels_allocate_is_limited_too(stack: contextlib.ExitStack) -> None:
    """The median of 40 MiB has 4 bytes, and torch copies its operand for it."""
    pytest.importorskip("torch")
    system = System(stack)
    system.worker("--backend", "torch", "--device", "cpu", "--threads", "1", "--memory", "70MiB")
    client = system.client(SCRATCH)
    assert "median(float32[10485760]" in client.expect("scratch:")
    client.expect("goes on 3.0")
    assert client.end() == 0


def test_sizes() -> None:
    assert memory_size("256MiB") == 256 * MIB
    with pytest.raises(ValueError, match="not a positive number"):
        memory_size("much")


class Machine:
    """What the machine reports, instead of this one's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, total: int) -> None:
        self.available, self.cgroup, self.looks = total, None, 0
        monkeypatch.setattr(host_memory, "_machine_bytes", lambda: total)
        monkeypatch.setattr(host_memory, "_available_bytes", self.look)
        monkeypatch.setattr(host_memory, "cgroup_free_bytes", lambda: self.cgroup)
        monkeypatch.setattr(HostMemory, "_limit_process", lambda self, nbytes: None)

    def look(self) -> int:
        self.looks += 1
        return self.available


def test_what_is_left_is_looked_up_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 16 << 30)
    memory = HostMemory()
    assert memory.headroom == 512 * MIB
    for _ in range(1000):
        memory.check(8 * MIB)  # 8,000 MiB in all, which other processes have not used meanwhile
    assert machine.looks == 1
    machine.available = 600 * MIB
    with pytest.raises(NoHostMemory, match=r"needs 8000 MiB, and 88 MiB are left \(512 MiB stay free\)"):
        memory.check(8000 * MIB)
    memory.check(80 * MIB)


def test_a_cgroup_may_leave_less_than_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    machine: Any = Machine(monkeypatch, 16 << 30)
    memory = HostMemory()
    machine.cgroup = 700 * MIB
    with pytest.raises(NoHostMemory, match="188 MiB are left"):
        memory.check(200 * MIB)


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_cgroup_leaves(tmp_path: pathlib.Path, version: int) -> None:
    own, base = tmp_path / "own", tmp_path / "root"
    group = base / "job" if version == 2 else base / "memory" / "job"
    group.mkdir(parents=True)
    own.write_text("0::/job\n" if version == 2 else "4:memory:/job\n")
    assert cgroup_free_bytes(base, own) is None
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, value in zip(names, (1000, 700), strict=True):
        (group / name).write_text(f"{value}\n")
    assert cgroup_free_bytes(base, own) == 300
    (group / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert cgroup_free_bytes(base, own) == 450


def test_small_results_and_views_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 1 << 30)
    cluster = Cluster(1, backend="numpy")
    next(iter(cluster.workers.values())).engine.limit_memory(None, shared=True)
    with cluster.client():
        assert gt.ones(1000).reshape(10, 100).sum().item() == 1000
        assert machine.looks == 0
        assert gt.ones(1000, 1000).reshape(1000000).sum().item() == 1e6
        assert machine.looks == 1
        machine.available = 0
        with pytest.raises(gt.OutOfMemory, match="out of memory: this needs"):
            gt.ones(1 << 15, 1 << 13).sum().item()
