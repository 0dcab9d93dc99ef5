"""The numbers calls go by: a call seen before is one word in the stream.

There is a table for each signal, so that a code says under which signal its instruction is emitted, and nobody
further on has to ask.
"""

from __future__ import annotations

import itertools
import threading
from abc import abstractmethod
from typing import Any
from weakref import WeakSet

from gt.client.signals import config
from gt.client.stream import scope
from gt.errors import GtError
from gt.ops import Op, Signature, sign
from gt.say import topic
from gt.types import TensorType
from gt.wire.codec import definition
from gt.wire.messages import FIRST_CODE, RESET, Definition

#: Signatures kept before all are forgotten: a program that makes ever new shapes must not fill anybody's memory.
SIGNATURES = 20_000

#: (op, attrs, into, *operand types) -> (code, result type, signature)
Table = dict[tuple[Any, ...], tuple[int, TensorType, Signature]]


class Codes:
    """The part of a session that numbers calls."""

    words: list[Any]
    extend: Any
    ended: GtError | None

    def __init__(self) -> None:
        #: the table of calls under no signal
        self.signatures: Table = {}
        #: signal -> its table; one that is not configured has that of none
        self.tables: dict[str, Table] = {"": self.signatures}
        #: the configuration the dispatcher was told; None if there was nothing to tell so far
        self.configured: config.Configuration | None = None
        self._definitions: list[Definition] = []
        self._next_code = itertools.count(FIRST_CODE).__next__
        #: where the codes of the current signatures begin
        self._oldest_code = FIRST_CODE
        #: code -> what it stands for, and the signal, for `gt.debug.print_tape`
        self._by_code: dict[int, tuple[Signature, str]] = {}
        self.shapes: dict[int, Signature] = {}
        self._debug = topic("GT_DEBUG_CLIENT")
        config.from_environment()
        with _listing:
            _all.add(self)

    @abstractmethod
    def flush(self) -> None: ...

    @abstractmethod
    def forget_fragments(self) -> None: ...

    @abstractmethod
    def configure(self) -> None:
        """Tell the dispatcher what signals mean from here on."""

    @abstractmethod
    def check_signal(self, name: str) -> None:
        """Raises ConfigError if it names workers that do not exist."""

    def table(self) -> Table:
        """The table for calls made now, in this thread."""
        found = self.tables.get(scope.here.placing)
        return self._new_table(scope.here.placing) if found is None else found

    def _new_table(self, signal: str) -> Table:
        made: Table = {}
        if signal in config.current.signals:
            self.check_signal(signal)
        else:
            made = self.signatures
        self.tables[signal] = made
        return made

    def define(self, op: Op, attrs: Any, types: tuple[Any, ...], into: bool) -> tuple[int, TensorType, Signature]:
        """A call not made before: infer its result, which may raise, and give it a number."""
        signature = sign(op, attrs, types, into)
        if self.ended is not None:
            raise self.ended.with_traceback(None)
        if self.configured is not config.current:
            self.configure()
        if len(self._by_code) >= SIGNATURES:
            self._forget_signatures()
        table = self.table()
        signal = "" if table is self.signatures else scope.here.placing
        code = self._next_code()
        self._definitions.append(definition(code, signature, signal))
        self._by_code[code] = signature, signal
        self.shapes[code] = signature
        found = table[(op, attrs, into, *types)] = code, signature.outs[0], signature
        if self._debug:
            self._debug(f"{code} = {signature}" + (f" under {signal}" if signal else ""))
        return found

    def forget_tables(self) -> None:
        """Every call is new from here on."""
        self.signatures.clear()
        self.tables = {"": self.signatures}

    def _forget_signatures(self) -> None:
        """All but the last: another thread may just be about to use one of those."""
        self.forget_tables()
        self.flush()
        self._by_code = {}
        self.shapes.clear()
        self.forget_fragments()
        self.extend((RESET, self._oldest_code))
        self._oldest_code = self._next_code()


_all: WeakSet[Codes] = WeakSet()
_listing = threading.Lock()


def reconfigured() -> None:
    """The configuration changed: what calls meant is no longer so."""
    with _listing:
        sessions = list(_all)
    for codes in sessions:
        codes.forget_tables()


config.on_change.append(reconfigured)
