"""The words of a stream, and the limits of what a peer may send.

`Submit.stream` is the client's program, a flat list of words:

    code, site, outputs…, operands…    run a signature (see `gt.ops.signature`); code >= FIRST_CODE
    FETCH, request, id                 send the value of a tensor
    RESET, code                        forget the signatures below this code, and the fragments that use them; these
                                       codes and fragment numbers are not used again
    RUN, fragment, 0, base, 0, inputs…, numbers…
                                       run a fragment (see `gt.wire.fragments`)
    FORGET, fragment                   the fragment will not run again
    -id                                free a tensor

A stream to a worker also has signatures and moves that the dispatcher defines, with codes from FIRST_DISPATCHER_CODE
on, tensors with ids from FIRST_DISPATCHER_ID on, and

    READ, request, id, worker          ``worker`` sends the value; -1: each worker sends its block. The others only
                                       confirm that they have a value
    DISCARD, transfer                  drop the chunks of this transfer; no instruction will use them
    LEAVE, group                       leave the group; no move will use it
    TRACE, request, begin              begin a trace; or end it, and send what was recorded
    SNAPSHOT, number                   copy all tensors of the client (see `gt.worker.recovery.snapshots`)
    KEEP, number, id                   copy one tensor (see `gt.worker.recovery.kept_tensors`); 0: it was the last one
    RUN, fragment, section, base, dispatcher_base, inputs…, numbers…
                                       run a fragment from this section on; the dispatcher's ids count from
                                       ``dispatcher_base``

An operand of type bytes is the bytes themselves, or the number of a transfer whose chunks were sent before.
"""

from __future__ import annotations

FETCH, RESET, READ, DISCARD, LEAVE, RUN, FORGET, TRACE, SNAPSHOT, KEEP = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
FIRST_CODE = 16
#: From these on, codes and tensor ids belong to the dispatcher, which creates them to run a program on several workers.
FIRST_DISPATCHER_CODE, FIRST_DISPATCHER_ID = 1 << 31, 1 << 40

#: The words that a client may submit beyond those credited as done. Eight bytes of a value in the stream count as one.
WINDOW_WORDS = 1 << 16
#: A peer that exceeds these limits loses its connection.
MAX_FRAME_BYTES = 16 << 20
MAX_SUBMIT_WORDS = 1 << 16
#: A submission is this much shorter than a frame, because the dispatcher's version of it must fit into one frame too.
SUBMIT_MARGIN_BYTES = 2 << 20
#: The words of one instruction, which also limits its attributes; the signatures of a client, and the size of each.
MAX_INSTRUCTION_WORDS = 1 << 14
MAX_SIGNATURES, MAX_DEFINITION_BYTES = 1 << 16, 256 << 10
#: The bytes of all signatures that a client has defined and not forgotten, and of one configuration of signals.
MAX_DEFINED_BYTES, MAX_CONFIGURE_BYTES = 32 << 20, 1 << 20
#: The bytes of values that a client has requested and not yet reported as taken. It gets no more of them until then.
MAX_UNTAKEN_BYTES = 8 << 20
#: The most bytes that one value counts: a larger one is sent in chunks, which the client acknowledges one by one.
MAX_COUNTED_BYTES = 1 << 20
#: The words of a fragment, and the fragments of a client.
MAX_FRAGMENT_WORDS, MAX_FRAGMENTS = 1 << 14, 256
#: Values up to this size travel in a control message; larger ones travel in chunks.
MAX_INLINE_BYTES = 64 << 10
#: A chunk in a frame is small, so that control messages do not wait long behind it. One in shared memory may be larger.
CHUNK_BYTES, SHARED_CHUNK_BYTES = 1 << 20, 8 << 20
#: Those of a thread in the background are larger: after each it may wait milliseconds for Python's lock.
BACKGROUND_CHUNK_BYTES = 64 << 20
#: The offset of a chunk without bytes that ends a transfer which no instruction will use.
DROPPED = -1
#: The bytes that may be sent in frames before the receiver acknowledges some.
MAX_UNACKNOWLEDGED_BYTES = 8 << 20
#: The size of the shared memory. For values that a client sends it grows to three times the largest, up to the second.
SHARED_RING_BYTES, MAX_SHARED_RING_BYTES = 64 << 20, 256 << 20

Word = int | float | bool | bytes


def counted_bytes(nbytes: int) -> int:
    """What the read of a value of this size counts, with its message."""
    return min(nbytes, MAX_COUNTED_BYTES) + 64
