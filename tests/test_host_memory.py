"""A worker on the CPU runs out of memory: the instruction fails, and nobody else notices."""

from __future__ import annotations

import contextlib
import os
import pathlib
import platform
import signal
import subprocess
import sys
from typing import Any

import pytest

import gt
from gt.launch.cgroup import cgroup_free_bytes
from gt.testing import Cluster
from gt.worker import __main__ as worker_main
from gt.worker.__main__ import SPIN_COUNT, memory_size
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


FAULTS = """
import ctypes, resource, sys
from gt.worker.engines.host_memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory(1 << 30)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(2 << 20) for _ in range(32)]
    for block in blocks:
        ctypes.memset(block, 1, 2 << 20)
    for block in blocks:
        libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_freed_memory_is_kept_for_the_next_step() -> None:
    """32 blocks of 2 MiB are 16,384 pages of 4 KiB."""
    kept, returned = (
        int(subprocess.run([sys.executable, "-c", FAULTS, mode], check=True, capture_output=True, text=True).stdout)
        for mode in ("keep", "return")
    )
    assert kept < 1000
    assert returned > 8000


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere an idle thread waits for a short time only")
@pytest.mark.parametrize(
    ("given", "spins"), [({}, str(SPIN_COUNT)), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_idle_threads_of_an_op_sleep_soon(
    given: dict[str, str], spins: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the user decides otherwise. The variable is set before torch is loaded, which reads it once."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "GT_TORCH_DEVICE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    seen: list[str | None] = []
    monkeypatch.setattr(worker_main, "_connect", lambda options: seen.append(os.environ.get("GOMP_SPINCOUNT")) or 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # a worker ends at once with SIGTERM; this process does not
    assert worker_main.main([]) == 0
    assert seen == [spins]
