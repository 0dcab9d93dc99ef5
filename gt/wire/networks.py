"""The networks that workers use among themselves, as the operator declares them (``--private-network``)."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from gt.errors import ConfigError
from gt.wire.addresses import numeric_addresses, route_address

Network = IPv4Network | IPv6Network

#: Linux's request for the IPv4 address of an interface.
_SIOCGIFADDR = 0x8915


def data_address(text: str) -> str:
    """The address of this host that ``--data-address`` names: an address, a host name, or a network such as
    10.0.0.0/8, in which this host has an address. Raises ConfigError."""
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


def parse_network(text: str) -> Network:
    """``10.0.0.0/8`` as a network. Raises ConfigError."""
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        raise ConfigError(f"{text} is not a network, such as 10.0.0.0/8: {error}") from None


def interface_of(address: str) -> str | None:
    """The name of the network interface whose first IPv4 address this is; None if it is not known."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no IPv4 address
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def is_private(address: str, networks: Sequence[Network]) -> bool:
    """Whether a numeric address is in one of the networks, or only processes of its own host can reach it."""
    parsed = ip_address(address)
    return parsed.is_loopback or any(parsed in network for network in networks)
