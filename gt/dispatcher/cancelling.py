"""Cancelling: a client's submitted instructions are dropped if they were not forwarded yet and nobody needs them.

The client has gone on without a value that it waited for, and Python has freed what the value was computed from. An
instruction is dropped if all its results are freed later in the queue and no instruction that stays uses them. A write
in place is dropped under the same condition. Nothing else depends on an instruction: random numbers are keyed by their
operands, and an op with effects outside the tensors is never dropped. The dispatcher has not planned the queued words
yet, so all workers see the same program, without the dropped words.

The queue is read from its end, and `dead` holds the tensors that are freed without having been used after the word
that is being looked at. What remains is a stream that the client could have sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from gt.dispatcher.plan.layouts import Layout
from gt.dispatcher.replay.replay_plans import KnownFragment
from gt.dispatcher.state import Client
from gt.dispatcher.violations import MALFORMED_STREAM_ERRORS, malformed_stream
from gt.ops.signature import HEAD
from gt.wire.fragments import RUN_HEAD
from gt.wire.messages import Configure, Submit
from gt.wire.words import FETCH, FIRST_CODE, RUN

#: The number of words of the control words that stay as they are: RESET and FORGET.
KEPT_WIDTH = 2


def cancel(client: Client, reads: Collection[int]) -> list[tuple[Layout, int]]:
    """Drop what nobody needs from the client's queue, and these reads. Submissions without words count as done.

    Returns (layout, transfer) of the large values that no instruction will use. Raises Violation if the queue holds a
    malformed stream.
    """
    pruning = _Pruning(client, reads)
    kept: list[list[Any]] = []
    try:
        for message, position in reversed(client.queue):
            if isinstance(message, Submit):
                kept.append([message, pruning.prune(message.stream, position)])
            else:
                kept.append([message, [[0]]])
                if not isinstance(message, Configure):  # a snapshot: it has what is freed after it
                    pruning.dead.clear()
    except MALFORMED_STREAM_ERRORS as error:
        raise malformed_stream(error) from None
    client.queue.clear()
    for message, pieces in reversed(kept):
        if not isinstance(message, Submit):
            client.queue.append([message, 0])
        elif stream := [word for piece in pieces for word in piece]:
            client.queue.append([Submit(message.serial, [], stream, message.weight), 0])
        else:
            client.done += message.weight
    layouts = ((client.transfers.pop(transfer, None), transfer) for transfer in pruning.transfers)
    return [(layout, transfer) for layout, transfer in layouts if isinstance(layout, Layout)]


class _Pruning:
    """One pass over a client's queue, from its end to its beginning."""

    def __init__(self, client: Client, reads: Collection[int]) -> None:
        self.client, self.reads = client, reads
        #: tensor -> the piece of a stream that frees it; the piece is emptied if the tensor is not created at all
        self.dead: dict[int, list[Any]] = {}
        #: the transfers of dropped instructions
        self.transfers: list[int] = []
        self._effects: dict[int, _FragmentEffects] = {}

    def prune(self, stream: list[Any], position: int) -> list[list[Any]]:
        """The words that stay, in pieces. Some of the pieces may be emptied later, while earlier streams are pruned."""
        pieces: list[list[Any]] = []
        for begin, end in reversed(list(self._boundaries(stream, position))):
            pieces += self._keep(stream[begin:end])
        pieces.reverse()
        return pieces

    def _boundaries(self, stream: list[Any], i: int) -> Iterator[tuple[int, int]]:
        """(first word, end) of each instruction and control word."""
        codes, fragments = self.client.codes, self.client.fragments
        while i < len(stream):
            code, begin = stream[i], i
            if code >= FIRST_CODE:
                i += codes[code].width
            elif code < 0:
                i += 1
            elif code == RUN:
                i += fragments[stream[i + 1]].parsed.width
            else:
                i += 3 if code == FETCH else KEPT_WIDTH
            if i > len(stream):
                raise IndexError("the stream ends inside an instruction")
            yield begin, i

    def _keep(self, words: list[Any]) -> list[list[Any]]:
        """The pieces that stay of one instruction or control word."""
        code = words[0]
        if code >= FIRST_CODE:
            return self._instruction(words)
        if code < 0:
            self.dead[-code] = words
        elif code == RUN:
            return self._run(words)
        elif code == FETCH:
            if words[1] in self.reads:
                self.client.abandoned_reads.discard(words[1])
                return []
            self.dead.pop(words[2], None)
        return [words]

    def _instruction(self, words: list[Any]) -> list[list[Any]]:
        coded, dead = self.client.codes[words[0]], self.dead
        outs = words[HEAD : coded.start]
        if outs and not coded.signature.op.effects and all(id in dead for id in outs):
            if not coded.into:
                self._never_created(outs)
            self._drop_transfers([words[offset] for offset in coded.blobs])
            return []
        for id in (*outs, *[words[offset] for offset in coded.offsets]):
            dead.pop(id, None)
        return [words]

    def _run(self, words: list[Any]) -> list[list[Any]]:
        """A fragment is dropped if all its instructions can be. What it frees is still freed."""
        fragment: KnownFragment = self.client.fragments[words[1]]
        parsed, dead = fragment.parsed, self.dead
        effects = self._effects.get(words[1])
        if effects is None:
            effects = self._effects[words[1]] = _FragmentEffects(fragment, self.client)
        ids = parsed.slot_ids(words[3], 0, words[RUN_HEAD : RUN_HEAD + parsed.inputs])
        created, written = [ids[slot] for slot in effects.created], [ids[slot] for slot in effects.written]
        if effects.droppable and all(id in dead for id in created) and all(id in dead for id in written):
            self._never_created(created)
            numbers = words[RUN_HEAD + parsed.inputs :]
            self._drop_transfers([numbers[k] for k in fragment.blobs])
            frees = [[-ids[slot]] for slot in effects.freed]
            dead.update((-free[0], free) for free in frees)
            return frees
        for id in ids:
            dead.pop(id, None)
        return [words]

    def _never_created(self, ids: list[int]) -> None:
        """These tensors are not created, so they must not be freed either."""
        for id in ids:
            self.dead.pop(id).clear()

    def _drop_transfers(self, blobs: list[Any]) -> None:
        self.transfers += [word for word in blobs if type(word) is not bytes]


class _FragmentEffects:
    """What a fragment does to tensors outside of it, as slots."""

    def __init__(self, fragment: KnownFragment, client: Client) -> None:
        parsed = fragment.parsed
        instructions = [one for one in parsed.instructions if one.code >= 0]
        freed = {one.operands[0] for one in parsed.instructions if one.code < 0}
        outs = {slot for one in instructions for slot in one.outs}
        #: inputs that it frees; inputs that it writes and does not free; tensors that it creates and does not free
        self.freed = sorted(slot for slot in freed if slot < parsed.inputs)
        self.written = sorted(slot for slot in outs - freed if slot < parsed.inputs)
        self.created = sorted(slot for slot in outs - freed if slot >= parsed.inputs)
        #: whether it has no effects outside the tensors
        self.droppable = not any(client.codes[one.code].signature.op.effects for one in instructions)
