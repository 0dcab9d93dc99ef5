"""Which session ops go to: the one connected to, or one started on this machine at first use."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from gt.client.signals import config
from gt.client.stream.session import Session
from gt.errors import ConfigError, ConnectionLost, GtError, NoWorkers, Refused
from gt.version import PROTOCOL, VERSION
from gt.wire.codec import encode
from gt.wire.messages import Hello, WorkerInfo
from gt.wire.shared import host_identity

__all__ = ["connect", "disconnect", "gpu_workers", "workers"]

#: Seconds until a server that does not answer is given up.
CONNECT = 3.0
#: Seconds the last instructions have to fail in a way that is told.
LAST = 2.0

_lock = threading.RLock()
_current: Session | None = None
_local: Any = None
_workers_wanted: int | None = None


def session() -> Session:
    """The current session; the first use of GT makes one."""
    if _current is not None:
        return _current
    with _lock:
        return _current if _current is not None else _start()


def connected() -> Session | None:
    """The current session, if there is one."""
    return _current


@contextlib.contextmanager
def use(other: Session) -> Iterator[None]:
    """Make another session the current one for a while."""
    global _current
    before, _current = _current, other
    try:
        yield
    finally:
        _current = before


def connect(address: str) -> None:
    """Use the server at ``"host:port"`` from here on; a session that was open is ended."""
    global _current
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"connect({address!r}): an address is host:port, for example localhost:9000")
    from gt.wire.auth import peer_keys, token_for_peer

    with _lock:
        made = open_session(f"tcp://{host}:{port}", peer_keys(token_for_peer()), f"{host}:{port}")
        disconnect()
        _current = made


def disconnect() -> None:
    """End the session, and the local system if GT started one. The next op starts anew."""
    global _current, _local
    with _lock:
        ending, _current = _current, None
        local, _local = _local, None
        with contextlib.ExitStack() as acts:  # all of them, also if the wait is interrupted
            if local is not None:
                acts.callback(local.stop)
            if ending is not None:
                acts.callback(ending.close)
                with contextlib.suppress(GtError):
                    ending.finish(LAST)


def gpu_workers(n: int) -> None:
    """Restart the local system with n workers: one a GPU, or on the CPU where there are none."""
    global _workers_wanted
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ConfigError(f"gpu_workers({n!r}): at least one worker is needed")
    with _lock:
        disconnect()
        _workers_wanted = n
        _start()


def workers() -> list[WorkerInfo]:
    """The workers of the current session's system."""
    return list(session().workers)


def open_session(address: str, keys: Any, name: str, timeout: float = CONNECT, alive: Any = None) -> Session:
    """Connect, say hello, and wait for the welcome. ``alive`` raises if there is no hope any more."""
    from gt.client.stream.link import ThreadedLink
    from gt.client.tensor import interrupts
    from gt.wire.transport import connection as connection_to

    interrupts.install()
    made = Session(name)
    connection = connection_to(address, keys)
    link = ThreadedLink(connection, made.handle)
    made.link = link
    try:
        link.send([encode(Hello("client", PROTOCOL, VERSION, host_identity(), os.getpid()))])
        deadline = time.monotonic() + timeout
        while not link.wait(lambda: made.welcomed or made.ended is not None, 0.2):
            if alive is not None:
                alive()
            if time.monotonic() >= deadline or connection.refused:
                raise _no_answer(name, connection.refused, timeout)
        if made.ended is not None:
            raise made.ended
    except BaseException:
        made.ended = made.ended or ConnectionLost(f"no connection to {name}")
        link.close()
        raise
    link.start(made.flush_by_itself)
    return made


def _no_answer(name: str, refused: str, timeout: float) -> GtError:
    if refused:
        return Refused(f"{name}: {refused}")
    host, _, port = name.rpartition(":")
    return ConnectionLost(
        f"no GT server answers at {name} after {timeout:g} s; start one with: python -m gt.server -p {port}, "
        f"and workers with: python -m gt.worker --host {host} -p {port}"
    )


def _start() -> Session:
    """Start a system on this machine: a server and workers, private to this process."""
    global _current, _local
    from gt.launch.local import LocalSystem

    config.from_environment()  # a mistake in the file is told before anything is started
    local = LocalSystem(_workers_wanted, every_gpu=config.current.auto)
    try:
        made = open_session(local.address, None, "the local system", LocalSystem.PATIENCE, local.check)
        made.on_end.append(local.stop)
        if not made.await_workers(local.workers, LocalSystem.PATIENCE, local.check):
            raise NoWorkers(f"the local workers were not ready after {LocalSystem.PATIENCE:g} s")
    except BaseException:
        local.stop()
        raise
    _current, _local = made, local
    return made


def _after_fork() -> None:
    """A forked child has no session: sockets and threads stayed with its parent."""
    global _current, _local, _lock
    if _current is not None:
        _current.ended = ConnectionLost(
            "a forked process cannot use its parent's tensors; it gets a session of its own"
        )
    _current = _local = None
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(disconnect)
