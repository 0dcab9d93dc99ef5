"""Checks of a client's messages before they are queued or passed on. A client that sends a bad one is refused."""

from __future__ import annotations

from typing import Any

from gt.dispatcher.plan.layouts import Layout, Lost
from gt.dispatcher.replay.replay_plans import KnownFragment
from gt.dispatcher.state import Client, CodedSignature
from gt.dispatcher.violations import MALFORMED_STREAM_ERRORS, Violation
from gt.wire.codec import announced_weight, encode, signature_of
from gt.wire.messages import Chunk, Configure, Submit
from gt.wire.words import (
    FIRST_DISPATCHER_CODE,
    MAX_CONFIGURE_BYTES,
    MAX_DEFINED_BYTES,
    MAX_DEFINITION_BYTES,
    MAX_FRAGMENT_WORDS,
    MAX_FRAGMENTS,
    MAX_FRAME_BYTES,
    MAX_SIGNATURES,
    MAX_SUBMIT_WORDS,
    MAX_UNACKNOWLEDGED_BYTES,
    SUBMIT_MARGIN_BYTES,
    WINDOW_WORDS,
)

#: Values that a session may have sent beyond its quota although no instruction uses them yet. A thread of the client
#: sends the value first and the instruction then; other threads send their values in between.
MAX_UNUSED_TRANSFERS = 64
#: What a chunk in the queue counts besides the bytes in its frame.
QUEUED_CHUNK_BYTES = 64
SENT_WITHOUT_WORKER = Lost("no worker was connected when the value was sent; send it again")


def admit_submission(client: Client, m: Submit, nbytes: int) -> bool:
    """Add the submission's definitions and fragments to the client's; returns False if it is a retry, to be skipped.

    Raises Violation or BadFrame.
    """
    if m.serial <= client.serial:
        return False
    if m.serial != client.serial + 1:
        raise Violation(f"submission {m.serial} follows {client.serial}")
    client.serial = m.serial
    announces = bool(m.definitions or m.fragments)
    announced = announced_weight(m.definitions, m.fragments) if announces else 0
    if len(m.stream) > MAX_SUBMIT_WORDS or m.weight < len(m.stream) + announced:
        raise Violation(f"a submission of {len(m.stream)} words and weight {m.weight}")
    _check_credit(client, m.weight)
    word_bytes = nbytes
    if announces:
        client.share.used += announced * client.share.rate  # microseconds, about, that the dispatcher needs for checks
        word_bytes -= _add_definitions(client, m) + _add_fragments(client, m)
    # A word takes at most 9 bytes. Bytes among the words take 5 more than their length, and 8 of them weigh 1.
    if word_bytes > 24 * m.weight + 64 or nbytes > MAX_FRAME_BYTES - SUBMIT_MARGIN_BYTES:
        raise Violation(f"a submission of {nbytes} bytes and weight {m.weight}")
    return True


def admit_configuration(client: Client, m: Configure, nbytes: int) -> None:
    """Raises Violation if the configuration is too large, or weighs more than it says."""
    if m.weight < nbytes // 8 or nbytes > MAX_CONFIGURE_BYTES:
        raise Violation(f"a configuration of {nbytes} bytes and weight {m.weight}")
    _check_credit(client, m.weight)


def _check_credit(client: Client, weight: int) -> None:
    # a client sends at most this much: it waits while its window is used up, and then sends what it has at once
    if client.received + weight - client.done > 2 * WINDOW_WORDS + 4 * MAX_SUBMIT_WORDS + MAX_DEFINITION_BYTES:
        raise Violation("the client submitted more work than its credit allows")


def _add_definitions(client: Client, m: Submit) -> int:
    """Add the definitions; returns their size on the wire in bytes."""
    nbytes = 0
    for definition in m.definitions:
        if definition.code in client.codes or not client.first_code <= definition.code < FIRST_DISPATCHER_CODE:
            # also refused if it was forgotten: a worker may still have words to run that use the first definition
            raise Violation(f"code {definition.code} is defined twice")
        coded = client.codes[definition.code] = CodedSignature(definition, signature_of(definition))
        nbytes += coded.nbytes
    client.defined_bytes += nbytes
    identity = client.identity
    if identity.quota.definitions and len(client.codes) > identity.quota.definitions:
        raise Violation(f"{identity.user} may have {identity.quota.definitions} signatures defined in a session")
    if len(client.codes) > MAX_SIGNATURES or client.defined_bytes > MAX_DEFINED_BYTES:
        raise Violation(f"more than {MAX_SIGNATURES} signatures, or {MAX_DEFINED_BYTES} bytes of them")
    return nbytes


def _add_fragments(client: Client, m: Submit) -> int:
    """Add the fragments; returns their size on the wire in bytes."""
    for fragment in m.fragments:
        if not client.last_fragment < fragment.number < FIRST_DISPATCHER_CODE or fragment.dispatcher_created:
            raise Violation(
                f"fragment {fragment.number} has a number that a client may not use, or was announced twice"
            )
        client.last_fragment = fragment.number
        if len(fragment.words) > MAX_FRAGMENT_WORDS or max(fragment.inputs, fragment.created) > MAX_FRAGMENT_WORDS:
            raise Violation(f"a fragment of {len(fragment.words)} words")
        try:
            client.fragments[fragment.number] = KnownFragment(fragment, client)
        except MALFORMED_STREAM_ERRORS as error:
            raise Violation(f"the fragment is malformed: {error}") from None
    if len(client.fragments) > MAX_FRAGMENTS:
        raise Violation(f"more than {MAX_FRAGMENTS} fragments")
    return sum(len(encode(fragment)) for fragment in m.fragments)


def chunk_must_wait(client: Client, transfer: int) -> bool:
    """Whether a chunk goes through the queue: behind others, or behind the instructions that use the values that were
    sent before, because the quota of transfers is reached."""
    limit = client.identity.quota.transfers
    return client.queued_chunks > 0 or (0 < limit <= len(client.transfers) and transfer not in client.transfers)


def admit_queued_chunk(client: Client, rest: tuple[Any, ...]) -> None:
    """Raises Violation if too much waits in the queue: the client gets no acknowledgement for it meanwhile."""
    client.queued_chunks += 1
    client.queued_chunk_bytes += queued_bytes(rest)
    if client.queued_chunk_bytes > 4 * MAX_UNACKNOWLEDGED_BYTES + WINDOW_WORDS * QUEUED_CHUNK_BYTES:
        raise Violation("more chunks in transfer than allowed")


def queued_bytes(rest: tuple[Any, ...]) -> int:
    return QUEUED_CHUNK_BYTES + sum(map(len, rest))


def admit_chunk(client: Client, home: Layout | None, m: Chunk, rest: tuple[Any, ...]) -> bool:
    """Whether the chunk is passed on to the home. If not, the transfer is lost, and so are the results that use it.

    Raises Violation.
    """
    frame_bytes = 0 if m.memory is not None else m.nbytes
    if m.nbytes < 0 or [len(frame) for frame in rest] != ([] if m.memory is not None else [m.nbytes]):
        raise Violation("the chunk does not have as many bytes as it says")
    where = client.transfers.get(m.transfer)
    if where is None:
        where = client.transfers[m.transfer] = SENT_WITHOUT_WORKER if home is None else home
    limit = client.identity.quota.transfers
    if limit and len(client.transfers) > limit + MAX_UNUSED_TRANSFERS:
        raise Violation(f"{client.identity.user} may send {limit} large values at a time in a session")
    if len(client.transfers) > WINDOW_WORDS or len(client.chunks) >= WINDOW_WORDS:
        raise Violation("more chunks in transfer than allowed")
    if where is not home:
        return False
    client.chunks.append((m.transfer, m.nbytes, frame_bytes))
    client.chunk_bytes += frame_bytes
    if client.chunk_bytes > 4 * MAX_UNACKNOWLEDGED_BYTES:
        raise Violation("more chunks in transfer than allowed")
    return True
