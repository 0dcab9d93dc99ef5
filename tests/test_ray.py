"""GT on Ray: a real cluster of two nodes on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import re
import signal
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.support.processes import Process, alive, script, wait_until

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install -e .[ray]")
SETTINGS = {
    "GT_BACKEND": "numpy",
    "CUDA_VISIBLE_DEVICES": "",
    "RAY_USAGE_STATS_ENABLED": "0",
    # busy cores: a node starts slowly, and one that is lost is noticed within seconds, but not too soon
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "10",
}
START_TIMEOUT_S = 400.0
#: A client that starts two workers on two nodes.
LAUNCH = """
    import os, sys, time
    import gt
    def say(*what): print(*what, flush=True)
    try:
        gt.launch.ray(workers=2, address=os.environ["ADDRESS"])
    except gt.GtError as error:
        say(type(error).__name__, error)
        sys.exit(3)
    say("ready", *(worker.pid for worker in gt.workers()))
"""


@pytest.fixture(scope="module", autouse=True)
def only_cluster() -> Iterator[None]:
    """Programs find clusters of this machine by themselves, so parallel test processes take turns."""
    with (pathlib.Path(tempfile.gettempdir()) / f"gt-tests-ray-{os.getuid()}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def start_cluster(stack: contextlib.ExitStack, **settings: str) -> Process:
    process = Process("-m", "tests.support.ray_cluster", **(SETTINGS | settings))
    stack.callback(process.close)
    try:
        line = process.expect("the cluster is at", START_TIMEOUT_S)
    except AssertionError as error:
        pytest.skip(f"Ray does not run on this machine: {error}")
    process.address = line.split()[-1]
    stack.callback(process.end)
    stack.callback(process.popen.stdin.close)
    return process


@pytest.fixture(scope="module")
def cluster() -> Iterator[Process]:
    with contextlib.ExitStack() as stack:
        yield start_cluster(stack)


def client(program: str, cluster: Process, stack: contextlib.ExitStack, **extra: str) -> Process:
    return script(program, stack=stack, **(SETTINGS | {"ADDRESS": cluster.address} | extra))


def pids_of(line: str) -> list[int]:
    return [int(word) for word in line.split()[1:]]


def actor_processes() -> list[int]:
    """The processes of GT's actors."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if re.match(rb"ray::(Server|Worker)Actor", path.read_bytes()):
                found.append(int(path.parent.name))
    return found


@needs_ray
@pytest.mark.long
def test_a_program_starts_workers_and_ends_them(cluster, stack):
    program = (
        LAUNCH
        + """
    say("sum", (gt.ones(4, 3) + 1).sum().item())
    sys.stdin.readline()
    """
    )
    process = client(program, cluster, stack)
    workers = pids_of(process.expect("ready"))
    process.expect("sum 24.0")
    actors = actor_processes()
    assert len(actors) == 3
    assert len(set(workers)) == 2
    process.tell()
    assert process.end() == 0, process.output
    wait_until(lambda: not any(map(alive, [*workers, *actors])), what="the end of the workers")


@needs_ray
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_ended_client_leaves_nothing(cluster, stack, number):
    process = client(LAUNCH + "    time.sleep(600)", cluster, stack)
    workers = pids_of(process.expect("ready"))
    actors = actor_processes()
    process.kill(number)
    wait_until(lambda: not any(map(alive, [*workers, *actors])), what="the end of the workers")


@needs_ray
@pytest.mark.long
def test_no_room_for_the_workers(cluster, stack):
    """While it waits, Ctrl-C ends it; after the time it was given, an error says what is free."""
    process = client(LAUNCH.replace("workers=2,", "workers=3,"), cluster, stack)
    process.expect("Ray: waiting for 3 workers with 1 CPU each; free are 2 CPU")
    process.kill(signal.SIGINT)
    process.end()
    assert "KeyboardInterrupt" in process.output
    process = client(LAUNCH.replace("workers=2,", "workers=3, timeout=1,"), cluster, stack)
    assert "no room within 1 s for 3 workers with 1 CPU each; free are 2 CPU" in process.expect("NoWorkers")


@needs_ray
@pytest.mark.long
def test_a_lost_worker_and_a_lost_node(cluster, stack):
    """Their tensors are lost, and other workers take their places."""
    program = (
        LAUNCH
        + """
    def place(i):
        gt.register_config(f"on {i}", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[i])))
        with gt.signal.context(f"on {i}"):
            return gt.ones(3)
    for line in sys.stdin:
        first, second = sorted(worker.id for worker in gt.workers())
        tensors = [place(first), place(second)]
        say("sums", *(x.sum().item() for x in tensors))
        sys.stdin.readline()
        lost = 0
        while not lost:
            for x in tensors:
                try:
                    x.sum().item()
                except gt.WorkerLost as error:
                    say("WorkerLost", error)
                    lost += 1
            time.sleep(0.1)
        while len(gt.workers()) < 2:
            say("rejoining") if lost == 1 else None
            lost += 1
            gt.ones(1).sum().item()
            time.sleep(0.1)
        say("rejoined", *(worker.pid for worker in gt.workers()))
    """
    )
    process = client(program, cluster, stack)
    pids = pids_of(process.expect("ready"))
    process.tell()
    process.expect("sums 3.0 3.0")
    _kill(pids[0])
    process.tell()
    assert "worker" in process.expect("WorkerLost")
    assert len({*pids_of(process.expect("rejoined")), pids[1]}) == 2
    process.lines.clear()

    process.tell()
    process.expect("sums 3.0 3.0")
    cluster.tell("remove")
    cluster.expect("done remove")
    process.tell()
    assert "worker" in process.expect("WorkerLost")
    process.expect("rejoining")
    cluster.tell("add")
    cluster.expect("done add")
    process.expect("rejoined")


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid))


def test_ray_is_not_installed(stack):
    program = """
    import sys
    sys.modules["ray"] = None
    import gt
    gt.launch.ray(workers=2)
    """
    process = script(program, stack=stack)
    assert process.end() == 1
    assert "gt.launch.ray: Ray is not installed: pip install 'gt-tensor[ray]'" in process.output


def test_no_ray_cluster(stack):
    program = """
    import sys, types
    def init(**options):
        raise ConnectionError("Could not find any running Ray instance.")
    sys.modules["ray"] = types.SimpleNamespace(is_initialized=lambda: False, init=init)
    import gt
    try:
        gt.launch.ray(workers=2, address="auto")
    except gt.ClusterError as error:
        print(error)
    try:
        gt.launch.ray(workers=0)
    except gt.ConfigError as error:
        print(error)
    """
    process = script(program, stack=stack)
    assert process.end() == 0, process.output
    assert process.lines == [
        "gt.launch.ray: Could not find any running Ray instance.",
        "gt.launch.ray(workers=0): at least one worker is needed",
    ]


@needs_ray
@pytest.mark.long
def test_a_worker_that_cannot_start(stack):
    """A cluster whose nodes have a setting that no worker accepts."""
    cluster = start_cluster(stack, GT_BACKEND="abacus")
    process = client(LAUNCH, cluster, stack)
    assert "a worker on the Ray cluster failed while it was starting (exit code 1: " in process.expect("NoWorkers")
    assert "abacus" in process.output
    assert process.end() == 3
