"""The log of a client's program, from which the dispatcher can run it again when a worker is lost.

A program is deterministic: random numbers are keyed, and an instruction depends on its operands only. So the same
submissions, configurations and uploads, in the same order, give the same tensors.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

from msgspec.structs import replace

from gt.wire.codec import Decode, encode
from gt.wire.messages import Chunk, Configure, Message, Reply, Submit
from gt.wire.recovery_messages import Fork

#: The most bytes of submissions and configurations, and of uploads in chunks, that are kept for one client.
MAX_LOG_BYTES, MAX_UPLOAD_BYTES = 64 << 20, 256 << 20
#: How many workers may be lost in a row while a program makes no progress. More: the program itself may end them.
MAX_ATTEMPTS = 4

_decode = Decode("dispatcher")


@dataclass(frozen=True, slots=True)
class QueuedChunk:
    """A chunk of an upload that is sent to the worker in order with the client's stream."""

    message: Chunk
    frames: tuple[Any, ...]
    #: whether it was sent before, so that the client does not wait for its acknowledgement
    replayed: bool
    weight: ClassVar[int] = 0


class ProgramLog:
    """Everything that a client has submitted, in order."""

    def __init__(self, wait_s: float, every_s: float = 0.0) -> None:
        #: how many seconds to wait for a new worker before the program goes on with fewer
        self.wait_s = wait_s
        #: why the program cannot run again; empty: it can
        self.refusal = ""
        #: encoded submissions and configurations; chunks with their frames
        self._entries: list[bytes | tuple[Chunk, tuple[Any, ...]]] = []
        self._log_bytes = self._upload_bytes = 0
        #: (position, key of the snapshot) of the entries that are forks
        self._forks: list[tuple[int, str]] = []
        #: all signatures and fragments that the entries use, also those that the program has forgotten since
        self.codes: dict[int, Any] = {}
        self.fragments: dict[int, Any] = {}
        #: chunks that the client waits for, oldest first
        self.unacknowledged: deque[Chunk] = deque()
        #: (worker, reply, its frames) of reads that failed because of a lost worker which is still in the roster
        self.held: list[tuple[int, Reply, tuple[Any, ...]]] = []
        #: when the oldest held reply was first noticed by the clock, and the wait for a new worker
        self.held_since: float | None = None
        self.waiting_since: float | None = None
        #: the most workers that the program has used when one was lost, as far as there were as many since
        self.most_workers = 1
        #: the configuration of signals in force where the program has been forwarded to
        self.configuration: Configure | None = None
        #: the last complete snapshot, at which the entries begin, and the one that is being taken
        #: (see `gt.dispatcher.recovery.snapshots`)
        self.snapshot: Any = None
        self.taking: Any = None
        #: whether the last one could not be taken, which the client was told
        self.snapshot_failed = False
        #: seconds between snapshots, 0: none; and when the last one was begun
        self.every_s = every_s
        self.snapshot_at: float | None = None
        #: the share of the limits at which one is begun
        self._snapshot_when_full = 0.5
        #: what had been reached at the last loss, and how many losses in a row found the same
        self._progress: Any = None
        self._attempts = 0

    # -- writing -------------------------------------------------------------------------

    def add_submission(self, m: Submit, codes: dict[int, Any], fragments: dict[int, Any]) -> None:
        """``codes`` and ``fragments`` are the client's, with those that the submission defines."""
        self.codes.update((definition.code, codes[definition.code]) for definition in m.definitions)
        self.fragments.update((fragment.number, fragments[fragment.number]) for fragment in m.fragments)
        self._add(encode(Submit(m.serial, [], m.stream, 0)), sum(codes[d.code].nbytes for d in m.definitions))

    def add_configuration(self, m: Configure) -> None:
        self._add(encode(replace(m, weight=0)))

    def add_message(self, m: Message) -> None:
        """A message that goes through the queue as it is."""
        if isinstance(m, Fork):
            self._forks.append((self.length, m.key))
        self._add(encode(m))

    def forks(self, key: str) -> bool:
        """Whether the program would copy this snapshot if it ran again."""
        return any(one == key for _, one in self._forks)

    def _add(self, entry: bytes, defined_bytes: int = 0) -> None:
        if self.refusal:
            return
        self._entries.append(entry)
        self._log_bytes += len(entry) + defined_bytes
        if self._log_bytes > MAX_LOG_BYTES:
            self.refuse(f"its program has more than {MAX_LOG_BYTES >> 20} MiB of instructions")

    def add_chunk(self, m: Chunk, frames: tuple[Any, ...]) -> None:
        if self.refusal:
            return
        self.unacknowledged.append(m)
        self._entries.append((m, frames))
        self._upload_bytes += m.nbytes
        if self._upload_bytes > MAX_UPLOAD_BYTES:
            self.refuse(f"its program has uploaded more than {MAX_UPLOAD_BYTES >> 20} MiB")

    def refuse(self, reason: str) -> None:
        """The program cannot run again from here on."""
        self.refusal = reason
        self._entries.clear()
        self._forks.clear()
        self.unacknowledged.clear()
        self.codes.clear()
        self.fragments.clear()

    # -- snapshots -----------------------------------------------------------------------

    @property
    def length(self) -> int:
        """The number of entries."""
        return len(self._entries)

    def is_half_full(self) -> bool:
        """Whether to begin a snapshot because the log is long. If that fails, the log may grow some more before the
        next one."""
        full = max(self._log_bytes / MAX_LOG_BYTES, self._upload_bytes / MAX_UPLOAD_BYTES)
        if full < self._snapshot_when_full or self.taking is not None or self.refusal:
            return False
        self._snapshot_when_full = full + 0.1
        return True

    def snapshot_is_due(self, now: float) -> bool:
        """Whether to begin one because of the time; called about once a second."""
        if not self.every_s or self.refusal or self.taking is not None or not self._entries:
            return False
        if self.snapshot_at is None:
            self.snapshot_at = now
        if now - self.snapshot_at < self.every_s:
            return False
        self.snapshot_at = now
        return True

    def begin_at(self, snapshot: Any) -> None:
        """The snapshot that is being taken is complete: forget what is before it."""
        before, entries = self._entries[: snapshot.position], self._entries[snapshot.position :]
        waiting = [e for e in before if isinstance(e, tuple) and e[0].transfer in snapshot.transfers]
        self._entries = [*waiting, *entries]
        moved = len(waiting) - snapshot.position
        self._forks = [(at + moved, key) for at, key in self._forks if at >= snapshot.position]
        self._log_bytes = sum(len(entry) for entry in entries if isinstance(entry, bytes))
        self._upload_bytes = sum(entry[0].nbytes for entry in self._entries if isinstance(entry, tuple))
        for code in snapshot.known_codes - snapshot.codes.keys():  # forgotten before the snapshot
            del self.codes[code]
        for number in snapshot.known_fragments - snapshot.fragments.keys():
            del self.fragments[number]
        self.snapshot, self.taking, self._snapshot_when_full = snapshot, None, 0.5
        self.snapshot_failed = False

    # -- reading -------------------------------------------------------------------------

    def messages(self) -> list[Any]:
        """The program as entries of a client's queue: `Submit`, `Configure` and `QueuedChunk`."""
        return [
            _decode(entry) if isinstance(entry, bytes) else QueuedChunk(*entry, replayed=True)
            for entry in self._entries
        ]

    def may_try_again(self, progress: Any) -> bool:
        """Count a loss. False if several in a row found the same progress."""
        self._attempts = 1 if progress != self._progress else self._attempts + 1
        self._progress = progress
        if self._attempts > MAX_ATTEMPTS:
            self.refuse(f"{self._attempts} workers in a row were lost while it ran the same part of the program")
        return not self.refusal
