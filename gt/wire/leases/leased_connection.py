"""The connection of a client or a worker over TCP, which outlives its sockets.

See `gt.wire.numbering` and `gt.wire.leases.leased_listener`.

    opening      the first socket is being connected; `Open` with `Hello` waits in it. If it is cut before the server
                 has answered, another one begins anew
    connected    messages are counted and sent
    lost         the socket has ended. Messages are only counted. One socket after the other tries to `Resume`

After silence, the client tries again as long as the server keeps the session. If the server has closed the connection,
the client tries again for a moment only: either a device in the network has reset the connection, or the server has
ended. The moment is longer if nothing answers its attempts, because then the network is away. If nobody listens at the
server's address any more, it has ended. A server with a journal may be started again, so the client tries as long as
after silence. So does a worker; it has a session only there.
"""

from __future__ import annotations

import select
import socket
import time
from functools import partial
from typing import Any

from gt.say import warn
from gt.wire import interrupts
from gt.wire.addresses import split_address
from gt.wire.auth import Keys
from gt.wire.codec import BadFrame
from gt.wire.numbering import (
    CONTROL,
    Acknowledge,
    Control,
    Expired,
    Numbering,
    Open,
    Opened,
    Resume,
    Resumed,
    control,
    read_control,
)
from gt.wire.shared import process_identity
from gt.wire.sockets import HANDSHAKE_CUT, NOT_AUTHORIZED, RECONNECT_MS, SILENCE_MS, ZmqConnection

#: Seconds after a connection was closed in which a new one may be made. On a busy machine that takes seconds; a server
#: that has ended the session meanwhile says so.
GRACE_S = 4.0
#: The same while nobody answers at all: the network is away too. The server keeps the session for so long if it sees
#: that this process runs.
SILENT_GRACE_S = 15.0
#: How many connections may be cut before the server has answered.
MAX_OPENINGS = 5
#: Seconds that one attempt to connect may take, and the longest pause between two.
ATTEMPT_S, MAX_PAUSE_S = 5.0, 1.0
#: The longest pause if the server may be started again.
MAX_RESTART_PAUSE_S = 0.25
#: Seconds that the question whether anybody listens at an address may take.
PROBE_S = 0.2
EXPIRED = "the server has ended this session, or was started again"


@interrupts.deferred
class LeasedConnection:
    """See `gt.wire.transport.Connection`."""

    def __init__(self, address: str, keys: Keys, worker: bool = False) -> None:
        self._address, self._worker, self._process = address, worker, process_identity()
        self._open_socket = partial(ZmqConnection, address, keys, reconnect=False)
        self._wake_fds: list[int] = []
        self._numbering = Numbering()
        #: whether the first message is there, which `Open` goes with
        self._greeted = False
        #: who has it can resume the session; empty until the server has sent it
        self._key = b""
        self._lease_s, self._outlives_server = 0.0, False
        #: whether the server has answered `Open`
        self.opened = False
        #: connections that were cut before that
        self._failed_openings = 0
        self.ended = ""
        self.refused = ""
        self._inner: ZmqConnection | None = self._open_socket()
        #: whether messages are sent, and not only counted
        self._connected = True
        #: while there is no connection: since when the server has not answered, until when to try, whether the server
        #: closed the connection, and whether the user knows
        self._lost_at = self._until = self._until_if_silent = 0.0
        self._closed = self._closed_by_server = self._reported = False
        self._attempt = 0
        #: when the current attempt ends, or the next one begins
        self._next_step, self._pause = time.monotonic() + ATTEMPT_S, RECONNECT_MS / 1000

    def also_wake_on(self, fd: int) -> None:
        self._wake_fds.append(fd)
        if self._inner is not None:
            self._inner.also_wake_on(fd)

    # -- messages ------------------------------------------------------------------------

    def send(self, frames: list[Any]) -> None:
        if self._worker:  # the memory of a value may change while the message is kept
            frames = [frame if type(frame) is bytes else bytes(frame) for frame in frames]
        frames = self._numbering.outgoing(frames)
        if not self._greeted:
            self._greeted = True
            self._greet()
        elif self._connected and self._inner is not None:
            self._inner.send(frames)

    @interrupts.interruptible
    def wait(self, milliseconds: int) -> bool:
        """Wait for messages, at most this long; whether something happened."""
        inner = self._inner
        if inner is None:
            happened = self._sleep(int(min(milliseconds, max(0.0, 1000 * (self._next_step - time.monotonic())) + 1)))
            self._check()
            return happened
        happened = inner.wait(milliseconds)
        if not self._connected or not self._key or inner.ended:
            self._check()
        return happened

    @interrupts.interruptible
    def _sleep(self, milliseconds: int) -> bool:
        """Wait for the other descriptors only."""
        poll = select.poll()
        for fd in self._wake_fds:
            poll.register(fd, select.POLLIN)
        return bool(poll.poll(milliseconds))

    def take(self) -> list[list[bytes]]:
        """The messages that have arrived."""
        inner, numbering, messages = self._inner, self._numbering, []
        if inner is None:
            return []
        for frames in inner.take():
            if frames[0][:1] == CONTROL:
                try:
                    self._control(read_control(frames.pop(0)))
                except BadFrame as error:
                    self.ended = self.ended or f"the server sent an invalid message: {error}"
                if not frames:
                    continue
            if self._key:
                numbering.incoming(frames)
            messages.append(frames)
        if self._connected and numbering.overdue:
            inner.send([numbering.acknowledgement()])
        return messages

    def _control(self, message: Control) -> None:
        if isinstance(message, Acknowledge):
            self._numbering.acknowledged(message.received)
        elif isinstance(message, Opened):
            self._key, self._lease_s, self.opened = message.key, message.lease_s, True
            self._outlives_server = message.outlives_server
        elif isinstance(message, Resumed):
            self._resumed(message)
        elif isinstance(message, Expired):
            self.ended = self.ended or EXPIRED
        else:
            raise BadFrame(f"unexpected message {type(message).__name__}")

    # -- connections ---------------------------------------------------------------------

    def _greet(self) -> None:
        """Send the first message of a new socket."""
        if self._inner is None or not self._greeted:
            return
        if self._key:
            self._attempt += 1
            self._inner.send([control(Resume(self._key, self._attempt, self._numbering.received, self._process))])
        else:
            hello, *others = self._numbering.kept
            self._inner.send([control(Open(self._worker, self._process)), *hello])
            for frames in others:
                self._inner.send(frames)

    def _check(self) -> None:
        """Look at the state of the socket, and take the next step to a connection."""
        inner, now = self._inner, time.monotonic()
        if self.ended:
            return
        if self._connected and self._key:
            if inner is not None and inner.ended:
                self._lose(inner, now)
            return
        if not self._key and inner is not None and (inner.refused or inner.ended):
            self._opening_failed(inner, now)
            return
        self._report(now)
        if inner is None:
            if now >= self._next_step:
                self._inner, self._next_step = self._open_socket(), now + ATTEMPT_S
                if self._key:
                    self._next_step = min(self._next_step, max(self._until, now))
                for fd in self._wake_fds:
                    self._inner.also_wake_on(fd)
                self._greet()
        elif inner.unreachable or inner.refused or inner.ended or now >= self._next_step:
            self._give_up_attempt(inner, now)

    def _opening_failed(self, inner: ZmqConnection, now: float) -> None:
        self._failed_openings += 1
        again = not self.opened and inner.refused in ("", HANDSHAKE_CUT) and self._failed_openings < MAX_OPENINGS
        if again:
            self._give_up_attempt(inner, now)
        else:
            self.refused, self.ended = inner.refused, inner.ended

    def _lose(self, inner: ZmqConnection, now: float) -> None:
        """The connection has ended."""
        self._connected, self._reported = False, False
        self._lost_at = now if inner.closed_by_peer else now - SILENCE_MS / 1000
        self._closed = inner.closed_by_peer
        self._closed_by_server = self._closed and not self._outlives_server
        self._until = now + (GRACE_S if self._closed_by_server else self._lease_s)
        self._until_if_silent = now + SILENT_GRACE_S
        self._close_socket(inner, now)

    def _give_up_attempt(self, inner: ZmqConnection, now: float) -> None:
        self._close_socket(inner, now + self._pause)
        self._pause = min(2 * self._pause, MAX_RESTART_PAUSE_S if self._outlives_server else MAX_PAUSE_S)
        answered = inner.unreachable or inner.refused or inner.ended
        if self._closed_by_server and not answered:
            self._until = max(self._until, self._until_if_silent)
        out_of_time = bool(self._key) and now >= self._until
        if inner.refused == NOT_AUTHORIZED:
            self.ended = NOT_AUTHORIZED
        elif self._closed_by_server and (out_of_time or (inner.unreachable and self._nobody_listens())):
            self.ended = "the server closed the connection, or died"
        elif out_of_time:
            self.ended = f"the server has not answered for {now - self._lost_at:.0f} s"

    def _close_socket(self, inner: ZmqConnection, next_step: float) -> None:
        self._inner, self._next_step = None, next_step
        inner.close()

    def _nobody_listens(self) -> bool:
        try:
            socket.create_connection(split_address(self._address), PROBE_S).close()
        except OSError as error:
            return isinstance(error, ConnectionRefusedError)
        return False

    def _report(self, now: float) -> None:
        """Tell the user, once, what the program waits for."""
        if self._key and not self._closed_by_server and not self._reported:
            self._reported = True
            until = time.strftime("%H:%M:%S", time.localtime(time.time() + self._until - now))
            silence = f"has not answered for {now - self._lost_at:.0f} s"
            what = "closed the connection, or died" if self._outlives_server and self._closed else silence
            warn(f"the server {what}; trying again until {until}")

    def _resumed(self, message: Resumed) -> None:
        if self._inner is None or self._connected:
            raise BadFrame("unexpected message Resumed")
        try:
            missing = self._numbering.resume(message.received)
        except BadFrame:  # the server was started again, and its journal lacks what it has acknowledged
            self.ended = self.ended or EXPIRED
            return
        if self._reported:
            warn(f"the server answers again, after {time.monotonic() - self._lost_at:.0f} s")
        self._connected, self._pause = True, RECONNECT_MS / 1000
        for frames in missing:
            self._inner.send(frames)

    def settled(self) -> LeasedConnection | ZmqConnection | None:
        """What to use from now on: the socket itself if the server keeps no session for this peer. None until the
        server has answered `Open`."""
        if not self.opened:
            return None
        return self if self._key else self._inner

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
