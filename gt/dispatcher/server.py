"""The dispatcher's shell: one listener, one loop, the clock and the log file. ``python -m gt.server`` runs it."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from gt.dispatcher.actions import Action, SendAll, SendMessage
from gt.dispatcher.batching import VARIABLE, parse_batch_size
from gt.dispatcher.core import Dispatcher
from gt.dispatcher.debug_log import DebugLog
from gt.dispatcher.instruction_log import InstructionLog
from gt.dispatcher.listeners import Clocks
from gt.dispatcher.lost_workers import NO_WORKERS_LEFT
from gt.dispatcher.recovery.snapshot_folder import SnapshotFolder
from gt.dispatcher.recovery.snapshot_memory import SnapshotMemory
from gt.dispatcher.recovery.snapshots import SnapshotStorage
from gt.dispatcher.state import Client, Peer
from gt.dispatcher.tenants.access import REVOKED, Access
from gt.dispatcher.tenants.audit_log import AuditLog
from gt.errors import ClusterError, ConfigError
from gt.launch.idle_cores import make_spinning
from gt.say import topic, warn
from gt.wire.addresses import AddressTaken
from gt.wire.codec import BadFrame, Decode, encode
from gt.wire.identities import PeerIdentity
from gt.wire.messages import Heartbeat
from gt.wire.server_keys import KeyPair
from gt.wire.settings import SERVER_SETTINGS, settings_on
from gt.wire.shared import host_identity
from gt.wire.token_file import Identities
from gt.wire.transport import listen

if TYPE_CHECKING:
    from gt.dispatcher.journal.journal import Journal
    from gt.dispatcher.journal.restart import Restart
    from gt.wire.networks import Network

#: The interval of `Dispatcher.tick` and of heartbeats.
TICK_S = 1.0
#: The longest wait for messages while somebody listens to events.
FLUSH_S = 0.2


class Server:
    """``keys`` and ``identities``: for a TCP address. ``audit``: the file of the audit log. ``journal``: its folder; if
    there is one, the server goes on where the one that wrote it has ended. ``networks``: see `Access`. ``snapshots``:
    their folder."""

    #: whether the loss of a worker ends the server
    ends_with_workers = False
    #: whether a signal has requested the end; asked once a tick
    end_requested: Callable[[], bool] = staticmethod(bool)
    _most_workers = 0

    def __init__(
        self,
        address: str,
        keys: KeyPair | None,
        identities: Identities | None = None,
        host: str = "localhost",
        port: int = 9000,
        operator: str = "",
        lease_s: float = 0.0,
        audit: str = "",
        journal: Journal | None = None,
        networks: tuple[Network, ...] = (),
        snapshots: SnapshotFolder | None = None,
    ) -> None:
        self.identities, self._journal, self._snapshots = identities, journal, snapshots
        report = self._note, self._handshake_failed
        try:
            self.listener = listen(address, keys, identities, lease_s, *report, journal, make_spinning())
        except OSError as error:
            raise _listen_error(address, error) from None
        self._private = address.startswith("unix:")
        self._restart: Restart | None = None
        #: the clock of events, in nanoseconds
        self._clock = time.perf_counter_ns if journal is None else journal.read_clock
        clocks = Clocks(time.perf_counter_ns if journal is None else journal.clock, time.time_ns, host_identity())
        access = Access(operator, self._private, self._identity, networks, _data_secret(keys))
        self.use_core(self._make_core(host, port, access, clocks))
        self.decode = Decode("dispatcher")
        self.verbose: Callable[[str], object] | None = None
        self._audit: AuditLog | None = None
        self.logs: list[InstructionLog | DebugLog | AuditLog] = []
        #: whether the server goes on from a journal; from here on it reports and logs
        self.restarted = journal is not None and self._begin_journal(journal, access, clocks)
        if journal is None:
            self._begin_snapshots()
        self._open_logs(audit)
        self.next_tick = time.monotonic() + TICK_S
        self.next_flush = 0.0
        #: why the tokens could not be read the last time
        self._tokens_problem = ""

    def _make_core(self, host: str, port: int, access: Access, clocks: Clocks) -> Dispatcher:
        batch_size = parse_batch_size(os.environ.get(VARIABLE, ""))
        # no other worker can join a private system, so the hint to start one would be wrong
        no_workers = NO_WORKERS_LEFT if self._private else None
        cuda_ipc = os.environ.get("GT_CUDA_IPC", "0") not in ("", "0")
        prefetch = os.environ.get("GT_NO_PREFETCH", "0") in ("", "0")
        # the memory that a server holds ends with it, so a journal could not bring snapshots back
        storage: SnapshotStorage | None = self._snapshots
        if storage is None and self._journal is None:
            storage = _snapshot_memory()
        settings = settings_on(SERVER_SETTINGS)
        core = Dispatcher(host, port, batch_size, no_workers, access, clocks, settings, cuda_ipc, storage, prefetch)
        core.topology.flat = os.environ.get("GT_FLAT_COLLECTIVES", "0") not in ("", "0")
        return core

    def use_core(self, core: Dispatcher) -> None:
        self.core = core
        #: not empty while somebody listens to events
        self._listeners = core.listeners.listeners

    def _open_logs(self, audit: str) -> None:
        self.verbose = topic("GT_VERBOSE")
        self._audit = AuditLog(audit, self.core, self.listener.identity, self.listener.address) if audit else None
        self.logs += [self._audit] if self._audit is not None else []
        if path := os.environ.get("GT_INSTRUCTION_LOG"):
            self.logs.append(InstructionLog(self.core, _line_writer(path)))
        if say := topic("GT_DEBUG_DISPATCHER"):
            self.logs.append(DebugLog(self.core, say))

    # -- the journal ---------------------------------------------------------------------

    def _begin_journal(self, journal: Journal, access: Access, clocks: Clocks) -> bool:
        """Go on from the journal; False if it is empty. Raises ConfigError."""
        from gt.dispatcher.journal.restart import Restart

        externals = {"access": access, "clock": clocks.clock, "wall": clocks.wall}
        if self._snapshots is not None:
            externals["snapshots"] = self._snapshots
        self._restart = Restart(journal, self.listener, externals)
        restarted = self._restart.restore(self)
        self._begin_snapshots()
        try:
            self._restart.write_state(self.core)
        except OSError as error:
            raise ConfigError(f"the journal cannot be written: {error.strerror}") from None
        return restarted

    def _begin_snapshots(self) -> None:
        """Keep the files of the snapshots that there are, and remove all others."""
        snapshots = self.core.snapshots
        if self._snapshots is not None and (lost := snapshots.lose_files(self._snapshots.begin(snapshots.files()))):
            warn(f"the snapshots of {lost} sessions are not there any more; with their next lost worker they end")

    def _identity(self, peer: Peer) -> PeerIdentity | None:
        return self.listener.identity(peer) if self._restart is None else self._restart.identity(peer)

    def _shorten_journal(self, journal: Journal, restart: Restart) -> None:
        try:
            restart.write_state(self.core)
        except OSError as error:
            journal.end(error)

    # -- events --------------------------------------------------------------------------

    def run(self) -> None:
        receive = self.listener.receive
        while True:
            now = time.monotonic()
            if now >= self.next_tick:
                self._tick(now)
            patience = self.next_tick - now if self.next_tick > now else 0.0
            if self._listeners:
                patience = min(patience, FLUSH_S)
                if now >= self.next_flush:
                    self.next_flush = now + FLUSH_S
                    if self.core.listeners.due(recent := self._clock()):
                        self.flush(recent)
            for peer, frames in receive(patience):
                if type(frames) is list:
                    self.receive(peer, frames)
                elif frames is None:
                    self.gone(peer)
                else:
                    self._refuse_frame(peer, frames)

    def flush(self, now: int) -> None:
        """Send the dispatcher's own events."""
        if self._journal is not None:
            self._journal.flush()
        self.core.listeners.flush(now)
        self._act(self.core.delivery.take_actions())

    def receive(self, peer: Peer, frames: list[bytes]) -> None:
        try:
            message = self.decode(frames[0])
        except BadFrame as error:
            self._refuse_frame(peer, error)
            return
        if self._journal is not None:
            self._journal.message(peer, frames)
        if self._listeners:
            self._handle_recorded(peer, message, frames)
            return
        actions = self.core.handle(peer, message, tuple(frames[1:]), len(frames[0]))
        for log in self.logs:
            log.received(peer, message)
        self._act(actions)

    def _refuse_frame(self, peer: Peer, error: object) -> None:
        self.refuse(peer, f"a frame that does not decode: {error}")

    def refuse(self, peer: Peer, reason: str) -> None:
        if self._journal is not None:
            self._journal.refused(peer, reason)
        self._act_unasked(self.core.refuse(peer, reason))

    def _handle_recorded(self, peer: Peer, message: Any, frames: list[bytes]) -> None:
        """Handle a message, and record that for those who listen to events."""
        listeners, sender = self.core.listeners, self.core.by_peer.get(peer)
        begun = self._clock()
        actions = self.core.handle(peer, message, tuple(frames[1:]), len(frames[0]))
        for log in self.logs:
            log.received(peer, message)
        self._act(actions)
        listeners.handled(sender, message, actions, begun, self._clock())

    def _tick(self, now: float) -> None:
        """Pass the time to the core, and send heartbeats, because sending to a lost peer fails."""
        self.next_tick = now + TICK_S
        if self.end_requested():
            raise KeyboardInterrupt
        if self._restart is not None and self._journal is not None:
            if self._journal.is_long:
                self._shorten_journal(self._journal, self._restart)
            self.tick_core(now + self._restart.clock_offset)
        else:
            self.tick_core(now)
        if self.ends_with_workers:
            self._check_workers()
        if self.identities is not None:
            self._end_revoked(self.identities)
        needs_heartbeat = self.listener.needs_heartbeat
        self._act([SendMessage(peer, Heartbeat()) for peer in self.core.by_peer if needs_heartbeat(peer)])
        for peer in self.listener.silent(now):
            if self._private and isinstance(self.core.by_peer.get(peer), Client):
                continue  # it is stopped, by a debugger for example; nobody else waits for it
            self.listener.drop(peer)
            self.gone(peer)

    def tick_core(self, now: float) -> None:
        """Pass the time to the core."""
        if self._journal is not None:
            self._journal.tick(now)
        self._act_unasked(self.core.tick(now))

    def _check_workers(self) -> None:
        """Raises ClusterError, which ends the server, if a worker is lost."""
        count = len(self.core.workers)
        if count < self._most_workers:
            raise ClusterError(f"{self._most_workers - count} of {self._most_workers} workers lost")
        self._most_workers = count

    def _note(self, peer: Peer, event: str) -> None:
        """Tell the operator what happened to a client's connection."""
        self.core.inspections.log(text := f"{self.core.name_of(peer)} {event}")
        if self._audit is not None:
            self._audit.noted(peer, event)
        if self.verbose:
            self.verbose(text)

    def _handshake_failed(self, address: str, reason: str) -> None:
        if self._audit is not None:
            self._audit.failed_handshake(address, reason)

    def _end_revoked(self, identities: Identities) -> None:
        """Follow the file of tokens, and end the connections whose token is not in it any more."""
        try:
            identities.reload()
        except ConfigError as error:
            if str(error) != self._tokens_problem:
                warn(f"{error}; the tokens that were valid before stay valid")
            self._tokens_problem = str(error)
            return
        for peer in [peer for peer in self.core.by_peer if self.listener.identity(peer) is None]:
            self.refuse(peer, REVOKED)

    def gone(self, peer: Peer) -> None:
        if self.verbose:
            self.verbose(f"{self.core.name_of(peer)} is gone")
        if self._audit is not None:
            self._audit.ended(peer)
        if self._journal is not None:
            self._journal.gone(peer)
        self._act_unasked(self.core.gone(peer))

    def _act_unasked(self, actions: list[Action]) -> None:
        """Carry out actions that are not the answer to a message."""
        self._act(actions)
        if self._listeners:
            now = self._clock()
            self.core.listeners.handled(None, None, actions, now, now)

    def _act(self, actions: Iterable[Action]) -> None:
        """Carry out all actions in order; only then report to the core the peers that could not be reached."""
        unreachable: list[Peer] = []
        replaying = self._journal is not None and self._journal.replaying
        for action in actions:
            if isinstance(action, SendMessage):
                head = [] if action.message is None else [encode(action.message)]
                self._send((action.peer,), [*head, *action.rest], action.message, unreachable, action.rest)
            elif isinstance(action, SendAll):
                self._send(action.peers, [encode(action.message)], action.message, unreachable)
            else:
                self.listener.drop(action.peer)
                if self._audit is not None:
                    self._audit.ended(action.peer)
                if action.reason and not replaying:
                    warn(f"a connection was ended: {action.reason}")
        if unreachable and not replaying:  # those that could not be reached then are in the journal
            for peer in dict.fromkeys(unreachable):
                self.gone(peer)

    def _send(
        self,
        peers: tuple[Peer, ...],
        frames: list[Any],
        message: Any,
        unreachable: list[Peer],
        rest: tuple[Any, ...] = (),
    ) -> None:
        for log in self.logs:
            log.sent(peers, message, rest)
        for peer in peers:
            if not self.listener.send(peer, frames):
                unreachable.append(peer)

    def close(self) -> None:
        self.listener.close()
        if self._snapshots is not None:
            self._snapshots.close(keep=self._journal is not None)
        if self._journal is not None:
            self._journal.close()


def _data_secret(keys: KeyPair | None) -> bytes:
    """Follows from the server's private key, so that a server that was started again has the same."""
    if keys is None:
        return secrets.token_bytes(32)
    return hashlib.blake2b(keys.secret, digest_size=32, person=b"gt/workers").digest()


def _snapshot_memory() -> SnapshotMemory | None:
    """None if processes on this host cannot share memory."""
    return SnapshotMemory(host_identity()) if host_identity() else None


def _line_writer(path: str) -> Callable[[str], object]:
    """A function that writes a line with the time in front. The file stays open as long as the server runs.

    After an error, of a full disk for example, nothing more is written: the clients must not suffer from it.
    """
    file = open(path, "ab", buffering=0)  # noqa: SIM115

    def write(line: str) -> None:
        if file.closed:
            return
        now = time.time()
        stamp = time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1e6):06d}"
        try:
            file.write(f"{stamp} | {line}\n".encode())
        except OSError as error:
            file.close()
            warn(f"GT_INSTRUCTION_LOG ends here: {path} cannot be written ({error.strerror}); the server goes on")

    return write


def _listen_error(address: str, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return AddressTaken(f"{address} is taken: another program uses it; choose another port with -p")
    return ConfigError(f"cannot listen on {address}: {error.strerror}")
