"""The dispatcher's hot loop: it takes a client's stream and produces segments of words for the workers.

The loop looks up the states of an instruction's operands. Code and states are the key of a cached plan, which says
where the instruction runs and which states its results get. Only a cache miss plans anything
(`gt.dispatcher.instruction_plans`). An instruction on one worker that holds its operands is passed on unchanged. So is
an instruction on several workers that hold its operands, except that a code of the dispatcher replaces the client's.
Any other instruction is rewritten, with the moves it needs before it. The loop stops after about ``budget``
microseconds of estimated work, so that no client occupies a worker for long.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import Any

from gt.dispatcher.instruction_plans import InstructionPlan, PassThrough, WorkerView, make_plan
from gt.dispatcher.move_emission import (
    MoveEmitter,
    SharedOperands,
    free_replaced,
    free_tensor,
    move_operands,
    move_results,
)
from gt.dispatcher.plan.layouts import AnyState, Layout, Lost, TensorState
from gt.dispatcher.plan.moves import PlannedMove
from gt.dispatcher.replay.learning import learn
from gt.dispatcher.replay.replay import find_plan, forget_fragment, pass_through, replay
from gt.dispatcher.replay.replay_plans import NumberSlot
from gt.dispatcher.segments import ForwardOutput, Workers
from gt.dispatcher.state import Client, CodedSignature
from gt.dispatcher.violations import (
    MALFORMED_STREAM_ERRORS,
    Violation,
    check_tensor_id,
    malformed_stream,
    request_number,
)
from gt.ops.signature import HEAD
from gt.wire.messages import Blocks
from gt.wire.words import DISCARD, FETCH, FIRST_CODE, FORGET, MAX_UNTAKEN_BYTES, READ, RESET, RUN, counted_bytes

#: CPython compares integers up to here in one step. Only larger ids are checked further.
MAX_SMALL_INT = (1 << 30) - 1


def forward(client: Client, view: WorkerView, stream: list[Any], start: int, budget: float) -> ForwardOutput:
    """Replaces codes in the stream by the dispatcher's. Raises Violation if the stream is malformed."""
    output = ForwardOutput()
    try:
        _loop(client, view, stream, start, budget, output)
    except MALFORMED_STREAM_ERRORS as error:
        raise malformed_stream(error) from None
    if output.stop > len(stream):
        raise Violation("the stream ends inside an instruction")
    return output


def _loop(client: Client, view: WorkerView, stream: list[Any], i: int, budget: float, output: ForwardOutput) -> None:
    tensors, codes, plans, origins = client.tensors, client.codes, client.plans, client.origins
    copies, uncached = client.copies, client.uncached
    end = len(stream)
    # The words from ``begin`` on, where the budget was ``left``, go to the workers ``where``. They are copied when an
    # instruction goes to other workers. None: no words wait to be copied.
    where: Workers | None = view.home.workers
    begin, left = i, budget
    while i < end and budget > 0:
        code = stream[i]
        plan: Any
        if code >= FIRST_CODE:
            coded = codes[code]
            plain = coded.plain
            if plain == 2:
                key: tuple[Any, ...] = (code, tensors[stream[i + 3]], tensors[stream[i + 4]])
            elif plain == 1:
                key = (code, tensors[stream[i + 3]])
            else:
                for offset, number_type in coded.numbers:
                    if type(stream[i + offset]) is not number_type:
                        _check_number(coded, stream[i + offset], number_type)
                key = (code, *[tensors[stream[i + o]] for o in coded.offsets])
            plan = plans.get(key)
            if plan is None:
                plan = plans[key] = make_plan(client, view, coded, key[1:], output)
            width = coded.width
            if type(plan) is TensorState:
                out = stream[i + 2]
                if out > MAX_SMALL_INT:
                    check_tensor_id(out)
                tensors[out] = plan
                cost = coded.cost
            elif type(plan) is InstructionPlan:
                if plan.simple is None:
                    if where is not None:
                        output.add(where, stream[begin:i], left - budget)
                        where = None
                    (_rewrite_calls if plan.calls else _rewrite)(client, coded, plan, stream, i, output)
                    budget -= plan.cost
                    i += width
                    continue
                out = stream[i + 2]
                if out > MAX_SMALL_INT:
                    check_tensor_id(out)
                stream[i], tensors[out], origins[out] = plan.simple
                cost = plan.cost
            else:
                plan = _set_results(client, coded, stream, i, plan, output)
                cost = coded.cost
        elif code < 0:
            plan = tensors.pop(-code)
            width, cost = 1, 0.0
            if copies and -code in copies:
                if where is not None:
                    output.add(where, stream[begin:i], left - budget)
                    where = None
                free_tensor(client, -code, plan, output)
                i += 1
                continue
            if origins:
                origins.pop(-code, None)
                if uncached:
                    uncached.discard(-code)
        else:
            replay_plan, width = None, 0
            if code == RUN:
                fragment = client.fragments[stream[i + 1]]
                replay_plan, width = find_plan(client, fragment, stream, i), fragment.parsed.width
            if replay_plan is None or replay_plan.pass_to is None:
                if where is not None:
                    output.add(where, stream[begin:i], left - budget)
                    where = None
                if replay_plan is not None:
                    replay(client, fragment, replay_plan, stream, i, output)
                    budget -= replay_plan.cost
                elif width:
                    budget -= learn(client, view, fragment, stream, i, output, _loop)
                i += width or _control(client, stream, i, output)
                if client.untaken >= MAX_UNTAKEN_BYTES:  # the rest waits until the client has taken some values
                    break
                continue
            pass_through(client, fragment, replay_plan, stream, i)
            plan, cost = replay_plan.pass_to, replay_plan.cost
        if plan.workers is not where:
            output.add(where or (), stream[begin:i], left - budget)
            where, begin, left = plan.workers, i, budget
        budget -= cost
        i += width
    output.add(where or (), stream[begin:i], left - budget)
    output.stop = i


def _check_number(coded: CodedSignature, word: Any, number_type: type) -> None:
    if type(word) is not NumberSlot:  # the numbers of a fragment are checked when it is run
        raise Violation(f"{coded.signature} was given {str(word)[:40]!r} where it takes a {number_type.__name__}")


# -- instructions that are passed on unchanged ---------------------------------------------


def _set_results(
    client: Client,
    coded: CodedSignature,
    stream: list[Any],
    i: int,
    plan: PassThrough | Lost,
    output: ForwardOutput,
) -> PassThrough | Lost:
    """Set the results of an instruction that has several, works in place, takes a transfer, or is lost. Returns its
    plan, which is `Lost` if a transfer is lost."""
    tensors, at = client.tensors, i + HEAD
    if coded.into:
        start = i + coded.start
        if stream[at:start] != stream[start : start + start - at]:
            raise Violation("the results of an instruction in place must be its first operands")
    if coded.blobs:
        plan = _lost_transfer(client, coded, stream[i : i + coded.width], plan, output) or plan
    states: tuple[AnyState, ...] = plan.outs if isinstance(plan, PassThrough) else (plan,) * (coded.start - HEAD)
    for state in states:
        id = stream[at]
        before = tensors.get(id)
        if before is not state:
            if before is not None:
                _check_distinct(coded, stream[i + HEAD : i + coded.start])
                _replace(client, id, before, state, output)
            elif id > MAX_SMALL_INT:
                check_tensor_id(id)
            tensors[id] = state
        at += 1
    return plan


def _replace(client: Client, id: int, before: AnyState, after: AnyState, output: ForwardOutput) -> None:
    """A tensor gets a new value in another layout, or loses it: the workers free what they hold of the old value."""
    if isinstance(before, Lost):
        return
    if isinstance(after, Lost) or before.home is not after.home:
        output.orphans.append((before.workers, id))
        client.forget_origin(id)
    for target, copy in client.copies.pop(id, {}).items():
        output.orphans.append((target.workers, copy))


def _check_distinct(coded: CodedSignature, outs: list[Any]) -> None:
    """Raises Violation if two results have one id: the state would be of the last one, the value perhaps of another."""
    if not coded.into and len(set(outs)) < len(outs):
        raise Violation(f"{coded.signature.op.name}: two results have the same id")


# -- instructions that are rewritten -------------------------------------------------------


def _rewrite_calls(
    client: Client, coded: CodedSignature, plan: InstructionPlan, stream: list[Any], i: int, output: ForwardOutput
) -> None:
    """Emit the calls that an instruction was split into, one for each mesh. All were planned before the first one
    runs, so none may write a tensor that another one names."""
    words = stream[i : i + coded.width]
    _check_distinct(coded, words[HEAD : coded.start])
    calls = [(call, call_plan, [words[k] for k in taken]) for call, call_plan, taken in plan.calls]
    operands = [{call_words[offset] for offset in call.offsets} for call, _, call_words in calls]
    uses = Counter(id for ids in operands for id in ids)
    shared = {id for id, count in uses.items() if count > 1}
    for (call, _, call_words), ids in zip(calls, operands, strict=True):
        if any(uses[id] > (id in ids) for id in call_words[HEAD : call.start]):
            raise Violation(f"{call.signature.op.name} writes a tensor that it also names as another operand")
    for call, call_plan, call_words in calls:
        _rewrite(client, call, call_plan, call_words, 0, output, shared)


def _rewrite(
    client: Client,
    coded: CodedSignature,
    plan: InstructionPlan,
    stream: list[Any],
    i: int,
    output: ForwardOutput,
    shared: SharedOperands = frozenset(),
) -> None:
    """Emit an instruction for several workers, or with operands that move: first the moves, then the instruction."""
    words = _instruction_words(coded, stream, i)
    outs = words[HEAD : coded.start]
    if plan.otherwise is not None:
        output.depends_on_numbers = True
        if not all(0 < abs(words[offset]) < inf for offset in plan.numbers):
            plan = plan.otherwise
    if plan.takes_blobs and (lost := _lost_transfer(client, coded, words, None, output)) is not None:
        client.tensors.update(dict.fromkeys(outs, lost))
        return
    emitter = MoveEmitter(client, output, words[1])
    if plan.is_move:
        emitter.move_to(words[coded.start], plan.moves[0], outs[0])
    else:
        if plan.moves:
            move_operands(emitter, coded, plan, words, shared)
        words[0] = plan.code
        segment = output.segment(plan.workers)
        segment.words += words
        segment.cost += plan.cost
    _set_states(client, plan, outs, output)
    if plan.result_moves:
        move_results(emitter, plan, outs)
    _record_origins(client, plan, outs)
    for id, layout in emitter.temporary:
        output.segment(layout.workers).words.append(-id)


def _set_states(client: Client, plan: InstructionPlan, outs: list[int], output: ForwardOutput) -> None:
    """Set the states of an instruction's results, and free what they replace."""
    tensors, copies = client.tensors, client.copies
    for id, state in zip(outs, plan.outs, strict=True):
        if (before := tensors.get(id)) is not state or id in copies:
            if before is None:
                check_tensor_id(id)
            else:
                home = before.home if type(before) is TensorState else None
                free_replaced(client, id, home, state.home, output)
            tensors[id] = state


def _instruction_words(coded: CodedSignature, stream: list[Any], i: int) -> list[Any]:
    """A copy of the words of the instruction at ``i``. Raises Violation if they are malformed."""
    words = stream[i : i + coded.width]
    if len(words) < coded.width:
        raise Violation("the stream ends inside an instruction")
    outs = words[HEAD : coded.start]
    if coded.into and outs != words[coded.start : coded.start + len(outs)]:
        raise Violation("the results of an instruction in place must be its first operands")
    if len(outs) > 1:
        _check_distinct(coded, outs)
    return words


def _record_origins(client: Client, plan: InstructionPlan, outs: list[int]) -> None:
    """Remember the plan of results on several workers; for results on one worker there is nothing to explain."""
    for number, id in enumerate(outs):
        state = client.tensors[id]
        if isinstance(state, TensorState) and state.home.single and not state.copies:
            client.forget_origin(id)
        else:
            client.origins[id] = plan, number
            if plan.uncached:
                client.uncached.add(id)


def _lost_transfer(
    client: Client, coded: CodedSignature, words: list[Any], plan: PassThrough | Lost | None, output: ForwardOutput
) -> Lost | None:
    """The reason why the plan or one of the transfers among the operands is lost. The other transfers are discarded."""
    transfers = [words[offset] for offset in coded.blobs if type(words[offset]) is not bytes]
    layouts = {transfer: client.transfers.pop(transfer, None) for transfer in transfers}
    lost = next((layout for layout in (plan, *layouts.values()) if isinstance(layout, Lost)), None)
    for transfer, layout in layouts.items():
        if lost is not None and isinstance(layout, Layout):
            output.segment(layout.workers).words += (DISCARD, transfer)
    return lost


# -- control words -------------------------------------------------------------------------


def _control(client: Client, stream: list[Any], i: int, output: ForwardOutput) -> int:
    """Carry out a control word; returns how many words it takes."""
    code = stream[i]
    if code == FETCH:
        _fetch(client, request_number(stream[i + 1]), stream[i + 2], output)
        return 3
    if code == RESET:
        _reset(client, stream[i + 1], output)
        return 2
    if code == FORGET:
        forget_fragment(client, stream[i + 1], output)
        return 2
    raise Violation(f"unknown control word {code!r}")


def _reset(client: Client, first: int, output: ForwardOutput) -> None:
    """Forget the client's codes below ``first``, and all codes of the dispatcher."""
    for old in [code for code in client.codes if code < first]:
        client.defined_bytes -= client.codes.pop(old).nbytes
    client.first_code = max(client.first_code, first)
    client.forget_plans()
    for number in [n for n, fragment in client.fragments.items() if not fragment.uses_only(client.codes)]:
        del client.fragments[number]
    next_code = client.ledger.forget_codes()
    for worker, announced in client.announced.items():
        announced.difference_update([code for code in announced if code < first])
        output.segment((worker,)).words += (RESET, first, RESET, next_code)


def _fetch(client: Client, request: int, id: int, output: ForwardOutput) -> None:
    """Request a value from the one worker that has it, or from all that have a block of it."""
    state = client.tensors[id]
    if request in client.abandoned_reads:
        client.abandoned_reads.discard(request)
    elif isinstance(state, Lost):
        output.unreadable.append((request, state.text))
    elif state.home.single:
        client.untaken += counted_bytes(state.type.nbytes)
        output.segment(state.workers).words += (FETCH, request, id)
        client.reads[request] = {state.home.worker}
    else:
        _read(client, request, id, state, output)


def _read(client: Client, request: int, id: int, state: TensorState, output: ForwardOutput) -> None:
    """All workers of the layout answer, so a failure on any of them is reported. Partial values are combined first."""
    t = state.type
    client.untaken += counted_bytes(t.nbytes)
    layout = next((layout for layout in state.layouts if layout.replicated), state.home)
    if layout.partial:
        combined = layout.combined()
        MoveEmitter(client, output, 0).relocate(id, PlannedMove(0, layout, combined, t))
        layout = combined
    elif layout is not state.home:
        id = client.copies[id][layout]
    sender = layout.worker if layout.replicated else -1
    blocks = [(w, *layout.block(t.shape, w)) for w in ((sender,) if layout.replicated else layout.workers)]
    output.messages_to_client.append(Blocks(request, t.shape, t.dtype.itemsize, blocks, list(layout.workers)))
    output.segment(layout.workers).words += (READ, request, id, sender)
    client.reads[request] = set(layout.workers)
