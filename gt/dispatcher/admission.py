"""What a client may send: looked at before it is queued or passed on, so that nobody pays for it but its sender."""

from __future__ import annotations

from typing import Any

from gt.dispatcher.forward import NONSENSE
from gt.dispatcher.plan.layouts import Layout, Lost
from gt.dispatcher.replay.replay_plans import Known
from gt.dispatcher.state import Client, Coded, Violation
from gt.wire.codec import encode, signature_of
from gt.wire.messages import (
    FIRST_DISPATCHER_CODE,
    MAX_FRAGMENT_WORDS,
    MAX_FRAGMENTS,
    MAX_FRAME_BYTES,
    MAX_SIGNATURES,
    MAX_SUBMIT_WORDS,
    MAX_UNACKNOWLEDGED_BYTES,
    SUBMIT_MARGIN_BYTES,
    WINDOW_WORDS,
    Chunk,
    Submit,
)

NOBODY = Lost("no worker was connected when the value was sent; send it again")


def submission(client: Client, m: Submit, nbytes: int) -> bool:
    """Is it new? Its definitions are known from here on. Raises Violation or BadFrame."""
    if m.serial <= client.serial:
        return False
    if m.serial != client.serial + 1:
        raise Violation(f"submission {m.serial} follows {client.serial}")
    client.serial = m.serial
    if len(m.stream) > MAX_SUBMIT_WORDS or m.weight < len(m.stream):
        raise Violation(f"a submission of {len(m.stream)} words and weight {m.weight}")
    if client.received + m.weight - client.done > 2 * WINDOW_WORDS + 4 * MAX_SUBMIT_WORDS:
        raise Violation("more work than its credit allows")
    words = nbytes - _define(client, m) - _learn(client, m)
    # a word takes 9 bytes at most, bytes among them 5 more than they are, and 8 of those have a weight of 1
    if words > 24 * m.weight + 64 or nbytes > MAX_FRAME_BYTES - SUBMIT_MARGIN_BYTES:
        raise Violation(f"a submission of {nbytes} bytes and weight {m.weight}")
    return True


def _define(client: Client, m: Submit) -> int:
    """The bytes all the definitions take up in the message."""
    nbytes = 0
    for definition in m.definitions:
        if definition.code in client.codes or not client.first_code <= definition.code < FIRST_DISPATCHER_CODE:
            # also after it was forgotten: a worker may still have words to run that mean the first definition
            raise Violation(f"code {definition.code} is defined twice")
        coded = client.codes[definition.code] = Coded(definition, signature_of(definition))
        nbytes += coded.nbytes
    if len(client.codes) > MAX_SIGNATURES:
        raise Violation(f"more than {MAX_SIGNATURES} signatures")
    return nbytes


def _learn(client: Client, m: Submit) -> int:
    """The bytes all the fragments take up in the message."""
    for fragment in m.fragments:
        if not client.last_fragment < fragment.number < FIRST_DISPATCHER_CODE or fragment.dispatcher_created:
            raise Violation(f"fragment {fragment.number} is none of a client's, or told twice")
        client.last_fragment = fragment.number
        if len(fragment.words) > MAX_FRAGMENT_WORDS or max(fragment.inputs, fragment.created) > MAX_FRAGMENT_WORDS:
            raise Violation(f"a fragment of {len(fragment.words)} words")
        try:
            client.fragments[fragment.number] = Known(fragment, client)
        except NONSENSE as error:
            raise Violation(f"a fragment that is none: {error}") from None
    if len(client.fragments) > MAX_FRAGMENTS:
        raise Violation(f"more than {MAX_FRAGMENTS} fragments")
    return sum(len(encode(fragment)) for fragment in m.fragments)


def part(client: Client, home: Layout | None, m: Chunk, rest: tuple[Any, ...]) -> bool:
    """Is there somebody to pass it on to? If not, the instruction that needs it will be told."""
    in_frames = 0 if m.memory is not None else m.nbytes
    if m.nbytes < 0 or [len(frame) for frame in rest] != ([] if m.memory is not None else [m.nbytes]):
        raise Violation("a part without its bytes")
    where = client.transfers.get(m.transfer)
    if where is None:
        where = client.transfers[m.transfer] = NOBODY if home is None else home
    if len(client.transfers) > WINDOW_WORDS or len(client.parts) >= WINDOW_WORDS:
        raise Violation("more parts than may be under way")
    if where is not home:
        return False
    client.parts.append((m.transfer, m.nbytes, in_frames))
    client.parts_ahead += in_frames
    if client.parts_ahead > 4 * MAX_UNACKNOWLEDGED_BYTES:
        raise Violation("more parts than may be under way")
    return True
