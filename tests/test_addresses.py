"""Hosts and ports: as text, ranges of ports, IPv6, and hosts with several addresses."""

from __future__ import annotations

import contextlib
import pathlib
import re
import socket
import sys

import pytest

import gt
from gt.__main__ import run_command
from gt.errors import ConfigError
from gt.wire.addresses import (
    AddressTaken,
    join_address,
    numeric_addresses,
    parse_port,
    parse_ports,
    route_address,
    split_address,
)
from gt.worker.collectives.store import StoreServer
from tests.support.processes import Process, free_port, script


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback address")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:9000", "localhost", 9000),
        ("tcp://10.0.0.1:1", "10.0.0.1", 1),
        ("[::1]:9000", "::1", 9000),
        ("tcp://[fe80::1%eth0]:9000", "fe80::1%eth0", 9000),
    ],
)
def test_addresses_as_text(text, host, port):
    assert split_address(text) == (host, port)
    assert join_address(host, port) == text.removeprefix("tcp://")


@pytest.mark.parametrize("text", ["", "localhost", ":9000", "host:", "host:x", "::1:9000", "[::1]"])
def test_a_wrong_address(text):
    with pytest.raises(ConfigError, match="an address is host:port"):
        split_address(text)


def test_ranges_of_ports():
    assert list(parse_ports("9000-9002")) == [9000, 9001, 9002]
    assert list(parse_ports("9000")) == [9000]


@pytest.mark.parametrize("text", ["", "x", "9000-", "9100-9000", "-5"])
def test_wrong_ports(text):
    with pytest.raises(ConfigError, match="expected a range of ports"):
        parse_ports(text)


@pytest.mark.parametrize("text", ["0", "65536", "-1", "x", "²"])
def test_a_number_that_is_no_port(text):
    with pytest.raises(ConfigError, match=f"^port {text}: ports go from 1 to 65535$"):
        parse_port(text)
    assert parse_port("65535") == 65535
    assert parse_port("0", least=0) == 0


@pytest.mark.parametrize(
    "use", [parse_ports, lambda text: parse_ports(f"1-{text}"), lambda text: split_address(f"localhost:{text}")]
)
def test_every_port_is_checked(use):
    with pytest.raises(ConfigError, match=r"^port 99999: ports go from 1 to 65535$"):
        use("99999")


def test_connecting_to_a_port_that_is_too_high():
    with pytest.raises(ConfigError, match=r"^connect\('localhost:99999'\): ports go from 1 to 65535$"):
        gt.connect("localhost:99999")


@pytest.mark.parametrize("name", ["server", "worker", "top", "doctor"])
def test_a_command_refuses_a_port_that_is_too_high(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", list(sys.argv))  # a command puts its name there
    with pytest.raises(SystemExit) as end:
        run_command([name, "-p", "99999"])
    assert end.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == f"gt {name}: error: argument -p/--port: port 99999: ports go from 1 to 65535"


def test_the_first_free_port_of_a_range():
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressTaken, match=f"all ports from {port} to {port} of 127.0.0.1 are taken"):
            StoreServer("127.0.0.1", range(port, port + 1))
        store = StoreServer("127.0.0.1", range(port, port + 50))
        store.close()
        assert split_address(store.address.split()[0])[1] in range(port + 1, port + 50)
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0"):  # an address of no machine
        StoreServer("192.0.2.1", range(1))


def test_the_address_by_which_this_host_reaches_another():
    assert route_address("127.0.0.9", 9000) == "127.0.0.1"
    assert route_address("no-such-host.invalid", 9000) is None
    assert numeric_addresses("localhost")[0] == "127.0.0.1"


def start(stack: contextlib.ExitStack, *words: str) -> Process:
    process = Process(*words)
    stack.callback(process.close)
    return process


def listening(pid: int) -> set[tuple[str, int]]:
    """The addresses a process listens on."""
    inodes = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        if match := re.fullmatch(r"socket:\[(\d+)\]", str(entry.readlink())):
            inodes.add(match[1])
    found = set()
    for name in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                host, port = words[1].split(":")
                found.add((host, int(port, 16)))
    return found


def test_server_and_workers_listen_within_a_range(stack):
    first = free_port()
    ports = f"{first}-{first + 30}"
    server = start(stack, "-m", "gt.server", "--ports", ports)
    port = int(server.expect("listening").split(":")[-1])
    workers = [
        start(stack, "-m", "gt.worker", "-p", str(port), "--backend", "numpy", "--ports", ports) for _ in range(2)
    ]
    for worker in workers:
        worker.expect("joined")
    ends = {pid: listening(pid) for pid in (server.pid, *(worker.pid for worker in workers))}
    numbers = [port for addresses in ends.values() for _, port in addresses]
    assert len(numbers) == len(set(numbers)) == 3
    assert set(numbers) <= set(range(first, first + 31))
    # and when the range is full
    with socket.create_server(("127.0.0.1", 0)) as taken:
        full = str(taken.getsockname()[1])
        late = start(stack, "-m", "gt.worker", "-p", str(port), "--backend", "numpy", "--ports", full)
        assert late.end() == 1
        assert f"all ports from {full} to {full} of 127.0.0.1 are taken; --ports names others" in late.output


@needs_ipv6
def test_ipv6_from_end_to_end(stack):
    """Two torch workers, so that there is a collective between them."""
    port = free_port()
    server = start(stack, "-m", "gt.server", "--host", "::1", "-p", str(port))
    server.expect(f"listening on [::1]:{port}")
    workers = [start(stack, "-m", "gt.worker", "--host", "::1", "-p", str(port)) for _ in range(2)]
    for worker in workers:
        worker.expect("joined [::1]:")
    program = f"""
        import gt
        gt.connect("[::1]:{port}")
        gt.register_config("split", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
        with gt.signal.context("split"):
            x = gt.arange(8)
        print("sum", x.sum().item(), flush=True)
    """
    client = script(program, stack=stack)
    client.expect("sum 28")
    assert client.end() == 0
    assert all(host != "0100007F" for worker in workers for host, _ in listening(worker.pid))
