"""The dispatcher's hot loop: a client's stream in, streams for workers out.

For each instruction the operands' places are looked up and, with the code, make the key of a cached plan: where it
runs, and its results will lie. Only a miss does any thinking. A stream is cut after about ``budget`` microseconds of
estimated work, so that no client holds a worker for long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gt.dispatcher.state import Client, Coded, Layout, Lost, Where
from gt.ops.signature import HEAD
from gt.wire.messages import FETCH, FIRST_CODE, MARGIN, RESET, Definition

#: What goes wrong when a stream is read that is none.
NONSENSE = (KeyError, IndexError, TypeError, AttributeError, ValueError)


class Violation(Exception):
    """A peer broke the protocol; it loses its connection."""


@dataclass(slots=True)
class Load:
    """What one worker gets of a piece of a client's program."""

    definitions: list[Coded] = field(default_factory=list)
    stream: list[Any] = field(default_factory=list)
    cost: float = 0.0

    def batches(self) -> list[list[Definition]]:
        """The definitions, so that each batch fits into a frame; the last fits together with the stream."""
        made: list[list[Definition]] = [[]]
        nbytes = 0
        for coded in self.definitions:
            if nbytes + coded.nbytes > MARGIN // 2:
                made.append([])
                nbytes = 0
            made[-1].append(coded.definition)
            nbytes += coded.nbytes
        return made


@dataclass(slots=True)
class Forwarded:
    #: where in the stream the loop stopped
    stop: int = 0
    loads: dict[int, Load] = field(default_factory=dict)
    #: requests for values that are lost, with the reason
    unreadable: list[tuple[int, str]] = field(default_factory=list)
    #: tensors that are lost for the client while a worker still has them
    orphans: list[tuple[Layout, int]] = field(default_factory=list)

    def load(self, worker: int) -> Load:
        load = self.loads.get(worker)
        if load is None:
            load = self.loads[worker] = Load()
        return load

    def add(self, where: Where, words: list[Any], cost: float) -> None:
        """Words for who holds their operands; what needs a lost tensor goes nowhere."""
        if isinstance(where, Layout) and words:
            load = self.load(where.worker)
            load.stream += words
            load.cost += cost
        if self.orphans:
            orphans, self.orphans = self.orphans, []
            for layout, id in orphans:
                self.load(layout.worker).stream.append(-id)


def forward(client: Client, home: Layout, stream: list[Any], start: int, budget: float) -> Forwarded:
    """Raises Violation for what no honest client sends."""
    done = Forwarded()
    done.load(home.worker)
    try:
        _loop(client, home, stream, start, budget, done)
    except NONSENSE as error:
        raise Violation(f"a stream that names what is not there: {type(error).__name__} {error}") from None
    if done.stop > len(stream):
        raise Violation("a stream that ends inside an instruction")
    return done


def _loop(client: Client, home: Layout, stream: list[Any], i: int, budget: float, done: Forwarded) -> None:
    tensors, codes, plans = client.tensors, client.codes, client.plans
    end = len(stream)
    # words from ``begin`` on go to ``where``: they are copied when the next go elsewhere
    where: Where = home
    begin, left = i, budget
    while i < end and budget > 0:
        code = stream[i]
        if code >= FIRST_CODE:
            coded = codes[code]
            plain = coded.plain
            if plain == 2:
                key: tuple[Any, ...] = (code, tensors[stream[i + 3]], tensors[stream[i + 4]])
            elif plain == 1:
                key = (code, tensors[stream[i + 3]])
            else:
                key = (code, *[tensors[stream[i + o]] for o in coded.offsets])
            result = plans.get(key)
            if result is None:
                result = plans[key] = _plan(client, home, coded, key, done)
            if plain >= 0:
                tensors[stream[i + 2]] = result
            else:
                result = _results(client, coded, stream, i, result, done)
            width = coded.width
            budget -= coded.cost
        elif code < 0:
            result = tensors.pop(-code)
            width = 1
        else:
            result, width = _control(client, home, stream, i, done)
        if result is not where:
            done.add(where, stream[begin:i], left - budget)
            where, begin, left = result, i, budget
        i += width
    done.add(where, stream[begin:i], left - budget)
    done.stop = i


def _results(client: Client, coded: Coded, stream: list[Any], i: int, result: Where, done: Forwarded) -> Where:
    """All but the simplest instructions: results in place, several of them, or made of what was sent in parts."""
    tensors, outs = client.tensors, stream[i + HEAD : i + coded.start]
    if coded.signature.into and (outs[0] not in tensors or outs[0] != stream[i + coded.start]):
        raise Violation("in place, the result must be the first operand")
    for offset in coded.blobs:
        if type(stream[i + offset]) is not bytes:
            where = client.transfers.pop(stream[i + offset], result)
            result = where if isinstance(where, Lost) else result
    for id in outs:
        before = tensors.get(id)
        if isinstance(before, Layout) and before is not result:
            done.orphans.append((before, id))
        tensors[id] = result
    return result


def _plan(client: Client, home: Layout, coded: Coded, key: tuple[Any, ...], done: Forwarded) -> Where:
    """Where its operands are, else at home. Without sharding, a client's tensors are together or lost."""
    for place in key[1:]:
        if isinstance(place, Lost):
            return place
    where: Layout = key[1] if len(key) > 1 else home
    told = client.told[where.worker]
    if key[0] not in told:
        told.add(key[0])
        done.load(where.worker).definitions.append(coded)
    return where


def _control(client: Client, home: Layout, stream: list[Any], i: int, done: Forwarded) -> tuple[Where, int]:
    code = stream[i]
    if code == FETCH:
        return _fetch(client, stream[i + 1], stream[i + 2], done), 3
    if code == RESET:
        first = stream[i + 1]
        for old in [known for known in client.codes if known < first]:
            del client.codes[old]
        client.plans.clear()
        told = client.told[home.worker]
        told.difference_update([known for known in told if known < first])
        return home, 2
    raise Violation(f"unknown control word {code!r}")


def _fetch(client: Client, request: int, id: int, done: Forwarded) -> Where:
    where = client.tensors[id]
    if _request(request) in client.given_up:
        client.given_up.discard(request)
        return Lost("answered already")
    if isinstance(where, Lost):
        done.unreadable.append((request, where.text))
    else:
        client.reads[request] = where.worker
    return where


def fetches(client: Client) -> list[int]:
    """The requests that wait in the queue. Raises Violation if it holds what is no stream."""
    found: list[int] = []
    try:
        for submit, position in client.queue:
            _find_fetches(client, submit.stream, position, found)
    except NONSENSE as error:
        raise Violation(f"a stream that names what is not there: {type(error).__name__} {error}") from None
    return found


def _find_fetches(client: Client, stream: list[Any], i: int, found: list[int]) -> None:
    while i < len(stream):
        code = stream[i]
        if code == FETCH:
            found.append(_request(stream[i + 1]))
            i += 3
        elif code == RESET:
            i += 2
        else:
            i += 1 if code < 0 else client.codes[code].width


def _request(word: Any) -> int:
    if type(word) is not int:  # a worker will repeat it to us
        raise Violation(f"a request cannot be called {word!r}")
    return word
