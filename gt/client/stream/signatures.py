"""Signatures: an op, its attributes and the types of its operands have a number, the code. The stream holds codes.

There is a table for each signal, so a code also says which signal its instruction is emitted under.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any
from weakref import WeakSet

from gt.client.stream import configuration, scope
from gt.client.stream.outbox import Outbox
from gt.client.stream.server_connection import ServerConnection
from gt.ops import Op, Signature, sign
from gt.say import topic
from gt.types import TensorType
from gt.wire import interrupts
from gt.wire.messages import Configure
from gt.wire.words import FIRST_CODE, MAX_DEFINED_BYTES

#: At this many signatures all are forgotten, so that a program with ever new shapes does not fill the memory.
MAX_SIGNATURES = 20_000
#: Seconds to wait for the workers that a signal names.
SIGNAL_WORKERS_TIMEOUT_S = 3.0

#: a code, the type of its (first) result, its signature, and what the tape keeps for its gradients
Coded = tuple[int, TensorType, Signature, dict[int, Any]]
#: (op, attrs, into, *operand types) -> the coded call
Table = dict[tuple[Any, ...], Coded]


@interrupts.deferred
class Signatures:
    """The tables of one session."""

    def __init__(self, outbox: Outbox, connection: ServerConnection, by_code: dict[int, Signature]) -> None:
        self._outbox, self._connection = outbox, connection
        #: code -> its signature; `Templates` and `gt.client.compile` read it too
        self.by_code = by_code
        #: the table of calls without a signal
        self.plain: Table = {}
        #: signal -> its table; a signal that is not configured has the plain one
        self.tables: dict[str, Table] = {"": self.plain}
        #: what others keep for calls that they repeat; it holds codes, so it is forgotten with them
        self.plans: dict[tuple[Any, ...], Any] = {}
        #: the configuration that the codes in the tables belong to; None before the first call
        self._configured: configuration.Configuration | None = None
        #: the last configuration that was sent
        self._announced: Configure | None = None
        self._next_code = itertools.count(FIRST_CODE).__next__
        #: where the codes of the current signatures begin
        self._oldest_code = FIRST_CODE
        #: the most signatures that a quota of the server allows
        self._quota = MAX_SIGNATURES
        self._log = topic("GT_DEBUG_CLIENT")
        with _all_lock:
            _all.add(self)

    def active(self) -> Table:
        """The table for calls that this thread makes now."""
        table = self.tables.get(scope.thread.signal)
        return self._find_table(scope.signal()) if table is None else table

    def _find_table(self, signal: str) -> Table:
        table = self.tables.get(signal)
        return self._new_table(signal) if table is None else table

    def _new_table(self, signal: str) -> Table:
        table: Table = {}
        if signal in configuration.current.signals:
            self._check_signal(signal)
        else:
            table = self.plain
        self.tables[signal] = table
        return table

    def define(self, op: Op, attrs: Any, types: tuple[Any, ...], into: bool) -> Coded:
        """Give a new signature a code. Infers the result types, which raises for a wrong call."""
        signature = sign(op, attrs, types, into)
        self._connection.check_open()
        if self._configured is not configuration.current:
            self._configure()
        outbox = self._outbox
        if (
            len(outbox.announced_codes) >= min(self._quota, MAX_SIGNATURES)
            or outbox.defined_bytes >= MAX_DEFINED_BYTES // 4
        ):
            self._forget()
        table = self.active()
        signal = "" if table is self.plain else scope.signal()
        code = self._next_code()
        outbox.define(code, signature, signal)
        self.by_code[code] = signature
        coded = table[(op, attrs, into, *types)] = code, signature.outs[0], signature, {}
        if self._log:
            self._log(f"{code} = {signature}" + (f" under {signal}" if signal else ""))
        return coded

    def limit(self, quota: int) -> None:
        """Keep within a quota of the server; 0: there is none. The server still has the two generations before when the
        first new ones arrive."""
        if quota:
            self._quota = max(1, quota // 4)

    def forget_tables(self) -> None:
        """Every call needs a new code from here on."""
        self.plain.clear()
        self.plans.clear()
        self.tables = {"": self.plain}

    def _forget(self) -> None:
        """Forget all signatures. The workers keep the latest ones, because another thread may be about to use one."""
        self.forget_tables()
        self._outbox.flush()
        self.by_code.clear()
        self._outbox.forget_codes(self._oldest_code)
        self._oldest_code = self._next_code()

    # -- the configuration of signals ----------------------------------------------------

    def _configure(self) -> None:
        """Send the configuration. It applies to the instructions after it, so every call needs a new code."""
        now, before = configuration.current, self._configured
        if now.signals or (before is not None and before.signals):
            if self._outbox.announced_codes:
                self._forget()
            self._announced = now.message(self._connection.worker_ids())
            self._outbox.configure(self._announced)
        self._configured = now

    def rebalance(self, whole: list[int]) -> None:
        """Send the configuration again: it applies to the workers there are now, and the tensors move onto them."""
        self._connection.check_open()
        if configuration.current.signals:
            self._configured = configuration.current
            self._forget()
            self._outbox.configure(configuration.current.message(self._connection.worker_ids(), whole))
            self._announced = configuration.current.message(self._connection.worker_ids())

    def _check_signal(self, name: str) -> None:
        """Raise ConfigError if it names workers that do not exist. They may still be starting, so wait a little."""
        now, connection = configuration.current, self._connection
        signal = now.signals[name]
        if signal.missing_worker(connection.worker_ids()) is not None:
            connection.wait(lambda: signal.missing_worker(connection.worker_ids()) is None, SIGNAL_WORKERS_TIMEOUT_S)
            signal.check_workers(connection.worker_ids())
        if now.message(connection.worker_ids()) != self._announced:
            self._configured = (
                None  # "the first n workers" are others than when it was sent, so `define` sends it again
            )


_all: WeakSet[Signatures] = WeakSet()
_all_lock = threading.Lock()


def _reconfigured() -> None:
    """The configuration changed, and with it the meaning of all calls under a signal."""
    with _all_lock:
        tables = list(_all)
    for signatures in tables:
        signatures.forget_tables()


configuration.on_change.append(_reconfigured)
