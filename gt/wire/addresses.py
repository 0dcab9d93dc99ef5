"""Hosts and ports: as text, as ranges that a firewall lets through, and which address of this host others can reach."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import re
import socket
import struct
from collections.abc import Iterable

from gt.errors import ConfigError

#: Any port that the kernel chooses.
ANY_PORT = range(1)
MAX_PORT = 65535
#: Linux's request for the IPv4 address of an interface.
_SIOCGIFADDR = 0x8915


class AddressTaken(ConfigError):
    """Another process listens on this address."""


def parse_port(text: str, least: int = 1) -> int:
    """A port. ``least=0``: 0 is any free port. Raises ConfigError."""
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= MAX_PORT):
        raise ConfigError(f"port {text}: ports go from {least} to {MAX_PORT}")
    return int(text)


def split_address(text: str) -> tuple[str, int]:
    """(host, port) of ``host:port``, ``[::1]:9000`` or ``tcp://host:port``. Raises ConfigError."""
    match = re.fullmatch(r"(?:tcp://)?(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:]+)):([0-9]+)", text)
    if match is None:
        raise ConfigError(f"{text!r}: an address is host:port, for example localhost:9000 or [::1]:9000")
    return match[1] or match[2], parse_port(match[3])


def join_address(host: str, port: int | str) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_ports(text: str) -> range:
    """``9000-9100`` or ``9000`` as a range. Raises ConfigError."""
    match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", text)
    ports = range(parse_port(match[1]), parse_port(match[2] or match[1]) + 1) if match else range(0)
    if not ports:
        raise ConfigError(f"--ports {text}: expected a range of ports, such as 9000-9100")
    return ports


def numeric_addresses(host: str) -> list[str]:
    """The addresses of a host, IPv4 first. Raises OSError if the name is not known."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def route_address(host: str, port: int) -> str | None:
    """The address of this host from which it reaches another one; None if there is no route."""
    try:
        addresses = numeric_addresses(host)
    except OSError:
        return None
    for address in addresses:
        with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:  # a datagram socket sends nothing here
            try:
                probe.connect((address, port))
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return None


def listen_within(address: str, ports: Iterable[int], backlog: int) -> socket.socket:
    """A listening socket on a numeric address and the first free port. Raises AddressTaken."""
    ports = list(ports)
    for port in ports:
        try:
            return socket.create_server((address, port), family=_family(address), backlog=backlog)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"cannot listen on {join_address(address, port)}: {error.strerror}") from None
    raise AddressTaken(f"all ports from {ports[0]} to {ports[-1]} of {address} are taken; --ports names others")


def data_address(text: str) -> str:
    """The address of this host that ``--data-address`` names: an address, a host name, or a network such as
    10.0.0.0/8, in which this host has an address. Raises ConfigError."""
    from ipaddress import ip_address  # only workers need it

    from gt.wire.networks import parse_network

    if "/" not in text:
        try:
            return numeric_addresses(text)[0]
        except OSError:
            raise ConfigError(f"--data-address {text}: this is neither an address nor a network") from None
    network = parse_network(text)
    found = route_address(str(network[1] if network.num_addresses > 1 else network[0]), 9)
    if found is None or ip_address(found) not in network:
        raise ConfigError(f"--data-address {text}: this host has no address in this network")
    return found


def interface_of(address: str) -> str | None:
    """The name of the network interface whose first IPv4 address this is; None if it is not known."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no IPv4 address
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
