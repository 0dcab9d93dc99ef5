"""Which session ops go to: the one the program connected to, or one started on this machine at first use."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from gt.client.stream import configuration
from gt.client.stream.server_connection import RecoveryOptions
from gt.client.stream.session import Session
from gt.errors import ClusterError, ConfigError, ConnectionLost, GtError, NoWorkers, Refused
from gt.say import warn
from gt.version import PROTOCOL, VERSION
from gt.wire import interrupts
from gt.wire.codec import encode
from gt.wire.messages import Hello
from gt.wire.settings import unread_settings
from gt.wire.shared import host_identity
from gt.wire.structures import WorkerInfo

__all__ = ["cancel", "connect", "disconnect", "gpu_workers", "workers"]

#: Seconds to wait for a server to answer.
CONNECT_TIMEOUT_S = 3.0
#: Seconds that `disconnect` waits for the last instructions, so that their failures are reported.
FINISH_TIMEOUT_S = 2.0
#: The most seconds to wait for the end of a server's process after its connection is lost; a busy machine needs some.
SERVER_END_S = 10.0


class StartedSystem(Protocol):
    """A server and workers that GT started for this process, and ends with it."""

    #: for messages
    name: str
    #: "tcp://host:port" or "unix:path"
    address: str
    #: None for a Unix socket
    keys: Any
    #: how many workers it has when it is complete
    workers: int
    #: seconds until then
    start_timeout: float

    def check(self, joined: int = 0) -> bool:
        """Called from time to time while workers join: False, or raises if some never will."""

    def explain(self, server_lost: bool) -> str:
        """Why the server, or else a worker, is lost; empty if nothing is known."""

    def stop(self) -> None:
        """End all of it. May be called twice, and from any thread."""


class _Process:
    """What this process is connected to."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.session: Session | None = None
        #: the `StartedSystem` that GT started for it, if it did; most are local
        self.local: Any = None
        #: why no session may start here; empty: it may
        self.refusal = ""
        #: settings that were reported to have no effect here
        self.reported_settings: set[str] = set()
        #: what sessions pass to `Session.keep_program`; None: they do not call it
        self.recovery: RecoveryOptions | None = None
        #: as `gpu_workers` set it; None: one for each GPU, or one
        self.worker_count: int | None = None


_process = _Process()


def session() -> Session:
    """The current session; the first use of GT starts one."""
    current = _process.session
    if current is not None:
        return current
    with _process.lock:
        return _process.session if _process.session is not None else _start()


def connected() -> Session | None:
    """The current session, if there is one."""
    return _process.session


@contextlib.contextmanager
def use(other: Session) -> Iterator[None]:
    """Make another session the current one inside the block."""
    before, _process.session = _process.session, other
    try:
        yield
    finally:
        _process.session = before


def connect(address: str | None = None) -> None:
    """Use the server at ``"host:port"`` for all later ops. A session that was open ends, and its tensors are freed.

    ``python -m gt.server -p 9000`` starts a server, ``python -m gt.worker --host localhost -p 9000`` a worker for it.
    Without an address it is the server that ``gt up`` started.

    Example::

        gt.connect("localhost:9000")
    """
    from gt.wire.addresses import join_address, split_address
    from gt.wire.auth import connection_keys

    token = None
    if address is None:
        from gt.launch.up_state import find_system

        system = find_system()
        address, token = system.address, system.token
    try:
        host, port = split_address(address)
    except ConfigError as error:
        raise ConfigError(f"connect({address!r}): {str(error).partition(': ')[2]}") from None
    address = join_address(host, port)
    with _process.lock:
        keys = connection_keys(host, port, CONNECT_TIMEOUT_S, token)
        opened = open_session(f"tcp://{address}", keys, address)
        disconnect()
        _process.session = opened
    _warn_about_unread_settings(opened, address)


def _warn_about_unread_settings(opened: Session, address: str) -> None:
    """Say, once, which settings of this process nobody reads: the server and the workers were started without them."""
    unread = unread_settings(opened.settings_on_server, bool(opened.connection.workers))
    news = {name: reader for name, reader in unread.items() if name not in _process.reported_settings}
    _process.reported_settings.update(news)
    if news:
        names = ", ".join(f"{name} (read by {reader})" for name, reader in news.items())
        have, them = ("has", "it") if len(news) == 1 else ("have", "them")
        warn(f"{names} {have} no effect in a client of {address}: set {them} where the server and its workers start")


def disconnect() -> None:
    """End the session, and the workers that GT started for it. The next op starts a local system."""
    with _process.lock:
        ending, _process.session = _process.session, None
        local, _process.local = _process.local, None
        with contextlib.ExitStack() as cleanup:  # all of it happens, also if the wait is interrupted
            if local is not None:
                cleanup.callback(local.stop)
            if ending is not None:
                cleanup.callback(ending.close)
                with contextlib.suppress(GtError):
                    ending.finish(FINISH_TIMEOUT_S)


def gpu_workers(n: int) -> None:
    """Restart the local system with n workers: one for each GPU, or n on the CPU where there is no GPU.

    Example::

        gt.gpu_workers(2)
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ConfigError(f"gpu_workers({n!r}): at least one worker is needed")
    with _process.lock:
        disconnect()
        _process.worker_count = n
        _start()


def cancel() -> None:
    """Drop submitted instructions that have not started, if their results are freed and nothing alive needs them.

    Ctrl-C during a wait does the same: the program goes on without the work that it abandoned.

    Example::

        results = [gt.randn(4000, 4000) @ gt.randn(4000, 4000) for _ in range(100)]
        del results  # not needed after all
        gt.cancel()
    """
    if (current := connected()) is not None:
        current.outbox.cancel()


def workers() -> list[WorkerInfo]:
    """The workers of the current session: number, device, backend and process of each.

    Example::

        print(gt.workers())
    """
    return list(session().connection.workers)


def open_session(
    address: str, keys: Any, name: str, timeout: float = CONNECT_TIMEOUT_S, check_server: Callable[[], object] = bool
) -> Session:
    """Connect, send `Hello`, and wait for `Welcome`. ``check_server`` raises if the server will never answer."""
    from gt.client.stream.link import ThreadedLink
    from gt.launch.idle_cores import make_spinning
    from gt.wire.transport import connection as connect_to

    interrupts.install()
    opened = Session(name)
    transport = connect_to(address, keys, leased=True, spinning=make_spinning())
    link = ThreadedLink(transport, opened.handle)
    opened.connection.link, opened.connection.address = link, address
    try:
        link.send([encode(Hello("client", PROTOCOL, VERSION, host_identity(), os.getpid()))])
        deadline = time.monotonic() + timeout
        while not link.wait(lambda: opened.welcomed or opened.connection.ended is not None, 0.2):
            check_server()
            if time.monotonic() >= deadline or transport.refused:
                raise _no_answer(name, transport.refused, timeout)
        opened.connection.check_open()
    except BaseException:
        opened.connection.ended = opened.connection.ended or ConnectionLost(f"no connection to {name}")
        link.close()
        raise
    link.start(opened.outbox.flush_in_background)
    if _process.recovery is not None:
        opened.keep_program(_process.recovery)
    return opened


def _no_answer(name: str, refused: str, timeout: float) -> GtError:
    if refused:
        return Refused(f"{name}: {refused}")
    from gt.wire.auth import no_server

    host, _, port = name.rpartition(":")
    return no_server(host.strip("[]"), port, timeout)


def _start() -> Session:
    """Start a system on this machine: a server and workers, private to this process."""
    from gt.launch.local import LocalSystem

    if _process.refusal:
        raise ClusterError(_process.refusal)
    configuration.prepare()  # so that a mistake in the file is reported before anything is started
    return _use(LocalSystem(_process.worker_count, every_gpu=configuration.current.auto))


def connect_system(system: StartedSystem) -> None:
    """Use a system for all later ops. A session that was open ends."""
    with _process.lock:
        disconnect()
        _use(system)


def _use(system: StartedSystem) -> Session:
    """Connect to a system, wait for its workers, and make it the current one. It is stopped if that fails."""
    try:
        opened = open_session(system.address, system.keys, system.name, system.start_timeout, system.check)
        connection = opened.connection
        connection.explain = system.explain
        connection.on_end.append(system.stop)
        check = lambda: system.check(len(connection.workers))
        if not connection.wait_for_workers(system.workers, system.start_timeout, check):
            missing = f"{system.workers - len(connection.workers)} of {system.workers} workers"
            raise NoWorkers(f"{system.name}: {missing} were not ready after {system.start_timeout:g} s")
    except BaseException as error:
        try:
            if isinstance(error, ConnectionLost):
                _find_cause(system)
        finally:
            system.stop()
        raise
    _process.session, _process.local = opened, system
    return opened


def _find_cause(system: StartedSystem) -> None:
    """The connection of a process that fails ends before the process does. Raises if it has ended."""
    deadline = time.monotonic() + SERVER_END_S
    while time.monotonic() < deadline:
        system.check()
        time.sleep(0.01)


def recover_later_sessions(options: RecoveryOptions | None) -> None:
    """`gt.recovery` for the sessions that are not open yet."""
    _process.recovery = options


def refuse_to_start(reason: str) -> None:
    """From now on the first use of GT in this process raises, where it would start a local system."""
    _process.refusal = reason


FORKED = "a forked process cannot use its parent's tensors; its first op starts a new session"


def _after_fork() -> None:
    """A forked child has no session: sockets and threads stayed with its parent."""
    if _process.session is not None:
        _process.session.connection.ended = ConnectionLost(FORKED)
    _process.session = _process.local = None
    _process.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(disconnect)
