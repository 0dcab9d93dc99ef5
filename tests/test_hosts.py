"""Workers on hosts of a real network: training, a host that disappears, a slow host."""

from __future__ import annotations

import contextlib
import json
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
