"""Process groups without a global world: ProcessGroupGloo and ProcessGroupNCCL, built over the store of rank 0."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from gt.wire.addresses import join_address, split_address
from gt.worker.collectives.descriptors import PATH_TIMEOUT_S, group_connections, listening_ports, probe, shut_down
from gt.worker.collectives.interface import GroupBroken
from gt.worker.collectives.member_store import MemberStore
from gt.worker.collectives.membership import Cancelled, GroupBackend, Membership

#: torch has no types for what is used here
dist: Any = torch.distributed

#: All members must join within this time.
JOIN_TIMEOUT_S = 30.0
#: Connecting may take this long once all members have joined, and so many times the store's first answer: gloo asks it
#: several times for each member. gloo tries five times.
CONNECT_TIMEOUT_S, CONNECT_ANSWERS = 3.0, 10
#: Practically unlimited: a collective waits as long as its slowest member computes. A lost member or `leave` ends it.
COLLECTIVE_TIMEOUT = timedelta(days=30)

#: held while a gloo device is created: its port is the one that was not listening before
_creating_device = threading.Lock()


def make_gloo(m: Membership, cancelled: Cancelled) -> GroupBackend:
    device, port = _gloo_device(m.host)
    store, addresses = _meet(m, cancelled, f"{m.host} {port}")
    at = [(host, int(port)) for host, port in (address.split() for address in addresses)]
    peers = {address: worker for address, worker in zip(at, m.members, strict=True) if worker != m.members[m.rank]}
    options = dist.ProcessGroupGloo._Options()
    options._devices = [device]
    options._timeout = timedelta(seconds=CONNECT_TIMEOUT_S + CONNECT_ANSWERS * store.first_answer_s)
    group = dist.ProcessGroupGloo(store, m.rank, len(m.members), options)
    group._set_default_timeout(COLLECTIVE_TIMEOUT)
    connections = group_connections(port, peers)
    for connection in connections:
        probe(connection)
    try:
        if port:
            _cut_off_strangers(m, cancelled, store, connections)
    except GroupBroken:
        shut_down(connections)
        raise
    finally:
        store.close()  # gloo needs it no more
    return GroupBackend(group, on_stream=False, connections=connections, shutdown=lambda: None, store=store)


def make_nccl(m: Membership, cancelled: Cancelled) -> GroupBackend:
    """NCCL does not report that a member died, especially on the same machine. A gloo group beside it does."""
    _prepare_nccl()
    companion = make_gloo(m, cancelled)
    torch.cuda.set_device(m.device)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = COLLECTIVE_TIMEOUT
    store = _store(m)
    group = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), m.rank, len(m.members), options)
    # create the communicator here, in the background; otherwise the first collective blocks the worker for it
    group.eager_connect_single_device(torch.device(m.device))

    def shutdown() -> None:
        group.abort()
        store.close()

    return GroupBackend(group, True, companion.connections, shutdown, store, companion)


#: With "ipc", gloo only carries messages; see `gt.worker.collectives.ipc`.
BACKENDS: dict[str, Callable[[Membership, Cancelled], GroupBackend]] = {
    "gloo": make_gloo,
    "ipc": make_gloo,
    "nccl": make_nccl,
}


def _gloo_device(host: str) -> tuple[Any, int]:
    """A gloo device and the port it listens on; port 0 if it cannot be determined."""
    with _creating_device:
        before = listening_ports()
        device = dist.ProcessGroupGloo.create_device(hostname=host)
        new = listening_ports() - before
    return device, new.pop() if len(new) == 1 else 0


def _prepare_nccl() -> None:
    """Set variables for NCCL that the user has not set: its errors must not end the process, its kernels go first.

    Tests run several workers on one GPU.
    """
    for name, value in (
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2"),  # abort the communicator, but not the process
        ("TORCH_NCCL_ENABLE_MONITORING", "0"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "0"),
        ("TORCH_NCCL_HIGH_PRIORITY", "1"),  # a collective's kernel does not queue behind those of the computation
    ):
        os.environ.setdefault(name, value)
    if os.environ.get("GT_NCCL_SHARED"):
        # NCCL refuses two ranks on one GPU, except if they seem to be on two hosts
        os.environ.setdefault("NCCL_HOSTID", f"gt-{os.getpid()}")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def _meet(m: Membership, cancelled: Cancelled, address: str) -> tuple[Any, list[str]]:
    """Write this member's address to the group's store and wait for the others. Returns the store and all addresses."""
    store = _store(m)
    try:
        return store, _exchange(m, cancelled, store, "address", address)
    except GroupBroken:
        store.close()
        raise


def _exchange(m: Membership, cancelled: Cancelled, store: Any, name: str, text: str) -> list[str]:
    """Write a text of this member to the store, and wait for those of the others. Returns all of them."""
    keys = {rank: f"{name} {rank}" for rank in range(len(m.members))}
    store.set(keys[m.rank], text)
    values = store.wait_for(list(keys.values()), JOIN_TIMEOUT_S, cancelled)
    if values is None:
        missing = [m.members[rank] for rank, key in keys.items() if not store.check([key])]
        names = ", ".join(map(str, missing))
        raise GroupBroken(f"worker{'s' * (len(missing) > 1)} {names} did not join within {JOIN_TIMEOUT_S:g} s")
    return [value.decode() for value in values]


def _cut_off_strangers(
    m: Membership, cancelled: Cancelled, store: Any, connections: dict[socket.socket, tuple[int, ...]]
) -> None:
    """Close the connections whose other end is not one that a member has. If gloo uses one of them, the group breaks.

    gloo does not ask who connects to its port. The store does, so the members compare their connections there, before
    the first tensor is sent.
    """
    own = {connection: ends for connection in connections if (ends := _ends(connection))}
    texts = _exchange(m, cancelled, store, "connections", ",".join(f"{here} {there}" for here, there in own.values()))
    known = {tuple(pair.split()) for text in texts for pair in text.split(",")}
    for connection, (here, there) in own.items():
        if (there, here) not in known:
            shut_down([connection])
            connection.close()
            del connections[connection]


def _ends(connection: socket.socket) -> tuple[str, str] | None:
    """Both ends of a connection; None if it is closed."""
    try:
        here, there = connection.getsockname(), connection.getpeername()
    except OSError:
        return None
    return join_address(here[0], here[1]), join_address(there[0], there[1])


def _store(m: Membership) -> MemberStore:
    """A new connection to the group's store. Groups share none: it handles one call at a time, and a call may wait."""
    where = m.store.partition(" ")[0]
    host, port = split_address(where)
    try:
        # a plane listens from its start, so a refused connection means that its worker is lost
        socket.create_connection((host, port), PATH_TIMEOUT_S).close()
    except OSError as error:
        reason = error.strerror or error
        raise GroupBroken(f"worker {m.members[0]} cannot be reached ({where}: {reason})") from None
    return MemberStore(m.store, m.data_secret, m.prefix, timedelta(seconds=JOIN_TIMEOUT_S))
