"""Replaying fragments: a fragment is planned once for certain inputs, and every repetition uses that plan.

What a fragment does depends only on the states of its inputs, so these are the key of its replay plans. The first time
(`gt.dispatcher.replay.learning`) the fragment's words are written out and forwarded like any others. Meanwhile the
dispatcher records what the workers get and the states of all tensors afterwards. From then on a repetition costs a
lookup, one short instruction for each set of workers, and an update of the states.

    everything on one worker    the client's words are passed on unchanged
    several workers             each section (the words for one set of workers, moves included) is a fragment that the
                                dispatcher defines and runs
"""

from __future__ import annotations

from collections import deque
from itertools import repeat
from math import inf
from typing import Any

from gt.dispatcher.plan.layouts import AnyState
from gt.dispatcher.replay.replay_plans import IdSource, KnownFragment, ReplayPlan, TensorRecords
from gt.dispatcher.segments import ForwardOutput
from gt.dispatcher.state import Client
from gt.dispatcher.violations import Violation
from gt.wire.fragments import RUN_HEAD, run_words
from gt.wire.words import FIRST_DISPATCHER_ID, FORGET, MAX_FRAGMENT_WORDS

#: The last id from which a fragment may number the tensors it creates.
LAST_BASE = FIRST_DISPATCHER_ID - MAX_FRAGMENT_WORDS


def find_plan(client: Client, fragment: KnownFragment, stream: list[Any], i: int) -> ReplayPlan | None:
    """The cached plan for the RUN at word ``i``; None if no cached plan fits. Raises if the RUN is malformed."""
    parsed = fragment.parsed
    at = i + RUN_HEAD
    tensors = client.tensors
    inputs, base = stream[at : at + parsed.inputs], stream[i + 3]
    zeros = stream[i + 2], stream[i + 4]  # as integers: -0.0 equals 0, and would end a worker
    if type(base) is not int or not 0 < base <= LAST_BASE or any(type(word) is not int or word for word in zeros):
        raise ValueError("a client may not run a fragment from this base")
    if inputs and max(inputs) >= base and any(base <= id < base + parsed.created for id in inputs):
        raise Violation("a tensor that the fragment creates is also one of its inputs")
    at += parsed.inputs
    if [*map(type, stream[at : at + parsed.numbers])] != fragment.number_types:
        _check_number_types(fragment, stream[at : at + parsed.numbers])
    states = tuple(map(tensors.__getitem__, inputs))
    plan = fragment.plans.get(plan_key(client, inputs, states) if client.uncached else states)
    if plan is None:
        return None
    if plan.pass_to is None:
        check_distinct(inputs)
    if plan.number_classes is not None and number_classes(stream[at : at + parsed.numbers]) != plan.number_classes:
        return None
    for blob in fragment.blobs:
        transfer = stream[at + blob]
        if type(transfer) is int and client.transfers.get(transfer) is not plan.transfers_at:
            return None
    return plan


def _check_number_types(fragment: KnownFragment, numbers: list[Any]) -> None:
    for number, number_type in zip(numbers, fragment.number_types, strict=True):
        if type(number) is not number_type and (number_type is not bytes or type(number) is not int):
            raise Violation(f"the fragment was given {str(number)[:40]!r} where it takes a {number_type.__name__}")


def check_distinct(inputs: list[int]) -> None:
    """A plan has one record for each input, so the same tensor must not be two inputs."""
    if len(set(inputs)) < len(inputs):
        raise Violation("the fragment gets the same tensor twice")


def plan_key(client: Client, inputs: list[int], states: tuple[AnyState, ...]) -> tuple[Any, ...]:
    """The states of the inputs, and whether their copies are cached if the client has uncached tensors."""
    return (*states, *[id in client.uncached for id in inputs]) if client.uncached else states


def number_classes(numbers: list[Any]) -> tuple[bool, ...]:
    """For each number: it is finite and not zero."""
    return tuple([type(n) is not bytes and 0 < abs(n) < inf for n in numbers])


def pass_through(client: Client, fragment: KnownFragment, plan: ReplayPlan, stream: list[Any], i: int) -> None:
    """Update the states for a fragment whose words are passed on unchanged."""
    tensors, base = client.tensors, stream[i + 3]
    at = i + RUN_HEAD
    for k in plan.freed:
        del tensors[stream[at + k]]
    for k, state in plan.created:
        tensors[base + k] = state
    if fragment.blobs:
        _use_transfers(client, fragment, stream[at + fragment.parsed.inputs : i + fragment.parsed.width])


def _use_transfers(client: Client, fragment: KnownFragment, numbers: list[Any]) -> None:
    """Forget the transfers among the numbers: an instruction uses a transfer once."""
    for blob in fragment.blobs:
        if type(numbers[blob]) is int:
            del client.transfers[numbers[blob]]


def replay(
    client: Client, fragment: KnownFragment, plan: ReplayPlan, stream: list[Any], i: int, output: ForwardOutput
) -> None:
    """Run the sections on their workers, and update the states."""
    base, _, inputs, numbers = fragment.parsed.read_run(stream, i)
    if fragment.blobs:
        _use_transfers(client, fragment, numbers[len(fragment.parsed.constants) :])
    first = client.ledger.new_ids(plan.new_ids)

    def id_of(source: IdSource) -> int:
        if isinstance(source, int):
            return first + source
        k, layout = source
        return inputs[k] if layout is None else client.copies[inputs[k]][layout]

    for section in plan.sections:
        segment = output.segment(section.workers)
        section_numbers = [numbers[k] for k in section.numbers]
        ids = section.inputs.ids(inputs, id_of)
        segment.words += run_words(section.parsed.fragment.number, 0, base, first, ids, section_numbers)
        segment.cost += section.cost
    changed, created = plan.changed_inputs, plan.created_records
    records = [([inputs[k] for k in changed.indices], changed), ([base + k for k in created.indices], created)]
    # the ids of copies are resolved before any copy is forgotten
    new_copies = {
        ids[at]: {layout: id_of(source) for layout, source in copies}
        for ids, rows in records
        for at, copies in rows.copies
    }
    _forget_tensors(client, [inputs[k] for k in plan.freed])
    for ids, rows in records:
        _set_records(client, ids, rows)
    client.copies.update(new_copies)


def _forget_tensors(client: Client, ids: list[int]) -> None:
    tables: tuple[dict[int, Any], ...] = client.tensors, client.copies, client.origins
    for table in filter(None, tables):
        _pop_all(table, ids)
    if client.uncached:
        client.uncached.difference_update(ids)


def _pop_all(table: dict[int, Any], ids: list[int]) -> None:
    deque(map(table.pop, ids, repeat(None)), maxlen=0)  # a loop takes twice as long


def _set_records(client: Client, ids: list[int], records: TensorRecords) -> None:
    """Store what the records say about these tensors. Their new copies are stored later."""
    client.tensors.update(zip(ids, records.states, strict=True))
    if records.have_origins:
        client.origins.update(zip(ids, records.origins, strict=True))
    else:
        _pop_all(client.origins, ids)
        origins = zip(ids, records.origins, strict=True)
        client.origins.update((id, origin) for id, origin in origins if origin is not None)
    client.uncached.update([ids[at] for at in records.uncached])
    if client.copies:
        _pop_all(client.copies, ids)


def forget_fragment(client: Client, number: int, output: ForwardOutput) -> None:
    """The client will not run it again: the workers forget it and its sections."""
    for workers, announced in client.fragments.pop(number).announced:
        client.ledger.fragments.pop(announced, None)
        if all(worker in client.announced for worker in workers):
            output.segment(workers).words += (FORGET, announced)
