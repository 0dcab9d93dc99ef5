"""Fragments in the dispatcher: what was planned once is planned for every repetition.

What becomes of a fragment depends on what its inputs are and where they lie, and on nothing else, so their places are
the key of its *course*. The first time its words are written out and forwarded as any others, while it is watched what
the workers get and where everything lies afterwards. From then on a repetition costs a look at the inputs, a short
instruction for each set of workers, and a note of what lies where.

    all of it on one worker     the client's own words are passed on as they are
    on several                  each run of words is a fragment of its own for its workers, with the moves in it
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from math import inf
from typing import Any

from gt.dispatcher.plan.layouts import Layout, Lost, Place, Where
from gt.dispatcher.plan.plan import Ground
from gt.dispatcher.plan.segments import Forwarded, Segment
from gt.dispatcher.replay.buckets import gathered
from gt.dispatcher.replay.replay_plans import Course, Hole, Known, Run, Source, State
from gt.dispatcher.state import Client, Violation
from gt.wire.fragments import RUN_HEAD, NoFragment, ParsedFragment, make_fragment, run_words, sort_words
from gt.wire.messages import FIRST_DISPATCHER_ID, FORGET, MAX_FRAGMENT_WORDS

#: More microseconds than any fragment takes, and few enough to count single ones; courses kept of a fragment.
ENDLESS, COURSES = 1e12, 8
LAST_BASE = FIRST_DISPATCHER_ID - MAX_FRAGMENT_WORDS
#: goes through words that are written out: `gt.dispatcher.forward._loop`
Loop = Callable[[Client, Ground, list[Any], int, float, Forwarded], None]


def find(client: Client, known: Known, stream: list[Any], i: int) -> Course | None:
    """The course of the repetition at ``i``, if there is one for it."""
    form = known.form
    at = i + RUN_HEAD
    tensors = client.tensors
    inputs, base = stream[at : at + form.inputs], stream[i + 3]
    if type(base) is not int or not 0 < base <= LAST_BASE or stream[i + 2] != 0 or stream[i + 4] != 0:
        raise ValueError("a fragment that is run from where no client may")
    if inputs and max(inputs) >= base and any(base <= id < base + form.created for id in inputs):
        raise Violation("a fragment that is given what it makes")
    at += form.inputs
    if [*map(type, stream[at : at + form.numbers])] != known.kinds:
        _check_kinds(known, stream[at : at + form.numbers])
    key = tuple([tensors[id] for id in inputs])
    course = known.courses.get(_key(client, inputs, key) if client.loose else key)
    if course is None:
        return None
    if course.passed is None:
        _check_distinct(inputs)
    if course.numbers is not None and _classes(stream[at : at + form.numbers]) != course.numbers:
        return None
    for blob in known.blobs:
        sent = stream[at + blob]
        if type(sent) is int and client.transfers.get(sent) is not course.arrived:
            return None
    return course


def _check_kinds(known: Known, numbers: list[Any]) -> None:
    for number, kind in zip(numbers, known.kinds, strict=True):
        if type(number) is not kind and (kind is not bytes or type(number) is not int):
            raise Violation(f"a fragment was given {str(number)[:40]!r} where it takes a {kind.__name__}")


def _check_distinct(inputs: list[int]) -> None:
    if len(set(inputs)) < len(inputs):  # a course says what becomes of each of them
        raise Violation("a fragment that is given the same tensor twice")


def _key(client: Client, inputs: list[int], places: tuple[Where, ...]) -> tuple[Any, ...]:
    """Where they lie; and of which no copies are kept, if there are such."""
    return (*places, *[id in client.loose for id in inputs]) if client.loose else places


def passed_on(client: Client, known: Known, course: Course, stream: list[Any], i: int) -> None:
    """All of it is at one place, which gets the words as they are."""
    tensors, base = client.tensors, stream[i + 3]
    at = i + RUN_HEAD
    for k in course.freed:
        del tensors[stream[at + k]]
    for k, place in course.live:
        tensors[base + k] = place
    if known.blobs:
        _arrived(client, known, stream[at + known.form.inputs : i + known.form.width])


def _arrived(client: Client, known: Known, numbers: list[Any]) -> None:
    """What was sent in parts is used up."""
    for blob in known.blobs:
        if type(numbers[blob]) is int:
            del client.transfers[numbers[blob]]


def repeat(client: Client, known: Known, course: Course, stream: list[Any], i: int, done: Forwarded) -> None:
    """On several workers: their own fragments, and what lies where after them."""
    base, _, inputs, numbers = known.form.read_run(stream, i)
    if known.blobs:
        _arrived(client, known, numbers[len(known.form.constants) :])
    first = client.book.ids(course.own)

    def id_of(source: Source) -> int:
        if isinstance(source, int):
            return first + source
        k, layout = source
        return inputs[k] if layout is None else client.copies[inputs[k]][layout]

    for run in course.runs:
        segment = done.segment(run.workers)
        taken = [numbers[k] for k in run.numbers]
        # most are inputs themselves, which takes no call
        given = [inputs[s[0]] if type(s) is tuple and s[1] is None else id_of(s) for s in run.inputs]
        segment.words += run_words(run.form.fragment.number, 0, base, first, given, taken)
        segment.cost += run.cost
    states = [(inputs[k], state) for k, state in course.changed] + [(base + k, state) for k, state in course.states]
    noted = [(id, state, {layout: id_of(source) for layout, source in state.copies}) for id, state in states]
    for k in course.freed:
        _forget(client, inputs[k])
    for id, state, copies in noted:
        _note(client, id, state, copies)


def _forget(client: Client, id: int) -> None:
    client.tensors.pop(id, None)
    client.copies.pop(id, None)
    client.made.pop(id, None)
    client.loose.discard(id)


def _note(client: Client, id: int, state: State, copies: dict[Layout, int]) -> None:
    client.tensors[id] = state.place
    if copies:
        client.copies[id] = copies
    else:
        client.copies.pop(id, None)
    if state.made is not None:
        client.made[id] = state.made
    else:
        client.made.pop(id, None)
    if state.loose:
        client.loose.add(id)


def _classes(numbers: list[Any]) -> tuple[bool, ...]:
    return tuple([type(n) is not bytes and 0 < abs(n) < inf for n in numbers])


# -- the first time ------------------------------------------------------------------------


def learn(
    client: Client, ground: Ground, known: Known, stream: list[Any], i: int, done: Forwarded, loop: Loop
) -> float:
    """Forward it written out; remember what became of it. Gives what it costs."""
    base, _, inputs, numbers = known.form.read_run(stream, i)
    _check_distinct(inputs)
    words = known.form.expand(known.form.slot_ids(base, 0, inputs), [Hole(k, n) for k, n in enumerate(numbers)])
    watch = _Watch(client, known, base, inputs, numbers)
    made = Forwarded()
    loop(client, ground, words, 0, ENDLESS, made)
    if made.stop != len(words):
        raise ValueError("a fragment that ends inside an instruction")
    codes: ChainMap[int, Any] = ChainMap(client.book.told, client.codes)
    for segment in made.segments:
        if len(segment.workers) > 1:
            segment.words = gathered(segment.words, codes, client.book.reductions)
    done.unreadable += made.unreadable
    done.said += made.said
    for worker, news in made.news.items():
        done.tell(worker).add(news)
    course = watch.course(made, words, numbers)
    for segment in made.segments:
        if course is not None and course.passed is not None:
            _pass_on(known, segment, stream[i : i + known.form.width], done)
        elif course is None:
            onward = done.segment(segment.workers)
            onward.words += [word.value if type(word) is Hole else word for word in segment.words]
            onward.cost += segment.cost
    if course is not None and course.passed is None:
        _first_run(client, known, course, watch, numbers, done)
    if course is not None:
        before = known.courses.pop(watch.key, None)
        known.courses[watch.key] = course
        if before is None and len(known.courses) > COURSES:
            before = known.courses.popitem(last=False)[1]
        if before is not None:
            _let_go(client, known, before, done)
    return sum(segment.cost for segment in made.segments)


def _pass_on(known: Known, segment: Segment, words: list[Any], done: Forwarded) -> None:
    told = segment.workers, known.form.fragment.number
    if told not in known.told:
        known.told.add(told)
        done.tell(segment.workers[0]).fragments.append(known.form.fragment)
    onward = done.segment(segment.workers)
    onward.words += words
    onward.cost += segment.cost


def _first_run(
    client: Client, known: Known, course: Course, watch: _Watch, numbers: list[Any], done: Forwarded
) -> None:
    for run in course.runs:
        number = run.form.fragment.number
        known.told.add((run.workers, number))
        for worker in run.workers:
            done.tell(worker).fragments.append(run.form.fragment)
        given = [watch.id_of(source) for source in run.inputs]
        segment = done.segment(run.workers)
        segment.words += run_words(number, 0, watch.base, watch.own, given, [numbers[k] for k in run.numbers])
        segment.cost += run.cost


def _let_go(client: Client, known: Known, course: Course, done: Forwarded) -> None:
    for run in course.runs:
        known.told.discard((run.workers, run.form.fragment.number))
        client.book.fragments.pop(run.form.fragment.number, None)
        done.segment(run.workers).words += (FORGET, run.form.fragment.number)


def forget(client: Client, number: int, done: Forwarded) -> None:
    """It will not be run again: nobody needs to know it any more."""
    for workers, told in client.fragments.pop(number).told:
        client.book.fragments.pop(told, None)
        if all(worker in client.told for worker in workers):
            done.segment(workers).words += (FORGET, told)


class _Watch:
    """Remembers how things were before a fragment was forwarded for the first time, to tell what became of them."""

    def __init__(self, client: Client, known: Known, base: int, inputs: list[int], numbers: list[Any]) -> None:
        self.client, self.known, self.base, self.inputs = client, known, base, inputs
        self.places = tuple(client.tensors[id] for id in inputs)
        self.key = _key(client, inputs, self.places)
        self.copies = [self._copies(id) for id in inputs]
        given = numbers[len(known.form.constants) :]
        sent = [given[blob] for blob in known.blobs if type(given[blob]) is int]
        #: where what was sent in parts is; one place, or it is odd
        self.arrived = {client.transfers.get(transfer) for transfer in sent}
        self.own = client.book.next_id + 1
        self._sources: dict[int, Source] = {id: (k, None) for k, id in enumerate(inputs)}
        for k, copies in enumerate(self.copies):
            self._sources.update({id: (k, layout) for layout, id in copies.items()})

    def _copies(self, id: int) -> dict[Layout, int]:
        place: Any = self.client.tensors[id]  # not the copies of a tensor that had this id before
        return dict(self.client.copies[id]) if type(place) is Place and place.copies else {}

    def id_of(self, source: Source) -> int:
        if isinstance(source, int):
            return self.own + source
        k, layout = source
        return self.inputs[k] if layout is None else self.copies[k][layout]

    def _source(self, id: int) -> Source:
        return id - self.own if id >= self.own else self._sources[id]

    def course(self, made: Forwarded, words: list[Any], numbers: list[Any]) -> Course | None:
        """What is to be done the next time; None if it cannot be said."""
        client, tensors = self.client, self.client.tensors
        odd = made.unreadable or made.said or made.orphans or len(self.arrived) > 1
        if odd or not made.segments or any(isinstance(place, Lost) for place in (*self.places, *self.arrived)):
            return None
        arrived = next(iter(self.arrived), None)
        form = self.known.form
        freed = tuple(k for k, id in enumerate(self.inputs) if id not in tensors)
        live = tuple(k for k in range(form.created) if self.base + k in tensors)
        cost = sum(segment.cost for segment in made.segments)
        only = made.segments[0]
        alone = len(made.segments) == 1 and len(only.workers) == 1 and only.words == words
        if alone and (passed := self._passed(live, freed)) is not None:
            places = tuple((k, tensors[self.base + k]) for k in live)
            return Course(passed, cost, freed, places, arrived=arrived or passed)
        try:
            runs = tuple(map(self._run, made.segments))
            changed = tuple((k, self._state(self.inputs[k])) for k in range(form.inputs) if self._changed(k, freed))
            states = tuple((k, self._state(self.base + k)) for k in live)
        except (NoFragment, KeyError):
            return None
        if any(isinstance(state.place, Lost) for _, state in (*changed, *states)):
            return None
        own = client.book.next_id + 1 - self.own
        asked = _classes(numbers[len(form.constants) :]) if made.asked else None
        return Course(None, cost, freed, (), runs, own, changed, states, asked, arrived)

    def _passed(self, live: tuple[int, ...], freed: tuple[int, ...]) -> Layout | None:
        """The one layout of everything there was and is, if nothing has copies and the inputs are what they were."""
        places = (*self.places, *[self.client.tensors[self.base + k] for k in live])
        found = {place.home if isinstance(place, Place) and not place.copies else None for place in places}
        changed = any(self._changed(k, freed) for k in range(len(self.inputs)))
        return found.pop() if len(found) == 1 and not changed else None

    def _run(self, segment: Segment) -> Run:
        client = self.client
        codes: ChainMap[int, Any] = ChainMap(client.book.told, client.codes)
        found = sort_words(segment.words, codes, self.base, self.own)
        number = client.book.fragment()
        compile = self.known.form.compile
        form = ParsedFragment(make_fragment(number, segment.words, found, compile), codes)
        taken = tuple(segment.words[place].index for place in found.numbers)
        client.book.fragments[number] = form
        return Run(segment.workers, form, tuple(map(self._source, found.inputs)), taken, segment.cost)

    def _changed(self, k: int, freed: tuple[int, ...]) -> bool:
        id, client = self.inputs[k], self.client
        if k in freed:
            return False
        # what is written in place has another plan to be told of: see `gt.dispatcher.explain`
        return client.tensors[id] is not self.places[k] or self._copies(id) != self.copies[k]

    def _state(self, id: int) -> State:
        client = self.client
        copies = tuple((layout, self._source(copy)) for layout, copy in self._copies(id).items())
        return State(client.tensors[id], copies, client.made.get(id), id in client.loose)
