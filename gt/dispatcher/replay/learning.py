"""The first run of a fragment: forward its words one by one, and make a replay plan from what happened."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from typing import Any

from gt.dispatcher.instruction_plans import WorkerView
from gt.dispatcher.plan.layouts import Layout, Lost, TensorState
from gt.dispatcher.replay.buckets import bucket_reductions
from gt.dispatcher.replay.deferral import defer_views
from gt.dispatcher.replay.prefetch import prefetch_gathers
from gt.dispatcher.replay.replay import check_distinct, number_classes, plan_key
from gt.dispatcher.replay.replay_plans import (
    IdSource,
    InputSources,
    KnownFragment,
    NumberSlot,
    ReplayPlan,
    ReplaySection,
    TensorRecord,
    TensorRecords,
)
from gt.dispatcher.segments import ForwardOutput, Segment
from gt.dispatcher.state import Client
from gt.wire.fragments import NoFragment, ParsedFragment, make_fragment, run_words, sort_words
from gt.wire.words import FORGET

#: More microseconds than any fragment takes, and few enough that a float still counts single ones.
UNLIMITED_BUDGET_US = 1e12
#: The most replay plans that are cached for a fragment; the oldest is evicted.
MAX_PLANS = 8
#: The forwarding loop, `gt.dispatcher.forward._loop`. It is a parameter because that module imports this one.
Loop = Callable[[Client, WorkerView, list[Any], int, float, ForwardOutput], None]


def learn(
    client: Client,
    view: WorkerView,
    fragment: KnownFragment,
    stream: list[Any],
    i: int,
    output: ForwardOutput,
    loop: Loop,
) -> float:
    """Forward the fragment's words and cache a plan for its repetitions; returns the cost in microseconds."""
    parsed = fragment.parsed
    base, _, inputs, numbers = parsed.read_run(stream, i)
    check_distinct(inputs)
    words = parsed.expand(parsed.slot_ids(base, 0, inputs), [NumberSlot(k, n) for k, n in enumerate(numbers)])
    recorder = _Recorder(client, fragment, base, inputs, numbers)
    forwarded = ForwardOutput()
    loop(client, view, words, 0, UNLIMITED_BUDGET_US, forwarded)
    if forwarded.stop != len(words):
        raise ValueError("the fragment ends inside an instruction")
    prefetched_bytes = _reorder(client, forwarded.segments)
    output.unreadable += forwarded.unreadable
    output.messages_to_client += forwarded.messages_to_client
    for worker, announcements in forwarded.announcements.items():
        output.announce(worker).add(announcements)
    plan = recorder.replay_plan(forwarded, words, numbers, prefetched_bytes)
    if plan is None:
        _send_words(forwarded, output)
    elif plan.pass_to is not None:
        _send_unchanged(fragment, forwarded.segments[0], stream[i : i + parsed.width], output)
    else:
        _send_sections(fragment, plan, recorder, numbers, output)
    if plan is not None:
        _cache_plan(client, fragment, recorder.key, plan, output)
    return sum(segment.cost for segment in forwarded.segments)


def _reorder(client: Client, segments: list[Segment]) -> int:
    """Start reductions and gathers early, and wait for reductions late.

    Returns how many bytes more a worker may need for the gathers.
    """
    ledger, most = client.ledger, 0
    codes: ChainMap[int, Any] = ChainMap(ledger.codes, client.codes)
    for segment in segments:
        if len(segment.workers) > 1:
            segment.words = bucket_reductions(segment.words, codes, ledger.reductions)
            segment.words = defer_views(segment.words, codes, ledger.reductions, ledger.views)
            if not client.identity.quota.memory:  # who may use only so much would run out of it earlier
                segment.words, nbytes = prefetch_gathers(segment.words, codes, ledger.gathers)
                most = max(most, nbytes)
    return most


def _send_words(forwarded: ForwardOutput, output: ForwardOutput) -> None:
    """Without a plan, the workers get the words written out."""
    for segment in forwarded.segments:
        target = output.segment(segment.workers)
        target.words += [word.value if type(word) is NumberSlot else word for word in segment.words]
        target.cost += segment.cost


def _send_unchanged(fragment: KnownFragment, segment: Segment, words: list[Any], output: ForwardOutput) -> None:
    """One worker gets the client's fragment, and the client's words that run it."""
    announced = segment.workers, fragment.parsed.fragment.number
    if announced not in fragment.announced:
        fragment.announced.add(announced)
        output.announce(segment.workers[0]).fragments.append(fragment.parsed.fragment)
    target = output.segment(segment.workers)
    target.words += words
    target.cost += segment.cost


def _send_sections(
    fragment: KnownFragment, plan: ReplayPlan, recorder: _Recorder, numbers: list[Any], output: ForwardOutput
) -> None:
    """The workers get each section as a fragment of the dispatcher, and the words that run it."""
    for section in plan.sections:
        number = section.parsed.fragment.number
        fragment.announced.add((section.workers, number))
        for worker in section.workers:
            output.announce(worker).fragments.append(section.parsed.fragment)
        ids = section.inputs.ids(recorder.inputs, recorder.id_of)
        section_numbers = [numbers[k] for k in section.numbers]
        segment = output.segment(section.workers)
        segment.words += run_words(number, 0, recorder.base, recorder.first_new_id, ids, section_numbers)
        segment.cost += section.cost


def _cache_plan(
    client: Client, fragment: KnownFragment, key: tuple[Any, ...], plan: ReplayPlan, output: ForwardOutput
) -> None:
    """Cache the plan. The workers forget the sections of a plan that it replaces or evicts."""
    old = fragment.plans.pop(key, None)
    fragment.plans[key] = plan
    if old is None and len(fragment.plans) > MAX_PLANS:
        old = fragment.plans.popitem(last=False)[1]
    if old is not None:
        for section in old.sections:
            number = section.parsed.fragment.number
            fragment.announced.discard((section.workers, number))
            client.ledger.fragments.pop(number, None)
            output.segment(section.workers).words += (FORGET, number)


class _Recorder:
    """Records the states before a fragment is forwarded, and compares them with those afterwards."""

    def __init__(
        self, client: Client, fragment: KnownFragment, base: int, inputs: list[int], numbers: list[Any]
    ) -> None:
        self.client, self.fragment, self.base, self.inputs = client, fragment, base, inputs
        self.states = tuple(client.tensors[id] for id in inputs)
        self.key = plan_key(client, inputs, self.states)
        self.copies = [self._copies(id) for id in inputs]
        varying = numbers[len(fragment.parsed.constants) :]
        transfers = [varying[blob] for blob in fragment.blobs if type(varying[blob]) is int]
        #: the layouts of the transfers; a plan needs all of them in one layout
        self.transfers_at = {client.transfers.get(transfer) for transfer in transfers}
        self.first_new_id = client.ledger.next_id + 1
        self._sources: dict[int, IdSource] = {id: (k, None) for k, id in enumerate(inputs)}
        for k, copies in enumerate(self.copies):
            self._sources.update({id: (k, layout) for layout, id in copies.items()})

    def _copies(self, id: int) -> dict[Layout, int]:
        state: Any = self.client.tensors[id]  # without the copies of an earlier tensor with this id
        return dict(self.client.copies[id]) if type(state) is TensorState and state.copies else {}

    def id_of(self, source: IdSource) -> int:
        """The id that a source stands for in this run; the inverse of `_source`."""
        if isinstance(source, int):
            return self.first_new_id + source
        k, layout = source
        return self.inputs[k] if layout is None else self.copies[k][layout]

    def _source(self, id: int) -> IdSource:
        return id - self.first_new_id if id >= self.first_new_id else self._sources[id]

    def replay_plan(
        self, forwarded: ForwardOutput, words: list[Any], numbers: list[Any], prefetched_bytes: int
    ) -> ReplayPlan | None:
        """The plan for repetitions; None if a repetition may differ."""
        client, tensors = self.client, self.client.tensors
        unusual = forwarded.unreadable or forwarded.messages_to_client or forwarded.orphans
        if unusual or not forwarded.segments or len(self.transfers_at) > 1:
            return None
        if any(isinstance(state, Lost) for state in (*self.states, *self.transfers_at)):
            return None
        transfers_at = next(iter(self.transfers_at), None)
        parsed = self.fragment.parsed
        freed = tuple(k for k, id in enumerate(self.inputs) if id not in tensors)
        live = tuple(k for k in range(parsed.created) if self.base + k in tensors)
        cost = sum(segment.cost for segment in forwarded.segments)
        first = forwarded.segments[0]
        unchanged = len(forwarded.segments) == 1 and len(first.workers) == 1 and first.words == words
        if unchanged and (layout := self._only_layout(live, freed)) is not None:
            created = tuple((k, tensors[self.base + k]) for k in live)
            return ReplayPlan(layout, cost, freed, created, transfers_at=transfers_at or layout)
        try:
            sections = tuple(map(self._section, forwarded.segments))
            changed = [(k, self._record(self.inputs[k])) for k in range(parsed.inputs) if self._changed(k, freed)]
            created_records = [(k, self._record(self.base + k)) for k in live]
        except (NoFragment, KeyError):
            return None
        if any(isinstance(record.state, Lost) for _, record in (*changed, *created_records)):
            return None
        new_ids = client.ledger.next_id + 1 - self.first_new_id
        classes = number_classes(numbers[len(parsed.constants) :]) if forwarded.depends_on_numbers else None
        after = TensorRecords.of(changed), TensorRecords.of(created_records)
        return ReplayPlan(None, cost, freed, (), sections, new_ids, *after, classes, transfers_at, prefetched_bytes)

    def _only_layout(self, live: tuple[int, ...], freed: tuple[int, ...]) -> Layout | None:
        """The one layout of all tensors before and after; None if they differ, have copies, or an input changed."""
        states = (*self.states, *[self.client.tensors[self.base + k] for k in live])
        homes = {state.home if isinstance(state, TensorState) and not state.copies else None for state in states}
        changed = any(self._changed(k, freed) for k in range(len(self.inputs)))
        return homes.pop() if len(homes) == 1 and not changed else None

    def _section(self, segment: Segment) -> ReplaySection:
        """A new fragment of the dispatcher with the words of the segment. Raises NoFragment or KeyError."""
        ledger = self.client.ledger
        codes: ChainMap[int, Any] = ChainMap(ledger.codes, self.client.codes)
        words = sort_words(segment.words, codes, self.base, self.first_new_id)
        number = ledger.new_fragment()
        compile = self.fragment.parsed.compile
        parsed = ParsedFragment(make_fragment(number, segment.words, words, compile), codes)
        numbers = tuple(segment.words[position].index for position in words.numbers)
        ledger.fragments[number] = parsed
        sources = InputSources.of(map(self._source, words.inputs))
        return ReplaySection(segment.workers, parsed, sources, numbers, segment.cost)

    def _changed(self, k: int, freed: tuple[int, ...]) -> bool:
        """The input has another state or other copies. (An input written in place also has a new origin, which only
        `gt.dispatcher.explain` reads.)"""
        id, client = self.inputs[k], self.client
        if k in freed:
            return False
        return client.tensors[id] is not self.states[k] or self._copies(id) != self.copies[k]

    def _record(self, id: int) -> TensorRecord:
        client = self.client
        copies = tuple((layout, self._source(copy)) for layout, copy in self._copies(id).items())
        return TensorRecord(client.tensors[id], copies, client.origins.get(id), id in client.uncached)
