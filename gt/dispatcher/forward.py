"""The dispatcher's hot loop: a client's stream in, streams for workers out.

For each instruction the operands' places are looked up and, with the code, make the key of a cached plan: where it
runs, and its results will lie. Only a miss does any thinking (`gt.dispatcher.plan.plan`). What runs on one worker, where
its operands are, is passed on as it came; so is what several workers do with what they have, but for its code, which is
the dispatcher's own. Anything else is written anew, with the moves it needs before it. A stream is cut after about
``budget`` microseconds of estimated work, so that no client holds a worker for long.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import Any

from gt.dispatcher.plan.layouts import Layout, Lost, Place, Where, placed
from gt.dispatcher.plan.move_emission import bring, free, leave, move, overwritten, relay
from gt.dispatcher.plan.plan import Ground, Passed, Plan, plan
from gt.dispatcher.plan.segments import Forwarded, Workers
from gt.dispatcher.replay.replay import find, forget, learn, passed_on, repeat
from gt.dispatcher.replay.replay_plans import Hole
from gt.dispatcher.state import Client, Coded, Violation
from gt.ops.placement import Partial, R
from gt.ops.signature import HEAD
from gt.wire.messages import DISCARD, FETCH, FIRST_CODE, FIRST_DISPATCHER_ID, FORGET, READ, RESET, RUN, Blocks

#: operands that several parts of an instruction name
Shared = set[int] | frozenset[int]
#: Integers up to here are compared in one step.
SMALL_INT = (1 << 30) - 1
#: What goes wrong when a stream is read that is none.
NONSENSE = (KeyError, IndexError, TypeError, AttributeError, ValueError)


def forward(client: Client, ground: Ground, stream: list[Any], start: int, budget: float) -> Forwarded:
    """Codes in the stream are replaced by the dispatcher's own. Raises Violation for what no honest client sends."""
    done = Forwarded()
    try:
        _loop(client, ground, stream, start, budget, done)
    except NONSENSE as error:
        raise Violation(f"a stream that names what is not there: {type(error).__name__} {error}") from None
    if done.stop > len(stream):
        raise Violation("a stream that ends inside an instruction")
    return done


def _loop(client: Client, ground: Ground, stream: list[Any], i: int, budget: float, done: Forwarded) -> None:
    tensors, codes, plans, made, loose = client.tensors, client.codes, client.plans, client.made, client.loose
    copies = client.copies
    end = len(stream)
    # words from ``begin`` on go to ``where``: they are copied when the next go elsewhere; None: they went already
    where: Workers | None = ground.home.workers
    begin, left = i, budget
    while i < end and budget > 0:
        code = stream[i]
        result: Any
        if code >= FIRST_CODE:
            coded = codes[code]
            plain = coded.plain
            if plain == 2:
                key: tuple[Any, ...] = (code, tensors[stream[i + 3]], tensors[stream[i + 4]])
            elif plain == 1:
                key = (code, tensors[stream[i + 3]])
            else:
                for at, kind in coded.numbers:
                    if type(stream[i + at]) is not kind:
                        _check_number(coded, stream[i + at], kind)
                key = (code, *[tensors[stream[i + o]] for o in coded.offsets])
            result = plans.get(key)
            if result is None:
                result = plans[key] = plan(client, ground, coded, key[1:], done)
            width = coded.width
            if type(result) is Place:
                out = stream[i + 2]
                if out > SMALL_INT:
                    _check_id(out)
                tensors[out] = result
                cost = coded.cost
            elif type(result) is Plan:
                if result.simple is None:
                    if where is not None:
                        done.add(where, stream[begin:i], left - budget)
                        where = None
                    (_planned_parts if result.parts else _planned)(client, coded, result, stream, i, done)
                    budget -= result.cost
                    i += width
                    continue
                out = stream[i + 2]
                if out > SMALL_INT:
                    _check_id(out)
                stream[i], tensors[out], made[out] = result.simple
                cost = result.cost
            else:
                result = _results(client, coded, stream, i, result, done)
                cost = coded.cost
        elif code < 0:
            result = tensors.pop(-code)
            width, cost = 1, 0.0
            if copies and -code in copies:
                if where is not None:
                    done.add(where, stream[begin:i], left - budget)
                    where = None
                free(client, -code, result, done)
                i += 1
                continue
            if made:
                made.pop(-code, None)
                if loose:
                    loose.discard(-code)
        else:
            course, width = None, 0
            if code == RUN:
                known = client.fragments[stream[i + 1]]
                course, width = find(client, known, stream, i), known.form.width
            if course is None or course.passed is None:
                if where is not None:
                    done.add(where, stream[begin:i], left - budget)
                    where = None
                if course is not None:
                    repeat(client, known, course, stream, i, done)
                    budget -= course.cost
                elif width:
                    budget -= learn(client, ground, known, stream, i, done, _loop)
                i += width or _control(client, stream, i, done)
                continue
            passed_on(client, known, course, stream, i)
            result, cost = course.passed, course.cost
        if result.workers is not where:
            done.add(where or (), stream[begin:i], left - budget)
            where, begin, left = result.workers, i, budget
        budget -= cost
        i += width
    done.add(where or (), stream[begin:i], left - budget)
    done.stop = i


def _check_number(coded: Coded, word: Any, kind: type) -> None:
    if type(word) is not Hole:  # those of a fragment are checked when it is run
        raise Violation(f"{coded.signature} was given {str(word)[:40]!r} where it takes a {kind.__name__}")


def _results(client: Client, coded: Coded, stream: list[Any], i: int, result: Any, done: Forwarded) -> Any:
    """All but the simplest instructions: results in place, several of them, or made of what was sent in parts."""
    tensors, at = client.tensors, i + HEAD
    if coded.into:
        start = i + coded.start
        if stream[at:start] != stream[start : start + start - at]:
            raise Violation("in place, the results must be the first operands")
    if coded.blobs:
        result = _lost_blob(client, coded, stream[i : i + coded.width], result, done) or result
    for place in result.outs if type(result) is Passed else (result,) * (coded.start - HEAD):
        id = stream[at]
        before = tensors.get(id)
        if before is not place:
            if before is not None:
                _replaced(client, coded, stream[i + HEAD : i + coded.start], id, before, place, done)
            elif id > SMALL_INT:
                _check_id(id)
            tensors[id] = place
        at += 1
    return result


def _replaced(
    client: Client, coded: Coded, outs: list[int], id: int, before: Where, after: Where, done: Forwarded
) -> None:
    """A tensor gets a new value elsewhere, or none: what workers have of the old one they need no more."""
    _check_distinct(coded, outs)
    if isinstance(before, Lost):
        return
    if isinstance(after, Lost) or before.home is not after.home:
        done.orphans.append((before.workers, id))
        client.made.pop(id, None)
        client.loose.discard(id)
    for target, copy in client.copies.pop(id, {}).items():
        done.orphans.append((target.workers, copy))


def _check_id(id: Any) -> None:
    if id >= FIRST_DISPATCHER_ID:
        raise Violation(f"{id} is not an id that a client may use")


def _check_distinct(coded: Coded, outs: list[Any]) -> None:
    """Several results under one id would be taken for a tensor of the last one's type, whichever it is."""
    if not coded.into and len(set(outs)) < len(outs):
        raise Violation(f"{coded.signature.op.name} with two results of one id")


# -- what is written anew ------------------------------------------------------------------


def _planned_parts(client: Client, coded: Coded, chosen: Plan, stream: list[Any], i: int, done: Forwarded) -> None:
    """All parts were planned before the first of them runs, so none may change what another one names."""
    words = stream[i : i + coded.width]
    _check_distinct(coded, words[HEAD : coded.start])
    parts = [(one, part, [words[k] for k in picked]) for one, part, picked in chosen.parts]
    operands = [{mine[offset] for offset in one.offsets} for one, _, mine in parts]
    named = Counter(id for ids in operands for id in ids)
    shared = {id for id, count in named.items() if count > 1}
    for (one, _, mine), ids in zip(parts, operands, strict=True):
        if any(named[id] > (id in ids) for id in mine[HEAD : one.start]):
            raise Violation(f"{one.signature.op.name} writes a tensor that it also names as another operand")
    for one, part, mine in parts:
        _planned(client, one, part, mine, 0, done, shared)


def _planned(
    client: Client, coded: Coded, chosen: Plan, stream: list[Any], i: int, done: Forwarded, shared: Shared = frozenset()
) -> None:
    """An instruction for several workers, or whose operands lie elsewhere: first the moves, then itself."""
    words = stream[i : i + coded.width]
    if len(words) < coded.width:
        raise Violation("a stream that ends inside an instruction")
    outs = words[HEAD : coded.start]
    if coded.into and outs != words[coded.start : coded.start + len(outs)]:
        raise Violation("in place, the results must be the first operands")
    if len(outs) > 1:
        _check_distinct(coded, outs)
    if chosen.otherwise is not None:
        done.asked = True
        if not all(0 < abs(words[at]) < inf for at in chosen.numbers):
            chosen = chosen.otherwise
    if chosen.blobs and (lost := _lost_blob(client, coded, words, None, done)) is not None:
        client.tensors.update(dict.fromkeys(outs, lost))
        return
    site, temporary = words[1], _bring_all(client, coded, chosen, words, done, shared)
    words[0] = chosen.code
    segment = done.segment(chosen.workers)
    segment.words += words
    segment.cost += chosen.cost
    tensors, copies = client.tensors, client.copies
    for id, place in zip(outs, chosen.outs, strict=True):
        if (before := tensors.get(id)) is not place or id in copies:
            if before is None:
                _check_id(id)
            else:
                overwritten(client, id, before.home if type(before) is Place else None, place.home, done)
            tensors[id] = place
    if chosen.after:
        _move_on(client, chosen, outs, site, done)
    _remember(client, chosen, outs)
    for id, layout in temporary:
        done.segment(layout.workers).words.append(-id)


def _move_on(client: Client, chosen: Plan, outs: list[int], site: Any, done: Forwarded) -> None:
    """Results that are wanted elsewhere than they are made."""
    for number, target, t in chosen.after:
        if client.tensors[outs[number]] is not chosen.outs[number]:
            raise Violation(f"{chosen.signature.op.name} with two results of one id")
        relay(client, outs[number], site, chosen.outs[number].home, target, t, done)


def _bring_all(
    client: Client, coded: Coded, chosen: Plan, words: list[Any], done: Forwarded, shared: Shared
) -> list[tuple[int, Layout]]:
    """Move the operands, and let the words name what they became; gives what is of no use after this instruction.

    Terms that are ``shared`` with another part of the instruction stay what they are until that has run, too.
    """
    temporary: list[tuple[int, Layout]] = []
    site = words[1]
    ids = [words[offset] for offset in coded.offsets]
    for offset, source, target, t in chosen.moves:
        if offset >= chosen.targets:
            alone = ids.count(words[offset]) == 1 and not (words[offset] in shared and source.terms)
            words[offset] = bring(client, words[offset], site, source, target, t, done, temporary, alone)
    for offset, source, target, t in chosen.moves:
        if offset < chosen.targets:
            id = words[offset]
            if ids.count(id) > 1 and [words[other] for other in coded.offsets].count(id) > 1:
                raise Violation(f"{coded.signature.op.name} writes a tensor that it also names as another operand")
            # copies made before are still read by this instruction, and go after it
            move(client, id, site, source, target, t, done, id)
            leave(id, source, target, done)
            client.tensors[id] = placed(t, target)
    return temporary


def _remember(client: Client, chosen: Plan, outs: list[int]) -> None:
    """Whence what lies on several workers came; the rest is simply there."""
    for number, id in enumerate(outs):
        where = client.tensors[id]
        if isinstance(where, Place) and where.home.single and not where.copies:
            client.made.pop(id, None)
            client.loose.discard(id)
        else:
            client.made[id] = chosen, number
            if chosen.loose:
                client.loose.add(id)


def _lost_blob(
    client: Client, coded: Coded, words: list[Any], result: Passed | Lost | None, done: Forwarded
) -> Lost | None:
    """Was one of the operands sent to a worker that is gone? If the instruction goes nowhere, nor do the others."""
    sent = [words[offset] for offset in coded.blobs if type(words[offset]) is not bytes]
    found = {transfer: client.transfers.pop(transfer, None) for transfer in sent}
    lost = next((where for where in (result, *found.values()) if isinstance(where, Lost)), None)
    for transfer, where in found.items():
        if lost is not None and isinstance(where, Layout):
            done.segment(where.workers).words += (DISCARD, transfer)
    return lost


# -- control words -------------------------------------------------------------------------


def _control(client: Client, stream: list[Any], i: int, done: Forwarded) -> int:
    """How many words there are to it."""
    code = stream[i]
    if code == FETCH:
        _fetch(client, request_of(stream[i + 1]), stream[i + 2], done)
        return 3
    if code == RESET:
        _reset(client, stream[i + 1], done)
        return 2
    if code == FORGET:
        forget(client, stream[i + 1], done)
        return 2
    raise Violation(f"unknown control word {code!r}")


def _reset(client: Client, first: int, done: Forwarded) -> None:
    for old in [known for known in client.codes if known < first]:
        del client.codes[old]
    client.first_code = max(client.first_code, first)
    client.forget_plans()
    for number in [n for n, known in client.fragments.items() if not known.known_codes(client.codes)]:
        del client.fragments[number]
    own = client.book.reset()
    for worker, told in client.told.items():
        told.difference_update([known for known in told if known < first])
        done.segment((worker,)).words += (RESET, first, RESET, own)


def _fetch(client: Client, request: int, id: int, done: Forwarded) -> None:
    """Ask for a value: of its one worker, or of all who have a part of it."""
    place = client.tensors[id]
    if request in client.given_up:
        client.given_up.discard(request)
    elif isinstance(place, Lost):
        done.unreadable.append((request, place.text))
    elif place.home.single:
        done.segment(place.workers).words += (FETCH, request, id)
        client.reads[request] = {place.home.worker}
    else:
        _read(client, request, id, place, done)


def _read(client: Client, request: int, id: int, place: Place, done: Forwarded) -> None:
    """All that have it answer, so that a failure on any of them is told; terms are combined first."""
    t = place.type
    layout = next((found for found in place.layouts if found.whole), place.home)
    if layout.terms:
        whole = Layout(layout.mesh, tuple(R if isinstance(p, Partial) else p for p in layout.placements))
        relay(client, id, 0, layout, whole, t, done)
        layout = whole
    elif layout is not place.home:
        id = client.copies[id][layout]
    sender = layout.worker if layout.whole else -1
    pieces = [(w, *layout.block(t.shape, w)) for w in ((sender,) if layout.whole else layout.workers)]
    done.said.append(Blocks(request, t.shape, t.dtype.itemsize, pieces, list(layout.workers)))
    done.segment(layout.workers).words += (READ, request, id, sender)
    client.reads[request] = set(layout.workers)


def request_of(word: Any) -> int:
    if type(word) is not int:  # a worker will repeat it to us
        raise Violation(f"a request cannot be called {word!r}")
    return word
