"""What workers exchange among themselves: who may take part, and over which networks."""

from __future__ import annotations

import contextlib
import secrets
import socket
from datetime import timedelta
from typing import Any

import pytest

from gt.dispatcher.tenants.access import Access
from gt.dispatcher.violations import Violation
from gt.errors import ConfigError
from gt.version import PROTOCOL, VERSION
from gt.wire.addresses import data_address, interface_of
from gt.wire.messages import Hello
from gt.wire.networks import parse_network
from gt.wire.structures import WorkerInfo
from gt.worker.collectives.interface import GroupBroken
from gt.worker.collectives.store import MAX_STORE_BYTES, StoreAnswer, StoreRequest, StoreServer, StoreValues
from tests.support import namespaces
from tests.support import plane_member as at
from tests.support.namespaces import HostsSystem, Network
from tests.support.plane_member import Member, everywhere
from tests.support.processes import wait_until
from tests.support.proxy import Proxy

# -- which networks ---------------------------------------------------------------------------


def hello(address: str, host: str) -> Hello:
    return Hello("worker", PROTOCOL, VERSION, host, 1, store=f"{address} KEY" if address else "")


#: address and host of a worker that has joined, and of the next one; the declared networks; whether it is admitted
JOINS = {
    "one host": (("10.0.0.1:5", "a"), ("10.0.0.1:6", "a"), (), True),
    "one host with two addresses": (("127.0.0.1:5", "a"), ("10.0.0.1:6", "a"), (), True),
    "one address, without shared memory": (("10.0.0.1:5", ""), ("10.0.0.1:6", ""), (), True),
    "loopback": (("127.0.0.1:5", "a"), ("[::1]:6", "b"), (), True),
    "workers without a data plane": (("", "a"), ("", "b"), (), True),
    "workers in one process": (("local:0", ""), ("local:1", ""), (), True),
    "only one says so": (("10.0.0.1:5", ""), ("local:1", ""), (), False),
    "two hosts": (("10.0.0.1:5", "a"), ("10.0.0.2:6", "b"), (), False),
    "a declared network": (("10.0.0.1:5", "a"), ("10.0.0.2:6", "b"), ("10.0.0.0/8",), True),
    "two declared networks": (("10.0.0.1:5", "a"), ("[fd00::2]:6", "b"), ("10.0.0.0/8", "fd00::/8"), True),
    "one is outside": (("10.0.0.1:5", "a"), ("192.168.0.2:6", "b"), ("10.0.0.0/8",), False),
    "the first is outside": (("192.168.0.2:6", "b"), ("10.0.0.1:5", "a"), ("10.0.0.0/8",), False),
    "an address that is none": (("10.0.0.1:5", "a"), ("nonsense", "b"), ("10.0.0.0/8",), False),
    "a name": (("10.0.0.1:5", "a"), ("host:6", "b"), ("0.0.0.0/0",), False),
}


@pytest.mark.parametrize("name", JOINS)
def test_tensors_cross_declared_networks_only(name: str) -> None:
    first, second, networks, admitted = JOINS[name]
    access = Access(networks=tuple(map(parse_network, networks)))
    joined = hello(*first)
    info = WorkerInfo(7, "torch", "cpu", joined.host, 1, "", joined.store)
    with contextlib.nullcontext() if admitted else pytest.raises(Violation):
        access.admit_worker(hello(*second), [info])


def test_addresses_of_this_host() -> None:
    assert data_address("127.0.0.1") == data_address("127.0.0.0/8") == data_address("127.0.0.1/32") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.1") is None
    for text, problem in (
        ("no-such-host.invalid", "neither an address nor a network"),
        ("10.0.0.0/99", "is not a network"),
        ("203.0.113.0/24", "this host has no address in this network"),
    ):
        with pytest.raises(ConfigError, match=problem):
            data_address(text)


# -- the store --------------------------------------------------------------------------------


def test_requests_to_a_store() -> None:
    store = StoreValues()

    def ask(action: str, keys: list[str], *values: bytes, now: bool = False) -> list[tuple[bytes, StoreAnswer]]:
        return store.handle(b"peer", StoreRequest(1, action, keys, list(values), now))

    assert ask("wait", ["g 1/a"], now=True) == [(b"peer", StoreAnswer(1, [None]))]
    waiting = StoreRequest(2, "wait", ["g 1/a", "g 1/b"])
    assert store.handle(b"other", StoreRequest(1, "wait", ["g 1/b"])) == []
    assert store.handle(b"other", waiting) == []  # it has given up the first one
    assert len(ask("set", ["g 1/a"], b"x")) == 1
    assert ask("set", ["g 1/b"], b"y")[1:] == [(b"other", StoreAnswer(2, [b"x", b"y"]))]
    assert ask("increase", ["g 1/n"], b"3")[0][1].values == [b"3"]
    assert ask("increase", ["g 1/n"], b"-1")[0][1].values == [b"2"]
    assert ask("compare", ["g 1/n"], b"7", b"8")[0][1].values == [b"2"]
    assert ask("compare", ["g 1/n"], b"2", b"8")[0][1].values == [b"8"]
    assert ask("delete", ["g 1/n"])[0][1].values == [None]
    assert ask("set", ["g 12/a"], b"z")
    store.forget("g 1")
    assert list(store.values) == ["g 12/a"]
    with pytest.raises(ValueError, match="full"):
        ask("set", ["g 12/b"], bytes(MAX_STORE_BYTES))


def member(address: str, secret: bytes) -> Any:
    from gt.worker.collectives.member_store import MemberStore

    return MemberStore(address, secret, "group 1", timedelta(seconds=10))


def test_a_store_admits_workers_of_its_server_only(stack: contextlib.ExitStack) -> None:
    pytest.importorskip("torch")
    server, secret = StoreServer("127.0.0.1", range(1)), secrets.token_bytes(32)
    stack.callback(server.close)
    early = member(server.address, secret)
    stack.callback(early.close)
    with pytest.raises(GroupBroken, match="refuses this worker"):  # nobody is admitted yet
        early.set("key", b"x")
    server.admit(secret)
    store = member(server.address, secret)
    stack.callback(store.close)
    store.set("key", b"value")
    host, port = server.address.split()[0].split(":")
    for noise in (b"", b"GET / HTTP/1.0\r\n\r\n", bytes(1000)):
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(noise)
    for wrong in (b"", secrets.token_bytes(32)):
        other = member(server.address, wrong)
        stack.callback(other.close)
        with pytest.raises(GroupBroken, match="refuses this worker"):
            other.get("key")
    imposter = StoreServer("127.0.0.1", range(1))  # at the right address, without the key that was announced
    stack.callback(imposter.close)
    imposter.admit(secret)
    deceived = member(f"{imposter.address.split()[0]} {server.address.split()[1]}", secret)
    stack.callback(deceived.close)
    with pytest.raises(GroupBroken, match="refuses this worker"):
        deceived.set("key", b"secret")
    assert store.get("key") == b"value"
    assert store.clone().add("count", 2) == 2
    assert store.check(["key"])
    assert not store.check(["other"])


def test_a_stranger_at_the_port_of_a_group_is_cut_off(stack: contextlib.ExitStack) -> None:
    """It has connected before the members were connected; the group works without it."""
    pytest.importorskip("torch")
    members = [Member() for _ in range(2)]
    for one in members:
        stack.callback(one.close)
    everywhere(members, at.let_a_stranger_in)
    address = members[0].ask(at.address)
    for rank, one in enumerate(members):
        one.ask(at.join, rank, 1, 2, address)
    everywhere(members, at.start_sum, 1)
    assert everywhere(members, at.finish_sum) == [[2.0]] * 2
    wait_until(lambda: everywhere(members, at.stranger_is_cut_off) == [True, True], what="the end of the strangers")


# -- hosts of a real network ------------------------------------------------------------------

needs_hosts = pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())


@pytest.mark.long
@needs_hosts
def test_workers_on_two_hosts_need_a_declared_network(stack: contextlib.ExitStack) -> None:
    network = Network(stack, 2)
    system = HostsSystem(stack, network, private=())
    words = ["-m", "gt.worker", "--host", system.host, "-p", str(system.port), "--backend", "numpy"]
    network.hosts[0].start(*words).expect("joined")
    second = network.hosts[1].start(*words)
    assert second.end() == 1
    assert "would cross the network of 10.77.0.12 unencrypted, and it is not declared as private" in second.output
    assert "--private-network" in second.output
    wrong = network.hosts[1].start(*words, "--data-address", "203.0.113.0/24")
    assert wrong.end() == 1
    assert "this host has no address in this network" in wrong.output


@pytest.mark.long
@needs_hosts
def test_tensors_go_over_the_network_that_workers_name(stack: contextlib.ExitStack) -> None:
    """Each host has a second address in a network of its own; the server knows workers by the first."""
    network = Network(stack, 2)
    for n, host in enumerate(network.hosts, 1):
        host.run("ip", "address", "add", f"10.88.0.{n}/24", "dev", "eth0")
    system = HostsSystem(stack, network, private=("10.88.0.0/24",))
    system.join(1, "--data-address", "10.88.0.0/24")
    client = system.client("""
        gt.auto_shard()
        x = gt.ones(4000, 4)
        say("sum", (x.T @ x).sum().item())
        go()
    """)
    client.expect("sum 64000.0")
    for n, host in enumerate(network.hosts, 1):
        listening = host.run("ss", "-Htln")
        assert f"10.88.0.{n}:" in listening
        assert "10.77.0." not in listening
        assert "0.0.0.0:" not in listening.replace("0.0.0.0:*", "")
    client.tell()
    assert client.end() == 0


def test_an_answer_that_comes_late_is_not_asked_for_again(stack: contextlib.ExitStack) -> None:
    """On a link that is slower than the interval of the checks, a second request would void the first one's answer."""
    pytest.importorskip("torch")
    server, secret = StoreServer("127.0.0.1", range(1)), secrets.token_bytes(32)
    stack.callback(server.close)
    server.admit(secret)
    where, key = server.address.split()
    proxy = Proxy(stack, int(where.split(":")[1]))
    store = member(f"127.0.0.1:{proxy.port} {key}", secret)
    stack.callback(store.close)
    store.set("key", b"value")
    assert store.first_answer_s > 0
    asked, checks = store._count, 0

    def left_meanwhile() -> bool:
        nonlocal checks
        checks += 1
        if checks == 5:
            proxy.thaw()
        return False

    proxy.freeze()
    assert store.wait_for(["key"], 30.0, left_meanwhile) == [b"value"]
    assert checks >= 5
    assert store._count == asked + 1
    assert store.wait_for(["other"], 0.2, lambda: False) is None
    with pytest.raises(GroupBroken, match="left before all had joined"):
        store.wait_for(["other"], 30.0, lambda: True)
