"""Workers on hosts of a real network: training, a host that disappears, a slow host, sums between hosts, clocks."""

from __future__ import annotations

import contextlib
import json
import pathlib
import time
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support import namespaces
from tests.support.hosts_program import CONFIGURATIONS, losses_in_one_process
from tests.support.namespaces import HostsSystem, Network

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not()),
]
#: Seconds from the end of a host to the error. Silence is noticed after 10 s; the rest is for busy cores.
LOST_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostsSystem]:
    """Four hosts with two workers each."""
    with contextlib.ExitStack() as stack:
        system = HostsSystem(stack, Network(stack, 4))
        system.join(2)
        yield system


def check_training(system: HostsSystem, workers: int, *names: str) -> dict[str, float]:
    """The losses are those of one host. Returns the seconds of a step."""
    program = system.start("-m", "tests.support.hosts_program", f"{system.host}:{system.port}", str(workers), *names)
    assert program.end() == 0, program.output
    printed = json.loads(program.lines[-1])
    for name, (losses, _) in printed.items():
        np.testing.assert_allclose(losses, losses_in_one_process(name, workers), rtol=1e-4, err_msg=name)
        assert losses[-1] < losses[0]
    return {name: seconds for name, (_, seconds) in printed.items()}


def test_training_gives_the_losses_of_one_host(hosts: HostsSystem) -> None:
    check_training(hosts, 8, *CONFIGURATIONS)


def test_a_host_that_disappears(hosts: HostsSystem) -> None:
    """What was there is lost, within bounded time; the other hosts continue."""
    client = hosts.client("""
        gt.register_config("all", gt.SignalConfig(shard=gt.ShardConfig(0, [*range(8)])))
        gt.register_config("rest", gt.SignalConfig(shard=gt.ShardConfig(0, [*range(6)])))
        with gt.signal.context("all"):
            x = gt.ones(8, 4)
        say("sum", x.sum().item())
        go()
        try:
            while True:
                x.sum().item()
        except gt.WorkerLost as error:
            say("lost", error)
        with gt.signal.context("rest"):
            say("others", gt.ones(6, 4).sum().item())
        end = time.monotonic() + 100
        while len(gt.workers()) > 6 and time.monotonic() < end:
            time.sleep(0.05)
        say("workers", len(gt.workers()))
    """)
    client.expect("sum 32.0")
    hosts.network.hosts[3].disappear()
    began = time.monotonic()
    client.tell()
    client.expect("lost")
    assert time.monotonic() - began < LOST_WITHIN_S
    client.expect("others 24.0")
    client.expect("workers 6")  # the server has noticed too
    assert client.end() == 0


def test_a_slow_host_only_makes_it_slow(stack: contextlib.ExitStack) -> None:
    network = Network(stack, 2)
    network.hosts[1].shape(delay_ms=15, loss=0.005, mbit=50)
    system = HostsSystem(stack, network)
    system.join(1)
    seconds = check_training(system, 2, "data", "stages")
    assert min(seconds.values()) > 2 * 0.015, "at least one exchange in a step"


# -- sums between hosts --------------------------------------------------------------------

#: What each host's link adds to the way of a packet, so between two hosts it is twice as much.
LINK_MS = 10.0
#: Rows of the weight: KiB of the gradient.
ROWS = "128"


def reduce_times(**settings: str) -> tuple[float, list[float], str]:
    """The seconds of a data-parallel step, the losses, and how the gradient was added, on four new hosts."""
    with contextlib.ExitStack() as stack:
        network = Network(stack, 4)
        for host in network.hosts:
            host.shape(delay_ms=LINK_MS)
        system = HostsSystem(stack, network, **settings)
        system.join_at_once(2, "--backend", "numpy")
        program = system.start("-m", "tests.support.hosts_reduce", f"{system.host}:{system.port}", ROWS, "8")
        assert program.end() == 0, program.output
        seconds, losses, text, _ = json.loads(program.lines[-1])
    return seconds, losses, text


def test_a_sum_by_hosts_is_quicker_than_a_flat_one() -> None:
    """The latency of the links decides: six rounds between hosts instead of fourteen."""
    flat, flat_losses, flat_text = reduce_times(GT_FLAT_COLLECTIVES="1")
    seconds, losses, text = reduce_times()
    assert "by all_reduce; " in flat_text
    assert "reduce_scatter among" in text
    np.testing.assert_allclose(losses, flat_losses, rtol=1e-5)
    print(f"a step: flat {flat:.3f} s, by hosts {seconds:.3f} s")
    assert flat > 1.5 * seconds, (flat, seconds)


def test_a_host_disappears_in_the_middle_of_a_sum(stack: contextlib.ExitStack) -> None:
    """The packets of the sum are on their way when the host ends. Nobody waits for ever."""
    network = Network(stack, 2)
    for host in network.hosts:
        host.shape(delay_ms=100)
    system = HostsSystem(stack, network)
    system.join_at_once(2, "--backend", "numpy")
    client = system.client("""
        gt.register_config("all", gt.SignalConfig(shard=gt.ShardConfig(0)))
        with gt.signal.context("all"):
            x = gt.ones(8, 4096)
            y = x.sum(0) * x.sum(0)
            say("first", y[0].item())
        assert "reduce_scatter among" in gt.debug.explain(y), gt.debug.explain(y)
        with gt.signal.context("all"):
            y = x.sum(0) * x.sum(0)
            say("begun")
            go()
            try:
                say("value", y[0].item())
            except gt.WorkerLost as error:
                say("lost", error)
        while True:
            try:
                say("others", gt.ones(3).sum().item())
                break
            except gt.WorkerLost:  # the home of this client was there
                pass
    """)
    client.expect("begun")
    client.tell()
    network.hosts[1].disappear()
    began = time.monotonic()
    client.expect("lost")
    assert time.monotonic() - began < LOST_WITHIN_S
    client.expect("others 3.0")
    assert client.end() == 0


# -- a wrong clock -------------------------------------------------------------------------

#: The monotonic clock stays right, as on a real host. Otherwise a timed wait of a Python thread never ends: libfaketime
#: changes the clock that is read, and not the one that the kernel waits by.
WRONG_CLOCK = ("env", "FAKETIME=+3600s", "FAKETIME_DONT_FAKE_MONOTONIC=1")


def faketime() -> str:
    """The path of libfaketime; empty if it is not installed."""
    return next(map(str, pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), "")


@pytest.mark.skipif(not faketime(), reason="no libfaketime (Debian: apt-get install libfaketime)")
def test_a_host_whose_clock_is_an_hour_off(stack: contextlib.ExitStack, tmp_path: pathlib.Path) -> None:
    """Training, traces, errors and the worker's lease do not depend on it."""
    system = HostsSystem(stack, Network(stack, 2))
    system.join(1, "--backend", "numpy", before={"node2": (*WRONG_CLOCK, f"LD_PRELOAD={faketime()}")})
    check_training(system, 2, "data")
    client = system.client(f"""
        gt.register_config("all", gt.SignalConfig(shard=gt.ShardConfig(0)))
        gt.register_config("second", gt.SignalConfig(shard=gt.ShardConfig(0, [1])))
        with gt.signal.context("all"):
            x = gt.ones(8, 4)
            for kernels in (False, True):
                with gt.debug.trace(f"{tmp_path}/{{kernels}}.json", kernels=kernels):
                    for _ in range(3):
                        assert (x.sum() * 1).item() == 32
        with gt.signal.context("second"):
            try:
                gt.linalg.cholesky(-gt.eye(2)).numpy()
            except gt.GtError as error:
                say("error", error)
        say("workers", len(gt.workers()))
    """)
    assert "worker 1" in client.expect("error")
    client.expect("workers 2")
    assert client.end() == 0
    for name in ("False", "True"):
        events = json.loads((tmp_path / f"{name}.json").read_text())["traceEvents"]
        times = [event["ts"] for event in events if event["ph"] == "X"]
        assert len({event["pid"] for event in events if event["ph"] == "X"}) >= 2, "both workers are in it"
        assert max(times) - min(times) < 600e6, "microseconds"
    assert not any("is gone" in line for line in system.server.lines if "worker" in line)
