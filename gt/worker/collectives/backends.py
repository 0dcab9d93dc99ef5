"""Process groups without a world: ProcessGroupGloo and ProcessGroupNCCL built directly over the leader's store."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from gt.worker.collectives import Broken
from gt.worker.collectives.descriptors import links, listening
from gt.worker.collectives.groups import Left, Made, Membership

#: torch types none of what is used here
dist: Any = torch.distributed

#: Seconds within which all members must have joined.
JOIN_S = 30.0
#: Seconds for the connections, once all have: all are there and at it. gloo tries five times.
CONNECT_S = 3.0
#: A collective may wait as long as its slowest member computes. Deaths end it, and `leave`; no clock does.
ENDLESS = timedelta(days=30)
#: Seconds between two looks at who has joined.
LOOK_S = 0.002

#: while a device is made: the port it listens on is the one that was not there before
_one_device = threading.Lock()


def make_gloo(m: Membership, left: Left) -> Made:
    device, port = _gloo_device(m.host)
    store, words = _meet(m, left, f"{m.host} {port}")
    peers = {(host, int(port)) for host, port in (word.split() for word in words)} - {(m.host, port)}
    options = dist.ProcessGroupGloo._Options()
    options._devices = [device]
    options._timeout = timedelta(seconds=CONNECT_S)
    pg = dist.ProcessGroupGloo(store, m.rank, len(m.members), options)
    pg._set_default_timeout(ENDLESS)
    return Made(pg, on_stream=False, links=links(port, peers), end=lambda: None)


def make_nccl(m: Membership, left: Left) -> Made:
    """NCCL does not say that a member died, least of all one on the same machine: gloo's connections beside it do."""
    _prepare_nccl()
    beside = make_gloo(m, left)
    torch.cuda.set_device(m.device)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = ENDLESS
    store = dist.PrefixStore("nccl", _store(m))
    pg = dist.ProcessGroupNCCL(store, m.rank, len(m.members), options)
    # the communicator now, in the background: the first collective would make it while the worker waits
    pg.eager_connect_single_device(torch.device(m.device))
    return Made(pg, on_stream=True, links=beside.links, end=pg.abort, beside=beside)


BACKENDS: dict[str, Callable[[Membership, Left], Made]] = {"gloo": make_gloo, "nccl": make_nccl}


def _gloo_device(host: str) -> tuple[Any, int]:
    with _one_device:
        before = listening()
        device = dist.ProcessGroupGloo.create_device(hostname=host)
        new = listening() - before
    return device, new.pop() if len(new) == 1 else 0


def _prepare_nccl() -> None:
    """Before NCCL looks: its errors must not end the process, and several workers may share a GPU in tests."""
    for name, value in (
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2"),  # abort the communicator, and leave the process alone
        ("TORCH_NCCL_ENABLE_MONITORING", "0"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "0"),
    ):
        os.environ.setdefault(name, value)
    if os.environ.get("GT_NCCL_SHARED"):
        # NCCL refuses two ranks on one GPU, unless it takes them for ranks on two hosts
        os.environ.setdefault("NCCL_HOSTID", f"gt-{os.getpid()}")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def _meet(m: Membership, left: Left, word: str) -> tuple[Any, list[str]]:
    """The group's store, once every member has left its word there; and the words."""
    store = _store(m)
    store.set(f"word {m.rank}", word)
    keys = {rank: f"word {rank}" for rank in range(len(m.members))}
    deadline = time.monotonic() + JOIN_S
    while missing := [m.members[rank] for rank, key in keys.items() if not store.check([key])]:
        if left():
            raise Broken("the group was left before all had joined")
        if time.monotonic() > deadline:
            names = ", ".join(map(str, missing))
            raise Broken(f"worker{'s' * (len(missing) > 1)} {names} did not join within {JOIN_S:g} s")
        time.sleep(LOOK_S)
    return store, [store.get(key).decode() for key in keys.values()]


def _store(m: Membership) -> Any:
    """A connection of the group's own: a store's client does one thing at a time, and one of them may be to wait."""
    host, _, port = m.store.rpartition(":")
    try:
        # a plane listens from its beginning: who is refused now would be refused for ever
        socket.create_connection((host, int(port)), JOIN_S).close()
    except OSError as error:
        raise Broken(f"worker {m.members[0]} is not there any more ({m.store}: {error.strerror or error})") from None
    client = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=JOIN_S))
    return dist.PrefixStore(f"group {m.group}", client)
