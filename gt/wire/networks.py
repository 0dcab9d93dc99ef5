"""The networks that workers use among themselves, as the operator declares them (``--private-network``)."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from gt.errors import ConfigError

Network = IPv4Network | IPv6Network


def parse_network(text: str) -> Network:
    """``10.0.0.0/8`` as a network. Raises ConfigError."""
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        raise ConfigError(f"{text} is not a network, such as 10.0.0.0/8: {error}") from None


def is_private(address: str, networks: Sequence[Network]) -> bool:
    """Whether a numeric address is in one of the networks, or only processes of its own host can reach it."""
    parsed = ip_address(address)
    return parsed.is_loopback or any(parsed in network for network in networks)


def store_host(store: str) -> str:
    """The numeric address in the "host:port KEY" of a worker's store. Raises ValueError."""
    host = store.partition(" ")[0].rpartition(":")[0]
    return str(ip_address(host.strip("[]").partition("%")[0]))
