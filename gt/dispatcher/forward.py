"""The dispatcher's hot loop: a client's stream in, streams for workers out.

For each instruction the operands' places are looked up and, with the code, make the key of a cached `Plan`: which
worker runs it, and where its results will lie. Only a miss does any thinking. A stream is cut after about ``budget``
microseconds of estimated work, so that no client holds a worker for long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gt.dispatcher.state import Client, Coded, Layout, Lost, Plan, Where
from gt.wire.messages import FETCH, FIRST_CODE, RESET, Definition


class Violation(Exception):
    """A peer broke the protocol; it loses its connection."""


@dataclass(slots=True)
class Load:
    """What one worker gets of a piece of a client's program."""

    definitions: list[Definition] = field(default_factory=list)
    stream: list[Any] = field(default_factory=list)
    cost: float = 0.0


@dataclass(slots=True)
class Forwarded:
    #: where in the stream the loop stopped
    stop: int
    loads: dict[int, Load]
    #: requests for values that are lost, with the reason
    unreadable: list[tuple[int, str]]


def forward(client: Client, home: Layout, stream: list[Any], start: int, budget: float) -> Forwarded:
    """Raises Violation for what no honest client sends."""
    done = Forwarded(start, {}, [])
    try:
        _loop(client, home, stream, start, budget, done)
    except (KeyError, IndexError, TypeError) as error:
        raise Violation(f"a stream that names what is not there: {type(error).__name__} {error}") from None
    return done


def _loop(client: Client, home: Layout, stream: list[Any], i: int, budget: float, done: Forwarded) -> None:
    tensors, codes, plans, loads = client.tensors, client.codes, client.plans, done.loads
    end = len(stream)
    load = loads[home.worker] = Load()
    worker: int | None = home.worker
    while i < end and budget > 0:
        code = stream[i]
        if code < FIRST_CODE:
            i = _control(client, stream, i, done)
            continue
        coded = codes[code]
        plain = coded.plain
        if plain == 2:
            key: tuple[Any, ...] = (code, tensors[stream[i + 3]], tensors[stream[i + 4]])
        elif plain == 1:
            key = (code, tensors[stream[i + 3]])
        else:
            key = (code, *[tensors[stream[i + o]] for o in coded.offsets])
        plan = plans.get(key)
        if plan is None:
            plan = plans[key] = _plan(client, home, key)
        if plan.worker != worker:
            worker = plan.worker
            load = loads.setdefault(worker, Load()) if worker is not None else Load()
        if worker is not None and code not in client.told[worker]:
            client.told[worker].add(code)
            load.definitions.append(coded.definition)
        width = coded.width
        if i + width > end:
            raise IndexError("an instruction is cut off")
        load.stream += stream[i : i + width]
        load.cost += coded.cost
        budget -= coded.cost
        if plain >= 0:
            tensors[stream[i + 2]] = plan.result
        else:
            _results(client, coded, stream, i, plan.result)
        i += width
    done.stop = i


def _results(client: Client, coded: Coded, stream: list[Any], i: int, result: Where) -> None:
    outs = stream[i + 2 : i + coded.start]
    if coded.signature.into and (outs[0] not in client.tensors or outs[0] != stream[i + coded.start]):
        raise Violation("in place, the result must be the first operand")
    for id in outs:
        if type(id) is not int or id <= 0:
            raise Violation(f"a tensor cannot be called {id!r}")
        client.tensors[id] = result


def _plan(client: Client, home: Layout, key: tuple[Any, ...]) -> Plan:
    """Where its operands are, else at home. Without sharding, a client's tensors are together or lost."""
    for place in key[1:]:
        if isinstance(place, Lost):
            return Plan(None, place)
    where = key[1] if len(key) > 1 else home
    return Plan(where.worker, where)


def _control(client: Client, stream: list[Any], i: int, done: Forwarded) -> int:
    code = stream[i]
    if code < 0:
        where = client.tensors.pop(-code)
        if isinstance(where, Layout):
            done.loads.setdefault(where.worker, Load()).stream.append(code)
        return i + 1
    if code == FETCH:
        _fetch(client, stream[i + 1], stream[i + 2], done)
        return i + 3
    if code == RESET:
        _reset(client, stream[i + 1], done)
        return i + 2
    raise Violation(f"unknown control word {code!r}")


def _reset(client: Client, first: int, done: Forwarded) -> None:
    for old in [code for code in client.codes if code < first]:
        del client.codes[old]
    client.plans.clear()
    for worker, told in client.told.items():
        told.difference_update([code for code in told if code < first])
        done.loads.setdefault(worker, Load()).stream += (RESET, first)


def _fetch(client: Client, request: int, id: int, done: Forwarded) -> None:
    where = client.tensors[id]
    if type(request) is not int:  # a worker will repeat it to us
        raise Violation(f"a request cannot be called {request!r}")
    if request in client.given_up:
        client.given_up.discard(request)
    elif isinstance(where, Lost):
        done.unreadable.append((request, where.text))
    else:
        client.reads[request] = where.worker
        done.loads.setdefault(where.worker, Load()).stream += (FETCH, request, id)


def fetches(client: Client) -> list[int]:
    """The requests that wait in the queue."""
    found: list[int] = []
    for submit, position in client.queue:
        i = position
        while i < len(submit.stream):
            code = submit.stream[i]
            if code == FETCH:
                found.append(submit.stream[i + 1])
                i += 3
            elif code == RESET:
                i += 2
            else:
                i += 1 if code < 0 else client.codes[code].width
    return found

