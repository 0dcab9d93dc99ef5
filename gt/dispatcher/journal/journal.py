"""The journal of a server: the events that its core has handled, in order.

The core is deterministic: the same events lead to the same actions. So the journal has the messages as they were
received, and nothing that follows from them. It begins with the state of the core, and is written anew, beginning with
the state at that time, when it is several times as long.

Each event is in the journal before the core handles it. So whatever a peer has received follows from the journal of a
server that was killed. Such a server goes on exactly where it stopped: every peer keeps what it has sent until it is
acknowledged (`gt.wire.numbering`), and so does the state, so both sides send again what the other one lacks. If the
machine ends as well, the last second of the journal may be missing. Then a peer has received more than the journal
explains, and its session ends.

    kind        number      payload
    PREAMBLE                which version and which server wrote it
    STATE                   the state: the core, the peers, the sessions
    PEER        of a peer   name, key, address and identity; later events have only the number
    MESSAGE     of a peer   one frame
    FRAMES      of a peer   several frames
    OPENED      of a peer   the key of its session
    RECEIVED    of a peer   how many messages of its session it has acknowledged
    GONE        of a peer
    REFUSED     of a peer   the reason
    TICK                    the time
    FLUSH
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import msgspec

from gt.dispatcher.journal.journal_file import JournalFile, read_records
from gt.errors import ConfigError
from gt.version import PROTOCOL, VERSION
from gt.wire.identities import PeerIdentity

(PREAMBLE, STATE, PEER, MESSAGE, FRAMES, OPENED, RECEIVED, GONE, REFUSED, TICK, FLUSH) = range(1, 12)
#: A journal that is not longer is not written anew; a longer one if it has this many times the bytes of the state.
MIN_BYTES, LENGTH_LIMIT = 16 << 20, 4
_encode = msgspec.msgpack.encode


class Preamble(msgspec.Struct, array_like=True):
    version: str
    protocol: int
    #: the public key of the server
    server: str


class PeerRecord(msgspec.Struct, array_like=True):
    """A peer that has sent something."""

    name: bytes
    #: the public key that it has proved to have
    key: bytes
    address: str
    identity: PeerIdentity | None


class Journal:
    """The journal in ``folder``. Raises ConfigError if another server uses it, or wrote what is there.

    ``server``: the server's public key. ``report`` is called with the reason if the journal cannot be written any more.
    """

    def __init__(self, folder: Path, server: str, report: Callable[[str], object]) -> None:
        self._folder, self._report = folder, report
        #: tells who a peer is; set before the first event
        self.describe: Callable[[bytes], PeerRecord]
        self._preamble = Preamble(VERSION, PROTOCOL, server)
        self._path = folder / "journal"
        self._file: JournalFile | None = None
        #: whether events come from the journal; they are not written again
        self.replaying = False
        #: the time of the last event, and what to add to the clock so that time goes on where it stopped
        self.now = self._offset = 0
        #: peers with a number
        self._numbers: dict[bytes, int] = {}
        self._last_number = self._limit = 0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"--journal {folder}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigError(f"--journal {folder}: another server that runs uses this folder") from None
        if os.stat(folder).st_uid != os.geteuid():
            raise ConfigError(f"--journal {folder}: the folder belongs to another user")

    # -- reading -------------------------------------------------------------------------

    def events(self) -> Iterator[tuple[int, Any, Any]]:
        """(kind, peer or None, value) of all events; first the state. Empty if there is no journal."""
        try:
            records = read_records(self._path.read_bytes())
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"--journal {self._folder}: {error.strerror}") from None
        self._check(next(records, None))
        names: dict[int, PeerRecord] = {}
        self.replaying = True
        for kind, number, time, payload in records:
            self.now = max(self.now, time)
            if kind == PEER:
                names[number] = msgspec.msgpack.decode(payload, type=PeerRecord)
                yield kind, names[number].name, names[number]
            elif kind in (STATE, MESSAGE, REFUSED, OPENED):
                yield kind, names[number].name if number else None, payload
            else:
                value = msgspec.msgpack.decode(payload) if payload else None
                yield kind, names[number].name if number else None, value
        self._offset = max(0, self.now - perf_counter_ns())
        self.replaying = False

    def clock(self) -> int:
        """The time of the event that is being handled, in nanoseconds."""
        return self.now

    def read_clock(self) -> int:
        return perf_counter_ns() + self._offset

    def _check(self, first: tuple[int, int, int, bytes] | None) -> None:
        try:
            if first is None or first[0] != PREAMBLE:
                raise ValueError
            preamble = msgspec.msgpack.decode(first[3], type=Preamble)
        except (ValueError, msgspec.MsgspecError):
            raise ConfigError(f"--journal {self._folder}: {self._path.name} there is not a journal of GT") from None
        mine = self._preamble
        if (preamble.version, preamble.protocol) != (mine.version, mine.protocol):
            raise ConfigError(
                f"--journal {self._folder}: its journal is of GT {preamble.version} (protocol {preamble.protocol}), "
                f"and this is GT {mine.version} (protocol {mine.protocol}), which cannot continue it; name another "
                "folder, or remove this one"
            )
        if preamble.server != mine.server:
            raise ConfigError(
                f"--journal {self._folder}: its journal is of the server with the public key {preamble.server}; name "
                "another folder, or that server's --folder"
            )

    # -- writing -------------------------------------------------------------------------

    def begin(self, state: bytes, peers: list[PeerRecord]) -> None:
        """Write the journal anew, beginning with the state. Raises OSError."""
        records = [(PREAMBLE, 0, self.now, _encode(self._preamble))]
        self._numbers = {peer.name: number for number, peer in enumerate(peers, 1)}
        records += [(PEER, self._numbers[peer.name], self.now, _encode(peer)) for peer in peers]
        self._last_number = len(peers)
        file = JournalFile(self._path, [*records, (STATE, 0, self.now, state)])
        if self._file is not None:
            self._file.close()
        self._file = file
        self._limit = max(MIN_BYTES, LENGTH_LIMIT * file.used)

    @property
    def is_long(self) -> bool:
        """Whether to begin it again."""
        return self._file is not None and self._file.used > self._limit

    def _append(self, kind: int, peer: bytes | None, payload: bytes) -> None:
        if self.replaying:
            return
        self.now = now = self.read_clock()
        if self._file is None:
            return
        try:
            number = 0 if peer is None else self._numbers.get(peer) or self._add_peer(peer)
            self._file.append(kind, number, now, payload)
        except OSError as error:
            self.end(error)

    def _add_peer(self, peer: bytes) -> int:
        assert self._file is not None
        self._last_number += 1
        self._file.append(PEER, self._last_number, self.now, _encode(self.describe(peer)))
        self._numbers[peer] = self._last_number
        return self._last_number

    def message(self, peer: bytes, frames: list[bytes]) -> None:
        """The hot path: a frame of a known peer that fits into the file."""
        file, number = self._file, self._numbers.get(peer)
        if len(frames) == 1 and file is not None and number is not None and len(frames[0]) < file.space:
            self.now = now = perf_counter_ns() + self._offset
            file.append(MESSAGE, number, now, frames[0])
        elif len(frames) == 1:
            self._append(MESSAGE, peer, frames[0])
        else:
            self._append(FRAMES, peer, _encode(frames))

    def opened(self, peer: bytes, key: bytes, worker: bool) -> None:
        """A session begins."""
        self._append(OPENED, peer, bytes([worker]) + key)

    def acknowledged(self, peer: bytes, received: int) -> None:
        self._append(RECEIVED, peer, _encode(received))

    def gone(self, peer: bytes) -> None:
        self._append(GONE, peer, b"")

    def refused(self, peer: bytes, reason: str) -> None:
        self._append(REFUSED, peer, reason.encode())

    def tick(self, now: float) -> None:
        self._append(TICK, None, _encode(now))

    def flush(self) -> None:
        self._append(FLUSH, None, b"")

    # -- the end -------------------------------------------------------------------------

    def end(self, error: OSError) -> None:
        """It cannot be written any more. It is removed: a server must not go on from a part of it."""
        self.close()
        self._path.unlink(missing_ok=True)
        self._report(
            f"the journal ends here: {self._folder} cannot be written ({error.strerror}); the server goes on, and its "
            "sessions end with it"
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def release(self) -> None:
        """Let another server use the folder."""
        os.close(self._lock)
